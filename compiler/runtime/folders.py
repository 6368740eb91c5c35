"""Temporary folders that go with their process: locked while it lives, swept by the next one should it be killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

PREFIX, LOCK = "mlcomp-", ".lock"
NAMELESS = ".mlcomp-new-"  # while it is made and while it is removed: what has this name and no lock is left over


def remove_folder(folder: Path) -> bool:
    """Remove a folder, and whether it is gone; should this process be killed meanwhile, the next sweep goes on."""
    nameless = folder if folder.name.startswith(NAMELESS) else folder.with_name(NAMELESS + folder.name)
    with contextlib.suppress(OSError):  # it is gone, or a part of it is left from before
        folder.rename(nameless)
    for left in (nameless, folder):
        shutil.rmtree(left, ignore_errors=True)
    return not nameless.exists() and not folder.exists()


def locked_folder(place: Path) -> tuple[Path, int]:
    """A new folder and the descriptor that locks it until this process ends."""
    while True:
        made = Path(tempfile.mkdtemp(prefix=NAMELESS, dir=place))
        with contextlib.suppress(FileNotFoundError):  # another process swept it before it was locked
            lock = os.open(made / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return made.rename(place / (PREFIX + made.name.removeprefix(NAMELESS))), lock
            except FileNotFoundError:
                os.close(lock)


def sweep_folders(place: Path, remove: Callable[[Path], object] = remove_folder) -> None:
    """Remove the folders in `place` whose processes were killed: this user's that nobody locks any more."""
    for left in place.glob(f"{PREFIX}*/{LOCK}"):
        _sweep(left, remove, os.O_RDWR)
    for left in place.glob(f"{NAMELESS}*"):
        _sweep(left / LOCK, remove_folder, os.O_RDWR | os.O_CREAT)  # its process may have been killed before


def _sweep(left: Path, remove: Callable[[Path], object], how: int) -> None:
    with contextlib.suppress(OSError):  # one in use
        if left.parent.lstat().st_uid != os.getuid():
            return
        lock = os.open(left, how | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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
        remove_folder(folder)
        os.close(lock)
