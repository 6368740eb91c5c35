"""The rows of a run: the results of checks, benchmarks and fuzzing, and which of their fields the reports contain.

A row is an immutable value. Only `to_json` converts it to JSON, when it is sent to another process or written to a
file. `KEYS` of a class are its fields in `run.json`; `COLUMNS` are the columns of its table.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
# Column header -> the field that the column shows, or a function from the row to the cell.
Columns = Mapping[str, str | Callable[[Any], object]]
Interval = tuple[float, float]

CHECK_VERDICTS = ("pass", "fail", "crash", "timeout", "unsupported", "xfail")
BENCH_VERDICTS = ("FASTER", "SLOWER", "SAME", "AMBIGUOUS")
BAD = frozenset({"fail", "crash", "timeout", "unsupported"})
REMARK = 100  # characters of a remark in a table
OURS, EAGER, COMPILE, BASELINE = "ours", "eager", "compile", "baseline"  # contestants
NOT_INSTALLED = "not installed on this machine"  # why a rival is left out


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The result of one stage of a case; `err_over_tol` is the largest ratio of an element's error to its tolerance."""

    KEYS: ClassVar = ("stage", "verdict", "err_over_tol", "executor", "seconds")
    COLUMNS: ClassVar[Columns] = {
        "stage": "stage", "verdict": "verdict", "err/tol": "err_over_tol",
        "executor": "executor", "seconds": "seconds",
    }  # fmt: skip

    stage: str
    verdict: str = "fail"
    err_over_tol: float | None = None
    executor: str | None = None
    seconds: float | None = None
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Item:
    """Identity of a pytest item: a case on a target, and the command that repeats it."""

    id: str
    file: str
    suite: str
    op: str
    target: str
    dtype: str
    params: Mapping[str, object] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class RunItem(Item):
    """An item that ran; `first_loss` says how the process of a first try died, `reason` why a failure is expected.

    `is_ambiguous` says that another file of the run has a case of this name, so that tables show the file too.
    """

    seconds: float = 0.0
    first_loss: str = ""
    reason: str = ""
    is_ambiguous: bool = False


@dataclass(frozen=True, kw_only=True)
class BlamedVerdict:
    """A verdict; for a bad one also the stage and pass to blame, and the folder of the files that reproduce it."""

    verdict: str = "fail"
    first_bad_stage: str | None = None
    first_bad_pass: str | None = None
    detail: str = ""
    repro: str = ""


