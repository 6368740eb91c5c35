"""Run one benchmark in the child process: our time against PyTorch's, with an interval and a verdict.

Nothing is timed before our result has been checked and found stable. Only the timed section holds the machine lock.
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
from conformance.bench.emitted import StoredKernel
from conformance.isolation.lock import Quiet
from conformance.judge import device, ladder, oracle, systems, tampering
from conformance.judge.systems import EAGER, BuiltFunction, Function
from conformance.rows import BASELINE, COMPILE, OURS, BaselineComparison, Budget, RaceResult, Speedup
from conformance.shapes import cases, inputs, modules
from conformance.shapes.cases import BenchCase, Case
from conformance.shapes.toml_values import CaseError

Tensors = Sequence[torch.Tensor]
# (our result, eager's, function that computes the f64 reference) -> (is it right, error over tolerance, message)
Compare = Callable[[object, object, Callable[[], object]], tuple[bool, float, str]]
Build = Callable[[str, Function, Tensors, str], BuiltFunction]

PROTOCOLS = {"quick": duel.QUICK, "full": duel.FULL}
# The margin around 1 that verdicts use: a smaller effect cannot be resolved within the time budget of the mode.
MIN_EFFECT = {"quick": 0.05, "full": 0.02}
IMPLAUSIBLE_SPEEDUP = 10.0
# Process time over thread time; above this, a significant part of the work ran on threads that were not timed.
MOST_THREAD_RATIO = 1.25
# glibc's parameters: free memory at the top of the heap before it is returned; number of blocks allocated by mmap.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
KEPT_BYTES, MAPPED_BLOCKS = 1 << 30, 65536


class InvalidBenchmark(Exception):
    """Our executable must not be timed: its result is wrong, not reproducible, or overwritten by a later call."""


@dataclass(frozen=True)
class Settings:
    """How to time a case: `system` against the rivals `vs`, by default those that the case names."""

    target: str = "cpu"
    threads: int = 1
    mode: str = "quick"
    vs: tuple[str, ...] | None = None
    seed: int = 0
    system: str = systems.OURS
    stored: StoredKernel | None = None  # a baseline's kernel to race as well
    min_effect: float = 0.03  # the smallest slowdown against the stored kernel to detect

    def __post_init__(self) -> None:
        if self.mode not in PROTOCOLS:
            raise ValueError(f"there is no bench mode {self.mode!r}; use one of {', '.join(PROTOCOLS)}")

    @property
    def protocol(self) -> Protocol:
        """The race's protocol; one burst per sample on a GPU, where other load does not disturb a burst and each
        burst would cost a launch and a wait."""
        chosen = PROTOCOLS[self.mode]
        return replace(chosen, bursts=1) if self.clock_name == "device" else chosen

    @property
    def effect(self) -> float:
        return MIN_EFFECT[self.mode]

    @property
    def where(self) -> str:
        """The torch device of the tensors."""
        return "cuda" if device.runs_on_local_gpu(self.target) else "cpu"

    @property
    def clock_name(self) -> str:
        """The clock: device time; thread time, which excludes other load but covers one thread only; or wall time."""
        if self.where == "cuda":
            return "device"
        return "thread_time_ns" if self.threads == 1 and self.target.startswith("cpu") else "perf_counter_ns"


@dataclass(frozen=True)
class Subject:
    """What is timed: a function, its inputs and weights, and a function that computes its result in f64."""

    function: Function
    inputs: Tensors
    reference: Callable[[], object]
    weights: Tensors = ()


@dataclass(frozen=True)
class Contest:
    """The contestants that could be built, ours first; `skipped` has the reason for each other one."""

    built: Mapping[str, BuiltFunction]
    skipped: Mapping[str, str] = field(default_factory=dict)
    against: BaselineComparison = field(default_factory=BaselineComparison)

    @property
    def rivals(self) -> tuple[str, ...]:
        return tuple(name for name in self.built if name not in (OURS, BASELINE))


def run(case_json: Mapping[str, Any], options: Mapping[str, Any], quiet: Quiet = nullcontext) -> RaceResult:
    """Race one case and return the result; an error of any kind becomes its verdict and message."""
    case = cases.from_json(case_json)
    stored_kernel = options.get("stored")
    settings = Settings(**{**options, "stored": StoredKernel(**stored_kernel) if stored_kernel else None})
    vs = settings.vs if settings.vs is not None else case.vs if isinstance(case, BenchCase) else (EAGER, COMPILE)
    with torch.no_grad(), reuse_memory(), ladder.threads(settings.threads):
        try:
            if cases.kind_of(settings.target) == "cuda" and settings.where == "cpu":
                raise InvalidBenchmark(f"no GPU of this machine runs code for {settings.target}")
            subject = prepare(case, settings.seed, settings.where)
            # Tensors that the case's expression creates, such as masks, must be on the device of its inputs.
            with torch.device("cuda") if settings.where == "cuda" else nullcontext():
                build = systems.build if case.entry == "export" else _build_through_torch
                row = measure(subject, vs, settings, quiet, oracle.quick_compare, build)
            budget = judge_budget(case.budget if isinstance(case, BenchCase) else {}, settings.target, row)
            return replace(row, budget=budget)
        except Exception as error:  # the function under test may raise anything; the row reports it
            fault = inputs.fault(case, settings.seed)
            return replace(failure(fault or error), invalid_case=fault is not None)


def _build_through_torch(name: str, function: Function, inputs: Tensors, target: str) -> BuiltFunction:
    """Build a contestant, ours through `torch.compile` as users call it."""
    return (
        systems.build(name, function, inputs, target)
        if name != OURS
        else systems.build_through_torch(name, function, inputs)
    )


@contextmanager
def reuse_memory() -> Iterator[None]:
    """Make glibc reuse the memory of outputs from call to call, for every contestant and regardless of what ran before.

    By default glibc maps blocks above 32 MiB anew in every call, unless the heap happens to have a hole for them. The
    page faults take five times as long as a softmax: the same race gave 0.76 and 2.6.
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
    """Return the case's function with its constant arguments bound, its inputs and the reference, on device `where`."""
    tensors = {name: tensor.to(where) for name, tensor in inputs.make(case, seed).items()}
    function, arguments = inputs.bind(case, tensors)
    unbound = inputs.function(case)
    for module in _modules(function):
        module.to(where)
    for module in _modules(unbound):
        module.to(where).double()  # a separate copy of the weights, already rounded to the case's dtype
    weights = [tensor for module in _modules(function) for tensor in (*module.parameters(), *module.buffers())]

    def reference() -> object:
        with compiler.FirstOfEqual():
            return unbound(*map(inputs.widen, tensors.values()))

    return Subject(function, arguments, reference, weights)


