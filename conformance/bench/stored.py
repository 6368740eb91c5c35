"""A kernel that was stored, and ours, in; the stored one built again as a contestant, and how ours compares, out.

Both are built by the same compiler and race in one process, round by round, so that only the texts differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

import compiler
from conformance.bench import duel, emitted
from conformance.bench.duel import Protocol, Samples, Verdict
from conformance.bench.emitted import Stored
from conformance.judge.systems import Built
from conformance.rows import BASELINE, OURS, Against
from conformance.shapes.inputs import clone_storage

FEWEST_ROUNDS = 20  # fewer could not stand among the many cases of a run
SETS = 3  # of operands, that take turns: where data lies should favour nobody
MOST_BYTES = 1 << 28  # of operands that are worth copying


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
    return replace(protocol, fewest_rounds=max(FEWEST_ROUNDS, protocol.fewest_rounds))


def taking_turns(call: Callable[..., object], operands: Sequence[torch.Tensor], sets: int) -> Callable[[], object]:
    """A call on `sets` copies of its operands, one after the other."""
    size = sum(x.untyped_storage().nbytes() for x in operands)
    if sets == 1 or size > MOST_BYTES:
        return partial(call, *operands)
    copies = [operands, *(tuple(map(clone_storage, operands)) for _ in range(sets - 1))]
    turns = itertools.cycle([partial(call, *one) for one in copies])
    return lambda: next(turns)()


def decided(samples: Samples, effect: float) -> bool:
    """Whether more rounds would tell nothing new."""
    found = duel.ratio(samples, BASELINE, OURS)
    return duel.verdict(found, effect) is not Verdict.AMBIGUOUS


def judge(samples: Samples, known: Against, effect: float) -> Against:
    """How ours did: above 1 it is faster than what was stored."""
    found = duel.ratio(samples, BASELINE, OURS)
    return replace(
        known,
        verdict=str(duel.verdict(found, effect)),
        speedup=found.median,
        ci=(found.low, found.high),
        chance=duel.chance_of_no_more(samples, OURS, BASELINE, effect),
        least=(1 + effect) * math.sqrt(found.high / found.low) - 1,
        rounds=found.rounds,
    )
