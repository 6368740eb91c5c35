"""A kernel with inputs and expected outputs: runs on the CPU or a GPU, and is compared element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from compiler.interpret.scalar import Array, from_memory, to_memory
from compiler.interpret.scalar import memory as memory_type
from compiler.ir.dtype import EIGHTHS, DType, bf16
from compiler.runtime.launches import Buffer, Launch, LaunchPlan

HEADERS = Path(__file__).resolve().parents[2] / "render" / "cuda"
TYPES = {
    "bf16": "mlc_bf16", "f16": "mlc_f16", "f32": "float", "f64": "double", "i8": "signed char", "i32": "int",
    "i64": "long", "u8": "unsigned char", "i16": "short", "f8e4m3": "mlc_f8e4m3", "f8e5m2": "mlc_f8e5m2",
}  # fmt: skip


class WrongResult(AssertionError):
    """A kernel computed something other than its row states."""


@dataclass(frozen=True)
class Trial:
    """`inputs` and `expected` by name, as represented in memory (see `to_stored`); outputs are the last arguments.

    The kernel is launched once, with arguments in this order unless `launch` says otherwise. Outputs start poisoned.
    Differences up to `tolerance`, an array like the only output or 0, are allowed.
    """

    text: str
    includes: tuple[str, ...]
    launch: Launch
    inputs: tuple[tuple[str, Array], ...]
    expected: tuple[tuple[str, DType, Array], ...]
    tolerance: Array = field(default_factory=lambda: np.zeros(()))


def to_stored(values: Array, dtype: DType) -> Array:
    """Convert values from the interpreters' representation to that in memory; bf16 values must be exact."""
    if dtype in EIGHTHS:
        return to_memory(values, dtype)
    if dtype is bf16:
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(values)


def from_stored(stored: Array, dtype: DType) -> Array:
    """The inverse of `to_stored`."""
    if dtype in EIGHTHS:
        return from_memory(stored, dtype)
    return (stored.astype(np.uint32) << 16).view(np.float32) if dtype is bf16 else stored


def source(trials: Sequence[Trial]) -> str:
    """A text with the kernels of all trials."""
    includes = dict.fromkeys(f'#include "mlc/{name}.cuh"' for t in trials for name in ("prelude", *t.includes))
    return "\n".join([*includes, "", *(t.text for t in trials)])


def plan(trial: Trial) -> LaunchPlan:
    inputs = tuple(Buffer(name, array.nbytes) for name, array in trial.inputs)
    outputs = tuple(Buffer(name, to_stored(array, dtype).nbytes) for name, dtype, array in trial.expected)
    return LaunchPlan(inputs, outputs, (trial.launch,))


def poisoned(trial: Trial) -> tuple[Array, ...]:
    """The outputs before the kernel runs, as represented in memory."""
    return tuple(to_stored(poison(array.shape, dtype), dtype) for _, dtype, array in trial.expected)


def poison(shape: tuple[int, ...], dtype: DType) -> Array:
    """Values whose bytes are all 0xa5, as the interpreters represent them."""
    raw = np.full((*shape, dtype.bytes), 0xA5, np.uint8)
    return from_stored(raw.view(memory_type(dtype)).reshape(shape), dtype)


def judge(trial: Trial, outputs: Sequence[Array]) -> None:
    """Raise WrongResult, with the first wrong element, unless the outputs are those expected."""
    for (name, dtype, expected), memory in zip(trial.expected, outputs, strict=True):
        result = from_stored(memory, dtype)
        with np.errstate(invalid="ignore"):
            distance = np.abs(result.astype(np.float64) - expected.astype(np.float64))
        wrong = ~((result == expected) | (np.isnan(result) & np.isnan(expected)) | (distance <= trial.tolerance))
        if wrong.any():
            position = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise WrongResult(
                f"{trial.launch.kernel}: {int(wrong.sum())} of {wrong.size} elements of {name} are wrong; the first, "
                f"{list(position)}, is {result[position]!r} and should be {expected[position]!r}\n{trial.text}"
            )
