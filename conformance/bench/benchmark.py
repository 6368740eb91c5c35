"""A case to time and how, both as JSON, in; one row out: our time beside PyTorch's, its interval, and a verdict.

Runs in the child process.  Nothing is timed before our result has been compared and found stable, and the timed
section alone holds the machine.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

import compiler
from conformance import rows
from conformance.bench import duel, roofline, stored
from conformance.bench.duel import Clock, Protocol, Samples
from conformance.bench.emitted import Stored
from conformance.isolation.lock import Quiet
from conformance.judge import device, ladder, oracle, systems, tampering
from conformance.judge.systems import EAGER, Built, Function
from conformance.rows import BASELINE, COMPILE, OURS, Against, Budget, Speedup, Timed
from conformance.shapes import cases, inputs, modules
from conformance.shapes.cases import BenchCase, Case
from conformance.shapes.toml_values import CaseError

Tensors = Sequence[torch.Tensor]
# (ours, eager, a function that computes the reference in f64) -> (whether it is right, error over tolerance, message)
Compare = Callable[[object, object, Callable[[], object]], tuple[bool, float, str]]
Build = Callable[[str, Function, Tensors, str], Built]

PROTOCOLS = {"quick": duel.QUICK, "full": duel.FULL}
# The least effect that a verdict is about: quick runs see no less than this in their budget.
MIN_EFFECT = {"quick": 0.05, "full": 0.02}
IMPLAUSIBLE_SPEEDUP = 10.0
# Time on other threads beyond this share escapes the clock of the one thread that is timed.
STRAY_THREADS = 1.25
# glibc's names for how much free memory it gives back, and for how many blocks it maps each on its own.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
KEPT_BYTES, MAPPED_BLOCKS = 1 << 30, 65536


class Wrong(Exception):
    """Our executable must not be timed: its result is wrong, unstable, or not its caller's to keep."""


@dataclass(frozen=True)
class Settings:
    """How to time a case: `system` is raced against `vs`, or against what the case itself names."""

    target: str = "cpu"
    threads: int = 1
    mode: str = "quick"
    vs: tuple[str, ...] | None = None
    seed: int = 0
    system: str = systems.OURS
    stored: Stored | None = None  # the kernel to race besides
    min_effect: float = 0.03  # beside its time, that is to be found

    def __post_init__(self) -> None:
        if self.mode not in PROTOCOLS:
            raise ValueError(f"there is no bench mode {self.mode!r}; use one of {', '.join(PROTOCOLS)}")

    @property
    def protocol(self) -> Protocol:
        """On a GPU without bursts: none is disturbed there, and each would take a launch and a wait of its own."""
        chosen = PROTOCOLS[self.mode]
        return replace(chosen, bursts=1) if self.clock_name == "device" else chosen

    @property
    def effect(self) -> float:
        return MIN_EFFECT[self.mode]

    @property
    def where(self) -> str:
        """The device that the tensors are on."""
        return "cuda" if device.here(self.target) else "cpu"

    @property
    def clock_name(self) -> str:
        """A thread's own time ignores what else the machine does, but sees one thread alone."""
        if self.where == "cuda":
            return "device"
        return "thread_time_ns" if self.threads == 1 and self.target.startswith("cpu") else "perf_counter_ns"


@dataclass(frozen=True)
class Subject:
    """What is timed: a function of its inputs, the weights that it holds, and its result in f64."""

    function: Function
    inputs: Tensors
    reference: Callable[[], object]
    weights: Tensors = ()


@dataclass(frozen=True)
class Contest:
    """What races: ours first, then whoever could be built; `skipped` says why the others could not."""

    built: Mapping[str, Built]
    skipped: Mapping[str, str] = field(default_factory=dict)
    against: Against = field(default_factory=Against)

    @property
    def rivals(self) -> tuple[str, ...]:
        return tuple(name for name in self.built if name not in (OURS, BASELINE))


def run(case_json: Mapping[str, Any], options: Mapping[str, Any], quiet: Quiet = nullcontext) -> Timed:
    """What a race of one case found out; whatever goes wrong is said in it."""
    case = cases.from_json(case_json)
    known = options.get("stored")
    settings = Settings(**{**options, "stored": Stored(**known) if known else None})
    vs = settings.vs if settings.vs is not None else case.vs if isinstance(case, BenchCase) else (EAGER, COMPILE)
    with torch.no_grad(), kept_memory(), ladder.threads(settings.threads):
        try:
            if cases.kind_of(settings.target) == "cuda" and settings.where == "cpu":
                raise Wrong(f"no GPU of this machine runs code for {settings.target}")
            subject = prepare(case, settings.seed, settings.where)
            # What an expression makes itself, such as a mask, must lie beside its inputs.
            with torch.device("cuda") if settings.where == "cuda" else nullcontext():
                build = systems.build if case.entry == "export" else _through_torch
                row = measure(subject, vs, settings, quiet, oracle.quick_compare, build)
            budget = judge_budget(case.budget if isinstance(case, BenchCase) else {}, settings.target, row)
            return replace(row, budget=budget)
        except Exception as error:  # a foreign function under test may raise anything; the row carries it
            return failure(inputs.fault(case, settings.seed) or error)


