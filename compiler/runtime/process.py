"""Run commands of a toolchain; none of their processes outlives an interrupt."""

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path


def run(command: list[str], work: Path) -> tuple[int, str]:
    """Run a command with its temporary files in `work`; return exit status and messages. Raises OSError."""
    (done,) = run_all([command], work)
    return done


def run_all(commands: list[list[str]], work: Path, at_once: int = 1) -> list[tuple[int, str]]:
    """Run commands, `at_once` in parallel, with temporary files in `work`. Raises OSError if one cannot be started."""
    # A session of its own, so that a compiler driver's children (cc1plus, as, ld) are killed with it, and a terminal's
    # Ctrl-C reaches this process first. LC_ALL because messages are quoted.
    surroundings = {**os.environ, "TMPDIR": str(work), "LC_ALL": "C"}
    running: deque[subprocess.Popen[str]] = deque()
    out: list[tuple[int, str]] = []

    def finish() -> None:
        messages, _ = running[0].communicate()
        out.append((running.popleft().returncode, messages))

    try:
        for command in commands:
            if len(running) == at_once:
                finish()
            with _interrupts_wait():
                running.append(subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    text=True, errors="replace", start_new_session=True, env=surroundings,
                ))  # fmt: skip
        while running:
            finish()
    except BaseException:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise
    return out


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Delay Ctrl-C until the block ends: an interrupted start would lose track of a running process.

    Python raises interrupts in the main thread only; a handler not installed from Python is left alone.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        while waiting:
            signal.raise_signal(waiting.pop())
