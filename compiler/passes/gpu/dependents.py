"""Kernels for threads in; the same, that may begin before those before them have ended, out.

Each waits for those before it where it first touches memory of all. What stands before that, such as setting up
barriers, is done while the last blocks of others end. Where blocks are small, the next ones may come as soon as all of
these run. Large ones would find multiprocessors half full, and spread unevenly: on an H200, products of one wave that
came early took up to three times as long.
"""

from __future__ import annotations

from compiler.ir import kernel as k
from compiler.ir.expr import Load
from compiler.targets.target import Target

NEXT = k.Call("mlc_launch_dependents", (), ())
WAIT = k.Call("mlc_wait_dependencies", (), ())
# Reads the parameter that a tensor map is, and no tensor.
_PREFETCH = "mlc_tma_prefetch"
SMALL = 16 * 1024  # bytes of shared memory, with which a multiprocessor holds as many blocks as threads allow


def wait(program: k.Program, target: Target) -> k.Program:
    """Every function that touches a tensor waits by itself, where the target has kernels that can."""
    if "pdl" not in target.features:
        return program
    small = [*map(_is_small, program.functions), True]
    pairs = zip(program.functions, small, small[1:], strict=False)
    return program.replace(functions=tuple(_waiting(f, own and following) for f, own, following in pairs))


def overlaps(function: k.Function) -> bool:
    """Whether a function waits by itself for those before it."""
    return WAIT in function.body


def _is_small(f: k.Function) -> bool:
    arrays = [n for s in f.body for n in s.walk() if isinstance(n, k.Array) and n.space == "shared"]
    return sum(a.size * a.dtype.bytes for a in arrays) <= SMALL


def _waiting(f: k.Function, early: bool) -> k.Function:
    tensors = {p.name for p in f.params}
    first = next((n for n, s in enumerate(f.body) if _touches(s, tensors)), None)
    if first is None or overlaps(f):
        return f
    return f.replace(body=(*f.body[:first], *([NEXT] if early else []), WAIT, *f.body[first:]))


def _touches(s: k.Stmt, tensors: set[str]) -> bool:
    for n in s.walk():
        match n:
            case Load(buffer) | k.Gather(buffer) | k.Store(buffer) | k.Address(buffer) if buffer in tensors:
                return True
            case k.Call(function, _, args) if function != _PREFETCH and any(isinstance(a, k.Map) for a in args):
                return True
    return False
