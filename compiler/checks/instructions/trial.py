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


class Different(AssertionError):
    """A kernel computed something other than its row states."""


@dataclass(frozen=True)
class Trial:
    """`inputs` and `wanted` by name, as represented in memory (see `stored`); outputs are the last arguments.

    The kernel is launched once, with arguments in this order unless `launch` says otherwise. Outputs start poisoned.
    Differences up to `tolerance`, an array like the only output or 0, are allowed.
    """

    text: str
    includes: tuple[str, ...]
    launch: Launch
    inputs: tuple[tuple[str, Array], ...]
    wanted: tuple[tuple[str, DType, Array], ...]
    tolerance: Array = field(default_factory=lambda: np.zeros(()))


def stored(values: Array, dtype: DType) -> Array:
    """Convert values from the interpreters' representation to that in memory; bf16 values must be exact."""
    if dtype in EIGHTHS:
        return to_memory(values, dtype)
    if dtype is bf16:
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(values)


def read(held: Array, dtype: DType) -> Array:
    """The inverse of `stored`."""
    if dtype in EIGHTHS:
        return from_memory(held, dtype)
    return (held.astype(np.uint32) << 16).view(np.float32) if dtype is bf16 else held


def source(trials: Sequence[Trial]) -> str:
    """A text with the kernels of all trials."""
    includes = dict.fromkeys(f'#include "mlc/{name}.cuh"' for t in trials for name in ("prelude", *t.includes))
    return "\n".join([*includes, "", *(t.text for t in trials)])


def plan(trial: Trial) -> LaunchPlan:
    inputs = tuple(Buffer(name, array.nbytes) for name, array in trial.inputs)
    outputs = tuple(Buffer(name, stored(array, dtype).nbytes) for name, dtype, array in trial.wanted)
    return LaunchPlan(inputs, outputs, (trial.launch,))


def poisoned(trial: Trial) -> tuple[Array, ...]:
    """The outputs before the kernel runs, as represented in memory."""
    return tuple(stored(poison(array.shape, dtype), dtype) for _, dtype, array in trial.wanted)


def poison(shape: tuple[int, ...], dtype: DType) -> Array:
    """Values whose bytes are all 0xa5, as the interpreters represent them."""
    raw = np.full((*shape, dtype.bytes), 0xA5, np.uint8)
    return read(raw.view(memory_type(dtype)).reshape(shape), dtype)


def judge(trial: Trial, outputs: Sequence[Array]) -> None:
    """Raise Different, with the first wrong element, unless the outputs are those expected."""
    for (name, dtype, wanted), memory in zip(trial.wanted, outputs, strict=True):
        made = read(memory, dtype)
        with np.errstate(invalid="ignore"):
            away = np.abs(made.astype(np.float64) - wanted.astype(np.float64))
        wrong = ~((made == wanted) | (np.isnan(made) & np.isnan(wanted)) | (away <= trial.tolerance))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise Different(
                f"{trial.launch.kernel}: {int(wrong.sum())} of {wrong.size} elements of {name} are wrong; the first, "
                f"{list(at)}, is {made[at]!r} and should be {wanted[at]!r}\n{trial.text}"
            )
