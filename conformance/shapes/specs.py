"""A shape file as written: checked, with its defaults filled in, and nothing worked out yet."""

from collections.abc import Mapping
from dataclasses import dataclass

from conformance.shapes.cases import Tolerance, Value, Xfail

LONGEST = 2_000  # characters of a message


class ShapeFileError(ValueError):
    """A shape file says something that cannot be: where, what, and what to do."""

    def __init__(self, file: str, line: int, message: str) -> None:
        # What is quoted of the file may be all of it.
        super().__init__(f"{file}:{line}: {message if len(message) <= LONGEST else message[:LONGEST] + '…'}")
        self.file, self.line = file, line


@dataclass(frozen=True)
class ArgSpec:
    """An argument as written: sizes and options are numbers or formulas."""

    name: str
    shape: tuple[int | str, ...] | str
    dtype: str | None
    layouts: tuple[str, ...]
    inputs: Mapping[str, Value] | None
    low: Value
    high: Value
    constant: bool


@dataclass(frozen=True)
class XfailSpec:
    """An expected failure as written: for which target and dtype, under which filter."""

    target: str
    dtype: str
    where: str | None
    expected: Xfail


@dataclass(frozen=True)
class PerfRow:
    """A row to time: values for some dims and params, the rest being the case's first values, and its tier."""

    values: Mapping[str, Value]
    tier: str


@dataclass(frozen=True)
class CheckedSpec:
    """Checks at the sizes that are timed: dims moved by each of some steps, on these targets, at this tier."""

    around: Mapping[str, tuple[int, ...]]
    targets: tuple[str, ...]
    tier: str


@dataclass(frozen=True)
class PerfSpec:
    """The rows to time, and how; `dtypes` are those of each target."""

    rows: tuple[PerfRow, ...]
    dtypes: Mapping[str, tuple[str, ...]]
    layout: str
    inputs: str
    vs: tuple[str, ...]
    budget: Mapping[str, Mapping[str, float]]
    checked: CheckedSpec | None


@dataclass(frozen=True)
class CaseSpec:
    """A `[[case]]` as written, checked, with defaults filled in."""

    file: str
    suite: str
    line: int
    name: str
    op: str
    expr: str
    module: str | None
    init: Mapping[str, Value]
    args: tuple[ArgSpec, ...]
    params: Mapping[str, tuple[Value, ...]]
    consts: Mapping[str, Value]
    dims: Mapping[str, tuple[int, ...]]
    zero: tuple[str, ...]
    where: str | None
    combine: str
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    inputs: Mapping[str, Mapping[str, Value]]
    targets: tuple[str, ...]
    tier: str | None
    family: str | None
    tolerance: Tolerance
    xfail: tuple[XfailSpec, ...]
    dynamic: Mapping[str, tuple[int, int | None]]  # the dims that vary, with their ranges
    perf: PerfSpec | None
    timeout: float | None
    mutates: tuple[str, ...] = ()
    entry: str = "export"
    raises: str | None = None
    grad: tuple[str, ...] = ()
    torch: str = ""  # the versions of torch that run it; any where empty


@dataclass(frozen=True)
class ShapeFile:
    """A shape file: its path and its cases."""

    path: str
    suite: str
    cases: tuple[CaseSpec, ...]
