"""Programs of Tensor IR run by MLIR's tools, arguments worth trying, and programs of one operation after the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from compiler.execution import executable
from compiler.execution.named import target
from compiler.interpret import tensor as interpreter
from compiler.interpret.scalar import Array
from compiler.ir.dtype import DTYPES, DType
from compiler.ir.expr import OPS, Load, Op, const
from compiler.ir.tensor import Axis, Equation, Group, Map, Program, Tensor
from compiler.pipeline import lower
from compiler.runtime import guarded, launcher, mlir

needs_tools = pytest.mark.skipif(bool(mlir.missing()), reason=mlir.missing() or "never")
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.5, 7.25, 1e-3, 3e9, -1e19, 1e-40, float("inf"), -float("inf"), float("nan"),
)  # fmt: skip
INTEGERS = (0, 1, -1, 2, 3, -3, 7, -8, 63, 100, -128, 127)
STORED = {t: launcher.DTYPES[t.name] for t in DTYPES.values()}


def run(program: Program, inputs: list[torch.Tensor], name: str = "mlir") -> tuple[guarded.Outcome, tuple[Array, ...]]:
    """What MLIR makes of a program, twice, and what the interpreter does, if the data may be."""
    lowering = lower(program, target(name), source="tensor")
    outcome = executable.execute_guarded(lowering, inputs, runs=2)
    assert outcome.same
    if outcome.complaints:
        return outcome, ()
    return outcome, interpreter.run(program, [executable.to_array(x) for x in inputs])


def values(dtype: DType) -> list[float]:
    if dtype.kind == "bool":
        return [0, 1]
    if dtype.is_float:
        return list(FLOATS)
    limits = torch.iinfo(STORED[dtype])
    return [x for x in (*INTEGERS, limits.min, limits.max) if limits.min <= x <= limits.max]


def program(inputs: list[torch.Tensor], dtypes: list[DType], equations: Sequence[Equation]) -> Program:
    one = (const(1),)
    given = tuple(
        Tensor(f"x{n}", t, (const(len(x)),), one) for n, (x, t) in enumerate(zip(inputs, dtypes, strict=True))
    )
    results = tuple(Tensor(e.name, e.dtype, (e.axes[0].extent,), one) for e in equations)
    return Program("f", given, (Group("k", tuple(equations)),), results)


def each(names: Sequence[str], dtype: DType, least: float = 0.0) -> tuple[Program, list[torch.Tensor]]:
    """A program that applies these operations to every pair of arguments, at `least` so large or zero, and these."""
    rows = list(itertools.product([x for x in values(dtype) if not 0 < abs(x) < least], repeat=2))
    inputs = [torch.tensor(column, dtype=STORED[dtype]) for column in zip(*rows, strict=True)]
    axis = Axis("i", const(len(rows)))
    x, y = (Load(f"x{n}", (axis.var,), dtype) for n in range(2))
    arguments = {1: (x,), 2: (x, y), 3: (x, y, x)}
    made = [Map(n + "_", (axis,), Op(n, arguments[OPS[n].arity])) for n in names]
    return program(inputs, [dtype] * 2, made), inputs


def same(name: str, made: torch.Tensor, right: Array, units: float) -> None:
    """Equal, zeros too, but for so many units in the last place."""
    kind = np.finfo(right.dtype) if right.dtype.kind == "f" else None
    off = {"rtol": units * kind.eps, "atol": units * kind.smallest_subnormal} if kind else {"rtol": 0}
    np.testing.assert_allclose(made.numpy(), right, err_msg=name, **off)
    if kind and name not in ("min", "max", "fma"):  # which of two zeros these give is nobody's matter
        given = made.numpy()
        np.testing.assert_array_equal(np.signbit(given[~np.isnan(given)]), np.signbit(right[~np.isnan(right)]), name)
