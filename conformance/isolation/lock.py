"""The machine lock: a readers-writer lock between all processes, shared by checks and exclusive for timed sections.

It consists of two files, to be fair to writers. Every process first acquires the gate; one that waits for the exclusive
lock holds the gate meanwhile, so that a stream of shared holders cannot starve it. The kernel releases the locks of a
process that dies.
"""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

Quiet = Callable[[], AbstractContextManager[None]]


def default_path() -> Path:
    """Return the lock file of this machine, common to all users and checkouts."""
    return Path(tempfile.gettempdir()) / "mlcomp.lock"


def _do_nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Machine:
    """The lock in one process; `waiting` and `running` are called before and after every wait."""

    path: Path
    waiting: Callable[[], None] = _do_nothing
    running: Callable[[], None] = _do_nothing


@contextmanager
def shared(machine: Machine) -> Iterator[Quiet]:
    """Hold the lock shared; yields a context manager that holds it exclusively instead, for a timed section."""
    with ExitStack() as holds:
        holds.enter_context(_hold(machine, fcntl.LOCK_SH))

        @contextmanager
        def quiet() -> Iterator[None]:
            # Two holders that kept their shared locks while waiting for the exclusive one would deadlock.
            holds.close()
            try:
                with _hold(machine, fcntl.LOCK_EX):
                    yield
            finally:
                holds.enter_context(_hold(machine, fcntl.LOCK_SH))

        yield quiet


@contextmanager
def _hold(machine: Machine, mode: int) -> Iterator[None]:
    gate_path = machine.path.with_name(machine.path.name + ".gate")
    with _open_lock_file(machine.path) as lock:
        with _open_lock_file(gate_path) as gate:
            _acquire(machine, gate, mode)
            _acquire(machine, lock, mode)
        yield


def _acquire(machine: Machine, descriptor: int, mode: int) -> None:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        machine.waiting()
        fcntl.flock(descriptor, mode)
        machine.running()


@contextmanager
def _open_lock_file(path: Path) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    # First without O_CREAT: in a sticky /tmp it is refused for a file that belongs to another user.
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


RUN = "PYTEST_XDIST_TESTRUNUID"  # equal in all processes of a run with xdist, and in their children


def waiting_message(path: Path) -> str:
    """Return the message of a run that waits for the lock; "" if it only waits for itself."""
    holder = next((pid for pid in _holders(path) if not _is_ours(pid)), None)
    if holder is None:
        return ""
    command = " ".join(_read(holder, "cmdline").split("\0")).strip()
    return f"mlcomp: waiting for process {holder}, which has this machine's lock {path}: {command[:100]}"


def _holders(path: Path) -> list[int]:
    """Return the processes that hold the lock or its gate, from /proc/locks."""
    inodes = set()
    for file in (path, path.with_name(path.name + ".gate")):
        try:
            inodes.add(str(file.stat().st_ino))
        except OSError:
            continue
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return []
    locks = [words for words in lines if "FLOCK" in words and "->" not in words]
    return [int(words[4]) for words in locks if words[5].rpartition(":")[2] in inodes and int(words[4]) > 0]


def _is_ours(pid: int) -> bool:
    """Return whether a process belongs to this run or descends from this process."""
    run = os.environ.get(RUN)
    if run is not None and f"{RUN}={run}" in _read(pid, "environ").split("\0"):
        return True
    while pid > 1 and pid != os.getpid():
        status = _read(pid, "stat").rpartition(")")[2].split()
        pid = int(status[1]) if status else 0
    return pid == os.getpid()


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
