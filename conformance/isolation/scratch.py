"""Temporary folders that are removed, together with all processes that use them, when their owner ends.

A separate process, the keeper, waits for the end of a pipe, which comes when the owner closes it or is killed. It then
kills all processes that have the folder's mark in their environment, in whatever session they are, and removes the
folder. If the keeper is killed as well, the next keeper removes the folders that no process locks any more.
"""

import contextlib
import getpass
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import compiler

MARK = "MLCOMP_SCRATCH"  # environment variable that marks a process with its folder
ROOT = Path(__file__).parents[2]  # the keeper's import path, besides the standard library
KEEP = "import sys; sys.path.append(sys.argv[2]); from conformance.isolation.scratch import keep; keep(sys.argv[1])"
ROUNDS, PAUSE = 500, 0.01  # most rounds of killing, as processes may start others meanwhile, and seconds between them
QUIET = 2  # rounds without a find before it stops: during exec a process has no environment for a moment


@dataclass(frozen=True)
class Scratch:
    """A temporary folder and its keeper."""

    folder: Path
    keeper: subprocess.Popen[bytes]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a process whose temporary files go here and that ends with the folder."""
        variables = {MARK: str(self.folder), "TMPDIR": str(self.folder)}
        # Inductor's cache is in the temporary folder by default; it should outlive a run.
        return variables | {"TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", _inductor_folder())}

    def close(self) -> None:
        """End the processes, remove the folder, and wait until that is done."""
        _release(self.keeper)


def make() -> Scratch:
    """Make a folder; raises OSError if it cannot be made."""
    # The keeper makes the folder, so that this process cannot be killed between making it and having it kept.
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", KEEP, tempfile.gettempdir(), str(ROOT)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
    )  # fmt: skip
    try:
        assert keeper.stdout is not None
        with keeper.stdout as output:
            answer = os.fsdecode(output.read())
        if not answer:
            raise OSError(f"no folder for temporary files could be made in {tempfile.gettempdir()}")
        return Scratch(Path(answer), keeper)
    except BaseException:
        _release(keeper)
        raise


def _release(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        keeper.stdin.close()
    keeper.wait()


def keep(parent: str) -> None:
    """As the keeper, make a folder in `parent`, print its path, remove abandoned ones, wait for the owner, clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    folder, _ = compiler.locked_folder(Path(parent))
    os.write(1, os.fsencode(folder))
    os.close(1)
    compiler.sweep_folders(Path(parent), clean_up)
    sys.stdin.buffer.read()
    clean_up(folder)


def clean_up(folder: Path) -> None:
    """Kill all processes that are marked with the folder, then remove it."""
    quiet = 0
    for _ in range(ROUNDS):
        marked = list(marked_processes(folder))
        for process in marked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        quiet = 0 if marked else quiet + 1
        if quiet == QUIET and not compiler.remove_folder(folder):
            quiet = 0  # a process still writes there
        if quiet == QUIET:
            break
        time.sleep(PAUSE)


def marked_processes(folder: Path) -> Iterator[int]:
    """Yield this user's processes that are marked with the folder; none if there is no /proc."""
    marker = f"{MARK}={folder}".encode()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):  # another user's, or ended
                    if marker in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                        yield int(name)


def _inductor_folder() -> str:
    """Return the default folder of Inductor's cache."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = str(os.getuid())
    return str(Path(tempfile.gettempdir()) / f"torchinductor_{user}")
