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
    (result,) = run_all([command], work)
    return result


def run_all(commands: list[list[str]], work: Path, parallel: int = 1) -> list[tuple[int, str]]:
    """Run commands, `parallel` at a time, with temporary files in `work`. Raises OSError if one cannot be started."""
    # A session of its own, so that a compiler driver's children (cc1plus, as, ld) are killed with it, and a terminal's
    # Ctrl-C reaches this process first. LC_ALL because messages are quoted.
    environment = {**os.environ, "TMPDIR": str(work), "LC_ALL": "C"}
    running: deque[subprocess.Popen[str]] = deque()
    out: list[tuple[int, str]] = []

    def finish() -> None:
        messages, _ = running[0].communicate()
        out.append((running.popleft().returncode, messages))

    try:
        for command in commands:
            if len(running) == parallel:
                finish()
            with _delayed_interrupts():
                running.append(subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    text=True, errors="replace", start_new_session=True, env=environment,
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
def _delayed_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the block ends: an interrupted start would lose track of a running process.

    Python raises interrupts in the main thread only; a handler not installed from Python is left alone.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pending.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        while pending:
            signal.raise_signal(pending.pop())
