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
    for leftover in (nameless, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    return not nameless.exists() and not folder.exists()


def locked_folder(place: Path) -> tuple[Path, int]:
    """Create a folder; return it and the descriptor that locks it until this process ends."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=NAMELESS, dir=place))
        with contextlib.suppress(FileNotFoundError):  # another process swept it before it was locked
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return folder.rename(place / (PREFIX + folder.name.removeprefix(NAMELESS))), lock
            except FileNotFoundError:
                os.close(lock)


def sweep_folders(place: Path, remove: Callable[[Path], object] = remove_folder) -> None:
    """Remove this user's folders in `place` that no live process locks."""
    for leftover in place.glob(f"{PREFIX}*/{LOCK}"):
        _sweep(leftover, remove, os.O_RDWR)
    for leftover in place.glob(f"{NAMELESS}*"):
        # Its process may have been killed before locking it.
        _sweep(leftover / LOCK, remove_folder, os.O_RDWR | os.O_CREAT)


def _sweep(lock_path: Path, remove: Callable[[Path], object], flags: int) -> None:
    with contextlib.suppress(OSError):  # in use
        if lock_path.parent.lstat().st_uid != os.getuid():
            return
        lock = os.open(lock_path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(lock_path.parent)
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
