"""The contents of a shape file: checked and with defaults filled in, but not expanded."""

from collections.abc import Mapping
from dataclasses import dataclass

from conformance.shapes.cases import Tolerance, Value, Xfail

LONGEST = 2_000  # most characters of a message


class ShapeFileError(ValueError):
    """A shape file is invalid; the message says where, what is wrong, and what to do."""

    def __init__(self, file: str, line: int, message: str) -> None:
        # A message may quote the whole file.
        super().__init__(f"{file}:{line}: {message if len(message) <= LONGEST else message[:LONGEST] + '…'}")
        self.file, self.line = file, line


@dataclass(frozen=True)
class ArgSpec:
    """An argument; sizes and options are numbers or formulas."""

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
    """An expected failure, with the target, dtype and filter to which it applies."""

    target: str
    dtype: str
    where: str | None
    expected: Xfail


@dataclass(frozen=True)
class PerfRow:
    """A benchmark row: values for some dims and params (others have the case's first values), and its tier."""

    values: Mapping[str, Value]
    tier: str


@dataclass(frozen=True)
class CheckedSpec:
    """Checks at the sizes of benchmarks: offsets for dims, the targets and the tier."""

    around: Mapping[str, tuple[int, ...]]
    targets: tuple[str, ...]
    tier: str


@dataclass(frozen=True)
class PerfSpec:
    """The benchmark rows and how to time them; `dtypes` has those of each target."""

    rows: tuple[PerfRow, ...]
    dtypes: Mapping[str, tuple[str, ...]]
    layout: str
    inputs: str
    vs: tuple[str, ...]
    budget: Mapping[str, Mapping[str, float]]
    checked: CheckedSpec | None


@dataclass(frozen=True)
class CaseSpec:
    """A `[[case]]`, checked and with defaults filled in."""

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
    dynamic: Mapping[str, tuple[int, int | None]]  # ranges of the dynamic dims
    perf: PerfSpec | None
    timeout: float | None
    mutates: tuple[str, ...] = ()
    entry: str = "export"
    raises: str | None = None
    grad: tuple[str, ...] = ()
    torch: str = ""  # the versions of torch that can run it; "" means any


@dataclass(frozen=True)
class ShapeFile:
    """A shape file: its path and its cases."""

    path: str
    suite: str
    cases: tuple[CaseSpec, ...]
