"""Programs of any stage in; whether their interpreters agree on random inputs out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.interpret import kernel as kernel_interpreter
from compiler.interpret import loop as loop_interpreter
from compiler.interpret import tensor as tensor_interpreter
from compiler.interpret import tile as tile_interpreter
from compiler.interpret.scalar import Array, round_bf16, storage
from compiler.ir.dtype import bf16, boolean
from compiler.ir.expr import static
from compiler.ir.tensor import Tensor
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.tests import run_threads

Staged = tuple[str, Any]


class Disagreement(AssertionError):
    """Two programs that should mean the same do not."""


def fresh_seed() -> int:
    """A seed of its own for every run, to be named by the message of what fails."""
    return int(np.random.SeedSequence().generate_state(1)[0])


def random_arrays(tensors: Sequence[Tensor], seed: int, unit: float = 0.0) -> list[Array]:
    """Random inputs, floats as multiples of `unit` if that is not 0; integers are small and not negative, so that they
    may be indices."""
    rng = np.random.default_rng(seed)
    least = min((static(n) for t in tensors for n in t.shape), default=1)
    return [_random(t, max(1, least), rng, unit) for t in tensors]


def _random(t: Tensor, least: int, rng: np.random.Generator, unit: float) -> Array:
    shape = [static(n) for n in t.shape]
    if t.dtype.is_float:
        x = np.asarray(rng.standard_normal(shape))
        x = (np.rint(x / unit) * unit if unit else x).astype(storage(t.dtype))
        return round_bf16(x) if t.dtype is bf16 else x
    high = 2 if t.dtype is boolean else least
    return np.asarray(rng.integers(0, high, shape)).astype(storage(t.dtype))


def run(staged: Staged, arrays: Sequence[Array], *, native: bool = False) -> tuple[Array, ...]:
    """The outputs of a program by its stage's interpreter; Loop IR goes to Tile IR's unless `native` asks for C++.

    Kernels for threads run as text on the CPU, where every access is checked.
    """
    stage, program = staged
    match stage:
        case "tensor":
            return tensor_interpreter.run(program, arrays)
        case "loop" if native:
            return loop_interpreter.run(program, arrays)
        case "loop":
            return tile_interpreter.run(loop_to_tile(program), arrays)
        case "tile":
            return tile_interpreter.run(program, arrays)
        case "kernel" if any(f.block for f in program.functions):
            return tuple(run_threads.run(program, list(arrays)))
        case "kernel":
            return kernel_interpreter.run(program, arrays)
    raise ValueError(f"{stage} has no interpreter")


def same_meaning(before: Staged, after: Staged, seed: int, *, native: bool = False) -> None:
    """Both compute the same, whatever the order of sums; raises Disagreement with the seed.

    How far two orders may be apart depends on the data: a sum near zero may lose every digit. So the data make them
    agree: f32 holds sums of multiples of 2**-7 exactly up to 2**17, and sums of products of two up to 2**10.
    """
    arrays = random_arrays(before[1].inputs, seed, unit=2.0**-7)
    results = [run(s, arrays, native=native) for s in (before, after)]
    if getattr(before[1], "into", ()):  # what is left in inputs is no output any more
        kept = {t.name for t in after[1].outputs}
        results[0] = tuple(x for x, t in zip(results[0], before[1].outputs, strict=True) if t.name in kept)
    for n, (x, y) in enumerate(zip(*results, strict=True)):
        agree(x, y, f"output {n} of {before[0]} and {after[0]}, seed {seed}")


def agree(x: Array, y: Array, what: str) -> None:
    """Equal up to the roundings of a few operations, and up to axes of extent 1."""
    flat, other = np.asarray(x).reshape(-1), np.asarray(y).reshape(-1)
    if flat.size != other.size or not np.allclose(flat, other, rtol=2e-5, atol=2e-5, equal_nan=True):
        raise Disagreement(f"{what} differ:\n{x}\n{y}")
