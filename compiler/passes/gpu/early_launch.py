"""Early launch: a kernel starts while its predecessor runs, so that its blocks are in place when the wait ends.

A kernel lets its successor start after its own wait (`mlc_launch_dependents`): its predecessors have ended then, so no
more than two kernels run at a time, and what the successor caches is not written any more but by this kernel.

Blocks with much shared memory do not start early: they would spread unevenly over multiprocessors that are still busy
(matmuls of one wave took up to three times as long on an H200), unless the kernel before them has little and they are
few. Nor does the successor of a kernel that reads what it writes, of which an L1 cache may still hold old values.

Loads of weights before the wait gained nothing on an H200 (decoding with a Llama: 3 % slower): they delay the short
kernel before them. `early_prefetch` asks for a part of them instead.
"""

from __future__ import annotations

import itertools
import math

from compiler.ir import isomorphism
from compiler.ir import kernel as k
from compiler.ir.expr import Const, Load, static
from compiler.passes.gpu.dependent_launch import WAIT
from compiler.targets.target import Target

NEXT = k.Call("mlc_launch_dependents", (), ())
SMALL_BLOCK = 16 << 10  # bytes of shared memory of blocks that may start early


def early_launch(program: k.Program, target: Target) -> k.Program:
    """Let the successors of functions start early, where their blocks are small, if the target supports it.

    Equal functions, of which the text has one, do the same.
    """
    if "pdl" not in target.features or not program.functions:
        return program
    equal = isomorphism.firsts(program.functions)
    small: dict[str, bool] = {}
    for f, after in itertools.pairwise(program.functions):
        fits = _is_small(after) or (_is_small(f) and _is_alone(after, target))
        small[equal[f.name]] = small.get(equal[f.name], True) and fits
    early = (_lets_start(f) if small.get(equal[f.name]) and not _reads_own(f) else f for f in program.functions)
    return program.replace(functions=tuple(early))


def _is_small(f: k.Function) -> bool:
    return f.cluster == 1 and sum(a.size * a.dtype.bytes for a in k.shared_arrays(f)) <= SMALL_BLOCK


def _is_alone(f: k.Function, target: Target) -> bool:
    """Whether a function has at most one block for each multiprocessor."""
    return all(isinstance(n, Const) for n in f.grid) and math.prod(map(static, f.grid)) <= target.cores


def _reads_own(f: k.Function) -> bool:
    """Whether a function reads what it, or another block of it, writes."""
    own = set(f.writes)
    if f.exchanged or {m.buffer for m in f.maps} & own:
        return True
    for n in f.walk():
        match n:
            case Load(buffer) | k.Gather(buffer) if buffer in own:
                return True
            case k.Store(buffer, _, _, op) if buffer in own and op != "set":
                return True
            case k.Call(function, _, args, writes):
                read = {a.buffer for a in args if isinstance(a, k.Address)} - set(writes)
                if own & read or (own & set(writes) and not function.startswith("mlc_store")):
                    return True
    return False


def _lets_start(f: k.Function) -> k.Function:
    if WAIT not in f.body or NEXT in f.body:
        return f
    after = f.body.index(WAIT) + 1
    return f.replace(body=(*f.body[:after], NEXT, *f.body[after:]))