@dataclass(frozen=True, kw_only=True)
class CaseResult(BlamedVerdict):
    """The result of running a case: its stages, their `texts`, and the schedules that could not be applied."""

    stages: tuple[Stage, ...] = ()
    fallbacks: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Check(RunItem, CaseResult):
    """The row of a checked case."""

    KEYS: ClassVar = (
        "id", "file", "op", "target", "dtype", "verdict", "first_bad_stage", "first_bad_pass", "stages", "seconds",
    )  # fmt: skip
    COLUMNS: ClassVar[Columns] = {
        "case": lambda row: shown_name(row), "verdict": "verdict", "first bad stage": "first_bad_stage",
        "pass": "first_bad_pass", "err/tol": lambda row: row.bad and row.bad.err_over_tol,
        "what": lambda row: remark((row.bad and row.bad.message) or row.detail),
    }  # fmt: skip

    @property
    def bad(self) -> Stage | None:
        """The first stage with a bad verdict, or None."""
        return next((stage for stage in self.stages if stage.verdict in BAD), None)


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """A rival's time over ours, with its confidence interval; above 1, ours is faster."""

    speedup: float
    ci: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A limit that a shape file sets, with its verdict: met, missed or unproven."""

    name: str
    limit: float
    verdict: str


@dataclass(frozen=True, kw_only=True)
class BaselineComparison:
    """Our kernel against the stored kernel of a baseline; `speedup` is the stored kernel's time over ours.

    `identity` is the digest of our code and its headers. `verdict` is "" if there was no race, and "unbuilt" if the
    stored kernel could not be raced. `chance` is the p-value of the samples under the hypothesis that ours is slower by
    no more than the bar of `bench/stored.py`. `least` is the smallest slowdown that the race would have detected.
    """

    KEYS: ClassVar = (
        "baseline", "verdict", "speedup", "ci", "chance", "least", "rounds", "drift", "why", "identity",
    )  # fmt: skip

    baseline: str = ""
    identity: str = ""
    verdict: str = ""
    speedup: float | None = None
    ci: Interval | None = None
    chance: float | None = None
    least: float | None = None
    rounds: int = 0
    # For each rival its speedup ratio (its time over ours) now, divided by the stored one.
    drift: Mapping[str, float] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class RaceResult:
    """The result of a race: microseconds per call, the speedup over the fastest rival, raw samples in seconds.

    `over` has the speedup over each rival, `wall_us` the time of one call including the wait for the device, `cached`
    the rivals that took compiled code from a cache, `skipped` the rivals left out and why, which is NOT_INSTALLED for
    backends that torch does not know here, `message` reasons for doubt.
    """

    verdict: str = "fail"
    ours_us: float | None = None
    eager_us: float | None = None
    compile_us: float | None = None
    speedup: float | None = None
    ci: Interval | None = None
    roofline: float | None = None
    clock: str | None = None
    wall_us: Mapping[str, float] | None = None
    best: str | None = None
    attention: str | None = None
    kernels: int | None = None
    compile_seconds: float | None = None
    digest: str | None = None
    over: Mapping[str, Speedup] = field(default_factory=dict)
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    repeats: Mapping[str, int] = field(default_factory=dict)  # calls in a sample
    rival_compile_seconds: Mapping[str, float] = field(default_factory=dict)
    cached: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    budget: tuple[Budget, ...] = ()
    against: BaselineComparison = field(default_factory=BaselineComparison)
    source: str = ""
    message: str = ""
    invalid_case: bool = False  # the shape file is to blame: PyTorch itself does not run the case


@dataclass(frozen=True, kw_only=True)
class Bench(RunItem, RaceResult):
    """The row of a benchmark; `cliffs` has a sentence for each way in which it is a cliff (see `report/replies.py`)."""

    KEYS: ClassVar = (
        "id", "suite", "op", "target", "dtype", "ours_us", "eager_us", "compile_us", "speedup", "ci", "verdict",
        "roofline", "family", "clock", "wall_us", "best", "attention", "kernels", "compile_seconds", "digest", "detail",
        "cliffs", "against", "file", "seconds",
    )  # fmt: skip
    # Fields stored as `extra_info` in the file in pytest-benchmark's format.
    EXTRA: ClassVar = (
        "file", "family", "op", "target", "dtype", "eager_us", "compile_us", "speedup", "ci", "verdict", "roofline",
        "wall_us", "digest", "compile_seconds",
    )  # fmt: skip
    COLUMNS: ClassVar[Columns] = {
        "case": lambda row: shown_name(row, bench=False), "ours us": "ours_us", "eager us": "eager_us",
        "compile us": "compile_us", "speedup": "speedup",
        "interval": lambda row: row.ci and "{:.2f} … {:.2f}".format(*row.ci), "verdict": "verdict",
        "of roofline": lambda row: row.roofline and f"{row.roofline:.0%}",
        "wall us": lambda row: (row.wall_us or {}).get(OURS),
        "wall us of PyTorch": lambda row: min((t for n, t in (row.wall_us or {}).items() if n != OURS), default=None),
        "build s": "compile_seconds", "remark": lambda row: remark(row.detail),
    }  # fmt: skip
    BASELINE_COLUMNS: ClassVar[Columns] = {
        "case": lambda row: shown_name(row, bench=False), "verdict": lambda row: row.against.verdict or "new",
        "speedup": lambda row: row.against.speedup,
        "interval": lambda row: row.against.ci and "{:.3f} … {:.3f}".format(*row.against.ci),
        "would see": lambda row: row.against.least and f"+{row.against.least:.1%}",
        "rounds": lambda row: row.against.rounds or None,
        "others' drift": lambda row: ", ".join(f"{who} {by:.2f}" for who, by in row.against.drift.items()),
        "why": lambda row: remark(row.against.why),
    }  # fmt: skip

    family: str
    detail: str = ""
    cliffs: tuple[str, ...] = ()

    @property
    def missed(self) -> tuple[Budget, ...]:
        """The limits that are significantly missed."""
        return tuple(rule for rule in self.budget if rule.verdict == "missed")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel compiled for a GPU: registers per thread; bytes of shared, local (`stack`) and spilled memory; `mix` has
    the number of occurrences of each opcode without modifiers."""

    KEYS: ClassVar = ("case", "name", "arch", "registers", "stack", "spilled", "shared", "mix", "complaints")
    COLUMNS: ClassVar[Columns] = {
        "case": "case", "kernel": "name", "compiled for": "arch", "registers": "registers",
        "shared": "shared",
    }  # fmt: skip

    case: str
    name: str
    arch: str
    registers: int
    stack: int
    spilled: int
    shared: int
    disassembled: bool
    mix: Mapping[str, int] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The row of one file's cases compiled for GPUs without running them."""

    KEYS: ClassVar = ("file", "verdict", "cases", "seconds", "kernels")

    file: str = ""
    verdict: str = "fail"
    detail: str = ""
    cases: int = 0
    kernels: tuple[Kernel, ...] = ()
    seconds: float = 0.0


