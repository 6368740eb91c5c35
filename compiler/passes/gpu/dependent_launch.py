"""Programmatic dependent launch: a kernel's prologue overlaps the tail of the kernel before it.

Each kernel waits for its predecessors before its first access to global memory; what precedes that, such as the setup
of mbarriers, overlaps them. `early_launch` decides which kernels start before their predecessors' blocks end.
"""

from __future__ import annotations

from compiler.ir import kernel as k
from compiler.ir.expr import Load
from compiler.targets.target import Target

WAIT = k.Call("mlc_wait_dependencies", (), ())
# Reads the tensor map, which is a parameter, and not the tensor.
_PREFETCH = "mlc_tma_prefetch"


def dependent_launch(program: k.Program, target: Target) -> k.Program:
    """Insert the wait into every function that accesses a tensor, if the target supports dependent launch."""
    if "pdl" not in target.features:
        return program
    return program.replace(functions=tuple(map(_insert_wait, program.functions)))


def overlaps(function: k.Function) -> bool:
    """Whether a function waits for its predecessors itself."""
    return WAIT in function.body


def _insert_wait(f: k.Function) -> k.Function:
    tensors = {p.name for p in f.params}
    first = next((n for n, s in enumerate(f.body) if _accesses_tensor(s, tensors)), None)
    if first is None or overlaps(f):
        return f
    return f.replace(body=(*f.body[:first], WAIT, *f.body[first:]))


def _accesses_tensor(s: k.Stmt, tensors: set[str]) -> bool:
    for n in s.walk():
        match n:
            case Load(buffer) | k.Gather(buffer) | k.Store(buffer) | k.Address(buffer) if buffer in tensors:
                return True
            case k.Call(function, _, args) if function != _PREFETCH and any(isinstance(a, k.Map) for a in args):
                return True
    return False
