"""What lies in a cache of kernels: the folder in; its files by kind, which of them are damaged, and fewer of them out.

Only what is known to be a cache's own is counted or removed, so that a folder given by mistake keeps its files.
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
LEFT = "left behind by builders"
_PART = re.compile(r"[0-9a-f]{38}\.(so|cpp|cubin|cu|json)")


@dataclass(frozen=True)
class File:
    """A file or a builder's folder: what it is, its bytes, and when it was used last, to the day, in seconds."""

    path: Path
    kind: str
    size: int
    used: float


def files(cache: Path) -> list[File]:
    """All that is in a cache; nothing for a folder that is not there."""
    found = [(path, KINDS[path.suffix]) for path in _parts(cache / store.FORMAT)]
    found += [(path, FORMER) for path in _parts(cache)]
    found += [(path, REFUSED) for path in sorted(cache.glob("refused/*")) if _PART.sub("", path.name[2:]) == ""]
    found += [(path, LEFT) for path in store.left_behind(cache)]
    made = (_file(path, kind) for path, kind in found)
    return [file for file in made if file is not None]


def _parts(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("[0-9a-f][0-9a-f]/*")) if _PART.fullmatch(path.name))


def _file(path: Path, kind: str) -> File | None:
    """None for what another process has just removed."""
    try:
        size = sum(p.lstat().st_size for p in path.rglob("*")) if path.is_dir() else path.lstat().st_size
        return File(path, kind, size, path.lstat().st_mtime)
    except FileNotFoundError:
        return None


def damaged(found: list[File]) -> list[File]:
    """Entries that are not as this user's processes published them; they would be built again."""
    return [file for file in found if file.kind in KINDS.values() and store.inspect(file.path) == "damaged"]


def clear(cache: Path) -> list[File]:
    """Remove all that is in a cache; returns it."""
    return _removed(cache, files(cache))


def prune(cache: Path, older_than: float | None = None, most: int | None = None) -> list[File]:
    """Remove what nothing would be loaded from: damaged entries, files of former versions, refused texts, what builders
    left behind. With `older_than` seconds also entries not used for so long, with `most` bytes those used longest ago
    until the rest is no larger. Returns what was removed; a file that is loaded stays so."""
    found = files(cache)
    bad = {file.path for file in damaged(found)}
    now = time.time()

    def useless(file: File) -> bool:
        if file.kind == LEFT:
            return now - file.used > store.LEFT
        if file.kind in (FORMER, REFUSED):
            return True
        return file.path in bad or (older_than is not None and now - file.used > older_than)

    gone = _removed(cache, _with_texts(found, useless))
    if most is not None:
        gone += _removed(cache, _oldest([file for file in files(cache) if file.kind in KINDS.values()], most))
    return gone


def _oldest(entries: list[File], most: int) -> list[File]:
    """Those used longest ago, without which the others have no more than so many bytes; products with their texts."""
    together: dict[Path, list[File]] = {}
    for file in entries:
        together.setdefault(file.path.with_suffix(""), []).append(file)
    total, chosen = sum(file.size for file in entries), []
    for parts in sorted(together.values(), key=lambda parts: max(file.used for file in parts)):
        if total <= most:
            break
        chosen += parts
        total -= sum(file.size for file in parts)
    return chosen


def _with_texts(found: list[File], chosen: Callable[[File], bool]) -> list[File]:
    """Those that are chosen; of an entry of two files both."""
    stems = {file.path.with_suffix("") for file in found if chosen(file)}
    return [file for file in found if file.path.with_suffix("") in stems]


def _removed(cache: Path, chosen: list[File]) -> list[File]:
    for file in chosen:
        if file.path.is_dir() and not file.path.is_symlink():
            shutil.rmtree(file.path, ignore_errors=True)
        else:
            file.path.unlink(missing_ok=True)
    for folder in {file.path.parent for file in chosen} | {cache / store.FORMAT}:
        with contextlib.suppress(OSError):  # not empty
            os.rmdir(folder)
    return chosen