def _through_torch(name: str, function: Function, given: Tensors, target: str) -> Built:
    """Ours as users have it."""
    return (
        systems.build(name, function, given, target) if name != OURS else systems.through_torch(name, function, given)
    )


@contextmanager
def kept_memory() -> Iterator[None]:
    """Let the memory of one call's outputs serve the next call, for every contestant and whatever ran before.

    By default glibc maps a block above 32 MiB anew in every call unless the heap happens to have a hole for it, and
    the page faults take five times as long as a softmax: the same race gave 0.76 and 2.6.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        yield
        return
    library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    library.mallopt(M_MMAP_MAX, 0)
    try:
        yield
    finally:
        library.mallopt(M_MMAP_MAX, MAPPED_BLOCKS)
        library.malloc_trim(0)


def prepare(case: Case, seed: int, where: str = "cpu") -> Subject:
    """The case's function with its constant arguments inside, its inputs, and the reference over all its tensors.

    All of it lies on the device `where`.
    """
    tensors = {name: tensor.to(where) for name, tensor in inputs.make(case, seed).items()}
    function, arguments = inputs.bind(case, tensors)
    whole = inputs.function(case)
    for module in _modules(function):
        module.to(where)
    for module in _modules(whole):
        module.to(where).double()  # its own copy of the weights, already rounded to the case's type
    weights = [tensor for module in _modules(function) for tensor in (*module.parameters(), *module.buffers())]

    def reference() -> object:
        with compiler.FirstOfEqual():
            return whole(*map(inputs.widened, tensors.values()))

    return Subject(function, arguments, reference, weights)


def measure(
    subject: Subject,
    vs: Sequence[str],
    settings: Settings,
    quiet: Quiet,
    compare: Compare,
    build: Build = systems.build,
    clock: Clock | None = None,
) -> Timed:
    """Build every contestant, check ours, race them alone on the machine, and judge."""
    contest = assemble(subject, vs, settings, build)
    check(contest.built[OURS].call, subject, compare)
    if BASELINE in contest.built:
        contest = _stored_is_right(contest, subject, compare)
    needed = roofline.work(subject.function, subject.inputs, subject.weights)
    with quiet(), systems.best_attention(subject.function, subject.inputs) as attention:
        samples, stray = _race(contest, subject.inputs, settings, clock)
        against = _beside(contest, subject.inputs, settings, clock)
        dtype = _dominant_dtype((*subject.inputs, *subject.weights))
        on_gpu = settings.where == "cuda"
        limits = roofline.device_limits(dtype) if on_gpu else roofline.limits(settings.threads, dtype)
        walls = _walls(contest, subject.inputs) if on_gpu else {}
    if names := tampering.replaced():
        raise Wrong(f"{names} was replaced by something else while it was timed")
    share = roofline.seconds(needed, limits) / samples.median(OURS)
    row = replace(summarise(samples, contest, settings), wall_us=walls, roofline=share, attention=attention)
    return replace(row, against=against, message="; ".join(suspicions(row, stray)))


def assemble(subject: Subject, vs: Sequence[str], settings: Settings, build: Build) -> Contest:
    """Ours must build; a rival that does not is left out, with its reason."""
    try:
        subject.function(*subject.inputs)
    except Exception as error:  # whatever the case's own expression raises, before anybody else is blamed for it
        raise Wrong(f"eager itself fails: {_brief(error)}") from error
    built = {OURS: build(settings.system, subject.function, subject.inputs, settings.target)}
    skipped: dict[str, str] = {}
    for name in dict.fromkeys((EAGER, *vs)):
        try:
            built[name] = build(name, subject.function, subject.inputs, settings.target)
        except Exception as error:  # any backend may be a rival, and may fail in its own way
            skipped[name] = _brief(error)
    against, again = stored.contestant(settings.stored, built[OURS], subject.inputs)
    return Contest(built | ({BASELINE: again} if again else {}), skipped, against)


def check(ours: Function, subject: Subject, compare: Compare) -> None:
    """Raise Wrong unless our result is right, the same each time, and the caller's to keep."""
    held = (*subject.inputs, *subject.weights)
    copies = [tensor.clone() for tensor in held]
    first, second = ours(*subject.inputs), ours(*subject.inputs)
    expected = subject.function(*subject.inputs)
    if not all(map(_identical, held, copies)):
        raise Wrong("running it changed its inputs")
    right, error_over_tol, message = compare(first, expected, subject.reference)
    if not right:
        raise Wrong(f"wrong result: {message} (error over tolerance {error_over_tol:.3g})")
    if not all(map(_identical, _leaves(first), _leaves(second))):
        raise Wrong("two runs on the same inputs gave different results")
    reused = _storages(first) & _storages(second)
    if reused - _storages(held) - _storages(expected):
        raise Wrong("two calls returned the same memory: the second overwrites the result of the first")