def measure(
    subject: Subject,
    vs: Sequence[str],
    settings: Settings,
    quiet: Quiet,
    compare: Compare,
    build: Build = systems.build,
    clock: Clock | None = None,
) -> RaceResult:
    """Build all contestants, check ours, race them while holding the machine lock, and return the judged row."""
    contest = assemble(subject, vs, settings, build)
    check(contest.built[OURS].call, subject, compare)
    if BASELINE in contest.built:
        contest = _drop_wrong_stored_kernel(contest, subject, compare)
    work = roofline.work(subject.function, subject.inputs, subject.weights)
    with quiet(), systems.best_attention(subject.function, subject.inputs) as attention:
        samples, thread_ratio = _race(contest, subject.inputs, settings, clock)
        against = _race_stored_kernel(contest, subject.inputs, settings, clock)
        dtype = _dominant_dtype((*subject.inputs, *subject.weights))
        on_gpu = settings.where == "cuda"
        limits = roofline.device_limits(dtype) if on_gpu else roofline.limits(settings.threads, dtype)
        walls = _wall_microseconds(contest, subject.inputs) if on_gpu else {}
    if names := tampering.restore_functions():
        raise InvalidBenchmark(f"{names} was replaced by something else while it was timed")
    share = roofline.seconds(work, limits) / samples.median(OURS)
    row = replace(summarise(samples, contest, settings), wall_us=walls, roofline=share, attention=attention)
    return replace(row, against=against, message="; ".join(suspicions(row, thread_ratio)))


