"""Callables raced in one process, round by round, in; paired ratios with intervals and verdicts out."""

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
    """What a ratio of times says: the second contestant is faster than the first, slower, equal, or it is not known."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    AMBIGUOUS = "AMBIGUOUS"


@dataclass(frozen=True)
class Protocol:
    """How long a race runs: looks (in rounds), least length of a sample and budget (in clock ticks, ns).

    A sample is as many as `bursts` of calls, of which the quickest counts: whatever else the machine does can only make
    a burst longer, and most of it is over in a fraction of a millisecond. Calls that take long are a burst each.
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
    """Seconds per call, a row per round and a column per contestant; `looks` is how often they may be judged."""

    names: tuple[str, ...]
    seconds: NDArray[np.float64]
    repeats: tuple[int, ...]
    looks: int = 1

    @property
    def rounds(self) -> int:
        return int(self.seconds.shape[0])

    def of(self, name: str) -> NDArray[np.float64]:
        return self.seconds[:, self.names.index(name)]

    def median(self, name: str) -> float:
        return float(np.median(self.of(name)))


@dataclass(frozen=True)
class Ratio:
    """Time of one contestant over time of another: the median of the rounds' ratios and its confidence interval."""

    median: float
    low: float
    high: float
    rounds: int
    confidence: float

    @property
    def half_width(self) -> float:
        """The smallest effect that this many rounds can tell from none, as a fraction."""
        return math.sqrt(self.high / self.low) - 1


@dataclass(frozen=True)
class Fitness:
    """Whether this machine, now, tells equal code from different code: contestants raced against themselves."""

    fit: bool
    half_width: float
    ratios: Mapping[str, Ratio]
    message: str


def race(
    contestants: Contestants,
    clock: Clock,
    rng: np.random.Generator,
    protocol: Protocol = QUICK,
    decided: Callable[[Samples], bool] | None = None,
    alike: Collection[str] = (),
) -> Samples:
    """Time every contestant once per round, in random order; stop at the first look at which `decided` says so.

    The looks are fixed before the first sample from the calibration alone, so that stopping cannot favour a side. Those
    that are `alike` have samples of as many calls: the first call after another contestant's is slower than the rest.
    """
    names = tuple(contestants)
    calls = [contestants[name] for name in names]
    with _no_garbage_collection():
        once = [_calibrate(call, clock, protocol.sample_ns) for call in calls]
        least = min((once[names.index(name)] for name in alike), default=math.inf)
        shapes = [
            _bursts(min(each, least) if name in alike else each, protocol)
            for name, each in zip(names, once, strict=True)
        ]
        repeats = tuple(bursts * calls for bursts, calls in shapes)
        looks = plan(protocol, sum(map(operator.mul, repeats, once)))
        rows: list[list[float]] = []
        for look in looks:
            rows += [_round(calls, shapes, clock, rng) for _ in range(look - len(rows))]
            samples = Samples(names, np.array(rows) * 1e-9, repeats, len(looks))
            if decided is not None and decided(samples):
                break
    return samples


def plan(protocol: Protocol, round_ns: float) -> tuple[int, ...]:
    """The looks that fit the budget when a round takes `round_ns`; always at least one, of `fewest_rounds`."""
    affordable = max(protocol.fewest_rounds, int(protocol.budget_ns / max(round_ns, 1)))
    whole = tuple(look for look in protocol.looks if look <= affordable)
    last = min(affordable, protocol.looks[-1])
    # A look a few rounds after the one before would cost confidence and bring no information.
    return whole if whole and last < 1.5 * whole[-1] else (*whole, last)


def ratio(samples: Samples, a: str, b: str, confidence: float = CONFIDENCE) -> Ratio:
    """Time of `a` over time of `b`: above 1 means that `b` is the faster; the error is split evenly over the looks."""
    logs = np.log(samples.of(a)) - np.log(samples.of(b))
    low, high, reached = interval(logs, 1 - (1 - confidence) / samples.looks)
    held = 1 - (1 - reached) * samples.looks
    return Ratio(math.exp(float(np.median(logs))), math.exp(low), math.exp(high), samples.rounds, held)


