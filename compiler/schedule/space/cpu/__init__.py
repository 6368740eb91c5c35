"""Spaces of schedules for CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir import loop
from compiler.ir.statement import Kernel
from compiler.schedule.space.cpu import attention, matmul, nests, pointwise, row_loops, windows
from compiler.schedule.space.members import Member, both
from compiler.targets.target import Target


def families(kernel: Kernel, private: frozenset[str], target: Target) -> Iterator[tuple[str, Iterator[Member]]]:
    """The families of schedules for a kernel, special ones first."""
    found = windows.space(kernel, target)
    if found is not None:
        yield "windows", found
    found = matmul.space(kernel, target)
    if found is not None:
        yield "contractions", found
    found = attention.space(kernel, private, target)
    if found is not None:
        yield "attention", found
    yield from plain(kernel, private, target)


def plain(kernel: Kernel, private: frozenset[str], target: Target) -> Iterator[tuple[str, Iterator[Member]]]:
    """The families without tensor instructions."""
    memory = nests.memory(kernel, private, target)
    found = [nests.nest(memory, s) for s in kernel.body if isinstance(s, loop.For)]
    members = both(*(row_loops.space(x) if x.paths else pointwise.space(x) for x in found))
    kinds = {f.kind for x in found for path in x.paths for f in path}
    yield "scans" if "scan" in kinds else "rows" if kinds else "pointwise", members
