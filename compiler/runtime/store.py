"""A cache folder of built files that this user's processes share, keyed by digest.

An entry is published by one rename and has a seal that binds it to its name, the digest of everything it was built
from. Thus an entry truncated by a crash or a full disk is detected, and a file from someone else, or a copy of another
entry, is never loaded. Nothing can change between the check and the loading, since folders that others could write to
are refused.
"""

import atexit
import contextlib
import functools
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from compiler.errors import CacheError
from compiler.runtime import folders, seal, trust

log = logging.getLogger("mlcomp")

FORMAT = "sealed-1"  # the folder of entries of this format inside the cache; others are left alone
_DAY = 24 * 3600.0
LEFTOVER_AGE = 3600.0  # seconds after which a build folder counts as left by a killed process


def entry(cache: Path | None, digest: str, suffix: str) -> Path:
    """The path of the product with this hex digest: in `cache`, or without a usable cache in a folder of this process.
    Raises CacheError for a folder in which others could change it."""
    folder = cache if cache is not None and seal.is_persistent() else process_folder()
    path = Path(os.path.realpath(folder)) / FORMAT / digest[:2] / f"{digest[2:40]}{suffix}"
    _check_trusted(path)
    return path


def cache_of(path: Path) -> Path:
    """The cache that contains an entry."""
    return path.parents[2]


def _check_trusted(path: Path) -> None:
    folder, cache = path.parent, cache_of(path)
    if folder in _trusted_folders:
        return
    if problem := trust.distrust_reason(folder, cache):
        raise CacheError(cache, problem, "Make it your own")
    if folder.is_dir():
        _trusted_folders.add(folder)


# Folders found to be writable by this user only, who alone could have changed that since.
_trusted_folders: set[Path] = set()


def is_intact(*paths: Path) -> bool:
    """Whether all parts of an entry are as published. Damaged ones are logged, since they are rebuilt. Raises
    CacheError for an unreadable part."""
    return read_parts(*paths) is not None


def read_parts(*paths: Path) -> tuple[bytes, ...] | None:
    """The published parts of an entry, without their seals; None unless all are intact.

    The use is recorded as each file's modification time, to the day, so that unused entries can be told from the rest.
    """
    contents = [_content(path, record_use=True) for path in paths]
    unsealed = [
        None if x is None else seal.unsealed(x, seal_name(path)) for path, x in zip(paths, contents, strict=True)
    ]
    for path, content, body in zip(paths, contents, unsealed, strict=True):
        if content is not None and body is None:
            log.warning(
                "mlcomp: the cached kernel %s is damaged or forged (a crash, a full disk, another user?); "
                "building it again",
                path,
            )
    bodies = tuple(x for x in unsealed if x is not None)
    return bodies if len(bodies) == len(paths) else None


def inspect(path: Path) -> str:
    """Return intact, damaged or missing. Raises CacheError for an unreadable entry."""
    content = _content(path)
    if content is None:
        return "missing"
    return "damaged" if seal.unsealed(content, seal_name(path)) is None else "intact"


def read(path: Path) -> bytes | None:
    """The content published at `path`, without its seal; None if missing or damaged."""
    content = _content(path)
    return None if content is None else seal.unsealed(content, seal_name(path))


def seal_name(path: Path) -> str:
    """The name under which an entry is sealed: its digest and kind."""
    return f"{FORMAT} {path.parent.name}{path.name}"


def _content(path: Path, record_use: bool = False) -> bytes | None:
    """The content of a file that only this user can write; b"" for any other file, None for a missing one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if path.is_symlink():
            return b""
        raise CacheError(cache_of(path), reason(error)) from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or not trust.is_trusted_owner(status)
            or trust.is_writable_by_others(status)
        ):
            return b""
        if record_use and time.time() - status.st_mtime > _DAY:
            with contextlib.suppress(OSError):  # a read-only cache also serves
                os.utime(descriptor)
        return file.read()


@contextlib.contextmanager
def build_folder(path: Path) -> Iterator[Path]:
    """A fresh folder beside the entry `path`, removed afterwards. An OSError becomes a CacheError."""
    cache = cache_of(path)
    try:
        _sweep_daily(cache)
        trust.make_private(path.parent)
        _check_trusted(path)  # another user may have created it meanwhile
        folder = Path(tempfile.mkdtemp(prefix=".build-", dir=path.parent))
    except OSError as error:
        raise CacheError(cache, reason(error)) from error
    try:
        yield folder
    except OSError as error:
        raise CacheError(cache, reason(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(product: Path, path: Path) -> None:
    """Seal a product of a build folder and move it to its path."""
    content = seal.sealed(product.read_bytes(), seal_name(path))
    product.unlink()
    with os.fdopen(os.open(product, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    os.replace(product, path)


def sweep(cache: Path) -> int:
    """Remove build folders that killed processes left behind; return how many."""
    now, removed = time.time(), 0
    for leftover in build_folders(cache):
        with contextlib.suppress(OSError):
            if now - leftover.stat().st_mtime > LEFTOVER_AGE:
                shutil.rmtree(leftover)
                removed += 1
    return removed


def build_folders(cache: Path) -> list[Path]:
    """Build folders, including those of running builders."""
    return sorted(cache.glob(f"{FORMAT}/??/.build-*"))


def _sweep_daily(cache: Path) -> None:
    """Sweep at most once a day; the folder's modification time records the last sweep."""
    folder = cache / FORMAT
    if folder.is_dir() and time.time() - folder.stat().st_mtime > _DAY:
        os.utime(folder)
        sweep(cache)


@functools.cache
def process_folder() -> Path:
    """A cache for this process, removed when it exits, or by a later process if it is killed."""
    parent = Path(tempfile.gettempdir())
    folders.sweep_folders(parent)
    folder, _ = folders.locked_folder(parent)
    atexit.register(folders.remove_folder, folder)
    return folder


def reason(error: OSError) -> str:
    """The reason for an error, and the file."""
    problem = (error.strerror or str(error)).lower()
    return f"{problem} ({error.filename})" if error.filename else problem
