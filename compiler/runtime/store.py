"""A folder of built files that many processes share: a digest in; an intact file, or a place to make it, out.

An entry is published by one rename and carries its own checksum, so what a crash or a full disk cut short is noticed.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from compiler.errors import CacheError

# Loaders ignore trailing bytes, so the checksum travels inside the file.
_MARK = b"\nmlcomp-sha256:"
_TRAILER = len(_MARK) + 32


def entry(folder: Path, digest: str, suffix: str) -> Path:
    """Where the product of a request with this hex digest lies."""
    return folder / digest[:2] / f"{digest[2:40]}{suffix}"


def inspect(path: Path) -> str:
    """intact, damaged or missing; an entry that may not be read is a CacheError."""
    sealed = _content(path)
    if sealed is None:
        return "missing"
    return "damaged" if _body(sealed) is None else "intact"


def read(path: Path) -> bytes | None:
    """What was published at `path`, without its checksum; None where that is missing or damaged."""
    sealed = _content(path)
    return None if sealed is None else _body(sealed)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CacheError(path.parent.parent, reason(error)) from error


def _body(sealed: bytes) -> bytes | None:
    body, trailer = sealed[:-_TRAILER], sealed[-_TRAILER:]
    return body if trailer == _MARK + hashlib.sha256(body).digest() else None


@contextlib.contextmanager
def workshop(path: Path) -> Iterator[Path]:
    """A fresh folder beside the entry `path`, removed afterwards; what the disk refuses is a CacheError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".build-", dir=path.parent))
    except OSError as error:
        raise CacheError(path.parent.parent, reason(error)) from error
    try:
        yield work
    except OSError as error:
        raise CacheError(path.parent.parent, reason(error)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def publish(product: Path, path: Path) -> None:
    """Seal what a workshop made and move it to where it is looked for."""
    body = product.read_bytes()
    product.write_bytes(body + _MARK + hashlib.sha256(body).digest())
    os.replace(product, path)


@functools.cache
def process_folder() -> Path:
    """A cache for those who have none: of this process, removed when it exits."""
    folder = tempfile.TemporaryDirectory(prefix="mlcomp-", ignore_cleanup_errors=True)
    _kept.append(folder)
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def reason(error: OSError) -> str:
    """What went wrong, and with which file."""
    problem = (error.strerror or str(error)).lower()
    return f"{problem} ({error.filename})" if error.filename else problem
