"""Buffers and argument words of a plan during a run; in check mode buffers are guarded copies."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from compiler.errors import CompilerError
from compiler.runtime import tensor_map
from compiler.runtime.emulator import native
from compiler.runtime.launches import Buffer, Flag, LaunchPlan, Map, Size

_SIZES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "f8e4m3": 1, "f8e5m2": 1, "i64": 8, "i32": 4, "i16": 2,
          "i8": 1, "u8": 1, "bool": 1}  # fmt: skip


@dataclass
class Arguments:
    """Buffer addresses and tensor maps of a run, which this object keeps alive."""

    addresses: Sequence[int]
    maps: dict[Map, int] = field(default_factory=dict)
    tensor_maps: list[native.TensorMap] = field(default_factory=list)
    failed: ctypes.c_int = field(default_factory=ctypes.c_int)

    def word(self, argument: int | Size | Map | Flag) -> int:
        """An argument as the 8 bytes that a kernel receives."""
        match argument:
            case Size(value):
                return value
            case Map():
                return self.maps[argument]
            case Flag():
                return ctypes.addressof(self.failed)
            case number:
                return self.addresses[number]


@contextlib.contextmanager
def arguments(machine: native.Machine, plan: LaunchPlan, pointers: Sequence[int]) -> Iterator[Arguments]:
    """The arguments of a plan on buffers at `pointers`; the kernels' outputs are copied back when the block ends."""
    if not machine.checks:
        yield _with_maps(machine, plan, Arguments(pointers))
        return
    # Guard pages separate buffers, and each keeps its offset modulo 256 bytes, so that misalignment is preserved.
    byte_count = sum(buffer.size + 3 * 4096 for buffer in plan.buffers) + (1 << 20)
    largest = max((math.prod(launch.cluster) for launch in plan.launches), default=1)
    if machine.begin(byte_count, largest) != 0:
        raise CompilerError(f"no memory for the {byte_count} bytes that check mode needs; use smaller dimensions")
    kinds = [native.INPUT] * len(plan.inputs) + [native.OUTPUT] * len(plan.outputs)
    kinds += [native.TEMPORARY] * (len(plan.temporaries) - plan.zeros) + [native.ZERO] * plan.zeros
    addresses = [
        machine.add_buffer(buffer.name.encode(), address, buffer.size, kind)
        for buffer, address, kind in zip(plan.buffers, pointers, kinds, strict=True)
    ]
    try:
        yield _with_maps(machine, plan, Arguments(addresses))
    finally:
        for buffer, guarded, pointer, kind in zip(plan.buffers, addresses, pointers, kinds, strict=True):
            if kind == native.OUTPUT:
                ctypes.memmove(pointer, guarded, buffer.size)


def nonzero_buffers(plan: LaunchPlan, prepared: Arguments) -> list[tuple[Buffer, int]]:
    """Temporaries that should be zero again and are not, each with the offset of its first nonzero byte."""
    out = []
    count = len(plan.buffers)
    for number in range(count - plan.zeros, count):
        content = ctypes.string_at(prepared.addresses[number], plan.buffers[number].size)
        if any(content):
            out.append((plan.buffers[number], next(n for n, byte in enumerate(content) if byte)))
    return out


def _with_maps(machine: native.Machine, plan: LaunchPlan, prepared: Arguments) -> Arguments:
    for m in {argument for launch in plan.launches for argument in launch.args if isinstance(argument, Map)}:
        tensor_map.encoding(m)
        if prepared.addresses[m.buffer] % tensor_map.BASE_ALIGNMENT:
            name = plan.buffers[m.buffer].name
            raise CompilerError(
                f"{name} does not lie at a multiple of {tensor_map.BASE_ALIGNMENT} bytes: the copy engine needs it"
            )
        rank, padding = len(m.dims), (0,) * (5 - len(m.dims))
        value = native.TensorMap(
            prepared.addresses[m.buffer], rank, _SIZES[m.dtype], m.swizzle, (*m.box, *padding),
            (*(m.steps or (1,) * rank), *padding), (*m.dims, *padding), (*m.strides, *padding),
        )  # fmt: skip
        address = ctypes.addressof(value)
        if machine.checks:
            address = machine.add_buffer(b"a tensor map", address, ctypes.sizeof(value), native.ARGUMENT)
        prepared.tensor_maps.append(value)
        prepared.maps[m] = address
    return prepared
