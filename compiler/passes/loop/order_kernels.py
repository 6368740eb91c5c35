"""Loop IR in, the same kernels in the order in which the fewest bytes of temporaries are alive at once, out.

A kernel that changes an input waits for all before it, since any of these may refuse its data.
"""

from __future__ import annotations

import math

from compiler.analysis.kernel_order import Launch, ordered
from compiler.ir.expr import hint
from compiler.ir.statement import Program


def order_kernels(program: Program) -> Program:
    """Temporaries with symbolic sizes are as large as they are expected to be."""
    inputs = {t.name for t in program.inputs}
    launches = [
        Launch(frozenset(p.name for p in k.params), frozenset(k.writes), not inputs.isdisjoint(k.writes))
        for k in program.kernels
    ]
    sizes = {t.name: math.prod(map(hint, t.shape)) * t.dtype.bytes for t in program.temps}
    return program.replace(kernels=tuple(program.kernels[n] for n in ordered(launches, sizes)))
