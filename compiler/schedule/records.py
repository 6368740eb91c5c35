"""Tuned schedules, stored as sorted lines of text, one per kernel.

A line is a JSON object. It holds the kernel itself as Loop IR, so that others can time it again, and the kernel's
digest, by which kernels that differ only in names find its schedule.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property

from compiler.errors import CompilerError
from compiler.ir import loop_text
from compiler.ir.statement import Kernel, Program
from compiler.schedule import steps
from compiler.schedule.steps import Schedule

FORMAT = 1
_MARKERS = ("<<<<<<<", "=======", ">>>>>>>", "|||||||")


class RecordError(CompilerError):
    """A file of stored schedules is malformed or cannot be read by this version."""


@dataclass(frozen=True)
class Record:
    """The best known schedule of a kernel on a device.

    `seconds` is its time per call; `speedup` is the heuristic schedule's time over it, with a confidence interval.
    `versions` says what it was tuned with; `code` is the expression that the kernel was compiled from, if known.
    """

    key: str
    name: str
    target: str
    device: str
    program: str
    schedule: str
    seconds: float
    speedup: tuple[float, float, float]  # median, low, high
    versions: Mapping[str, str]
    code: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        return self.key, self.target, self.device

    def kernel(self) -> Kernel:
        """The kernel, parsed; raises ValueError if this version cannot read it."""
        program: Program = loop_text.parse(self.program)
        (kernel,) = program.kernels
        return kernel

    def steps(self) -> Schedule:
        """The schedule, parsed; raises ValueError if this version lacks one of its steps."""
        return steps.parse(self.schedule)


@dataclass(frozen=True)
class Stored:
    """The records of one target and device, by kernel digest. Instances with the same schedules hash alike."""

    records: tuple[Record, ...] = ()

    @cached_property
    def by_key(self) -> Mapping[str, Record]:
        return {r.key: r for r in self.records}

    @cached_property
    def digest(self) -> str:
        """A digest of everything that affects compilation; empty if there are no records."""
        said = sorted((r.key, r.schedule) for r in self.records)
        return hashlib.sha256(repr(said).encode()).hexdigest() if said else ""

    def __hash__(self) -> int:
        return hash(self.digest)


NOTHING = Stored()


def show(records: Iterable[Record]) -> str:
    """The records as sorted lines. Of several records for the same kernel, target and device, the last one is kept."""
    last = {r.place: r for r in records}
    lines = [json.dumps({"format": FORMAT, **asdict(last[p])}, ensure_ascii=False) for p in sorted(last)]
    return "".join(f"{line}\n" for line in lines)


def parse(text: str, where: str) -> list[Record]:
    """Parse the records of a file; raises RecordError, which names the line, the problem and the remedy."""
    line_of: dict[tuple[str, str, str], int] = {}
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        at = f"{where}, line {number}"
        if line.startswith(_MARKERS):
            raise RecordError(f"{at}: a conflict of a merge; keep one of both sides, or both where their keys differ")
        record = _parse_record(line, at)
        if record.place in line_of:
            raise RecordError(f"{at}: {record.name} is in line {line_of[record.place]} already; remove one of the two")
        line_of[record.place] = number
        records.append(record)
    return records


def _parse_record(line: str, at: str) -> Record:
    try:
        values = json.loads(line)
        version = values.pop("format")
    except (ValueError, KeyError, AttributeError, TypeError) as problem:
        raise RecordError(f"{at}: not a stored schedule: remove the line, or tune its kernel again") from problem
    if version != FORMAT:
        raise RecordError(f"{at}: format {version!r}, and this mlcomp reads {FORMAT}: tune again with this version")
    names = [f.name for f in fields(Record)]
    if sorted(values) != sorted(names) or not isinstance(values["speedup"], list) or len(values["speedup"]) != 3:
        raise RecordError(f"{at}: a stored schedule has {', '.join(names)}: remove the line, or tune again")
    return Record(**{**values, "speedup": tuple(values["speedup"])})
