"""Spaces of schedules for GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from compiler.ir.statement import Kernel
from compiler.schedule.space.gpu import attention, chains, ffma, gathers, matmul, nests, sequences, widened
from compiler.schedule.space.gpu.plan import Plan
from compiler.schedule.space.members import Member
from compiler.targets.target import Target


def families(kernel: Kernel, private: frozenset[str], target: Target) -> Iterator[tuple[str, Iterator[Member]]]:
    """The families of schedules for a kernel, special ones first."""
    for tiled in (widened.space(kernel, target), matmul.space(kernel, target)):
        if tiled is not None:
            yield tiled
    for name, how in (("attention", partial(attention.space, kernel, private, target)),
                      ("chains", partial(chains.space, kernel, private, target)),
                      ("gathers", partial(gathers.space, kernel, private, target)),
                      ("contractions", partial(ffma.space, kernel, target))):  # fmt: skip
        found = how()
        if found is not None:
            yield name, found
    yield from plain(kernel, private, target)


def plain(kernel: Kernel, private: frozenset[str], target: Target) -> Iterator[tuple[str, Iterator[Member]]]:
    """The families without tiled matmuls."""
    sequence = sequences.space(kernel, private, target)
    if sequence is not None:
        yield "sequences", sequence
    else:
        yield nests.space(Plan(kernel, private, target, {p.name: p for p in kernel.params}))