def assemble(subject: Subject, vs: Sequence[str], settings: Settings, build: Build) -> Contest:
    """Build the contestants. Raises if eager or ours fails; a rival that cannot be built is skipped with the reason."""
    try:
        subject.function(*subject.inputs)
    except Exception as error:  # the case's expression itself fails: no contestant is to blame
        raise InvalidBenchmark(f"eager itself fails: {_one_line(error)}") from error
    built = {OURS: build(settings.system, subject.function, subject.inputs, settings.target)}
    skipped: dict[str, str] = {}
    for name in dict.fromkeys((EAGER, *vs)):
        try:
            built[name] = build(name, subject.function, subject.inputs, settings.target)
        except systems.NotInstalled:
            skipped[name] = rows.NOT_INSTALLED
        except Exception as error:  # a rival may be any backend and raise anything
            skipped[name] = _one_line(error)
    against, stored_kernel = stored.contestant(settings.stored, built[OURS], subject.inputs)
    return Contest(built | ({BASELINE: stored_kernel} if stored_kernel else {}), skipped, against)


def check(ours: Function, subject: Subject, compare: Compare) -> None:
    """Raise InvalidBenchmark if ours changes inputs, is wrong, differs between calls, or reuses results' memory."""
    operands = (*subject.inputs, *subject.weights)
    copies = [tensor.clone() for tensor in operands]
    first, second = ours(*subject.inputs), ours(*subject.inputs)
    expected = subject.function(*subject.inputs)
    if not all(map(_is_equal, operands, copies)):
        raise InvalidBenchmark("running it changed its inputs")
    is_right, error_over_tol, message = compare(first, expected, subject.reference)
    if not is_right:
        raise InvalidBenchmark(f"wrong result: {message} (error over tolerance {error_over_tol:.3g})")
    if not all(map(_is_equal, _leaves(first), _leaves(second))):
        raise InvalidBenchmark("two runs on the same inputs gave different results")
    reused = _storages(first) & _storages(second)
    if reused - _storages(operands) - _storages(expected):
        raise InvalidBenchmark("two calls returned the same memory: the second overwrites the result of the first")


def _drop_wrong_stored_kernel(contest: Contest, subject: Subject, compare: Compare) -> Contest:
    """Return the contest, without the stored kernel if its result is wrong, as its time would be meaningless."""
    result = contest.built[BASELINE].call(*subject.inputs)
    is_right, _, message = compare(result, subject.function(*subject.inputs), subject.reference)
    if is_right:
        return contest
    others = {name: built for name, built in contest.built.items() if name != BASELINE}
    return replace(
        contest, built=others, against=stored.unbuilt_row(contest.against, f"its result is wrong: {message}")
    )


def summarise(samples: Samples, contest: Contest, settings: Settings) -> RaceResult:
    """Return the times, and the speedup over the fastest rival with its interval and verdict."""
    best = duel.fastest(samples, contest.rivals)
    ratios = {name: duel.ratio(samples, name, OURS) for name in contest.rivals}
    micros = {name: samples.median(name) * 1e6 for name in samples.names}
    ours = contest.built[OURS]
    return RaceResult(
        ours_us=micros[OURS],
        eager_us=micros[EAGER],
        compile_us=micros.get(COMPILE, micros.get("max-autotune")),
        speedup=ratios[best].median,
        ci=(ratios[best].low, ratios[best].high),
        verdict=str(duel.verdict(ratios[best], settings.effect)),
        best=best,
        over={name: Speedup(speedup=ratio.median, ci=(ratio.low, ratio.high)) for name, ratio in ratios.items()},
        repeats=dict(zip(samples.names, samples.repeats, strict=True)),
        samples={name: tuple(float(f"{value:.5g}") for value in samples.times_of(name)) for name in samples.names},
        compile_seconds=ours.compile_seconds,
        rival_compile_seconds={name: contest.built[name].compile_seconds for name in contest.rivals},
        cached=tuple(name for name in contest.rivals if contest.built[name].cached),
        kernels=ours.kernels,
        digest=ours.digest,
        skipped=contest.skipped,
        clock=settings.clock_name,
        source=getattr(ours.call, "source", ""),
    )


