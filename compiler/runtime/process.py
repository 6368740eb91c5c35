"""A command of a toolchain in; its exit status and messages out; nothing of it outlives an interrupt."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path


def run(command: list[str], work: Path) -> tuple[int, str]:
    """Run it with its temporary files in `work`; raises OSError where it cannot be started."""
    # A session of its own, so that a compiler driver's children (cc1plus, as, ld) end with it and a terminal's Ctrl-C
    # reaches us first. LC_ALL because we quote the messages.
    surroundings = {**os.environ, "TMPDIR": str(work), "LC_ALL": "C"}
    with _interrupts_wait() as interrupts_come:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", start_new_session=True, env=surroundings,
        )  # fmt: skip
        try:
            interrupts_come()
            messages, _ = process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    return process.returncode, messages


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits until the block ends or calls what it is given: a start cut short would lose a running process.

    Python raises interrupts in the main thread alone; a handler that is not Python's is not ours to replace.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    waiting: list[int] = []

    def come() -> None:
        signal.signal(signal.SIGINT, handler)
        while waiting:
            signal.raise_signal(waiting.pop())

    signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    try:
        yield come
    finally:
        come()
