"""Kernels for threads in; the same, that may begin while those before them end, out.

Each waits for those before it where it first touches memory of all. What stands before that, such as setting up
barriers, is done while others end. None lets the next one begin before its own blocks have ended: large blocks would
spread unevenly over multiprocessors that are half full (matmuls of one wave took up to three times as long on an
H200), and what a multiprocessor has in its first cache from kernels still running would not be what is read later.
"""

from __future__ import annotations

from compiler.ir import kernel as k
from compiler.ir.expr import Load
from compiler.targets.target import Target

WAIT = k.Call("mlc_wait_dependencies", (), ())
# Reads the parameter that a tensor map is, and no tensor.
_PREFETCH = "mlc_tma_prefetch"


def dependent_launch(program: k.Program, target: Target) -> k.Program:
    """Every function that touches a tensor waits by itself, where the target has kernels that can."""
    if "pdl" not in target.features:
        return program
    return program.replace(functions=tuple(map(_waiting, program.functions)))


def overlaps(function: k.Function) -> bool:
    """Whether a function waits by itself for those before it."""
    return WAIT in function.body


def _waiting(f: k.Function) -> k.Function:
    tensors = {p.name for p in f.params}
    first = next((n for n, s in enumerate(f.body) if _touches(s, tensors)), None)
    if first is None or overlaps(f):
        return f
    return f.replace(body=(*f.body[:first], WAIT, *f.body[first:]))


def _touches(s: k.Stmt, tensors: set[str]) -> bool:
    for n in s.walk():
        match n:
            case Load(buffer) | k.Gather(buffer) | k.Store(buffer) | k.Address(buffer) if buffer in tensors:
                return True
            case k.Call(function, _, args) if function != _PREFETCH and any(isinstance(a, k.Map) for a in args):
                return True
    return False