def suspicions(row: RaceResult, thread_ratio: float) -> list[str]:
    """Return reasons to doubt the row: an implausible speedup or share of the roofline, or work on other threads."""
    doubts = []
    speedup, share = row.speedup or 0.0, row.roofline or 0.0
    if speedup > IMPLAUSIBLE_SPEEDUP:
        doubts.append(f"suspect: {speedup:.1f}x over {row.best}")
    if share > roofline.PLAUSIBLE:
        doubts.append(f"suspect: {share:.0%} of what this machine can do")
    elif share > roofline.EXACT:
        doubts.append(f"{share:.0%} of the roofline: its bandwidth or arithmetic was measured too low")
    if thread_ratio > MOST_THREAD_RATIO:
        doubts.append(f"suspect: other threads worked too, {thread_ratio:.1f}x the time of the thread that was timed")
    return doubts


def judge_budget(budget: Mapping[str, Mapping[str, float]], target: str, row: RaceResult) -> tuple[Budget, ...]:
    """Judge the limits that the case sets for this target; `unproven` means that the limit lies in the interval."""
    limits = [rule for selector, rules in budget.items() if cases.matches(selector, target) for rule in rules.items()]
    return tuple(budget_row for name, limit in limits if (budget_row := _judge_limit(name, limit, row)))


def failure(error: Exception) -> RaceResult:
    """Return the row of a benchmark that failed with this error."""
    verdict = "unsupported" if isinstance(error, compiler.Unsupported) else "fail"
    return RaceResult(verdict=verdict, message=_one_line(error))


def fitness(options: Mapping[str, Any], quiet: Quiet = nullcontext) -> rows.Fitness:
    """Race kernels of PyTorch against themselves to determine whether this machine can judge speed now."""
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
            kernels, clock = device.capture_graphs(kernels)[0], device.clock
        else:
            clock = tampering.original_clock(settings.clock_name)
        result = duel.aa_check(kernels, clock, rng, settings.effect, settings.protocol)
    return rows.Fitness(fit=result.fit, message=result.message)


def _race(contest: Contest, arguments: Tensors, settings: Settings, clock: Clock | None) -> tuple[Samples, float]:
    """Race ours and the rivals. Also returns process time over thread time if the thread's clock was used, else 1."""
    calls = {name: partial(contest.built[name].call, *arguments) for name in (OURS, *contest.rivals)}
    if settings.clock_name == "device" and clock is None:
        return _race_on_device(contest, calls, settings), 1.0
    is_decided = partial(_is_decided, rivals=contest.rivals, settings=settings)
    rng = np.random.default_rng(settings.seed)
    before = time.process_time(), time.thread_time()
    race_clock = clock or tampering.original_clock(settings.clock_name)
    samples = duel.race(calls, race_clock, rng, settings.protocol, is_decided)
    thread_ratio = (time.process_time() - before[0]) / max(time.thread_time() - before[1], 1e-9)
    return samples, thread_ratio if clock is None and settings.clock_name == "thread_time_ns" else 1.0


def _race_on_device(contest: Contest, calls: Mapping[str, Callable[[], object]], settings: Settings) -> Samples:
    """Race CUDA graphs that contain many calls each, and return the time per call."""
    graphs, copies = device.capture_graphs(calls)
    is_decided = partial(_is_decided, rivals=contest.rivals, settings=settings)
    rng = np.random.default_rng(settings.seed)
    samples = duel.race(graphs, device.clock, rng, settings.protocol, is_decided)
    return replace(samples, seconds=samples.seconds / copies)


