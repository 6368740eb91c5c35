"""The space of a kernel: its legal schedules, cheapest first by the target's cost model; what a search explores.

The first schedule is the heuristic's choice. All schedules belong to one family: the first that has members for the
kernel.
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
    """Schedules of `kernel`, lazily, cheapest first; `private` are the temporaries that no other kernel uses."""
    return _members_of_first(_FAMILIES[target.kind](kernel, frozenset(private), target))


def plain(kernel: Kernel, private: Iterable[str], target: Target) -> Iterator[Planned]:
    """Like `space`, without tensor instructions: contractions are scheduled like other sums."""
    return _members_of_first(_PLAIN[target.kind](kernel, frozenset(private), target))


def _members_of_first(families: Families) -> Iterator[Planned]:
    """The members of the first family that has any."""
    for name, members in families:
        has_member = False
        for m in members:
            has_member = True
            yield Planned(name, m.cost, m.steps, m.price)
        if has_member:
            return
