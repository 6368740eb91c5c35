"""The rows of a run: what judging, timing and fuzzing find out, and which of it reports hold.

A row is a value. It becomes JSON where it leaves a process or is written to a file, by `to_json`, and nowhere else. The
`KEYS` of a class are its fields in `run.json`, its `COLUMNS` those of its table.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
# The cell of a row, or the field that it holds, by the column's header.
Columns = Mapping[str, str | Callable[[Any], object]]
Interval = tuple[float, float]

CHECK_VERDICTS = ("pass", "fail", "crash", "timeout", "unsupported", "xfail")
BENCH_VERDICTS = ("FASTER", "SLOWER", "SAME", "AMBIGUOUS")
BAD = frozenset({"fail", "crash", "timeout", "unsupported"})
REMARK = 100  # characters of a remark in a table
OURS, EAGER, COMPILE, BASELINE = "ours", "eager", "compile", "baseline"  # contestants


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a case, run by its executor; `err_over_tol` is its largest error over what is allowed."""

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
    """What an item of pytest is about: a case on a target, and the command that runs it again."""

    id: str
    file: str
    suite: str
    op: str
    target: str
    dtype: str
    params: Mapping[str, object] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Ran(Item):
    """An item that ran; `first_loss` says how a first try lost its process, `reason` why a failure was expected."""

    seconds: float = 0.0
    first_loss: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Blamed:
    """A verdict; of a bad one the stage and the pass that are to blame, and the folder where it can be seen again."""

    verdict: str = "fail"
    first_bad_stage: str | None = None
    first_bad_pass: str | None = None
    detail: str = ""
    repro: str = ""


