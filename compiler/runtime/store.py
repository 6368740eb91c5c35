"""A folder of built files that this user's processes share: a digest in; an intact file, or a place to make it, out.

An entry is published by one rename and carries a seal that binds it to its name, which is the digest of all that it
was made of. So what a crash or a full disk cut short is noticed, and what somebody else put there, or a copy of one
entry in the place of another, is never loaded. Between that and the loading nothing can change, since folders that
anybody else could write to are refused.
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

FORMAT = "sealed-1"  # the folder of entries of this form, inside of the cache; others are left alone
_DAY = 24 * 3600.0
LEFT = 3600.0  # seconds after which a build folder is one that a killed process left behind


def entry(cache: Path | None, digest: str, suffix: str) -> Path:
    """Where the product of a request with this hex digest lies: in `cache`, or for want of one in a folder of this
    process. Raises CacheError for a folder in which others could change it."""
    folder = cache if cache is not None and seal.lasts() else process_folder()
    path = Path(os.path.realpath(folder)) / FORMAT / digest[:2] / f"{digest[2:40]}{suffix}"
    _refuse_foreign(path)
    return path


def cache_of(path: Path) -> Path:
    """The cache that an entry lies in."""
    return path.parents[2]


def _refuse_foreign(path: Path) -> None:
    folder, cache = path.parent, cache_of(path)
    if folder in _own:
        return
    if problem := trust.complaint(folder, cache):
        raise CacheError(cache, problem, "Make it your own")
    if folder.is_dir():
        _own.add(folder)


_own: set[Path] = set()  # folders that nobody but this user could let others into since this process looked


def intact(*paths: Path) -> bool:
    """Whether all parts of an entry are as they were published; what is there but is not is said, since it is built
    again. A part that may not be read is a CacheError."""
    return taken(*paths) is not None


def taken(*paths: Path) -> tuple[bytes, ...] | None:
    """What was published as the parts of an entry, without their seals; None unless all are intact, as `intact` has it.

    That it was used is kept as each file's time, to the day, so that what nobody uses can be told from the rest.
    """
    found = [_content(path, use=True) for path in paths]
    opened = [None if x is None else seal.opened(x, name(path)) for path, x in zip(paths, found, strict=True)]
    for path, content, body in zip(paths, found, opened, strict=True):
        if content is not None and body is None:
            log.warning(
                "mlcomp: the cached kernel %s is damaged or forged (a crash, a full disk, another user?); "
                "building it again",
                path,
            )
    bodies = tuple(x for x in opened if x is not None)
    return bodies if len(bodies) == len(paths) else None


def inspect(path: Path) -> str:
    """intact, damaged or missing; an entry that may not be read is a CacheError."""
    content = _content(path)
    if content is None:
        return "missing"
    return "damaged" if seal.opened(content, name(path)) is None else "intact"


def read(path: Path) -> bytes | None:
    """What was published at `path`, without its seal; None where that is missing or damaged."""
    content = _content(path)
    return None if content is None else seal.opened(content, name(path))


def name(path: Path) -> str:
    """What an entry is sealed as: the digest of what it was made of, and its kind."""
    return f"{FORMAT} {path.parent.name}{path.name}"


def _content(path: Path, use: bool = False) -> bytes | None:
    """What is in a file that nobody else can have open for writing, nothing of any other; None where there is none."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if path.is_symlink():
            return b""
        raise CacheError(cache_of(path), reason(error)) from error
    with os.fdopen(number, "rb") as file:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or not trust.ours(found) or trust.others_write(found):
            return b""
        if use and time.time() - found.st_mtime > _DAY:
            with contextlib.suppress(OSError):  # a read-only cache serves all the same
                os.utime(number)
        return file.read()


@contextlib.contextmanager
def workshop(path: Path) -> Iterator[Path]:
    """A fresh folder beside the entry `path`, removed afterwards; what the disk refuses is a CacheError."""
    cache = cache_of(path)
    try:
        _sweep_daily(cache)
        trust.make(path.parent)
        _refuse_foreign(path)  # somebody may have been faster
        work = Path(tempfile.mkdtemp(prefix=".build-", dir=path.parent))
    except OSError as error:
        raise CacheError(cache, reason(error)) from error
    try:
        yield work
    except OSError as error:
        raise CacheError(cache, reason(error)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def publish(product: Path, path: Path) -> None:
    """Seal what a workshop made and move it to where it is looked for."""
    content = seal.sealed(product.read_bytes(), name(path))
    product.unlink()
    with os.fdopen(os.open(product, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    os.replace(product, path)


def sweep(cache: Path) -> int:
    """Remove build folders that a killed process left behind; returns how many."""
    now, removed = time.time(), 0
    for left in left_behind(cache):
        with contextlib.suppress(OSError):
            if now - left.stat().st_mtime > LEFT:
                shutil.rmtree(left)
                removed += 1
    return removed


def left_behind(cache: Path) -> list[Path]:
    """Folders of builders, those that are still at work included."""
    return sorted(cache.glob(f"{FORMAT}/??/.build-*"))


def _sweep_daily(cache: Path) -> None:
    """When that was last done is when the folder was last changed."""
    folder = cache / FORMAT
    if folder.is_dir() and time.time() - folder.stat().st_mtime > _DAY:
        os.utime(folder)
        sweep(cache)


@functools.cache
def process_folder() -> Path:
    """A cache for those who have none: of this process, removed when it exits, or by the next one if it is killed."""
    place = Path(tempfile.gettempdir())
    folders.sweep_folders(place)
    folder, _ = folders.locked_folder(place)
    atexit.register(folders.remove_folder, folder)
    return folder


def reason(error: OSError) -> str:
    """What went wrong, and with which file."""
    problem = (error.strerror or str(error)).lower()
    return f"{problem} ({error.filename})" if error.filename else problem
