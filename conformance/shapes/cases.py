"""Cases: one checked or timed run as an immutable value, with its id, expression, arguments and expectations.

A case consists of plain data, so it can be printed, compared, and sent to a child process as JSON.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

DTYPES = ("f64", "f32", "bf16", "f16", "i64", "i32", "i16", "i8", "u8", "bool", "f8e4m3", "f8e5m2")
BYTES = dict(zip(DTYPES, (8, 4, 2, 2, 8, 4, 2, 1, 1, 1, 1, 1), strict=True))  # per element
FLOATS = frozenset({"f64", "f32", "bf16", "f16", "f8e4m3", "f8e5m2"})
TIERS = ("smoke", "full", "nightly")
IR_STAGES = ("torch", "tensor", "loop", "tile", "kernel")
KINDS = {"cpu": "cpp", "cuda": "cuda"}  # kind of target -> its last stage
RIVALS = ("eager", "compile", "max-autotune")  # what to time against, besides backends of torch.compile
STAGES = (*IR_STAGES, *KINDS.values(), "mlir", "triton")

Value = Any  # a number, boolean, string or None, or nested tuples of them


@dataclass(frozen=True)
class Arg:
    """A tensor argument: its shape, dtype, memory layout and distribution of data."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str = "contig"
    inputs: Mapping[str, Value] = field(default_factory=lambda: {"kind": "normal"}, hash=False)
    constant: bool = False
    axes: tuple[str, ...] = ()  # in a dynamic case: for each axis its size as a formula of dynamic dims, or ""


@dataclass(frozen=True)
class Dynamic:
    """The dynamic dims of a case: their ranges, and the points to check, as values of these dims and the arguments."""

    ranges: Mapping[str, tuple[int, int | None]] = field(hash=False)
    points: tuple[tuple[Mapping[str, int], tuple[Arg, ...]], ...] = field(hash=False)


@dataclass(frozen=True)
class Tolerance:
    """The tolerance of results: the derived bound, or fixed numbers with a reason."""

    mode: str = "bound"
    rtol: float | None = None
    atol: float | None = None
    reason: str = ""
    specials: str = "ieee"
    deterministic: bool = True


@dataclass(frozen=True)
class Xfail:
    """A failure that is expected on a target and, if `strict`, required."""

    target: str
    stage: str | None
    reason: str
    strict: bool = True


@dataclass(frozen=True)
class Case:
    """A row of a shape file: everything needed to make its inputs, run it and judge it."""

    id: str
    file: str
    line: int
    suite: str
    op: str
    expr: str
    args: tuple[Arg, ...]
    dims: Mapping[str, Value] = field(hash=False)
    params: Mapping[str, Value] = field(hash=False)
    consts: Mapping[str, Value] = field(hash=False)
    dtype: str
    layout: str
    distribution: str
    targets: tuple[str, ...]
    tier: str
    tolerance: Tolerance = Tolerance()
    xfail: tuple[Xfail, ...] = ()
    timeout: float | None = None
    module: str | None = None
    init: Mapping[str, Value] = field(default_factory=dict, hash=False)
    large: bool = False  # too large for interpreters and emulators, which would take hours
    dynamic: Dynamic | None = None
    mutates: tuple[str, ...] = ()  # the arguments that the program writes to
    entry: str = "export"  # or "compile": only the results of torch.compile are judged
    raises: str | None = None  # the class of the exception that eager, and so every stage, must raise
    grad: tuple[str, ...] = ()  # the arguments whose gradients are compared instead of the results
    torch: str = ""  # the versions of torch that can run it, as in ">=2.12"; "" means any
    # Larger values of dims and params at which another backend is called as well, in order of preference, with the
    # arguments at these values.
    enlarged: tuple[tuple[Mapping[str, Value], tuple[Arg, ...]], ...] = field(default=(), hash=False)

    @property
    def constants(self) -> tuple[str, ...]:
        """The names of the arguments that are module weights."""
        return tuple(arg.name for arg in self.args if arg.constant)


@dataclass(frozen=True)
class BenchCase(Case):
    """A case to time: its rivals, the budget per target selector, and the family in whose mean it counts."""

    vs: tuple[str, ...] = ("eager", "compile")
    budget: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    family: str = ""