@dataclass(frozen=True, kw_only=True)
class Judged(Blamed):
    """What came of running a case: its stages, their `texts`, and the schedules that no pass could carry out."""

    stages: tuple[Stage, ...] = ()
    fallbacks: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Check(Ran, Judged):
    """A case, judged."""

    KEYS: ClassVar = (
        "id", "file", "op", "target", "dtype", "verdict", "first_bad_stage", "first_bad_pass", "stages", "seconds",
    )  # fmt: skip
    COLUMNS: ClassVar[Columns] = {
        "case": lambda row: name(row), "verdict": "verdict", "first bad stage": "first_bad_stage",
        "pass": "first_bad_pass", "err/tol": lambda row: row.bad and row.bad.err_over_tol,
        "what": lambda row: remark((row.bad and row.bad.message) or row.detail),
    }  # fmt: skip

    @property
    def bad(self) -> Stage | None:
        """The first stage that is not right."""
        return next((stage for stage in self.stages if stage.verdict in BAD), None)


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """The time of another over ours: above 1 we are faster, surely within the interval."""

    speedup: float
    ci: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A limit that a shape file sets, and whether it is met, missed, or neither for sure."""

    name: str
    limit: float
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Against:
    """Ours beside a stored kernel, if there was a baseline with one: the time of that over ours.

    `identity` is the digest of our code and what it includes. A verdict is "" without a race, or "unbuilt". `chance`
    is that of such samples if ours were slower by no more than what matters, `least` the slowdown that would be seen.
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
    drift: Mapping[str, float] = field(default_factory=dict)  # time of a rival over ours, of now over then
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What a race found out: microseconds of a call, ratios over the best of PyTorch, raw samples in seconds.

    `over` has the speedup over each rival, `wall_us` one call with the wait for its end, `cached` the rivals that had
    what they compiled from earlier, `skipped` those left out with the reason, and `message` what to doubt.
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
    against: Against = field(default_factory=Against)
    source: str = ""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Bench(Ran, Timed):
    """A benchmark, raced; `cliffs` are what is slow of it beyond any tuning."""

    KEYS: ClassVar = (
        "id", "suite", "op", "target", "dtype", "ours_us", "eager_us", "compile_us", "speedup", "ci", "verdict",
        "roofline", "family", "clock", "wall_us", "best", "attention", "kernels", "compile_seconds", "digest", "detail",
        "cliffs", "against", "file", "seconds",
    )  # fmt: skip
    # What pytest-benchmark keeps besides our own times.
    EXTRA: ClassVar = (
        "file", "family", "op", "target", "dtype", "eager_us", "compile_us", "speedup", "ci", "verdict", "roofline",
        "wall_us", "digest", "compile_seconds",
    )  # fmt: skip
    COLUMNS: ClassVar[Columns] = {
        "case": lambda row: name(row, bench=False), "ours us": "ours_us", "eager us": "eager_us",
        "compile us": "compile_us", "speedup": "speedup",
        "interval": lambda row: row.ci and "{:.2f} … {:.2f}".format(*row.ci), "verdict": "verdict",
        "of roofline": lambda row: row.roofline and f"{row.roofline:.0%}",
        "wall us": lambda row: (row.wall_us or {}).get(OURS),
        "wall us of PyTorch": lambda row: min((t for n, t in (row.wall_us or {}).items() if n != OURS), default=None),
        "build s": "compile_seconds", "remark": lambda row: remark(row.detail),
    }  # fmt: skip
    BASELINE_COLUMNS: ClassVar[Columns] = {
        "case": lambda row: name(row, bench=False), "verdict": lambda row: row.against.verdict or "new",
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
        """The limits that it breaks beyond doubt."""
        return tuple(rule for rule in self.budget if rule.verdict == "missed")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel compiled for a GPU: registers of a thread, bytes of shared, local and spilled memory, and how often each
    opcode occurs in its code, without modifiers."""

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
    """The cases of a file compiled for GPUs."""

    KEYS: ClassVar = ("file", "verdict", "cases", "seconds", "kernels")

    file: str = ""
    verdict: str = "fail"
    detail: str = ""
    cases: int = 0
    kernels: tuple[Kernel, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A miscompile that was planted, and how the checks noticed it or did not."""

    COLUMNS: ClassVar[Columns] = {n: n for n in ("target", "stage", "case", "mutation", "how")}

    target: str
    stage: str
    case: str
    mutation: str
    caught: bool
    how: str


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A sound case that was refused."""

    target: str
    stage: str | None
    case: str
    message: str


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """Every miscompile that was planted, and every sound case that was refused."""

    KEYS: ClassVar = ("planted", "caught", "false_alarms")

    rows: tuple[Planted, ...] = ()
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
    def false_alarms(self) -> int:
        return len(self.alarms)


@dataclass(frozen=True, kw_only=True)
class Fitness:
    """Whether equal code measured equal, so that speed can be judged."""

    fit: bool = False
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Found(Blamed):
    """What came of a random program: the kind of difference, and why a stage and a pass are to blame for it."""

    verdict: str = "pass"
    kind: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Fuzz(Found):
    """A random program: its number, its line and arguments, and what came of it."""

    index: int
    seed: int
    target: str = ""
    command: str = ""
    line: str = ""
    arguments: str = ""
    reduced: str = ""  # the least program that goes wrong so, and its shape file
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OpInfo:
    """An entry of PyTorch's database as an element type (`f32.grad` with its gradients), and what came of its samples;
    or, where that is the `source`, one of ONNX's node tests.

    Verdicts are pass; unsupported, for want of the ops `missing`; torch, which cannot trace it; wrong, error, crash or
    timeout; and none, where there is nothing to compare with.
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
    """What pytest calls the item of a row; a bracket closes last, as in pytest's own names.

    >>> name(Bench(id="relu[N4.f32]", file="x.toml", suite="x", op="relu", target="cpu", dtype="f32", family="x"))
    'relu[N4.f32-cpu-bench]'
    """
    ends = isinstance(row, Bench) if bench is None else bench
    words = (row.id.removesuffix("]"), row.target, *(["bench"] if ends else []))
    return "-".join(words) + ("]" if "[" in row.id else "")


def remark(text: str) -> str:
    """The line of a message that says most: the first, of a traceback the last."""
    lines = text.strip().splitlines() or [""]
    return lines[-1 if lines[0].startswith("Traceback") else 0][:REMARK]


def worst_error(stages: Iterable[Stage]) -> float | None:
    """The largest error over its tolerance."""
    return max((stage.err_over_tol for stage in stages if stage.err_over_tol is not None), default=None)


def shown(of: str | Callable[[Any], object], row: object) -> object:
    """The cell of a row in a column."""
    return getattr(row, of) if isinstance(of, str) else of(row)


# ---- JSON


def to_json(value: Any, keys: Sequence[str] | None = None) -> Any:
    """The value as JSON has it: rows by their fields, or by `keys`; NaN and infinities, which it has not, as None."""
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
    """The `KEYS` of a row, and of the rows in it, as JSON."""
    if isinstance(value, list | tuple):
        return [reported(item) for item in value]
    if not hasattr(value, "KEYS"):
        return to_json(value)
    return {key: reported(getattr(value, key)) for key in value.KEYS}


def dumps(row: Row) -> str:
    """The row and its kind as text, for another process."""
    return json.dumps({type(row).__name__: to_json(row)})


def loads(text: str) -> Row:
    """The row that became a text."""
    ((kind, data),) = json.loads(text).items()
    return from_json(_KINDS[kind], data)


def from_json(kind: type[T], data: Mapping[str, Any]) -> T:
    """The row that was made JSON; raises TypeError where the data are none of this kind."""
    hints = get_type_hints(kind)
    if unknown := data.keys() - hints.keys():
        raise TypeError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return kind(**{key: _read(hints[key], item) for key, item in data.items()})


def _read(hint: Any, item: Any) -> Any:
    """An item of JSON as the annotation has it."""
    arguments = get_args(hint)
    match item:
        case dict() if dataclasses.is_dataclass(hint):
            return from_json(hint, item)  # type: ignore[arg-type]
        case dict() if get_origin(hint) is not None and len(arguments) == 2:
            return {key: _read(arguments[1], one) for key, one in item.items()}
        case list():
            within = next((one for one in (hint, *arguments) if get_origin(one) is tuple), None)
            return tuple(_read(get_args(within)[0], one) for one in item) if within else item
        case float() if not math.isfinite(item):
            return None
        case _:
            return item
