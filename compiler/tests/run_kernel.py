"""Running Kernel IR as C++ in tests: a program and its inputs go in; what the compiled text computes comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.interpret import scalar
from compiler.interpret.loop import poison
from compiler.ir import dtype as dt
from compiler.ir.dtype import DType
from compiler.ir.expr import OPS, static
from compiler.ir.kernel import Program
from compiler.ir.tensor import Tensor
from compiler.render import cpp
from compiler.runtime import build, launcher

Array = npt.NDArray[Any]
HEADERS = Path(cpp.__file__).parent / "cpp"
WARNINGS = ("-Wall", "-Wextra", "-Wno-psabi", "-Werror")


def flags(machine: str = "native", optimise: str = "-O1") -> tuple[str, ...]:
    return (*build.kernel_flags(optimise=optimise, machine=machine), *cpp.FLAGS, *WARNINGS)


def run(
    program: Program, arrays: list[Array], machine: str = "native", threads: int = 1, optimise: str = "-O1"
) -> list[Array]:
    """The outputs; arrays hold bf16 as the float32 that equals it."""
    path = build.build(cpp.render(program, target=machine), flags(machine, optimise), include=(HEADERS,))
    inputs = [np.ascontiguousarray(scalar.to_memory(a, t.dtype)) for a, t in zip(arrays, program.inputs, strict=True)]
    outputs = [poison(t, shape(t)) for t in program.outputs]
    temps = [poison(t, shape(t)) for t in program.temps]
    launcher.run_once(path, [*inputs, *outputs, *temps], threads=threads)
    return [scalar.from_memory(a, t.dtype) for a, t in zip(outputs, program.outputs, strict=True)]


def shape(t: Tensor) -> list[int]:
    return [static(n) for n in t.shape]


def draw(rng: np.random.Generator, dtype: DType, count: int) -> Array:
    """Values all over the type, special ones among them."""
    if dtype.kind == "bool":
        return rng.random(count) < 0.5
    if dtype.is_integer:
        low, high = dt.integer_range(dtype)
        made = rng.integers(low, high, count, endpoint=True, dtype=scalar.storage(dtype))
        return np.where(rng.random(count) < 0.5, made, rng.integers(0, 5, count)).astype(made.dtype)
    made = rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)
    special = rng.choice([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 2.5, -1.5, 3e9, -2e19], count)
    values = np.where(rng.random(count) < 0.3, special, made)
    return scalar.cast(values, dt.f64, dtype)


def same(got: Array, want: Array, relative: float = 0.0) -> bool:
    """Equal, NaN with NaN, or for floats within a relative error."""
    if got.dtype.kind != "f":
        return bool(np.array_equal(got, want))
    with np.errstate(all="ignore"):
        close = np.abs(got - want) <= relative * np.abs(want)
        return bool(np.all((got == want) | (np.isnan(got) & np.isnan(want)) | close))


def spelled(name: str, args: list[str]) -> str:
    """The text of an operation applied to texts."""
    symbol = OPS[name].infix
    if name in ("neg", "not"):
        return f"{'-' if name == 'neg' else '~'}{args[0]}"
    return f"{args[0]} {symbol} {args[1]}" if symbol else f"{name}({', '.join(args)})"