def seed(case: Case, arg: str, run_seed: int = 0) -> int:
    """Return a 63-bit seed that depends only on the case's id, the argument and the run's seed."""
    digest = hashlib.blake2b(f"{case.id}\0{arg}\0{run_seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def kind_of(target: str) -> str:
    """Return the kind of a target.

    >>> kind_of("cpu:avx2"), kind_of("cuda"), kind_of("sm_90a"), kind_of("mlir"), kind_of("triton")
    ('cpu', 'cuda', 'cuda', 'cpu', 'cuda')
    """
    return {"sm": "cuda", "triton": "cuda", "mlir": "cpu"}.get(re.split("[:_]", target)[0], re.split(":", target)[0])


def stages_of(target: str) -> tuple[str, ...]:
    """Return the stages of a target.

    >>> stages_of("cpu:avx2")[-2:], stages_of("sm_90a")[-2:]
    (('kernel', 'cpp'), ('kernel', 'cuda'))
    """
    if target.startswith("mlir"):
        return ("torch", "tensor", "mlir")
    if target == "triton":
        return ("torch", "tensor", "loop", "tile", "triton")
    return (*IR_STAGES, KINDS[kind_of(target)])


def matches(selector: str, target: str) -> bool:
    """Return whether a selector matches a target: `cpu` and `*` match `cpu:avx2`, `cuda` matches `sm_90a`.

    >>> matches("cpu", "cpu:avx2"), matches("cpu:avx2", "cpu"), matches("*", "cuda"), matches("cuda", "sm_80")
    (True, False, True, True)
    """
    return selector in ("*", target, kind_of(target))


def runs_on(case: Case, target: str) -> bool:
    """Return whether the case runs on this target."""
    return any(matches(selector, target) for selector in case.targets)


def xfail_for(case: Case, target: str) -> Xfail | None:
    """Return the expected failure of the case on this target, or None."""
    return next((expected for expected in case.xfail if matches(expected.target, target)), None)


def token(value: Value) -> str:
    """Return a parameter's value as it appears in ids, in characters valid in `pytest -k` and file names.

    >>> [token(v) for v in (-1, 0.5, True, (0, -1), (), None, "floor", "a b")]
    ['m1', '0p5', 'true', '0_m1', 'empty', 'none', 'floor', 'a_b.9ef6']
    """
    match value:
        case bool() | None:
            return str(value).lower()
        case int() | float():
            return repr(value).replace("-", "m").replace(".", "p").replace("+", "")
        case tuple():
            joint = "__" if any(isinstance(item, tuple) for item in value) else "_"
            return joint.join(token(item) for item in value) or "empty"
        case _:
            plain = re.sub(r"\W", "_", value, flags=re.ASCII)
            # Different strings must not give equal ids, so a changed one gets a digest of the original.
            return plain if plain == value and value else f"{plain}.{hashlib.blake2b(value.encode()).hexdigest()[:4]}"


def case_id(name: str, sizes: Mapping[str, Value], params: Mapping[str, Value], tail: tuple[str, ...]) -> str:
    """Return the id of a row, which states all its choices.

    >>> case_id("softmax", {"M": 64, "N": 4096}, {"dim": -1}, ("f32", "contig", "normal"))
    'softmax[M64-N4096-dim_m1.f32.contig.normal]'
    """
    words = [f"{key}{token(value)}" for key, value in sizes.items()]
    words += [f"{key}_{token(value)}" for key, value in params.items()]
    row = "-".join(words)
    rest = ".".join(re.sub(r"_+$", "", re.sub(r"[^\w.+]+", "_", word.replace("-", "m"))) for word in tail)
    return f"{name}[{row}.{rest}]" if row else f"{name}[{rest}]"


def to_json(case: Case) -> dict[str, Any]:
    """Convert a case to data for JSON; `from_json` is the inverse."""
    return {"kind": type(case).__name__, **asdict(case)}


def from_json(data: Mapping[str, Any]) -> Case:
    """Return the case that `to_json` converted, also after `json.dumps` and `json.loads`."""
    kind: type[Case] = {"Case": Case, "BenchCase": BenchCase}[data["kind"]]
    values: dict[str, Any] = {item.name: freeze(data[item.name]) for item in fields(kind)}
    values["args"] = tuple(Arg(**arg) for arg in values["args"])
    values["tolerance"] = Tolerance(**values["tolerance"])
    values["enlarged"] = _points(values["enlarged"])
    if values["dynamic"]:
        values["dynamic"] = Dynamic(values["dynamic"]["ranges"], _points(values["dynamic"]["points"]))
    values["xfail"] = tuple(Xfail(**expected) for expected in values["xfail"])
    return kind(**values)


def _points(points: Any) -> tuple[tuple[Mapping[str, Value], tuple[Arg, ...]], ...]:
    return tuple((values, tuple(Arg(**arg) for arg in args)) for values, args in points)


def freeze(value: Any) -> Any:
    """Convert lists to tuples recursively."""
    match value:
        case list() | tuple():
            return tuple(freeze(item) for item in value)
        case Mapping():
            return {key: freeze(item) for key, item in value.items()}
        case _:
            return value