def interval(values: NDArray[np.float64], confidence: float) -> tuple[float, float, float]:
    """Interval of the median by a circular block bootstrap, never narrower than the exact one from order statistics.

    The blocks keep neighbouring rounds together, because a disturbance lasts longer than a round.  Returns the ends
    and the confidence reached, which is lower than asked when there are too few rounds.
    """
    count = len(values)
    ordered = np.sort(values)
    rank, reached = _order_statistic_rank(count, confidence)
    low, high = float(ordered[rank]), float(ordered[count - 1 - rank])
    length = max(1, round(count ** (1 / 3)))
    # A fixed seed: the same samples always give the same interval.
    starts = np.random.default_rng(0).integers(0, count, (RESAMPLES, -(-count // length)))
    indices = (starts[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :count] % count
    medians = np.median(values[indices], axis=1)
    tail = (1 - confidence) / 2
    return min(low, float(np.quantile(medians, tail))), max(high, float(np.quantile(medians, 1 - tail))), reached


def verdict(measured: Ratio, min_effect: float) -> Verdict:
    """FASTER or SLOWER (said of the ratio's second contestant) or SAME only when the whole interval says so."""
    if measured.low > 1 + min_effect:
        return Verdict.FASTER
    if measured.high < 1 / (1 + min_effect):
        return Verdict.SLOWER
    same = measured.low >= 1 / (1 + min_effect) and measured.high <= 1 + min_effect
    return Verdict.SAME if same else Verdict.AMBIGUOUS


def chance_of_no_more(samples: Samples, a: str, b: str, effect: float) -> float:
    """The chance of so many rounds in which `a` took longer than `b` by more than `effect`, if usually it does not.

    A sign test, which needs nothing of the times but that rounds are alike; a look early on counts as all of them.
    """
    over = int((np.log(samples.of(a)) - np.log(samples.of(b)) > math.log1p(effect)).sum())
    tail: float = sum(math.comb(samples.rounds, k) for k in range(over, samples.rounds + 1)) / 2**samples.rounds
    return min(1.0, tail * samples.looks)


def discoveries(chances: Sequence[float], rate: float = 1 - CONFIDENCE) -> frozenset[int]:
    """Which of many findings stand if no more than this share of those that do may be chance (Benjamini, Hochberg).

    >>> sorted(discoveries([0.004, 0.2, 0.0001, 0.02]))
    [0, 2]
    """
    order = sorted(range(len(chances)), key=lambda n: chances[n])
    last = max((k for k, n in enumerate(order, 1) if chances[n] <= rate * k / len(chances)), default=0)
    return frozenset(order[:last])


def fastest(samples: Samples, names: Sequence[str]) -> str:
    """The contestant of `names` that wins most of its rounds, judged by the medians of the paired ratios."""
    best = names[0]
    for name in names[1:]:
        if float(np.median(np.log(samples.of(best)) - np.log(samples.of(name)))) > 0:
            best = name
    return best


def aa_check(
    kernels: Contestants, clock: Clock, rng: np.random.Generator, min_effect: float, protocol: Protocol = FULL
) -> Fitness:
    """Race each kernel against itself: a fit machine calls equal code the SAME."""
    # One interval in a hundred excludes the truth by chance; the allowance is shared between the kernels.
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
    # Not "excludes 1": a bias far below the effect that verdicts are about does no harm.
    if verdict(measured, min_effect) is Verdict.SAME:
        return None
    shown = f"{measured.median:.3f} [{measured.low:.3f}, {measured.high:.3f}]"
    return f"unfit: {name} against itself measures {shown}, not 1 within {min_effect:.1%}"


def _round(
    calls: Sequence[Callable[[], object]], shapes: Sequence[tuple[int, int]], clock: Clock, rng: np.random.Generator
) -> list[float]:
    """Of each contestant the quickest burst, per call."""
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
    """Warm up, then what one call takes, of as many as about make a sample.

    The quicker of two tries: one that was disturbed would make all samples too short and the race, too.
    """
    call()
    repeats = 1
    while True:
        elapsed = min(_elapsed(call, repeats, clock) for _ in range(2))
        if elapsed >= sample_ns // 2 or repeats >= REPEATS_CAP:
            break
        repeats = min(REPEATS_CAP, repeats * max(2, min(16, sample_ns // max(2 * elapsed, 1))))
    return max(elapsed, 1) / repeats


def _bursts(once: float, protocol: Protocol) -> tuple[int, int]:
    """The bursts that make one sample long enough, and the calls of each."""
    calls = max(1, min(REPEATS_CAP // protocol.bursts, math.ceil(protocol.sample_ns / protocol.bursts / once)))
    return min(protocol.bursts, max(1, math.ceil(protocol.sample_ns / (calls * once)))), calls


@cache
def _order_statistic_rank(count: int, confidence: float) -> tuple[int, float]:
    """The rank r such that the r-th values from both ends hold the median with the confidence asked, or the ends."""
    tail, rank, reached = 0.0, 0, 1 - 2 * 0.5**count
    for r in range((count + 1) // 2):
        tail += math.comb(count, r) / 2**count
        if 1 - 2 * tail < confidence:
            break
        rank, reached = r, 1 - 2 * tail
    return rank, reached if reached < confidence else confidence


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection would land on one contestant and cost it a millisecond."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
