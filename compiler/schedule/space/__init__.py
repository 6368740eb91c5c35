"""The legal schedules of a kernel, cheapest first by the estimates of its target: what a search goes through.

The first is what a heuristic chooses. A kernel is of the first family that has members for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compiler.ir.statement import Kernel
from compiler.schedule.space import cpu, gpu, triton
from compiler.schedule.space.members import Member, Planned
from compiler.targets.target import Target

Families = Iterator[tuple[str, Iterator[Member]]]
_FAMILIES = {"cpu": cpu.families, "cuda": gpu.families, "triton": triton.families}
_PLAIN = {"cpu": cpu.plain, "cuda": gpu.plain, "triton": triton.plain}


def space(kernel: Kernel, private: Iterable[str], target: Target) -> Iterator[Planned]:
    """Schedules of `kernel`, the cheapest first; `private` names the temporaries that no other kernel uses.

    None is made before it is asked for.
    """
    return _planned(_FAMILIES[target.kind](kernel, frozenset(private), target))


def plain(kernel: Kernel, private: Iterable[str], target: Target) -> Iterator[Planned]:
    """The same without tensor instructions: schedules that take contractions as they take other sums."""
    return _planned(_PLAIN[target.kind](kernel, frozenset(private), target))


def _planned(families: Families) -> Iterator[Planned]:
    """The members of the first family that has any."""
    for name, members in families:
        found = False
        for m in members:
            found = True
            yield Planned(name, m.cost, m.steps, m.price)
        if found:
            return
