"""Temporary folders of a process: locked while it lives, removed by a later process if it was killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

PREFIX, LOCK = "mlcomp-", ".lock"
NAMELESS = ".mlcomp-new-"  # the prefix during creation and removal: a folder with it and without a lock is a leftover


def remove_folder(folder: Path) -> bool:
    """Remove a folder; return whether it is gone. If this process is killed meanwhile, the next sweep continues."""
    nameless = folder if folder.name.startswith(NAMELESS) else folder.with_name(NAMELESS + folder.name)
    with contextlib.suppress(OSError):  # it is gone, or partly removed earlier
        folder.rename(nameless)
    for left in (nameless, folder):
        shutil.rmtree(left, ignore_errors=True)
    return not nameless.exists() and not folder.exists()


def locked_folder(place: Path) -> tuple[Path, int]:
    """Create a folder; return it and the descriptor that locks it until this process ends."""
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
    """Remove this user's folders in `place` that no live process locks."""
    for left in place.glob(f"{PREFIX}*/{LOCK}"):
        _sweep(left, remove, os.O_RDWR)
    for left in place.glob(f"{NAMELESS}*"):
        _sweep(left / LOCK, remove_folder, os.O_RDWR | os.O_CREAT)  # its process may have been killed before locking it


def _sweep(left: Path, remove: Callable[[Path], object], how: int) -> None:
    with contextlib.suppress(OSError):  # in use
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
    """Create a folder in `place` and remove it afterwards; first remove those left by killed processes."""
    sweep_folders(place)
    folder, lock = locked_folder(place)
    try:
        yield folder
    finally:
        remove_folder(folder)
        os.close(lock)
