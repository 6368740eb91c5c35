"""Order the kernels so that the fewest bytes of temporaries are alive at once.

A kernel that changes an input waits for all earlier ones, since any of these may reject its data.
"""

from __future__ import annotations

import math

from compiler.analysis.kernel_order import Launch, ordered
from compiler.ir.expr import hint
from compiler.ir.statement import Program


def order_kernels(program: Program) -> Program:
    """Order the kernels. Symbolic sizes count as the sizes that are expected."""
    inputs = {t.name for t in program.inputs}
    launches = [
        Launch(frozenset(p.name for p in k.params), frozenset(k.writes), not inputs.isdisjoint(k.writes))
        for k in program.kernels
    ]
    sizes = {t.name: math.prod(map(hint, t.shape)) * t.dtype.bytes for t in program.temps}
    return program.replace(kernels=tuple(program.kernels[n] for n in ordered(launches, sizes)))