# The nets that catch miscompiles, by the words of their messages; the first that a message has counts.
NETS = (
    ("check mode of the emulator", ("kernel.cu",)),
    ("closed pages", ("beside pages that may not",)),
    ("guard zones", ("memory was written", "was changed, ")),
    ("elements not written", ("never written", "before it is written", "before its first write", "was not left zero")),
    ("accesses out of bounds", ("out of bounds", ", which has ")),
    ("repeated runs", ("gave different results",)),
    ("algebra in f64", (", in f64",)),
    ("values", (" wrong", ", expected ")),
    ("lost process", ("it died of", "it did not end")),
    ("checks of the data", ("out of range",)),
)


@dataclass(frozen=True, kw_only=True)
class PlantedMutant:
    """A planted miscompile, whether the checks caught it, and how."""

    COLUMNS: ClassVar[Columns] = {n: n for n in ("target", "stage", "case", "mutation", "how")}

    target: str
    stage: str
    case: str
    mutation: str
    caught: bool
    how: str

    @property
    def net(self) -> str:
        """The net that caught it; "another" if its message is unknown."""
        return next((net for net, said in NETS if any(words in self.how for words in said)), "another")


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A false alarm: a correct case that the checks refused."""

    target: str
    stage: str | None
    case: str
    message: str


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """The row of the self-test: all planted miscompiles and all false alarms."""

    KEYS: ClassVar = ("planted", "caught", "false_alarms")

    rows: tuple[PlantedMutant, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    verdict: str = "pass"
    detail: str = ""

    @property
    def planted(self) -> int:
        return len(self.rows)

    @property
    def caught(self) -> int:
        return sum(row.caught for row in self.rows)

    @property
    def nets(self) -> dict[str, int]:
        """How many each net has caught, most first."""
        return dict(Counter(row.net for row in self.rows if row.caught).most_common())

    @property
    def false_alarms(self) -> int:
        return len(self.alarms)


@dataclass(frozen=True, kw_only=True)
class Fitness:
    """Whether identical kernels measured equal, so that this machine can judge speed."""

    fit: bool = False
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class FuzzResult(BlamedVerdict):
    """The result of a random program: the kind of difference, and why its stage and pass are blamed."""

    verdict: str = "pass"
    kind: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Fuzz(FuzzResult):
    """The row of a random program: its number, seed, source line, arguments and result."""

    index: int
    seed: int
    target: str = ""
    command: str = ""
    line: str = ""
    arguments: str = ""
    reduced: str = ""  # the smallest program found that fails in the same way, and its shape file
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OpInfo:
    """The row of an OpInfo entry in one dtype (`f32.grad`: with gradients), or of an ONNX node test, by `source`.

    Verdicts: pass; unsupported (`missing` names the ops); torch (torch cannot trace it); wrong; error; crash; timeout;
    none (there is nothing to compare with).
    """

    name: str
    dtype: str
    target: str = ""
    verdict: str = "none"
    detail: str = ""
    missing: tuple[str, ...] = ()
    command: str = ""
    seconds: float = 0.0
    source: str = "opinfo"


Row = Check | Bench | Gate | SelfTest | Fitness | Fuzz | OpInfo
_KINDS: dict[str, type[Row]] = {kind.__name__: kind for kind in (Check, Bench, Gate, SelfTest, Fitness, Fuzz, OpInfo)}


def name(row: Item, *, bench: bool | None = None) -> str:
    """Return the pytest name of a row's item; the target goes inside the closing bracket, as in pytest's own names.

    >>> name(Bench(id="relu[N4.f32]", file="x.toml", suite="x", op="relu", target="cpu", dtype="f32", family="x"))
    'relu[N4.f32-cpu-bench]'
    """
    is_bench = isinstance(row, Bench) if bench is None else bench
    words = (row.id.removesuffix("]"), row.target, *(["bench"] if is_bench else []))
    return "-".join(words) + ("]" if "[" in row.id else "")


def ambiguous(names: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the names that cases of several files have, given each name with its file."""
    files = Counter(case for case, _ in set(names))
    return frozenset(case for case, count in files.items() if count > 1)


