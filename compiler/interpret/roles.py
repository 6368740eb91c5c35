"""Warp roles in the interpreter of Tile IR: coroutines that run until they wait for an mbarrier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from compiler.interpret import tile_state
from compiler.interpret.grid import InterpretError
from compiler.interpret.scalar import Array
from compiler.interpret.tile_state import Here, Machine, Mbarriers, evaluate_at, points_of
from compiler.ir import roles
from compiler.ir.expr import Var
from compiler.ir.roles import Advance, Arrive, Expect, Mbarrier, Ring, RingStmt, Wait
from compiler.ir.text import show

Steps = Iterator[str]  # yields what a role waits for, whenever it has to wait


def run_roles(steps_of: Mapping[str, Steps], barriers: Mapping[str, Mbarriers], where: str) -> None:
    """Run all roles to completion; raises InterpretError in a deadlock."""
    waiting = roles.side_by_side(steps_of.items(), lambda: sum(b.changes for b in barriers.values()))
    if waiting:
        raise InterpretError(f"{where}: roles wait for ever: {waiting}")


def run_outside_roles(steps: Steps, where: str) -> None:
    """Run statements outside of roles, which cannot wait: raises InterpretError if they do."""
    for what in steps:
        raise InterpretError(f"{where}: waits for {what} outside of a role")


def statement(s: RingStmt, machine: Machine, here: Here) -> Steps:
    match s:
        case roles.Mbarriers(name, count, arrivals, blocks):
            private = points_of(here)
            if name not in machine.mbarriers or machine.mbarriers[name].private != private:  # not in a later turn
                machine.mbarriers[name] = tile_state.make_mbarriers(
                    [n.size for n in here.spans], count, arrivals, private, blocks
                )
        case Ring(slot, phase, depth, tiles, start):
            machine.values |= {slot: np.asarray(0), phase: np.asarray(start)}
            for name in tiles:
                if name not in machine.rings:
                    axis = len(machine.private[name])
                    for table in (machine.memory, machine.written):
                        table[name] = np.repeat(np.expand_dims(table[name], axis), depth, axis)
                    machine.rings.add(name)
                machine.private[name] = (*machine.private[name][: len(here.spans)], Var(slot))
        case Advance():
            _advance_ring(s, machine, here)
        case Wait(barrier, phase):
            state, places, taken = _barrier_state(barrier, machine, here)
            parity = np.broadcast_to(evaluate_at(phase, machine, here), here.shape)[taken]
            while not state.has_ended(places, parity):
                yield f"{barrier.array}[{show(barrier.slot)}]"
        case Arrive(barrier):
            # Iterations of a loop over a cluster are those of its blocks, one after the other: each signals for all.
            arrive(barrier, machine.warps * machine.mbarriers[barrier.array].blocks, 0, machine, here)
        case Expect(barrier, count):
            arrive(barrier, 1, count, machine, here)


def _advance_ring(s: Advance, machine: Machine, here: Here) -> None:
    slot, phase = machine.values.get(s.slot, np.asarray(0)), machine.values[s.phase]
    has_next = slot < s.depth - 1
    new = {s.last: slot, s.phase: np.where(has_next, phase, phase ^ 1), s.slot: np.where(has_next, slot + 1, 0)}
    for name, value in new.items():
        if name:
            taken = here.taken
            machine.values[name] = value if taken is None else np.where(taken, value, machine.values[name])


def _barrier_state(b: Mbarrier, machine: Machine, here: Here) -> tuple[Mbarriers, tuple[Array, ...], Array]:
    """The state of an mbarrier's array, its indices at all points that take part, and which points these are."""
    state = machine.mbarriers[b.array]
    taken = np.broadcast_to(True if here.taken is None else here.taken, here.shape)
    places = tuple(np.broadcast_to(evaluate_at(i, machine, here), here.shape)[taken] for i in (*state.private, b.slot))
    return state, places, taken


def arrive(b: Mbarrier, arrivals: int, expected: int, machine: Machine, here: Here) -> None:
    state, places, _ = _barrier_state(b, machine, here)
    if not state.arrive(places, arrivals, expected):
        raise InterpretError(f"{machine.where}: more arrive at {b.array}[{show(b.slot)}] than it waits for")