def _stored_is_right(contest: Contest, subject: Subject, compare: Compare) -> Contest:
    """The contest without a stored kernel whose result is wrong: its time says nothing."""
    made = contest.built[BASELINE].call(*subject.inputs)
    right, _, message = compare(made, subject.function(*subject.inputs), subject.reference)
    if right:
        return contest
    others = {name: built for name, built in contest.built.items() if name != BASELINE}
    return replace(contest, built=others, against=stored.unbuilt(contest.against, f"its result is wrong: {message}"))


def summarise(samples: Samples, contest: Contest, settings: Settings) -> Timed:
    """Times, and the speedup over the fastest rival with its interval and verdict."""
    best = duel.fastest(samples, contest.rivals)
    over = {name: duel.ratio(samples, name, OURS) for name in contest.rivals}
    micros = {name: samples.median(name) * 1e6 for name in samples.names}
    ours = contest.built[OURS]
    return Timed(
        ours_us=micros[OURS],
        eager_us=micros[EAGER],
        compile_us=micros.get(COMPILE, micros.get("max-autotune")),
        speedup=over[best].median,
        ci=(over[best].low, over[best].high),
        verdict=str(duel.verdict(over[best], settings.effect)),
        best=best,
        over={name: Speedup(speedup=one.median, ci=(one.low, one.high)) for name, one in over.items()},
        repeats=dict(zip(samples.names, samples.repeats, strict=True)),
        samples={name: tuple(float(f"{value:.5g}") for value in samples.of(name)) for name in samples.names},
        compile_seconds=ours.compile_seconds,
        rival_compile_seconds={name: contest.built[name].compile_seconds for name in contest.rivals},
        cached=tuple(name for name in contest.rivals if contest.built[name].cached),
        kernels=ours.kernels,
        digest=ours.digest,
        skipped=contest.skipped,
        clock=settings.clock_name,
        source=getattr(ours.call, "source", ""),
    )


def suspicions(row: Timed, stray: float) -> list[str]:
    """Reasons to doubt a time: too good to be true usually means that something was not measured, or not well."""
    doubts = []
    speedup, share = row.speedup or 0.0, row.roofline or 0.0
    if speedup > IMPLAUSIBLE_SPEEDUP:
        doubts.append(f"suspect: {speedup:.1f}x over {row.best}")
    if share > roofline.PLAUSIBLE:
        doubts.append(f"suspect: {share:.0%} of what this machine can do")
    elif share > roofline.EXACT:
        doubts.append(f"{share:.0%} of the roofline: its bandwidth or arithmetic was measured too low")
    if stray > STRAY_THREADS:
        doubts.append(f"suspect: other threads worked too, {stray:.1f}x the time of the thread that was timed")
    return doubts


def judge_budget(budget: Mapping[str, Mapping[str, float]], target: str, row: Timed) -> tuple[Budget, ...]:
    """Each limit that the case sets for this target: met, missed, or not proven because it lies in the interval."""
    limits = [rule for selector, rules in budget.items() if cases.matches(selector, target) for rule in rules.items()]
    return tuple(judged for name, limit in limits if (judged := _judge(name, limit, row)))


def failure(error: Exception) -> Timed:
    """A row that has no times."""
    verdict = "unsupported" if isinstance(error, compiler.Unsupported) else "fail"
    return Timed(verdict=verdict, message=_brief(error))


def fitness(options: Mapping[str, Any], quiet: Quiet = nullcontext) -> rows.Fitness:
    """Whether this machine can judge speed now: PyTorch's own kernels raced against themselves."""
    settings = Settings(**options)
    x, y = torch.randn(2, 512, 512).to(settings.where)
    kernels: Mapping[str, Callable[[], object]] = {
        "add": partial(torch.add, x, y),
        "softmax": partial(torch.softmax, x, -1),
        "matmul": partial(torch.mm, x, y),
    }
    rng = np.random.default_rng(settings.seed)
    with torch.no_grad(), ladder.threads(settings.threads), quiet():
        if settings.clock_name == "device":
            kernels, clock = device.graphs(kernels)[0], device.clock
        else:
            clock = tampering.clock(settings.clock_name)
        found = duel.aa_check(kernels, clock, rng, settings.effect, settings.protocol)
    return rows.Fitness(fit=found.fit, message=found.message)


