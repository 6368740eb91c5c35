"""List, verify and prune the files of a kernel cache.

Only files known to belong to a cache are counted or removed, so that a folder given by mistake keeps its files.
"""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from compiler.runtime import store

KINDS = {
    ".so": "shared objects", ".cpp": "texts of shared objects", ".cubin": "cubins", ".cu": "texts of cubins",
    ".json": "lowered programs",
}  # fmt: skip
REFUSED = "texts that a compiler refused"
FORMER = "of former versions"
LEFTOVER = "left behind by builders"
_PART = re.compile(r"[0-9a-f]{38}\.(so|cpp|cubin|cu|json)")


@dataclass(frozen=True)
class File:
    """A file or a builder's folder: kind, size in bytes, and time of last use in seconds, accurate to a day."""

    path: Path
    kind: str
    size: int
    used: float


def files(cache: Path) -> list[File]:
    """All files of a cache; empty if the folder does not exist."""
    paths = [(path, KINDS[path.suffix]) for path in _parts(cache / store.FORMAT)]
    paths += [(path, FORMER) for path in _parts(cache)]
    paths += [(path, REFUSED) for path in sorted(cache.glob("refused/*")) if _PART.sub("", path.name[2:]) == ""]
    paths += [(path, LEFTOVER) for path in store.build_folders(cache)]
    files_of_paths = (_file(path, kind) for path, kind in paths)
    return [file for file in files_of_paths if file is not None]


def _parts(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("[0-9a-f][0-9a-f]/*")) if _PART.fullmatch(path.name))


def _file(path: Path, kind: str) -> File | None:
    """None if another process has just removed it."""
    try:
        size = sum(p.lstat().st_size for p in path.rglob("*")) if path.is_dir() else path.lstat().st_size
        return File(path, kind, size, path.lstat().st_mtime)
    except FileNotFoundError:
        return None


def damaged(listed: list[File]) -> list[File]:
    """Entries that differ from what this user's processes published; they would be rebuilt."""
    return [file for file in listed if file.kind in KINDS.values() and store.inspect(file.path) == "damaged"]


def clear(cache: Path) -> list[File]:
    """Remove all files of a cache and return them."""
    return _remove(cache, files(cache))


def prune(cache: Path, older_than: float | None = None, max_bytes: int | None = None) -> list[File]:
    """Remove files from which nothing would be loaded: damaged entries, files of former versions, rejected texts,
    leftovers of builders. With `older_than`, also entries unused for that many seconds; with `max_bytes`, the least
    recently used until the rest has at most that many bytes. Returns the removed files; loaded code stays loaded."""
    listed = files(cache)
    damaged_paths = {file.path for file in damaged(listed)}
    now = time.time()

    def is_useless(file: File) -> bool:
        if file.kind == LEFTOVER:
            return now - file.used > store.LEFTOVER_AGE
        if file.kind in (FORMER, REFUSED):
            return True
        return file.path in damaged_paths or (older_than is not None and now - file.used > older_than)

    removed = _remove(cache, _with_texts(listed, is_useless))
    if max_bytes is not None:
        removed += _remove(
            cache, _least_recently_used([file for file in files(cache) if file.kind in KINDS.values()], max_bytes)
        )
    return removed


def _least_recently_used(entries: list[File], max_bytes: int) -> list[File]:
    """The least recently used entries to remove so that at most `max_bytes` bytes remain, products with their texts."""
    files_by_stem: dict[Path, list[File]] = {}
    for file in entries:
        files_by_stem.setdefault(file.path.with_suffix(""), []).append(file)
    total, chosen = sum(file.size for file in entries), []
    for parts in sorted(files_by_stem.values(), key=lambda parts: max(file.used for file in parts)):
        if total <= max_bytes:
            break
        chosen += parts
        total -= sum(file.size for file in parts)
    return chosen


def _with_texts(listed: list[File], is_chosen: Callable[[File], bool]) -> list[File]:
    """The chosen files, with the other file of the same entry."""
    stems = {file.path.with_suffix("") for file in listed if is_chosen(file)}
    return [file for file in listed if file.path.with_suffix("") in stems]


def _remove(cache: Path, chosen: list[File]) -> list[File]:
    for file in chosen:
        if file.path.is_dir() and not file.path.is_symlink():
            shutil.rmtree(file.path, ignore_errors=True)
        else:
            file.path.unlink(missing_ok=True)
    for folder in {file.path.parent for file in chosen} | {cache / store.FORMAT}:
        with contextlib.suppress(OSError):  # not empty
            os.rmdir(folder)
    return chosen
