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
from conformance.bench.emitted import Stored
from conformance.judge import device
from conformance.judge.systems import BuiltFunction
from conformance.rows import BASELINE, OURS, Against
from conformance.shapes.inputs import clone_storage

FEWEST_ROUNDS = 20  # with fewer, no finding could survive the correction for the many cases of a run
LOOKS = (20, 60, 180, 540, 1620)
BUDGET_NS = 12_000_000_000  # a race undecided by then stays AMBIGUOUS; most are decided at the first looks
SETS = 3  # copies of the operands that alternate, so that no address of data favours a contestant
MOST_BYTES = 1 << 28  # larger operands are not copied
STANDS = 1e-5  # a p-value that is significant even among the thousand benchmarks of a run


def contestant(
    stored: Stored | None, ours: BuiltFunction, inputs: Sequence[torch.Tensor]
) -> tuple[Against, BuiltFunction | None]:
    """Rebuild the stored kernel as a contestant. Returns None with the reason if there is nothing to race."""
    made = ours.call
    if not isinstance(made, compiler.Executable):
        return Against(), None
    headers = compiler.headers(made.code.target)
    identity = emitted.identity(made.source, headers)
    if stored is None:
        return Against(identity=identity), None
    known = Against(baseline=stored.baseline, identity=identity)
    if emitted.identity(stored.text, stored.headers) == identity:
        return replace(known, verdict=str(Verdict.SAME), why="equal code"), None
    try:
        again = compiler.rebuild(made, emitted.self_contained(stored.text, stored.headers))
        again(*inputs)
    except Exception as error:  # an old text may fail to build or run in any way; the reason is reported
        return unbuilt(known, f"{type(error).__name__}: {error}"), None
    return known, BuiltFunction(BASELINE, again)


def unbuilt(known: Against, why: str) -> Against:
    """Return the row of a stored kernel that cannot be raced."""
    return replace(known, verdict="unbuilt", why=" ".join(why.split())[:300])


def longer(protocol: Protocol) -> Protocol:
    """Return the protocol for races against a stored kernel: more looks and a larger budget."""
    budget = max(BUDGET_NS, protocol.budget_ns)
    return replace(protocol, looks=LOOKS, budget_ns=budget, fewest_rounds=max(FEWEST_ROUNDS, protocol.fewest_rounds))


def race(
    both: Mapping[str, Callable[..., object]],
    operands: Sequence[torch.Tensor],
    clock: Clock | None,
    seed: int,
    protocol: Protocol,
    decided: Callable[[Samples], bool] | None = None,
) -> Samples:
    """Race two kernels on alternating copies of the operands; `clock=None` means device time on a GPU."""
    calls, rng = taking_turns(both, operands), np.random.default_rng(seed)
    if clock is not None:
        return duel.race(calls, clock, rng, protocol, decided, calls)
    graphs, copies = device.capture_graphs(calls)
    found = duel.race(graphs, device.clock, rng, replace(protocol, bursts=1), decided, calls)
    return replace(found, seconds=found.seconds / copies)


def taking_turns(
    calls: Mapping[str, Callable[..., object]], operands: Sequence[torch.Tensor]
) -> dict[str, Callable[[], object]]:
    """Return the calls bound to alternating copies of the operands; each call of any contestant takes the next copy.

    All contestants share the same copies: with copies of its own, a twin took 2.5 % longer for whole races. They also
    share one turn counter, so that each call gets the copy used longest ago: with a counter each, the second contestant
    of a round had its operands in the cache, and times of equal code differed by up to 80 % within a round.
    """
    size = sum(x.untyped_storage().nbytes() for x in operands)
    many = 1 if size > MOST_BYTES else SETS
    copies = [operands, *(tuple(map(clone_storage, operands)) for _ in range(many - 1))]
    turns = itertools.cycle(range(many))

    def in_turns(call: Callable[..., object]) -> Callable[[], object]:
        bound = [partial(call, *one) for one in copies]
        return lambda: bound[next(turns)]()

    return {name: in_turns(call) for name, call in calls.items()}


def bar(effect: float) -> float:
    """Return the slowdown that a SLOWER kernel significantly exceeds: half of the effect to detect."""
    return math.sqrt(1 + effect) - 1


def verdict(found: duel.Ratio, effect: float) -> Verdict:
    """Judge ours by the ratio of the stored kernel's time to ours, by the rule of this module.

    >>> intervals = (0.96, 0.98), (0.99, 1.02), (0.96, 1.0)
    >>> [str(verdict(duel.Ratio(1.0, *ends, 60, 0.99), 0.03)) for ends in intervals]
    ['SLOWER', 'SAME', 'AMBIGUOUS']
    """
    said = duel.verdict(found, bar(effect))
    return said if said in (Verdict.SLOWER, Verdict.FASTER) else duel.verdict(found, effect)


def decided(samples: Samples, effect: float) -> bool:
    """Return whether the verdict is known and, if it is SLOWER, significant among all benchmarks of a run."""
    said = verdict(duel.ratio(samples, BASELINE, OURS), effect)
    return said is not Verdict.AMBIGUOUS and (said is not Verdict.SLOWER or _chance(samples, effect) <= STANDS)


def judge(samples: Samples, known: Against, effect: float) -> Against:
    """Return the row of a race with a stored kernel; `speedup` above 1 means that ours is faster."""
    found = duel.ratio(samples, BASELINE, OURS)
    return replace(
        known,
        verdict=str(verdict(found, effect)),
        speedup=found.median,
        ci=(found.low, found.high),
        chance=_chance(samples, effect),
        least=(1 + bar(effect)) * math.sqrt(found.high / found.low) - 1,
        rounds=found.rounds,
    )


def _chance(samples: Samples, effect: float) -> float:
    """Return the p-value of the hypothesis that ours is slower by no more than the bar."""
    return duel.chance_of_no_more(samples, OURS, BASELINE, bar(effect))
