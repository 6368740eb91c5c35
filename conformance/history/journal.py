"""The history of a device, `history/<device>.jsonl`: one line per run, with what can be compared over time.

That is the number of cases per verdict, and for each benchmark the speedups over rivals raced in the same rounds. Lines
are only appended. An incomplete last line, left by a killed run, is ignored, and removed by the next run.
"""

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance import rows
from conformance.report.writer import Run, measured

SCHEMA = 1
CONFLICT = ("<<<<<<< ", "=======", ">>>>>>> ", "||||||| ")  # git's conflict markers


class HistoryError(Exception):
    """A history cannot be read or written; the message says where and what to do."""


@dataclass(frozen=True)
class Entry:
    """The contents of a line."""

    when: str
    env: Mapping[str, str | None]
    cases: Mapping[str, int]
    benches: Mapping[str, Mapping[str, Any]]  # by name: "over", "us", "code"


def entry_line(run: Run) -> str:
    """Return the line of a run, without its newline."""
    benches = {
        f"{row.suite}::{rows.name(row, bench=False)}": {
            "over": {name: _round(comparison.speedup) for name, comparison in sorted(row.over.items())},
            "us": _round(row.ours_us or 0.0),
            "code": row.against.identity or row.digest,
        }
        for row in measured(run.benches)
    }
    entry = {
        "schema": SCHEMA, "when": run.when.isoformat(), "env": run.env, "tier": run.tier,
        "cases": Counter(row.verdict for row in run.cases), "benches": benches,
    }  # fmt: skip
    return json.dumps(entry, sort_keys=True, allow_nan=False)


def append(path: Path, text: str) -> None:
    """Append a line completely or not at all, after removing an incomplete last line; raises HistoryError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _open_locked(path) as file:
            complete = _complete_lines(os.pread(file, os.fstat(file).st_size, 0))
            os.ftruncate(file, len(complete))
            data, position = f"{text}\n".encode(), len(complete)
            try:
                while data:
                    written = os.pwrite(file, data, position)
                    data, position = data[written:], position + written
                os.fsync(file)
            except OSError:
                os.ftruncate(file, len(complete))
                raise
    except OSError as error:
        raise HistoryError(f"cannot add to the history {path}: {error.strerror}; what stood there stands") from None


def read(path: Path) -> list[Entry]:
    """Read the runs of a file, oldest first; raises HistoryError, also for merge conflicts and malformed lines."""
    try:
        with path.open("rb") as file:
            text = _complete_lines(file.read()).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise HistoryError(f"{path} cannot be read: {error}") from None
    entries = []
    for number, row in enumerate(text.splitlines(), 1):
        if row.startswith(CONFLICT):
            raise HistoryError(f"{path}:{number}: a merge left a conflict; keep the lines of both sides, in any order")
        try:
            data = json.loads(row)
            entries.append(Entry(data["when"], data["env"], data["cases"], data["benches"]))
        except (ValueError, KeyError, TypeError) as error:
            raise HistoryError(
                f"{path}:{number}: no run ({type(error).__name__}: {error}); take the line out"
            ) from None
    return sorted(entries, key=lambda entry: entry.when)


def figures(path: Path) -> list[dict[str, Any]]:
    """Return the figures of a history that the HTML report shows, oldest first; none if there is no file."""
    if not path.is_file():
        return []
    return [
        {
            "cases": entry.cases,
            "over eager": {name: bench["over"].get("eager") for name, bench in entry.benches.items()},
        }
        for entry in read(path)
    ]


def _complete_lines(data: bytes) -> bytes:
    """Return the complete lines: a line is complete if it ends with a newline."""
    return data[: data.rfind(b"\n") + 1]


@contextmanager
def _open_locked(path: Path) -> Iterator[int]:
    """Open the file under an exclusive lock, so that no other process appends to it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _round(value: float) -> float:
    return float(f"{value:.4g}")
