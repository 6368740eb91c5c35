"""Rebuild a stored kernel of a baseline as a contestant, race ours against it, and judge the result.

Both are built by the same compiler and race in one process, round by round, so that only the texts differ.

**The rule.** Let e be the smallest slowdown to detect (`--mlcomp-min-effect`), and r the true ratio of our time to that
of the stored kernel. A rule that says SLOWER if the whole interval lies above 1 + e would detect a slowdown of e in one
of 200 races, since only 0.5 % of intervals lie above the true ratio. A rule that only requires an interval above 1
would call twins (equal code built twice) slower, because their times differ systematically by parts of a percent,
depending on the addresses of code and operands. Therefore the bar is the geometric mean of the two: b = sqrt(1 + e).

    SLOWER   the whole interval lies beyond b
    FASTER   the whole interval lies below 1 / b
    SAME     neither, and the whole interval lies within 1 / (1 + e) ... 1 + e

The intervals of all looks of a race together miss r in at most 1 % of races, half of that on either side. Hence, if
r <= b, which includes equal code with a bias of up to half the effect, the verdict is SLOWER in at most 0.5 % of races.
If r >= 1 + e, it is SAME in at most 0.5 %. If r = 1 + e, it is SLOWER as soon as half the width of the interval is
below log(1 + e) / 2. For r between b and 1 + e, either is possible. The false discovery rate among all SLOWER verdicts
of a run is controlled by a separate test (`run/regressions.py`); a race continues until it would pass that test too.

**Twice.** Rarely equal code differs by more than the bar for a whole race, which no number of rounds shows: its code or
its data lie badly in memory. Hence SLOWER and FASTER must hold for two builds of either kernel, which lie at different
places; else the verdict is AMBIGUOUS.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

import compiler
from conformance.bench import duel, emitted
from conformance.bench.duel import Clock, Protocol, Samples, Verdict
from conformance.bench.emitted import StoredKernel
from conformance.judge import device
from conformance.judge.systems import BuiltFunction
from conformance.rows import BASELINE, OURS, BaselineComparison
from conformance.shapes.inputs import clone_storage

FEWEST_ROUNDS = 20  # with fewer, no finding could survive the correction for the many cases of a run
LOOKS = (20, 60, 180, 540, 1620)
BUDGET_NS = 12_000_000_000  # a race undecided by then stays AMBIGUOUS; most are decided at the first looks
SETS = 3  # copies of the operands that alternate, so that no address of data favours a contestant
MOST_BYTES = 1 << 28  # larger operands are not copied
TO_CONFIRM = (Verdict.SLOWER, Verdict.FASTER)  # verdicts that must hold for a second build of each kernel
MOST_P_VALUE = 1e-5  # a p-value that is significant even among the thousand benchmarks of a run


def contestant(
    stored: StoredKernel | None, ours: BuiltFunction, inputs: Sequence[torch.Tensor]
) -> tuple[BaselineComparison, BuiltFunction | None]:
    """Rebuild the stored kernel as a contestant. Returns None with the reason if there is nothing to race."""
    executable = ours.call
    if not isinstance(executable, compiler.Executable):
        return BaselineComparison(), None
    headers = compiler.headers(executable.code.target)
    identity = emitted.identity(executable.source, headers)
    if stored is None:
        return BaselineComparison(identity=identity), None
    comparison = BaselineComparison(baseline=stored.baseline, identity=identity)
    if emitted.identity(stored.text, stored.headers) == identity:
        return replace(comparison, verdict=str(Verdict.SAME), why="equal code"), None
    try:
        rebuilt = compiler.rebuild(executable, emitted.self_contained(stored.text, stored.headers))
        rebuilt(*inputs)
    except Exception as error:  # an old text may fail to build or run in any way; the reason is reported
        return unbuilt_row(comparison, f"{type(error).__name__}: {error}"), None
    return comparison, BuiltFunction(BASELINE, rebuilt)


def unbuilt_row(comparison: BaselineComparison, reason: str) -> BaselineComparison:
    """Return the row of a stored kernel that cannot be raced."""
    return replace(comparison, verdict="unbuilt", why=" ".join(reason.split())[:300])


def longer_protocol(protocol: Protocol) -> Protocol:
    """Return the protocol for races against a stored kernel: more looks and a larger budget."""
    budget = max(BUDGET_NS, protocol.budget_ns)
    return replace(protocol, looks=LOOKS, budget_ns=budget, fewest_rounds=max(FEWEST_ROUNDS, protocol.fewest_rounds))


def race(
    kernels: Mapping[str, Callable[..., object]],
    operands: Sequence[torch.Tensor],
    clock: Clock | None,
    seed: int,
    protocol: Protocol,
    is_decided: Callable[[Samples], bool] | None = None,
) -> Samples:
    """Race two kernels on alternating copies of the operands; `clock=None` means device time on a GPU."""
    calls, rng = with_alternating_operands(kernels, operands), np.random.default_rng(seed)
    if clock is not None:
        return duel.race(calls, clock, rng, protocol, is_decided, calls)
    graphs, copies = device.capture_graphs(calls)
    samples = duel.race(graphs, device.clock, rng, replace(protocol, bursts=1), is_decided, calls)
    return replace(samples, seconds=samples.seconds / copies)


def with_alternating_operands(
    calls: Mapping[str, Callable[..., object]], operands: Sequence[torch.Tensor]
) -> dict[str, Callable[[], object]]:
    """Return the calls bound to alternating copies of the operands; each call of any contestant takes the next copy.

    All contestants share the same copies: with copies of its own, a twin took 2.5 % longer for whole races. They also
    share one turn counter, so that each call gets the copy used longest ago: with a counter each, the second contestant
    of a round had its operands in the cache, and times of equal code differed by up to 80 % within a round.
    """
    size = sum(x.untyped_storage().nbytes() for x in operands)
    count = 1 if size > MOST_BYTES else SETS
    copies = [operands, *(tuple(map(clone_storage, operands)) for _ in range(count - 1))]
    turns = itertools.cycle(range(count))

    def bind(call: Callable[..., object]) -> Callable[[], object]:
        bound = [partial(call, *operands_copy) for operands_copy in copies]
        return lambda: bound[next(turns)]()

    return {name: bind(call) for name, call in calls.items()}


def build_again(call: Callable[..., object]) -> compiler.Executable:
    """Build the text of an executable once more, so that its code lies at another place in memory."""
    assert isinstance(call, compiler.Executable)
    text = emitted.self_contained(call.source, compiler.headers(call.code.target))
    return compiler.rebuild(call, f"{text}\nstruct mlcomp_again;\n")


def threshold(effect: float) -> float:
    """Return the slowdown that a SLOWER kernel significantly exceeds: half of the effect to detect."""
    return math.sqrt(1 + effect) - 1


def verdict(ratio: duel.Ratio, effect: float) -> Verdict:
    """Judge ours by the ratio of the stored kernel's time to ours, by the rule of this module.

    >>> intervals = (0.96, 0.98), (0.99, 1.02), (0.96, 1.0)
    >>> [str(verdict(duel.Ratio(1.0, *ends, 60, 0.99), 0.03)) for ends in intervals]
    ['SLOWER', 'SAME', 'AMBIGUOUS']
    """
    significant = duel.verdict(ratio, threshold(effect))
    return significant if significant in (Verdict.SLOWER, Verdict.FASTER) else duel.verdict(ratio, effect)


def is_race_decided(samples: Samples, effect: float) -> bool:
    """Return whether the verdict is known and, if it is SLOWER, significant among all benchmarks of a run."""
    current = verdict(duel.ratio(samples, BASELINE, OURS), effect)
    return current is not Verdict.AMBIGUOUS and (
        current is not Verdict.SLOWER or _p_value(samples, effect) <= MOST_P_VALUE
    )


def judge(samples: Samples, comparison: BaselineComparison, effect: float) -> BaselineComparison:
    """Return the row of a race with a stored kernel; `speedup` above 1 means that ours is faster."""
    ratio = duel.ratio(samples, BASELINE, OURS)
    return replace(
        comparison,
        verdict=str(verdict(ratio, effect)),
        speedup=ratio.median,
        ci=(ratio.low, ratio.high),
        chance=_p_value(samples, effect),
        least=(1 + threshold(effect)) * math.sqrt(ratio.high / ratio.low) - 1,
        rounds=ratio.rounds,
    )


def confirm(first: BaselineComparison, second: BaselineComparison) -> BaselineComparison:
    """Return the row of two races between different builds: of the one with the smaller effect if both agree."""
    p_value = max(first.chance or 0.0, second.chance or 0.0)
    if second.verdict != first.verdict:
        why = f"of two builds of each kernel one is {second.verdict}, {second.speedup:.3f}x"
        return replace(first, verdict=str(Verdict.AMBIGUOUS), why=why, chance=p_value)
    smaller = min(first, second, key=lambda row: abs(math.log(row.speedup or 1.0)))
    return replace(smaller, chance=p_value)


def _p_value(samples: Samples, effect: float) -> float:
    """Return the p-value of the hypothesis that ours is slower by no more than the bar."""
    return duel.slowdown_p_value(samples, OURS, BASELINE, threshold(effect))