def _race(contest: Contest, arguments: Tensors, settings: Settings, clock: Clock | None) -> tuple[Samples, float]:
    """The samples, and the process's time over the thread's where one thread's clock has been used, else 1."""
    calls = {name: partial(contest.built[name].call, *arguments) for name in (OURS, *contest.rivals)}
    if settings.clock_name == "device" and clock is None:
        return _race_on_device(contest, calls, settings), 1.0
    decided = partial(_decided, rivals=contest.rivals, settings=settings)
    rng = np.random.default_rng(settings.seed)
    before = time.process_time(), time.thread_time()
    ticks = clock or tampering.clock(settings.clock_name)
    samples = duel.race(calls, ticks, rng, settings.protocol, decided)
    stray = (time.process_time() - before[0]) / max(time.thread_time() - before[1], 1e-9)
    return samples, stray if clock is None and settings.clock_name == "thread_time_ns" else 1.0


def _race_on_device(contest: Contest, calls: Mapping[str, Callable[[], object]], settings: Settings) -> Samples:
    """The samples of graphs of many calls, per call."""
    graphs, copies = device.graphs(calls)
    decided = partial(_decided, rivals=contest.rivals, settings=settings)
    rng = np.random.default_rng(settings.seed)
    found = duel.race(graphs, device.clock, rng, settings.protocol, decided)
    return replace(found, seconds=found.seconds / copies)


def _beside(contest: Contest, arguments: Tensors, settings: Settings, clock: Clock | None) -> Against:
    """How ours does beside the stored kernel, in a race of the two alone: the others would take most of its rounds."""
    if BASELINE not in contest.built:
        return contest.against
    both = {name: contest.built[name].call for name in (OURS, BASELINE)}
    own = None if settings.clock_name == "device" else tampering.clock(settings.clock_name)
    decided = partial(stored.decided, effect=settings.min_effect)
    protocol = stored.longer(settings.protocol)
    samples = stored.race(both, arguments, clock or own, settings.seed, protocol, decided)
    return stored.judge(samples, contest.against, settings.min_effect)


def _walls(contest: Contest, arguments: Tensors) -> dict[str, float]:
    """Microseconds of one call of each contestant, the wait for the device included."""
    return {name: device.wall_seconds(partial(b.call, *arguments)) * 1e6 for name, b in contest.built.items()}


def _decided(samples: Samples, rivals: Sequence[str], settings: Settings) -> bool:
    measured = duel.ratio(samples, duel.fastest(samples, rivals), OURS)
    return duel.verdict(measured, settings.effect) is not duel.Verdict.AMBIGUOUS


def _judge(name: str, limit: float, row: Timed) -> Budget | None:
    """One limit; None for a limit that needs what this row has not, like a skipped rival."""
    rivals = {"min_speedup_eager": EAGER, "min_speedup_compile": COMPILE}
    figures = {"min_roofline": row.roofline, "max_compile_s": row.compile_seconds, "max_kernels": row.kernels}
    ends = row.ci
    if name in rivals:
        ends = row.over[rivals[name]].ci if rivals[name] in row.over else None
    elif name in figures:
        figure = figures[name]
        ends = None if figure is None else (figure, figure)
    if ends is None:
        return None
    surely, surely_not = (
        (ends[0] >= limit, ends[1] < limit) if name[:3] == "min" else (ends[1] <= limit, ends[0] > limit)
    )
    verdict = "met" if surely else "missed" if surely_not else "unproven"
    return Budget(name=name, limit=limit, verdict=verdict)


def _brief(error: Exception) -> str:
    """The error on one line; torch puts the telling part of its messages anywhere but first."""
    text = " ".join(str(error).split())
    text = text if len(text) <= 600 else text[:597] + "..."
    return text if isinstance(error, Wrong | CaseError | compiler.CompilerError) else f"{type(error).__name__}: {text}"


def _leaves(result: object) -> list[torch.Tensor]:
    return [leaf if isinstance(leaf, torch.Tensor) else torch.as_tensor(leaf) for leaf in tree_leaves(result)]


def _storages(result: object) -> set[int]:
    return {leaf.untyped_storage().data_ptr() for leaf in _leaves(result) if leaf.numel()}


def _identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in type, shape and every value, with NaN equal to NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a, b) or bool(torch.isclose(a, b, rtol=0, atol=0, equal_nan=True).all())


def _modules(function: Function) -> list[torch.nn.Module]:
    """The modules whose weights a case's function uses: itself, and those that its text names."""
    own = [function] if isinstance(function, torch.nn.Module) else []
    return [*own, *modules.of(function).values()]


def _dominant_dtype(tensors: Tensors) -> torch.dtype:
    """The type that most of the floating data has: its arithmetic rate is the limit."""
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return max(floating, key=lambda tensor: tensor.numel()).dtype if floating else torch.float32