def shown_name(row: RunItem, *, bench: bool | None = None) -> str:
    """Return the name of a row in tables, which has its file if another file has a case of this name."""
    return (f"{row.file}::" if row.is_ambiguous else "") + name(row, bench=bench)


def remark(text: str) -> str:
    """Return the first line of a message, or the last of a traceback, cut to REMARK characters."""
    lines = text.strip().splitlines() or [""]
    return lines[-1 if lines[0].startswith("Traceback") else 0][:REMARK]


def worst_error(stages: Iterable[Stage]) -> float | None:
    """Return the largest `err_over_tol` of the stages, or None if none has one."""
    return max((stage.err_over_tol for stage in stages if stage.err_over_tol is not None), default=None)


def cell(column: str | Callable[[Any], object], row: object) -> object:
    """Return the cell of a row for one entry of `COLUMNS`."""
    return getattr(row, column) if isinstance(column, str) else column(row)


# ---- JSON


def to_json(value: Any, keys: Sequence[str] | None = None) -> Any:
    """Convert a value to JSON: rows by their fields, or only `keys`; NaN and infinities, which JSON lacks, to None."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {key: to_json(item) for key, item in value.items()}
        case list() | tuple():
            return [to_json(item) for item in value]
        case _ if dataclasses.is_dataclass(value):
            names = keys or [f.name for f in dataclasses.fields(value)]
            return {key: to_json(getattr(value, key)) for key in names}
        case str() | int() | float() | None:
            return value
        case _:
            raise TypeError(f"{type(value).__name__} is not JSON serializable")


def reported(value: Any) -> Any:
    """Convert a row and the rows in it to JSON, restricted to their `KEYS`."""
    if isinstance(value, list | tuple):
        return [reported(item) for item in value]
    if not hasattr(value, "KEYS"):
        return to_json(value)
    return {key: reported(getattr(value, key)) for key in value.KEYS}


def dumps(row: Row) -> str:
    """Serialise a row and its class name, for another process."""
    return json.dumps({type(row).__name__: to_json(row)})


def loads(text: str) -> Row:
    """Return the row that `dumps` serialised."""
    ((kind, data),) = json.loads(text).items()
    return from_json(_KINDS[kind], data)


def from_json(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return the row of class `kind` with these data; raises TypeError if they have a key that the class lacks."""
    hints = get_type_hints(kind)
    if unknown := data.keys() - hints.keys():
        raise TypeError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return kind(**{key: _read(hints[key], item) for key, item in data.items()})


def _read(hint: Any, item: Any) -> Any:
    """Convert an item of JSON to the type of the annotation."""
    arguments = get_args(hint)
    match item:
        case dict() if dataclasses.is_dataclass(hint):
            return from_json(hint, item)  # type: ignore[arg-type]
        case dict() if get_origin(hint) is not None and len(arguments) == 2:
            return {key: _read(arguments[1], element) for key, element in item.items()}
        case list():
            tuple_hint = next((element for element in (hint, *arguments) if get_origin(element) is tuple), None)
            return tuple(_read(get_args(tuple_hint)[0], element) for element in item) if tuple_hint else item
        case float() if not math.isfinite(item):
            return None
        case _:
            return item
