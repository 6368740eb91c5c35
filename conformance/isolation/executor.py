"""Call functions in a child process, so that a crash, a hang or excessive memory costs one call and not the run.

Functions are called by name with JSON arguments, in a persistent child process with its own pipes, process group and
temporary files. Only the parent watches time and memory, so code in the child cannot defeat the limits.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from conformance.isolation import lock, scratch
from conformance.isolation.child import LENGTH, STACK_SIGNAL, encode
from conformance.isolation.scratch import Scratch

GIB = 2**30
START_SECONDS = 180.0  # time limit of the imports: torch from a cold disk on a loaded machine
POLL_MS = 20
PATIENCE_SECONDS = 2.0  # of waiting for the machine lock before that is reported
FAMILY_SECONDS = 0.25  # interval at which the memory of the child's own children (compilers) is included
OUTPUT_LIMIT = 64 * 2**20
TAIL_BYTES = 4000
STACK_BYTES = 2**16  # more than faulthandler prints
FRAMES = 15  # of each stack
STACK_SECONDS = 0.2
MESSAGE_LIMIT = 2**30
BOOTSTRAP = (
    "import json, sys; setup = json.loads(sys.argv[1]); sys.path[:] = setup['path']; "
    "from conformance.isolation.child import main; main(setup)"
)


class Status(StrEnum):
    """How a call ended: it returned, it raised an exception, its process died, or its time ran out."""

    DONE = "done"
    RAISED = "raised"
    CRASH = "crash"
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class Reply:
    """The result of a call; `output` is the end of what the child printed."""

    status: Status
    value: Any = None
    message: str = ""
    output: str = ""
    seconds: float = 0.0
    at: str = ""  # the last progress that the function reported
    first_loss: str = ""  # message of a first try that was lost in a used process, before a new one repeated the call


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    requests: BinaryIO
    replies: int
    log: BinaryIO
    scratch: Scratch
    calls: int = 0
    at: str = ""
    buffer: bytearray = field(default_factory=bytearray)
    child_ends: list[int] = field(default_factory=list)  # the child's ends of the pipes, open until it has its own


class _Lost(Exception):
    """The child has died or must be killed; `status` says how the call ended."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


