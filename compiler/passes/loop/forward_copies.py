"""Compute a temporary in the memory of its only copy (Loop IR to Loop IR).

What a scatter adds to is an example: the kernel that begins the scatter copies it. The kernel that only copies is
removed. A copy with its axes in another order stays: transposing blocks is faster than scattered stores.
"""

from __future__ import annotations

from compiler.ir.expr import Load
from compiler.ir.statement import Kernel, Program, Store
from compiler.passes.loop.in_place import axes_of_copy, copied_buffer, store_in


def forward_copies(program: Program) -> Program:
    """Remove each kernel that only copies a temporary, if one kernel makes the temporary and no other reads it.

    For example, with a temporary t, kernels t[i] = x[i] * 2.0 and y[i] = t[i] become y[i] = x[i] * 2.0.
    """
    for k in program.kernels:
        source = copied_buffer(k)
        if source and is_written_once_read_once(program, k, source):
            axes = axes_of_copy(k, of_copy=True)
            if sorted(axes) == list(axes):
                copy = next(p for p in k.params if p.name in k.writes)
                others = tuple(x for x in program.kernels if x is not k)
                program = store_in(program.replace(kernels=others), source, copy, axes)
    return program


def is_written_once_read_once(program: Program, k: Kernel, name: str) -> bool:
    """Whether one other kernel sets the temporary without reading it, and only this one reads it.

    It must be possible to set it where this kernel stores its results: these may be inputs that are overwritten, and
    are then read by no kernel in between.
    """
    users = [x for x in program.kernels if x is not k and any(p.name == name for p in x.params)]
    if len(users) != 1 or not any(t.name == name for t in program.temps) or name not in users[0].writes:
        return False
    between = program.kernels[program.kernels.index(users[0]) : program.kernels.index(k)]
    every = [n for s in users[0].body for n in s.walk()]
    stores = [n for n in every if isinstance(n, Store) and n.buffer == name]
    is_set = all(s.op == "set" for s in stores) and not any(isinstance(n, Load) and n.buffer == name for n in every)
    return is_set and not any({*k.writes} & {p.name for p in x.params} for x in between)
