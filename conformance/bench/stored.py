"""A kernel that was stored, and ours, in; the stored one built again as a contestant, and how ours compares, out.

Both are built by the same compiler and race in one process, round by round, so that only the texts differ.

**The rule.** Let e be the least effect that is to be found, r the true ratio of our time to that of the stored kernel.
A rule that calls a kernel slower where the whole interval lies beyond 1 + e finds a slowdown of e in one of 200 races:
half of the intervals around e begin below it. One that asks for an interval beyond 1 calls twins slower, for where a
text is loaded and its operands lie makes equal code differ by parts of a percent, for sure and for no reason. So the
bar stands between the two, as far from one as from the other: b = sqrt(1 + e).

    SLOWER   the whole interval lies beyond b
    FASTER   the whole interval lies below 1 / b
    SAME     neither, and the whole interval lies within 1 / (1 + e) ... 1 + e

The intervals of all looks of a race together miss r in at most 1 % of races, half of that on either side. Hence if
r <= b, which holds of equal code with a bias of up to half the effect, SLOWER is said in at most 0.5 % of races; if
r >= 1 + e, SAME is said in at most 0.5 %; and SLOWER is said of r = 1 + e as soon as half the width of the interval is
below log(1 + e) / 2. Between b and 1 + e either may be said. Over a run the share of false ones among those that are
called slower is kept by a test of its own, see `run/regressions.py`; a race goes on until that would hold as well.
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
from conformance.judge.systems import Built
from conformance.rows import BASELINE, OURS, Against
from conformance.shapes.inputs import clone_storage

FEWEST_ROUNDS = 20  # fewer could not stand among the many cases of a run
LOOKS = (20, 60, 180, 540, 1620)
BUDGET_NS = 12_000_000_000  # what is undecided after so long stays so; most is decided at the first looks
SETS = 3  # of operands, that take turns: where data lies should favour nobody
MOST_BYTES = 1 << 28  # of operands that are worth copying
STANDS = 1e-5  # a chance so small that a finding stands among the thousand benchmarks of a run


def contestant(stored: Stored | None, ours: Built, inputs: Sequence[torch.Tensor]) -> tuple[Against, Built | None]:
    """The stored kernel as a contestant; none where there is nothing to race, and then why."""
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
    except Exception as error:  # a text of long ago: whatever keeps it from running is what is to be said
        return unbuilt(known, f"{type(error).__name__}: {error}"), None
    return known, Built(BASELINE, again)


def unbuilt(known: Against, why: str) -> Against:
    """The verdict on a stored kernel that cannot race."""
    return replace(known, verdict="unbuilt", why=" ".join(why.split())[:300])


def longer(protocol: Protocol) -> Protocol:
    """A protocol for races with a stored kernel."""
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
    """Two kernels raced with each other alone, on operands that take turns; without a clock on a GPU, by its time."""
    calls, rng = taking_turns(both, operands), np.random.default_rng(seed)
    if clock is not None:
        return duel.race(calls, clock, rng, protocol, decided, calls)
    graphs, copies = device.graphs(calls)
    found = duel.race(graphs, device.clock, rng, replace(protocol, bursts=1), decided, calls)
    return replace(found, seconds=found.seconds / copies)


def taking_turns(
    calls: Mapping[str, Callable[..., object]], operands: Sequence[torch.Tensor]
) -> dict[str, Callable[[], object]]:
    """Each call on the next of some copies of the operands, whoever made the call before.

    All have the same copies: beside copies of its own, a twin took 2.5 % longer for whole races. And all are at the
    same turn, so that each call finds what was used longest ago: where each had turns of its own, whoever came second
    in a round had its operands in the cache, and times of equal code differed by up to 80 % in a round.
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
    """The slowdown that a kernel called slower surely has: half of the effect that is to be found."""
    return math.sqrt(1 + effect) - 1


def verdict(found: duel.Ratio, effect: float) -> Verdict:
    """What the time of a stored kernel over ours says of ours, by the rule of this module.

    >>> intervals = (0.96, 0.98), (0.99, 1.02), (0.96, 1.0)
    >>> [str(verdict(duel.Ratio(1.0, *ends, 60, 0.99), 0.03)) for ends in intervals]
    ['SLOWER', 'SAME', 'AMBIGUOUS']
    """
    said = duel.verdict(found, bar(effect))
    return said if said in (Verdict.SLOWER, Verdict.FASTER) else duel.verdict(found, effect)


def decided(samples: Samples, effect: float) -> bool:
    """Whether more rounds would tell nothing new."""
    said = verdict(duel.ratio(samples, BASELINE, OURS), effect)
    return said is not Verdict.AMBIGUOUS and (said is not Verdict.SLOWER or _chance(samples, effect) <= STANDS)


def judge(samples: Samples, known: Against, effect: float) -> Against:
    """How ours did: above 1 it is faster than what was stored."""
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
    """The chance of such samples if ours were slower by no more than the bar."""
    return duel.chance_of_no_more(samples, OURS, BASELINE, bar(effect))