class Executor:
    """A persistent child process, started when first needed and again after a loss."""

    def __init__(
        self,
        preload: Sequence[str] = (),
        memory: int = 6 * GIB,
        machine: Path | None = None,
        cwd: Path | None = None,
        under: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        waits: Callable[[], None] = lambda: None,
    ) -> None:
        """Configure the child.

        `preload` are modules that it imports at its start, `memory` is its limit in bytes, `machine` the path of the
        machine lock, `under` a command that runs the child, such as a debugger, and `environment` is added to its
        environment. `waits` is called once per call whose child has waited for the machine lock for PATIENCE_SECONDS.
        """
        self.waits = waits
        self.preload, self.under, self.environment = tuple(preload), tuple(under), dict(environment or {})
        self.memory = memory
        self.machine = machine or lock.default_path()
        self.cwd = cwd
        self._child: _Child | None = None
        self._unstartable: Reply | None = None  # the reply to all calls once the imports have failed

    def start(self) -> None:
        """Start the child without waiting for it, so that its imports overlap with other work."""
        if self._child is None:
            self._child = _spawn(self.preload, self.machine, self.cwd, self.under, self.environment)

    def call(self, function: str, *arguments: Any, timeout: float, hold: str = "") -> Reply:
        """Run `module:function` in the child; `hold` is the mode of the machine lock: "", "shared" or "exclusive".

        If the process crashes and had run earlier calls, which may have damaged it, the call is repeated in a new one.
        """
        if self._unstartable is not None:
            return self._unstartable
        used = self._child is not None and self._child.calls > 0
        reply = self._attempt(function, arguments, timeout, hold)
        if reply.status is Status.CRASH and used:
            return replace(self._attempt(function, arguments, timeout, hold), first_loss=reply.message)
        return reply

    def close(self) -> None:
        """End the child and all processes that it started."""
        child, self._child = self._child, None
        if child is not None:
            _end_process_group(child)

    def _attempt(self, function: str, arguments: Sequence[Any], timeout: float, hold: str) -> Reply:
        started = time.monotonic()
        try:
            self.start()
            child = self._child
            assert child is not None
            if child.calls == 0:
                startup_reply = self._receive(child, START_SECONDS)
                _close_child_ends(child)
                if "raised" in startup_reply:
                    self.close()
                    message = f"the checking process could not start: {startup_reply['raised']}"
                    self._unstartable = Reply(Status.RAISED, None, message, startup_reply["traceback"])
                    return self._unstartable
            os.ftruncate(child.log.fileno(), 0)
            child.calls, child.at = child.calls + 1, ""
            started = time.monotonic()
            _send(child, {"function": function, "arguments": arguments, "lock": hold})
            answer = self._receive(child, timeout)
            if "lost" in answer:
                raise _Lost(Status.CRASH, answer["lost"])
        except _Lost as loss:
            progress = self._child.at if self._child else ""
            output = self._drop_child(timed_out=loss.status is Status.TIMEOUT)
            return Reply(loss.status, None, str(loss), output, time.monotonic() - started, progress)
        except BaseException:  # such as KeyboardInterrupt: leave no orphan
            self.close()
            raise
        seconds = time.monotonic() - started
        if _resident_bytes(child.process.pid) > self.memory // 2:
            self.close()  # it holds so much memory that the next call could exceed the limit
        if "raised" in answer:
            return Reply(Status.RAISED, None, answer["raised"], answer["traceback"][-TAIL_BYTES:], seconds, child.at)
        return Reply(Status.DONE, answer["value"], seconds=seconds, at=child.at)

    def _drop_child(self, timed_out: bool) -> str:
        child, self._child = self._child, None
        if child is None:
            return ""
        if timed_out and not _is_dead(child):
            os.kill(child.process.pid, STACK_SIGNAL)  # prints where it hangs
            time.sleep(STACK_SECONDS)
        output = _output_tail(child)
        _end_process_group(child)
        return output

    def _receive(self, child: _Child, timeout: float) -> dict[str, Any]:
        """Return the next reply, or raise _Lost. Time in which the child waits for the machine lock does not count."""
        clock, reported = _Clock(timeout), False
        family_checked = time.monotonic()
        poll = select.poll()
        poll.register(child.replies, select.POLLIN)
        while True:
            ready = poll.poll(POLL_MS)
            if ready and not _read_available(child):
                raise _Lost(Status.CRASH, _cause_of_death(child))
            for message in _messages(child):
                if "event" not in message:
                    return message
                if message["event"] == "at":
                    child.at = message["where"]
                else:
                    clock.pause(message["event"] == "waiting")
            if not ready and _is_dead(child):
                raise _Lost(Status.CRASH, _cause_of_death(child))
            if not reported and clock.paused_for() > PATIENCE_SECONDS:
                self.waits()
                reported = True
            if clock.expired():
                raise _Lost(Status.TIMEOUT, f"no answer within {timeout:g} s; its process was killed")
            include_family = time.monotonic() - family_checked > FAMILY_SECONDS
            family_checked = time.monotonic() if include_family else family_checked
            self._check_memory(child, include_family)

    def _check_memory(self, child: _Child, include_family: bool) -> None:
        used = (
            sum(map(_resident_bytes, _process_tree(child.process.pid)))
            if include_family
            else _resident_bytes(child.process.pid)
        )
        if used > self.memory:
            limit = f"{self.memory / GIB:.1f} GiB"
            raise _Lost(Status.CRASH, f"out of memory: it used more than {limit}; its process was killed")
        if include_family and os.fstat(child.log.fileno()).st_size > OUTPUT_LIMIT:
            os.ftruncate(child.log.fileno(), 0)


class _Clock:
    """A countdown that can be paused."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._since: float | None = time.monotonic()
        self._paused_at = 0.0

    def pause(self, paused: bool) -> None:
        now = time.monotonic()
        if self._since is not None:
            self._left -= now - self._since
        self._since = None if paused else now
        self._paused_at = now

    def paused_for(self) -> float:
        """Return the seconds since the present pause began; 0 if it is running."""
        return time.monotonic() - self._paused_at if self._since is None else 0.0

    def expired(self) -> bool:
        return self._since is not None and time.monotonic() - self._since > self._left


def _spawn(
    preload: Sequence[str], machine: Path, cwd: Path | None, under: Sequence[str], environment: Mapping[str, str]
) -> _Child:
    scratch_folder = scratch.make()
    request_read, request_write = os.pipe()
    reply_read, reply_write = os.pipe()
    child_ends = [request_read, reply_write]
    log = tempfile.TemporaryFile("ab+")  # noqa: SIM115  append mode: truncation from here rewinds the child's writes too
    setup = {
        "path": [str(Path(entry).absolute()) for entry in sys.path],
        "parent": 0 if under else os.getpid(),
        # A command in between may not pass descriptors on, so the child opens them by path.
        "requests": f"/proc/{os.getpid()}/fd/{request_read}" if under else request_read,
        "replies": f"/proc/{os.getpid()}/fd/{reply_write}" if under else reply_write,
        "machine": str(machine),
        "preload": list(preload),
    }
    try:
        process = subprocess.Popen(
            [*under, sys.executable, "-P", "-u", "-c", BOOTSTRAP, json.dumps(setup)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=cwd,
            env={**os.environ, **environment, **scratch_folder.environment},
            pass_fds=() if under else child_ends, start_new_session=True,
        )  # fmt: skip
    except BaseException:
        for descriptor in (*child_ends, request_write, reply_read):
            os.close(descriptor)
        scratch_folder.close()
        raise
    os.set_blocking(reply_read, False)
    child = _Child(process, os.fdopen(request_write, "wb"), reply_read, log, scratch_folder, child_ends=child_ends)
    if not under:
        _close_child_ends(child)
    return child


def _close_child_ends(child: _Child) -> None:
    """Close the child's ends of the pipes in this process, so that its death is seen as the end of the pipe."""
    while child.child_ends:
        os.close(child.child_ends.pop())


