"""The buffers of a lowered program: bind its sizes, plan its memory, and make the plan of a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from compiler.analysis import kernel_order
from compiler.errors import MemoryLimitError
from compiler.ir import aten, kernel, statement
from compiler.ir.expr import Size
from compiler.ir.sizes import bind, numbers
from compiler.ir.tensor import Tensor
from compiler.passes.torch_to_tensor.positions import result_strides
from compiler.pipeline import Lowering
from compiler.runtime import launcher, memory

Sizes = Mapping[Size, int]
NO_ARENA = memory.Arena((), 0)


@dataclass(frozen=True)
class MemorySchedule:
    """The temporaries of a program: the live range of each, in numbers of kernels, and its offset in the arena.

    `least` is the most bytes alive at one kernel, in whole cache lines, which is a lower bound of the arena for this
    order of kernels. `unavoidable` is a lower bound for any order of the kernels `launched`. Temporaries in `zeros` are
    always alive.
    """

    names: tuple[str, ...] = ()
    lifetimes: tuple[memory.Lifetime, ...] = ()
    arena: memory.Arena = NO_ARENA
    launched: tuple[kernel_order.Launch, ...] = ()
    zeros: tuple[str, ...] = ()

    @property
    def least(self) -> int:
        return memory.peak_bytes(self.lifetimes)

    @property
    def unavoidable(self) -> int:
        sizes = {name: memory.aligned(t.size) for name, t in zip(self.names, self.lifetimes, strict=True)}
        always = sum(sizes.pop(name) for name in self.zeros)
        return always + kernel_order.least_peak(self.launched, sizes)


class Shaped(Protocol):
    @property
    def shape(self) -> Sequence[int]: ...


def sizes_of(lowering: Lowering, inputs: Sequence[Shaped]) -> dict[Size, int]:
    """The values of a program's symbolic sizes, given all its inputs; raises SizeError if these do not match."""
    sizes = next(iter(lowering.stages.values())).sizes
    return bind(sizes, [(i.name, i.shape) for i in inputs_of(lowering)], [x.shape for x in inputs]) if sizes else {}


def inputs_of(lowering: Lowering) -> list[Tensor]:
    """The program's inputs, from its first stage, which may be a later one than Torch IR if it came from a text."""
    first = next(iter(lowering.stages.values()))
    if isinstance(first, aten.Program):
        return [Tensor(i.name, i.type.dtype, i.type.shape, i.type.strides, i.constant) for i in first.inputs]
    return list(first.inputs)


def output_types(lowering: Lowering) -> list[aten.Type]:
    """The types of the results that have their own memory, as the first stage declares them."""
    first = next(iter(lowering.stages.values()))
    if isinstance(first, aten.Program):
        types_by_name, overwritten_results = aten.types(first), overwritten(lowering)
        return [types_by_name[name] for n, name in enumerate(first.outputs) if n not in overwritten_results]
    return [aten.Type(t.dtype, t.shape, t.strides) for t in first.outputs]


def overwritten(lowering: Lowering) -> dict[int, int]:
    """For each result written in the memory of an input: its position, and that of the input."""
    first, last = next(iter(lowering.stages.values())), _last_ir(lowering)
    if not isinstance(first, aten.Program) or not first.into or last is None:
        return {}
    launched = last.functions if isinstance(last, kernel.Program) else last.kernels
    written = {name for f in launched for name in f.writes}
    names = [i.name for i in first.inputs]
    return {n: names.index(input_name) for n, input_name in enumerate(first.into) if input_name in written}


def plan(lowering: Lowering, sizes: Sizes) -> launcher.Plan:
    """The launch plan: buffers as the callers see them, and temporaries packed into one arena by liveness."""
    program = lowering.stages[{"mlir": "tensor", "triton": "tile"}.get(lowering.target.kind, "kernel")]
    inputs = tuple(buffer(i, sizes) for i in inputs_of(lowering))
    outputs = tuple(
        launcher.Buffer(t.name, t.dtype.name, *layout(result_type, sizes))
        for t, result_type in zip(program.outputs, output_types(lowering), strict=True)
    )
    planned = memory_schedule(lowering, sizes)
    arena = planned.arena
    if 0 < lowering.target.memory < arena.size:
        raise MemoryLimitError(
            f"memory_limit={lowering.target.memory}: temporaries take {arena.size} bytes at their peak, in the best "
            f"order of kernels that was found, and at least {planned.unavoidable} in any"
        )
    size_values = tuple(sizes[s] for s in program.sizes)
    zeros = len(program.zeros) if isinstance(program, kernel.Program) else 0
    return launcher.Plan(inputs, outputs, arena.offsets, arena.size, size_values, zeros)


def _last_ir(lowering: Lowering) -> kernel.Program | statement.Program | None:
    """The IR that the text was rendered from, if that has launches and temporaries."""
    program: kernel.Program | statement.Program | None
    program = lowering.stages.get("tile" if lowering.target.kind == "triton" else "kernel")
    return program


def _temporaries_and_launches(
    lowering: Lowering,
) -> tuple[Sequence[Tensor], Sequence[kernel_order.Launch], Sequence[str]]:
    """The temporaries of a program, its launches, and the temporaries that are zero between calls; empty for programs
    that allocate their own."""
    launched: Sequence[kernel.Function | statement.Kernel]
    match program := _last_ir(lowering):
        case kernel.Program():
            launched, zeros = program.functions, program.zeros
        case statement.Program():
            launched, zeros = program.kernels, ()
        case _:
            return (), (), ()
    uses = [(frozenset(p.name for p in f.params), frozenset(f.writes)) for f in launched]
    return program.temps, [kernel_order.Launch(*x) for x in uses], zeros


def memory_schedule(lowering: Lowering, sizes: Sizes) -> MemorySchedule:
    """Live ranges and offsets of the temporaries; those that are zero between calls are always live."""
    temps, launched, zeros = _temporaries_and_launches(lowering)
    uses: dict[str, list[int]] = {}
    for n, launch in enumerate(launched):
        for name in launch.uses:
            uses.setdefault(name, []).append(n)
    uses |= {name: [0, len(launched) - 1] for name in zeros}
    lifetimes = [_lifetime(t, uses.get(t.name, [0]), sizes) for t in temps]
    reusable_count = len(lifetimes) - len(zeros)
    arena = memory.with_appended(memory.plan(lifetimes[:reusable_count]), [t.size for t in lifetimes[reusable_count:]])
    return MemorySchedule(tuple(t.name for t in temps), tuple(lifetimes), arena, tuple(launched), tuple(zeros))


def temporaries(lowering: Lowering, sizes: Sizes) -> list[launcher.Buffer]:
    """The temporaries as buffers; empty for a program that allocates its own."""
    return [buffer(t, sizes) for t in _temporaries_and_launches(lowering)[0]]


def buffer(t: Tensor, sizes: Sizes) -> launcher.Buffer:
    """A tensor as a buffer of the entry."""
    return launcher.Buffer(t.name, t.dtype.name, numbers(t.shape, sizes), numbers(t.strides, sizes))


def _lifetime(t: Tensor, uses: Sequence[int], sizes: Sizes) -> memory.Lifetime:
    """The live range of a temporary, and its bytes including gaps between rows."""
    reach = memory.element_span(numbers(t.shape, sizes), numbers(t.strides, sizes))
    return memory.Lifetime(reach * t.dtype.bytes, uses[0], uses[-1])


def layout(result_type: aten.Type, sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of an output for the caller, including the final reshape, which the program leaves out."""
    return numbers(result_type.shape, sizes), numbers(result_strides(result_type), sizes)
