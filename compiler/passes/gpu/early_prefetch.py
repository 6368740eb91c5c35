"""Early prefetch: before a kernel waits for its predecessors, it asks for inputs to be brought to the L2 cache.

The weights of a norm, a bias, or the cached keys of a short sequence come from DRAM, which a short kernel would wait
for; of a large matrix the first rows are asked for. Prefetches read nothing: what predecessors still write to a buffer
is seen by the loads after the wait.
"""

from __future__ import annotations

import itertools
import math

from compiler.ir import isomorphism
from compiler.ir import kernel as k
from compiler.ir.expr import Const, Op, const, dim, static
from compiler.ir.tensor import Tensor, is_static, known_bytes, row_major
from compiler.passes.gpu.dependent_launch import WAIT
from compiler.passes.gpu.early_launch import NEXT
from compiler.targets.target import Target

PREFETCH = "mlc_prefetch_l2"
LINE = 128  # bytes
# Of a kernel. Decoding with 6 layers of a Llama took 240 us on an H200 without prefetches, 234 with 0.5 MB, 231 with
# 1 MB, 228 with 2 MB, 230 with 4 MB, and 241 with 8 MB, which delay the loads of the kernel before.
MOST_BYTES = 2 << 20
MOST_LINES = 8  # of a thread


def early_prefetch(program: k.Program, target: Target) -> k.Program:
    """Insert prefetches into functions that start early, before their waits, if the target supports dependent launch.

    Inputs that all fit into the L2 cache together may still be there since the last call, and are not asked for. Equal
    functions, of which the text has one, prefetch the same parameters, if all of them start early.
    """
    if "pdl" not in target.features or not program.functions:
        return program
    if sum(map(known_bytes, program.inputs)) <= target.l2:
        return program
    equal = isomorphism.firsts(program.functions)
    inputs = {t.name for t in program.inputs}
    places: dict[str, set[int]] = {equal[program.functions[0].name]: set()}
    for before, f in itertools.pairwise(program.functions):
        read = inputs - set(f.writes) if NEXT in before.body else set()
        own = {n for n, p in enumerate(f.params) if p.name in read and _is_whole(p)}
        places[equal[f.name]] = places.get(equal[f.name], own) & own
    functions = (_with_prefetches(f, [f.params[n] for n in sorted(places[equal[f.name]])]) for f in program.functions)
    return program.replace(functions=tuple(functions))


def _is_whole(t: Tensor) -> bool:
    """Whether a tensor is known to be a contiguous piece of memory."""
    return is_static(t) and t.strides == row_major(t.shape)


def _with_prefetches(f: k.Function, inputs: list[Tensor]) -> k.Function:
    if WAIT not in f.body or any(isinstance(s, k.Call) and s.function == PREFETCH for s in f.body):
        return f
    if not all(isinstance(n, Const) for n in f.grid):
        return f
    left = min(MOST_BYTES, MOST_LINES * LINE * math.prod(f.block) * math.prod(map(static, f.grid)))
    gathers = any(isinstance(n, Op) and n.name == "require" for n in f.walk())
    calls: list[k.Stmt] = []
    for t in sorted(inputs, key=known_bytes):
        size = known_bytes(t)
        part = size if size <= left else 0 if gathers else left // LINE * LINE
        if part >= LINE:
            left -= part
            calls.append(k.Call(PREFETCH, (), (k.Address(t.name, dim(0)), const(part))))
    place = f.body.index(WAIT)
    return f.replace(body=(*f.body[:place], *calls, *f.body[place:]))
