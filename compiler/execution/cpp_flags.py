"""The flags that g++ gets for the kernels of a target."""

from __future__ import annotations

from compiler.render import cpp
from compiler.runtime import build
from compiler.targets.cpu import FAST_GATHER
from compiler.targets.target import Target

# g++'s names of the machines that are described rather than detected.
_MACHINES = {"cpu:avx512": "x86-64-v4", "cpu:avx2": "haswell", "cpu:baseline": "x86-64"}


def flags(machine: Target) -> tuple[str, ...]:
    """Compiler flags for a target."""
    chosen = build.kernel_flags(machine=_MACHINES.get(machine.name, "native"))
    gathers = ("-DMLC_GATHERS",) if FAST_GATHER in machine.features else ()
    return tuple(dict.fromkeys((*cpp.FLAGS, *chosen, *gathers)))