def _race_stored_kernel(
    contest: Contest, arguments: Tensors, settings: Settings, clock: Clock | None
) -> BaselineComparison:
    """Race ours against the stored kernel alone, as other contestants would use up most of the time budget."""
    if BASELINE not in contest.built:
        return contest.against
    calls = {name: contest.built[name].call for name in (OURS, BASELINE)}
    default_clock = None if settings.clock_name == "device" else tampering.original_clock(settings.clock_name)
    is_decided = partial(stored.is_race_decided, effect=settings.min_effect)
    protocol = stored.longer_protocol(settings.protocol)

    def race(calls: Mapping[str, Function], seed: int) -> BaselineComparison:
        samples = stored.race(calls, arguments, clock or default_clock, seed, protocol, is_decided)
        return stored.judge(samples, contest.against, settings.min_effect)

    first = race(calls, settings.seed)
    if first.verdict not in stored.TO_CONFIRM:
        return first
    return stored.confirm(first, race({n: stored.build_again(call) for n, call in calls.items()}, settings.seed + 1))


def _wall_microseconds(contest: Contest, arguments: Tensors) -> dict[str, float]:
    """Return the microseconds of one call of each contestant, including the wait for the device."""
    return {name: device.wall_seconds(partial(b.call, *arguments)) * 1e6 for name, b in contest.built.items()}


def _is_decided(samples: Samples, rivals: Sequence[str], settings: Settings) -> bool:
    measured = duel.ratio(samples, duel.fastest(samples, rivals), OURS)
    return duel.verdict(measured, settings.effect) is not duel.Verdict.AMBIGUOUS


def _judge_limit(name: str, limit: float, row: RaceResult) -> Budget | None:
    """Judge one limit; None if the row lacks the figure that it limits, for example because the rival was skipped."""
    rivals = {"min_speedup_eager": EAGER, "min_speedup_compile": COMPILE}
    figures = {"min_roofline": row.roofline, "max_compile_s": row.compile_seconds, "max_kernels": row.kernels}
    interval = row.ci
    if name in rivals:
        interval = row.over[rivals[name]].ci if rivals[name] in row.over else None
    elif name in figures:
        figure = figures[name]
        interval = None if figure is None else (figure, figure)
    if interval is None:
        return None
    is_met, is_missed = (
        (interval[0] >= limit, interval[1] < limit)
        if name[:3] == "min"
        else (interval[1] <= limit, interval[0] > limit)
    )
    verdict = "met" if is_met else "missed" if is_missed else "unproven"
    return Budget(name=name, limit=limit, verdict=verdict)


def _one_line(error: Exception) -> str:
    """Return the error on one line of at most 600 characters. It keeps all lines of the message: in torch's messages
    the informative part is rarely the first line."""
    text = " ".join(str(error).split())
    text = text if len(text) <= 600 else text[:597] + "..."
    return (
        text
        if isinstance(error, InvalidBenchmark | CaseError | compiler.CompilerError)
        else f"{type(error).__name__}: {text}"
    )


def _leaves(result: object) -> list[torch.Tensor]:
    return [leaf if isinstance(leaf, torch.Tensor) else torch.as_tensor(leaf) for leaf in tree_leaves(result)]


def _storages(result: object) -> set[int]:
    return {leaf.untyped_storage().data_ptr() for leaf in _leaves(result) if leaf.numel()}


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether dtype, shape and all values are equal, with NaN equal to NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a, b) or bool(torch.isclose(a, b, rtol=0, atol=0, equal_nan=True).all())


def _modules(function: Function) -> list[torch.nn.Module]:
    """Return the modules whose weights a case's function uses: the function itself and those named in its text."""
    itself = [function] if isinstance(function, torch.nn.Module) else []
    return [*itself, *modules.modules_of(function).values()]


def _dominant_dtype(tensors: Tensors) -> torch.dtype:
    """Return the dtype of the largest floating-point tensor, whose arithmetic rate bounds the roofline."""
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return max(floating, key=lambda tensor: tensor.numel()).dtype if floating else torch.float32
