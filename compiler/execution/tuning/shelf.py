"""Stored schedules on disk: `tuned/*.jsonl` in the user's cache, which override those in `tuned/` beside this file."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from compiler.errors import CacheError
from compiler.schedule import records
from compiler.schedule.records import NOTHING, Record, Stored

SHIPPED = Path(__file__).parent / "tuned"


def path_of(cache: Path, device: str) -> Path:
    """The user's file for a device."""
    return cache / "tuned" / (re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") + ".jsonl")


def read(path: Path) -> list[Record]:
    """The records of a file; empty if it is missing. Raises RecordError."""
    try:
        return records.parse(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as problem:
        raise records.RecordError(f"{path} is no text: remove it, and tune again") from problem
    except OSError as problem:
        raise CacheError(path.parent, (problem.strerror or str(problem)).lower()) from problem


def store_records(cache: Path, new_records: Iterable[Record]) -> None:
    """Store records in the user's files, replacing those for the same kernels."""
    new_records = list(new_records)
    for device in sorted({r.device for r in new_records}):
        path = path_of(cache, device)
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(path):
            text = records.show([*read(path), *(r for r in new_records if r.device == device)])
            draft = path.with_suffix(".draft")
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)


def stored(cache: Path, target: str, device: str) -> Stored:
    """The stored schedules for a target on a device; the user's override the shipped ones."""
    paths = [SHIPPED / path_of(cache, device).name, path_of(cache, device)]
    stamps = [(p, s.st_mtime_ns, s.st_size) for p in paths if (s := _stat(p)) is not None]
    return _stored(tuple(stamps), target, device) if stamps else NOTHING


@lru_cache(maxsize=16)
def _stored(stamps: tuple[tuple[Path, int, int], ...], target: str, device: str) -> Stored:
    records_by_key = {r.key: r for path, _, _ in stamps for r in read(path) if (r.target, r.device) == (target, device)}
    return Stored(tuple(records_by_key[k] for k in sorted(records_by_key)))


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


@contextmanager
def device_lock(cache: Path, device: str) -> Iterator[None]:
    """Lock a device for measurements by this process alone."""
    path = cache / "tune" / path_of(cache, device).name
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(path):
        yield


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Lock a file, or what it stands for, for this process alone."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
