"""A folder for the temporary files of one child out; it goes when its owner does, and every process started for it too.

A process of its own keeps the folder: it waits for the end of a pipe, which comes when the owner closes it, and as well
when the owner is killed. It then ends all processes that carry the folder's mark in their environment, wherever they
were started and in whatever session they are, and removes the folder. Should the keeper be killed too, the next one
removes what nobody locks any more.
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

MARK = "MLCOMP_SCRATCH"  # the environment variable that says whose a process is
ROOT = Path(__file__).parents[2]  # what the keeper imports from: it has no packages but Python's own
KEEP = "import sys; sys.path.append(sys.argv[2]); from conformance.isolation.scratch import keep; keep(sys.argv[1])"
ROUNDS, PAUSE = 500, 0.01  # of ending processes that go on starting others
QUIET = 2  # rounds that find none: a process that just becomes another program has no environment for a moment


@dataclass(frozen=True)
class Scratch:
    """A folder that is kept."""

    folder: Path
    keeper: subprocess.Popen[bytes]

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to know, so that its temporary files are here and that it ends with the folder."""
        own = {MARK: str(self.folder), "TMPDIR": str(self.folder)}
        # Inductor's cache lies among temporary files by default, and should outlive a run.
        return own | {"TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", _inductor_folder())}

    def close(self) -> None:
        """End the processes and remove the folder; returns when both are gone."""
        _release(self.keeper)


def make() -> Scratch:
    """A new folder; raises OSError where there is no room for one."""
    # The keeper makes the folder: at no moment could this process be killed and leave one behind.
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", KEEP, tempfile.gettempdir(), str(ROOT)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
    )  # fmt: skip
    try:
        assert keeper.stdout is not None
        with keeper.stdout as said:
            answer = os.fsdecode(said.read())
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


def keep(place: str) -> None:
    """Make a folder in `place`, say its name, remove those that nobody keeps, wait for the owner's end, clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    folder, _ = compiler.locked_folder(Path(place))
    os.write(1, os.fsencode(folder))
    os.close(1)
    compiler.sweep_folders(Path(place), end)
    sys.stdin.buffer.read()
    end(folder)


def end(folder: Path) -> None:
    """End every process that is marked with the folder, then remove it."""
    quiet = 0
    for _ in range(ROUNDS):
        marked = list(members(folder))
        for process in marked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        quiet = 0 if marked else quiet + 1
        if quiet == QUIET and not compiler.remove_folder(folder):
            quiet = 0  # somebody still writes there
        if quiet == QUIET:
            break
        time.sleep(PAUSE)


def members(folder: Path) -> Iterator[int]:
    """The processes of this user that are marked with the folder; none where there is no /proc."""
    wanted = f"{MARK}={folder}".encode()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):  # another's, or gone
                    if wanted in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                        yield int(name)


def _inductor_folder() -> str:
    """Where it lies by default."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = str(os.getuid())
    return str(Path(tempfile.gettempdir()) / f"torchinductor_{user}")
