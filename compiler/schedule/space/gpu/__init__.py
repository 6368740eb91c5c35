"""Spaces of schedules for GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.statement import Kernel
from compiler.schedule.gpu import attention, contraction, ffma, heuristic
from compiler.schedule.space.members import Member, fixed
from compiler.targets.target import Target


def families(kernel: Kernel, private: frozenset[str], target: Target) -> Iterator[tuple[str, Iterator[Member]]]:
    """The families that a kernel may be of, special ones first."""
    found = contraction.choose(kernel, target)
    if found is not None:
        yield "contractions", fixed(0.0, *found.steps)
    found = attention.choose(kernel, private, target)
    if found is not None:
        yield "attention", fixed(0.0, *found.steps)
    found = ffma.choose(kernel, target)
    if found is not None:
        yield "contractions", fixed(0.0, *found.steps)
    yield from plain(kernel, private, target)


def plain(kernel: Kernel, private: frozenset[str], target: Target) -> Iterator[tuple[str, Iterator[Member]]]:
    """Families without tensor instructions."""
    found = heuristic.plain(kernel, private, target)
    yield "rows", fixed(0.0, *found.steps)
