"""Temporary folders that go with their process: locked while it lives, swept by the next one should it be killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

PREFIX, LOCK = "mlcomp-", ".lock"
NAMELESS = ".mlcomp-new-"  # until it is locked, so that nobody takes it for one left behind


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def locked_folder(place: Path) -> tuple[Path, int]:
    """A new folder and the descriptor that locks it until this process ends."""
    made = Path(tempfile.mkdtemp(prefix=NAMELESS, dir=place))
    lock = os.open(made / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return made.rename(place / (PREFIX + made.name.removeprefix(NAMELESS))), lock


def sweep_folders(place: Path, remove: Callable[[Path], None] = _remove) -> None:
    """Remove the folders in `place` whose processes were killed: this user's that nobody locks any more."""
    for left in place.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):  # one in use
            if left.parent.lstat().st_uid != os.getuid():
                continue
            lock = os.open(left, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(left.parent)
            finally:
                os.close(lock)


@contextlib.contextmanager
def own_folder(place: Path) -> Iterator[Path]:
    """A folder in `place` that goes afterwards; those that killed processes left there go before."""
    sweep_folders(place)
    folder, lock = locked_folder(place)
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(lock)
