"""Planted miscompiles (mutants): copies of a program of any stage, each changed at one place.

They test the checks: a fault that a stage's check misses here would also be missed in a pass. Places are chosen
uniformly. A mutant is well formed (it verifies and prints), but most of them compute something else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from compiler.checks.mutation import calls, mlir_text, statements, text
from compiler.checks.mutation.tree import Change, changes
from compiler.ir.stages import IRS
from compiler.pipeline import IR_STAGES, TEXTS

Mutant = tuple[str, Any]  # description of the change, changed program

_CHANGES: dict[str, Callable[[Any], list[Change]]] = {
    **dict.fromkeys(IRS, lambda program: changes(program, statements.edits, statements.show)),
    "torch": calls.changes,
    "cpp": text.cpp,
    "cuda": text.cuda,
    "mlir": mlir_text.changes,
    "triton": text.triton,
}
assert tuple(_CHANGES) == (*IR_STAGES, *TEXTS.values())


def mutants(stage: str, program: Any, rng: random.Random, count: int) -> list[Mutant]:
    """Up to `count` different programs of `stage`; each is `program` with one change, at places in random order."""
    return list(_take(draw(stage, program, rng), count))


def draw(stage: str, program: Any, rng: random.Random) -> Iterator[Mutant]:
    """All mutants in random order: one change at each place, then further changes at each place."""
    remaining = [[(c.place, build) for build in c.builds] for c in _CHANGES[stage](program)]
    rng.shuffle(remaining)
    for choices in remaining:
        rng.shuffle(choices)
    while remaining:
        for choices in remaining:
            place, (description, build) = choices.pop()
            mutant = _build_mutant(stage, program, build)
            if mutant is not None:
                yield f"{description}: {place}", mutant
        remaining = [choices for choices in remaining if choices]


def _build_mutant(stage: str, program: Any, build: Callable[[], Any]) -> Any | None:
    """The changed program; None if it is invalid or equal to the original."""
    try:
        mutant = build()
        if stage in IRS:
            IRS[stage].verify(mutant)
    except (ValueError, TypeError, AttributeError):  # the change is invalid in its context
        return None
    return None if mutant is program or mutant == program else mutant


def _take(source: Iterator[Mutant], count: int) -> Iterator[Mutant]:
    for _, mutant in zip(range(count), source, strict=False):
        yield mutant
