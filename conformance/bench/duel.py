"""Race callables in one process, round by round, and compare them by paired ratios with confidence intervals."""

from __future__ import annotations

import gc
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

Clock = Callable[[], int]
Contestants = Mapping[str, Callable[[], object]]

CONFIDENCE = 0.99
RESAMPLES = 2000
# Below this many rounds no interval holds the median with 99 % confidence: 1 - 2 * 0.5**8 = 99.2 %.
FEWEST_ROUNDS = 8
REPEATS_CAP = 1_000_000


class Verdict(StrEnum):
    """The verdict on the second contestant of a ratio of times, relative to the first."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    AMBIGUOUS = "AMBIGUOUS"


@dataclass(frozen=True)
class Protocol:
    """How long a race runs: the looks (numbers of rounds after which it is judged), and in ns of the clock the minimum
    length of a sample and the budget.

    A sample consists of up to `bursts` bursts of calls, of which the fastest counts: other load on the machine can only
    make a burst longer, and most of it lasts a fraction of a millisecond. If calls are long, each is a burst.
    """

    looks: tuple[int, ...] = (20, 60, 180)
    sample_ns: int = 1_000_000
    bursts: int = 4
    budget_ns: int = 400_000_000
    fewest_rounds: int = FEWEST_ROUNDS


QUICK = Protocol()
FULL = Protocol(sample_ns=4_000_000, budget_ns=4_000_000_000)


@dataclass(frozen=True)
class Samples:
    """Seconds per call, a row per round and a column per contestant; `looks` is the number of planned looks."""

    names: tuple[str, ...]
    seconds: NDArray[np.float64]
    repeats: tuple[int, ...]
    looks: int = 1

    @property
    def rounds(self) -> int:
        return int(self.seconds.shape[0])

    def times_of(self, name: str) -> NDArray[np.float64]:
        return self.seconds[:, self.names.index(name)]

    def median(self, name: str) -> float:
        return float(np.median(self.times_of(name)))


@dataclass(frozen=True)
class Ratio:
    """The time of one contestant over that of another: the median of the ratios per round, and its interval."""

    median: float
    low: float
    high: float
    rounds: int
    confidence: float

    @property
    def half_width(self) -> float:
        """The smallest effect that is distinguishable from none with these rounds, as a fraction."""
        return math.sqrt(self.high / self.low) - 1


@dataclass(frozen=True)
class Fitness:
    """The result of racing contestants against themselves: whether this machine can judge speed now."""

    fit: bool
    half_width: float
    ratios: Mapping[str, Ratio]
    message: str


def race(
    contestants: Contestants,
    clock: Clock,
    rng: np.random.Generator,
    protocol: Protocol = QUICK,
    is_decided: Callable[[Samples], bool] | None = None,
    equal_repeats: Collection[str] = (),
) -> Samples:
    """Time every contestant once per round, in random order; stop at the first look at which `is_decided` is true.

    The looks are fixed before the first sample, from the calibration alone, so that stopping early cannot favour a
    side. The contestants in `equal_repeats` get the same number of calls per sample, because the first call after
    another contestant's is slower than the rest.
    """
    names = tuple(contestants)
    calls = [contestants[name] for name in names]
    with _no_garbage_collection():
        call_ticks = [_calibrate(call, clock, protocol.sample_ns) for call in calls]
        fewest_ticks = min((call_ticks[names.index(name)] for name in equal_repeats), default=math.inf)
        shapes = [
            _burst_shape(min(ticks, fewest_ticks) if name in equal_repeats else ticks, protocol)
            for name, ticks in zip(names, call_ticks, strict=True)
        ]
        repeats = tuple(bursts * calls for bursts, calls in shapes)
        looks = plan(protocol, sum(map(operator.mul, repeats, call_ticks)))
        rows: list[list[float]] = []
        for look in looks:
            rows += [_round(calls, shapes, clock, rng) for _ in range(look - len(rows))]
            samples = Samples(names, np.array(rows) * 1e-9, repeats, len(looks))
            if is_decided is not None and is_decided(samples):
                break
    return samples


def plan(protocol: Protocol, round_ns: float) -> tuple[int, ...]:
    """Return the looks that fit the budget if a round takes `round_ns`; at least one, of at least `fewest_rounds`."""
    affordable = max(protocol.fewest_rounds, int(protocol.budget_ns / max(round_ns, 1)))
    affordable_looks = tuple(look for look in protocol.looks if look <= affordable)
    last = min(affordable, protocol.looks[-1])
    # A last look only a few rounds after the previous one would cost confidence and add no information.
    return affordable_looks if affordable_looks and last < 1.5 * affordable_looks[-1] else (*affordable_looks, last)


def ratio(samples: Samples, a: str, b: str, confidence: float = CONFIDENCE) -> Ratio:
    """Return the time of `a` over that of `b`; above 1, `b` is faster. The error is split evenly among the looks."""
    logs = np.log(samples.times_of(a)) - np.log(samples.times_of(b))
    low, high, reached = interval(logs, 1 - (1 - confidence) / samples.looks)
    overall = 1 - (1 - reached) * samples.looks
    return Ratio(math.exp(float(np.median(logs))), math.exp(low), math.exp(high), samples.rounds, overall)


def interval(values: NDArray[np.float64], confidence: float) -> tuple[float, float, float]:
    """Confidence interval of the median: circular block bootstrap, widened to the exact interval of order statistics.

    Blocks keep neighbouring rounds together, because a disturbance lasts longer than a round. Returns the ends and the
    confidence reached, which is lower than requested if there are too few rounds.
    """
    count = len(values)
    ordered = np.sort(values)
    rank, reached = _order_statistic_rank(count, confidence)
    low, high = float(ordered[rank]), float(ordered[count - 1 - rank])
    length = max(1, round(count ** (1 / 3)))
    # The seed is fixed so that the same samples always give the same interval.
    starts = np.random.default_rng(0).integers(0, count, (RESAMPLES, -(-count // length)))
    indices = (starts[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :count] % count
    medians = np.median(values[indices], axis=1)
    tail = (1 - confidence) / 2
    return min(low, float(np.quantile(medians, tail))), max(high, float(np.quantile(medians, 1 - tail))), reached


def verdict(measured: Ratio, min_effect: float) -> Verdict:
    """Judge the second contestant of the ratio: FASTER, SLOWER or SAME if the whole interval says so, or AMBIGUOUS."""
    if measured.low > 1 + min_effect:
        return Verdict.FASTER
    if measured.high < 1 / (1 + min_effect):
        return Verdict.SLOWER
    same = measured.low >= 1 / (1 + min_effect) and measured.high <= 1 + min_effect
    return Verdict.SAME if same else Verdict.AMBIGUOUS


def slowdown_p_value(samples: Samples, a: str, b: str, effect: float) -> float:
    """Return the p-value of the hypothesis that `a` is slower than `b` by at most `effect`, from a sign test.

    The test counts the rounds in which `a` took longer by more than `effect`, and assumes only that rounds are
    identically distributed. It is multiplied by the number of planned looks (Bonferroni).
    """
    over = int((np.log(samples.times_of(a)) - np.log(samples.times_of(b)) > math.log1p(effect)).sum())
    tail: float = sum(math.comb(samples.rounds, k) for k in range(over, samples.rounds + 1)) / 2**samples.rounds
    return min(1.0, tail * samples.looks)


def discoveries(p_values: Sequence[float], rate: float = 1 - CONFIDENCE) -> frozenset[int]:
    """Return the indices of the p-values that are significant at this false discovery rate (Benjamini-Hochberg).

    >>> sorted(discoveries([0.004, 0.2, 0.0001, 0.02]))
    [0, 2]
    """
    order = sorted(range(len(p_values)), key=lambda n: p_values[n])
    last = max((k for k, n in enumerate(order, 1) if p_values[n] <= rate * k / len(p_values)), default=0)
    return frozenset(order[:last])


def fastest(samples: Samples, names: Sequence[str]) -> str:
    """Return the fastest contestant of `names` by the medians of the paired ratios."""
    best = names[0]
    for name in names[1:]:
        if float(np.median(np.log(samples.times_of(best)) - np.log(samples.times_of(name)))) > 0:
            best = name
    return best


def aa_check(
    kernels: Contestants, clock: Clock, rng: np.random.Generator, min_effect: float, protocol: Protocol = FULL
) -> Fitness:
    """Race each kernel against itself; the machine is fit if all verdicts are SAME."""
    # One interval in a hundred misses the true value by chance; this error is split among the kernels (Bonferroni).
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(kernels))
    ratios = {}
    for name, kernel in kernels.items():
        samples = race({"first": kernel, "second": kernel}, clock, rng, protocol)
        ratios[name] = ratio(samples, "first", "second", confidence)
    complaints = [text for name, measured in ratios.items() if (text := _complaint(name, measured, min_effect))]
    width = max((measured.half_width for measured in ratios.values()), default=0.0)
    message = "; ".join(complaints) or f"fit: equal code measures equal, effects above {width:.1%} are visible"
    return Fitness(not complaints, width, ratios, message)


def _complaint(name: str, measured: Ratio, min_effect: float) -> str | None:
    # An interval that excludes 1 is no complaint: a bias far below `min_effect` does no harm.
    if verdict(measured, min_effect) is Verdict.SAME:
        return None
    shown = f"{measured.median:.3f} [{measured.low:.3f}, {measured.high:.3f}]"
    return f"unfit: {name} against itself measures {shown}, not 1 within {min_effect:.1%}"


def _round(
    calls: Sequence[Callable[[], object]], shapes: Sequence[tuple[int, int]], clock: Clock, rng: np.random.Generator
) -> list[float]:
    """Time every contestant once, in random order; return the time per call (in clock ticks) of its fastest burst."""
    times = [0.0] * len(calls)
    for side in rng.permutation(len(calls)):
        bursts, repeats = shapes[side]
        times[side] = max(min(_elapsed(calls[side], repeats, clock) for _ in range(bursts)), 1) / repeats
    return times


def _elapsed(call: Callable[[], object], repeats: int, clock: Clock) -> int:
    start = clock()
    for _ in range(repeats):
        call()
    return clock() - start


def _calibrate(call: Callable[[], object], clock: Clock, sample_ns: int) -> float:
    """Warm up and return the time of one call, measured over about half a sample or more.

    The faster of two tries counts: a disturbed one would make all samples, and the race, too short.
    """
    call()
    repeats = 1
    while True:
        elapsed = min(_elapsed(call, repeats, clock) for _ in range(2))
        if elapsed >= sample_ns // 2 or repeats >= REPEATS_CAP:
            break
        repeats = min(REPEATS_CAP, repeats * max(2, min(16, sample_ns // max(2 * elapsed, 1))))
    return max(elapsed, 1) / repeats


def _burst_shape(call_ticks: float, protocol: Protocol) -> tuple[int, int]:
    """Return the number of bursts in a sample and of calls in a burst, for calls of `call_ticks` ticks."""
    calls = max(1, min(REPEATS_CAP // protocol.bursts, math.ceil(protocol.sample_ns / protocol.bursts / call_ticks)))
    return min(protocol.bursts, max(1, math.ceil(protocol.sample_ns / (calls * call_ticks)))), calls


@cache
def _order_statistic_rank(count: int, confidence: float) -> tuple[int, float]:
    """Return the largest rank r such that the r-th values from both ends enclose the median with this confidence.

    Also returns the confidence reached; if `count` is too small it is below `confidence`, and the rank is 0.
    """
    tail, rank, reached = 0.0, 0, 1 - 2 * 0.5**count
    for r in range((count + 1) // 2):
        tail += math.comb(count, r) / 2**count
        if 1 - 2 * tail < confidence:
            break
        rank, reached = r, 1 - 2 * tail
    return rank, reached if reached < confidence else confidence


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: a collection takes a millisecond, which would count for one contestant."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