def _send(child: _Child, message: dict[str, Any]) -> None:
    data = encode(message)
    try:
        child.requests.write(data)
        child.requests.flush()
    except BrokenPipeError:
        raise _Lost(Status.CRASH, _cause_of_death(child)) from None


def _read_available(child: _Child) -> bool:
    """Read what the pipe has into the buffer; returns False at its end."""
    try:
        data = os.read(child.replies, 1 << 20)
    except BlockingIOError:
        return True
    child.buffer += data
    return bool(data)


def _messages(child: _Child) -> Iterator[dict[str, Any]]:
    """Yield the complete messages in the buffer and remove them from it."""
    while len(child.buffer) >= LENGTH.size:
        end = LENGTH.size + LENGTH.unpack_from(child.buffer)[0]
        if end > MESSAGE_LIMIT:
            raise _Lost(Status.CRASH, f"sent an unreadable reply: {bytes(child.buffer[:80])!r}")
        if len(child.buffer) < end:
            return
        text = bytes(child.buffer[LENGTH.size : end])
        del child.buffer[:end]
        try:
            yield json.loads(text)
        except ValueError:
            raise _Lost(Status.CRASH, f"sent an unreadable reply: {text[:80]!r}") from None


def _is_dead(child: _Child) -> bool:
    # WNOWAIT leaves a zombie, so that the group id cannot be reused before the group is killed.
    return os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _cause_of_death(child: _Child) -> str:
    """Return how the process ended: its signal or exit status, or that it only closed its pipe."""
    deadline = time.monotonic() + 2.0
    while not _is_dead(child):
        if time.monotonic() > deadline:
            return "closed its reply pipe and went on; its process was killed"
        time.sleep(0.01)
    exit_info = os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
    assert exit_info is not None
    if exit_info.si_code == os.CLD_EXITED:
        return f"its process exited with status {exit_info.si_status}"
    hint = " (not by this run: the system's out-of-memory killer?)" if exit_info.si_status == signal.SIGKILL else ""
    return f"its process died of {signal.Signals(exit_info.si_status).name}{hint}"


def _end_process_group(child: _Child) -> None:
    with suppress(ProcessLookupError):  # nobody left in the group
        os.killpg(child.process.pid, signal.SIGKILL)
    child.process.wait()
    _close_child_ends(child)
    for stream in (child.requests, child.log):
        with suppress(BrokenPipeError):  # a request that the dead child never read
            stream.close()
    os.close(child.replies)
    child.scratch.close()


def _output_tail(child: _Child) -> str:
    descriptor = child.log.fileno()
    size = os.fstat(descriptor).st_size
    output = os.pread(descriptor, STACK_BYTES, max(0, size - STACK_BYTES)).decode(errors="replace")
    return _shorten_stacks(output)[-TAIL_BYTES:].strip("\0\n")


def _shorten_stacks(output: str) -> str:
    """Leave the most recent calls of each stack that faulthandler printed, and not its list of extension modules."""
    frame = r"  File .*, line (?:\d+|\?\?\?) in .*\n"
    output = re.sub(rf"((?:{frame}){{{FRAMES}}})(?:{frame})+", r"\1  ...\n", output)
    return re.sub(r"^Extension modules: .*\n?", "", output, flags=re.MULTILINE)


def _resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it has ended or there is no /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _process_tree(pid: int) -> Iterator[int]:
    """Yield a process and, if /proc lists them, all its descendants."""
    yield pid
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        for thread in threads:
            for child in (thread / "children").read_text().split():
                yield from _process_tree(int(child))
    except OSError:
        return
