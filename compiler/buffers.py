"""The buffers of a lowered program: its stages and what its sizes are in, the plan of a launch out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from compiler.ir import aten, kernel
from compiler.ir.expr import Size
from compiler.ir.sizes import bind, numbers
from compiler.ir.tensor import Tensor
from compiler.passes.torch_to_tensor.positions import dense_strides
from compiler.pipeline import Lowering
from compiler.runtime import launcher, memory

Sizes = Mapping[Size, int]


class Shaped(Protocol):
    @property
    def shape(self) -> Sequence[int]: ...


def sizes_of(lowering: Lowering, inputs: Sequence[Shaped]) -> dict[Size, int]:
    """What the symbolic sizes of a program are, given all its inputs; raises SizeError where these do not fit."""
    program: aten.Program = lowering.stages["torch"]
    if not program.sizes:
        return {}
    return bind(program.sizes, [(i.name, i.type.shape) for i in program.inputs], [x.shape for x in inputs])


def output_types(program: aten.Program) -> list[aten.Type]:
    known = aten.types(program)
    return [known[name] for name in program.outputs]


def plan(lowering: Lowering, sizes: Sizes) -> launcher.Plan:
    """The launch plan: buffers as the callers see them, and temporaries packed into one arena by liveness."""
    torch_ir: aten.Program = lowering.stages["torch"]
    program: kernel.Program = lowering.stages["kernel"]
    inputs = tuple(
        launcher.Buffer(i.name, i.type.dtype.name, numbers(i.type.shape, sizes), numbers(i.type.strides, sizes))
        for i in torch_ir.inputs
    )
    outputs = tuple(
        launcher.Buffer(t.name, t.dtype.name, *layout(kind, sizes))
        for t, kind in zip(program.outputs, output_types(torch_ir), strict=True)
    )
    lifetimes = [_lifetime(t, program, sizes) for t in program.temps]
    shared = len(lifetimes) - len(program.zeros)
    arena = memory.behind(memory.plan(lifetimes[:shared]), [t.size for t in lifetimes[shared:]])
    given = tuple(sizes[s] for s in program.sizes)
    return launcher.Plan(inputs, outputs, tuple(arena.offsets), arena.size, given, len(program.zeros))


def temporaries(program: kernel.Program, sizes: Sizes) -> list[launcher.Buffer]:
    return [
        launcher.Buffer(t.name, t.dtype.name, numbers(t.shape, sizes), numbers(t.strides, sizes)) for t in program.temps
    ]


def _lifetime(t: Tensor, program: kernel.Program, sizes: Sizes) -> memory.Lifetime:
    uses = [n for n, f in enumerate(program.functions) if any(p.name == t.name for p in f.params)] or [0]
    return memory.Lifetime(math.prod(numbers(t.shape, sizes)) * t.dtype.bytes, uses[0], uses[-1])


def layout(kind: aten.Type, sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of an output as the caller sees it, who does the reshape that the program left out."""
    return numbers(kind.shape, sizes), numbers(dense_strides(kind.shape, kind.strides), sizes)
