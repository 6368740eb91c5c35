"""Measurements of a kernel's candidates, as lines of JSON that are appended, so that a search can be resumed.

The first line describes the kernel and its candidates, in the order of their estimates; each other line is the outcome
of one. A truncated last line, as after `kill -9`, is ignored.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compiler.errors import CompilerError

FORMAT = 1


@dataclass(frozen=True)
class Trial:
    """The outcome of a candidate: seconds per call, and its time over the heuristic's with its interval, if recorded;
    or why it failed."""

    number: int
    seconds: float = 0.0
    ratio: float = math.inf
    failed: str = ""
    low: float = 0.0
    high: float = math.inf


@dataclass(frozen=True)
class Head:
    """A kernel with its target, device and family, and the estimates and schedules of its candidates."""

    key: str
    name: str
    target: str
    device: str
    family: str
    program: str
    costs: Sequence[float]
    schedules: Sequence[str]


@dataclass
class Table:
    """The candidates of a kernel, and the trials so far, by number."""

    head: Head
    trials: dict[int, Trial] = field(default_factory=dict)

    @property
    def ratios(self) -> Mapping[int, float]:
        return {t.number: math.inf if t.failed else t.ratio for t in self.trials.values()}

    @property
    def best(self) -> Trial | None:
        return min((t for t in self.trials.values() if not t.failed), key=lambda t: t.ratio, default=None)


def begin(path: Path, head: Head) -> Table:
    """Open a table for appending: keep the trials of an earlier one with the same head, else start anew."""
    try:
        table = next(iter(read_all(path)), None)
    except (OSError, CompilerError):
        table = None
    if table is None or table.head != head:
        table = Table(head)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")  # without a truncated line
    draft.write_text("".join([_line({"format": FORMAT, **asdict(head)}), *map(_trial_line, table.trials.values())]))
    draft.replace(path)
    return table


def append(path: Path, table: Table, trials: Sequence[Trial]) -> None:
    """Record the outcomes of candidates in the table and its file."""
    table.trials |= {t.number: t for t in trials}
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(map(_trial_line, trials)))


def read_all(path: Path) -> list[Table]:
    """The tables of a file, which may be gzipped. Raises CompilerError for an invalid file."""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        return tables(text, str(path))
    except (EOFError, gzip.BadGzipFile, UnicodeDecodeError) as problem:
        raise CompilerError(f"{path} is no table of candidates: {problem}") from problem


def tables(text: str, source: str) -> list[Table]:
    """Parse consecutive tables."""
    out: list[Table] = []
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            if "format" not in fields:
                trial = Trial(**fields)
                out[-1].trials[trial.number] = trial
                continue
            version = fields.pop("format")
            if version != FORMAT:
                raise CompilerError(f"{source}, line {number}: format {version!r}, and this mlcomp reads {FORMAT}")
            out.append(Table(Head(**fields)))
        except (ValueError, TypeError, IndexError, AttributeError) as problem:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise CompilerError(f"{source}, line {number}: no table of candidates: remove the file") from problem
    return out


def _trial_line(trial: Trial) -> str:
    fields: dict[str, str | float] = {"failed": trial.failed}
    if not trial.failed:
        fields = {"seconds": trial.seconds, "ratio": trial.ratio}
    if trial.high < math.inf:
        fields |= {"low": trial.low, "high": trial.high}
    return _line({"number": trial.number, **fields})


def _line(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"
