"""Running Kernel IR for threads in tests: a program and its inputs in; what its text computes on the CPU out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.interpret import scalar
from compiler.interpret.loop import poison
from compiler.ir import kernel as k
from compiler.ir.expr import static
from compiler.ir.tensor import Tensor, memory_order
from compiler.passes.gpu.dependent_launch import overlaps
from compiler.render import cuda
from compiler.runtime.emulator import emulator
from compiler.runtime.launches import Buffer, Extent, Launch, LaunchPlan, Map
from compiler.tests.run_kernel import shape

Array = npt.NDArray[Any]
HEADERS = Path(cuda.__file__).parent / "cuda"


def plan(program: k.Program) -> LaunchPlan:
    """The launches of a program whose sizes are all known."""
    names = [t.name for t in (*program.inputs, *program.outputs, *program.temps)]
    launches = [
        Launch(name, _extent(f), (f.block[0], f.block[1], f.block[2]),
               (*(names.index(p.name) for p in f.params), *(_map(m, f, names.index(m.buffer)) for m in f.maps)),
               k.dynamic_shared(f)[1], (f.cluster, 1, 1), overlaps=overlaps(f))
        for f, name in zip(program.functions, cuda.names(program), strict=True)
    ]  # fmt: skip
    temps = tuple(map(_buffer, program.temps))
    offsets = [sum(-(-t.size // 256) * 256 for t in temps[:n]) for n in range(len(temps) + 1)]
    return LaunchPlan(tuple(map(_buffer, program.inputs)), tuple(map(_buffer, program.outputs)), tuple(launches), temps,
                      tuple(offsets[:-1]), offsets[-1], len(program.zeros))  # fmt: skip


def run(program: k.Program, arrays: list[Array], check: bool = True, seed: int = 0) -> list[Array]:
    """The outputs; raises AssertionError with what check mode finds. Arrays hold bf16 as the float32 that equals it."""
    outputs, outcome = run_text(cuda.render(program, target="the CPU"), program, arrays, check, seed)
    assert not outcome.reports and outcome.complete, "\n".join(map(str, outcome.reports))
    return outputs


def run_text(
    text: str, program: k.Program, arrays: list[Array], check: bool = True, seed: int = 0
) -> tuple[list[Array], emulator.Outcome]:
    """What a text with the functions of `program` computes, and what the emulator finds."""
    path = emulator.build(text, (HEADERS,), check=check)
    inputs = [_memory(scalar.to_memory(a, t.dtype), t) for a, t in zip(arrays, program.inputs, strict=True)]
    outputs = [_memory(poison(t, shape(t)), t) for t in program.outputs]
    outcome = emulator.run(path, plan(program), [*inputs, *outputs], check=check, seed=seed)
    return [scalar.from_memory(_seen(a, t), t.dtype) for a, t in zip(outputs, program.outputs, strict=True)], outcome


def _span(t: Tensor) -> int:
    """Elements from the first to the last."""
    return 1 + sum((n - 1) * static(by) for n, by in zip(shape(t), t.strides, strict=True))


def _memory(a: Array, t: Tensor) -> Array:
    """An array with the strides of its tensor, flat."""
    flat = np.zeros(_span(t), a.dtype)
    _seen(flat, t)[...] = a
    return flat


def _seen(flat: Array, t: Tensor) -> Array:
    """The tensor in its memory."""
    strides = [static(by) * flat.itemsize for by in t.strides]
    return np.lib.stride_tricks.as_strided(flat, shape(t), strides)


def _buffer(t: Tensor) -> Buffer:
    return Buffer(t.name, _span(t) * t.dtype.bytes)


def _map(m: k.TensorMap, f: k.Function, number: int) -> Map:
    t = next(p for p in f.params if p.name == m.buffer)
    axes = memory_order(t)[::-1]
    strides = tuple(static(t.strides[d]) * t.dtype.bytes for d in axes)
    return Map(number, t.dtype.name, tuple(shape(t)[d] for d in axes), strides, m.box, m.swizzle, m.steps)


def _extent(f: k.Function) -> Extent:
    x, y, z = (*(static(e) for e in f.grid), 1, 1)[:3]
    return x, y, z
