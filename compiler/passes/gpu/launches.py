"""Split kernels so that each is one launch."""

from __future__ import annotations

from compiler.ir import tile
from compiler.ir.launches import apart, nodes
from compiler.ir.statement import Kernel, Program, Store


def launches(program: Program) -> Program:
    """Split a kernel of several consecutive nests over blocks into one kernel for each.

    Blocks that split a reduction stay in one launch.
    """
    return program.replace(kernels=tuple(part for kernel in program.kernels for part in _split_launches(kernel)))


def _split_launches(kernel: Kernel) -> list[Kernel]:
    nests = apart(kernel.body)
    if len(nests) < 2:
        return [kernel]
    out = []
    for n, body in enumerate(nests):
        used = tile.buffers(body)
        params = tuple(p for p in kernel.params if p.name in used)
        changed = {x.buffer for x in nodes(body) if isinstance(x, Store)}
        changed |= {x.target.buffer for x in nodes(body) if isinstance(x, tile.Copy)}
        writes, past = (tuple(w for w in some if w in changed) for some in (kernel.writes, kernel.past))
        once = tuple(b for b in kernel.once if b in used)
        name = f"{kernel.name}_part{n}"
        out.append(
            kernel.replace(name=name, params=params, writes=writes, body=body, whole=kernel.name, once=once, past=past)
        )
    return out
