"""What MLIR's own tools make of the text computes what the interpreter of Tensor IR says, for every argument."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from compiler.errors import CompilerError
from compiler.execution import executable
from compiler.execution.named import target
from compiler.interpret import tensor as interpreter
from compiler.ir import tensor_text
from compiler.ir.dtype import DTYPES, DType, boolean, f32, f64, i8, i32, i64, u8
from compiler.ir.expr import OPS, Load, Op, cast, const
from compiler.ir.functions import FUNCTIONS
from compiler.ir.tensor import Axis, Equation, Group, Map, Program, Tensor
from compiler.pipeline import lower
from compiler.runtime import guarded, launcher, mlir

needs_tools = pytest.mark.skipif(bool(mlir.missing()), reason=mlir.missing() or "never")
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.5,
    -3.5,
    7.25,
    1e-3,
    3e9,
    -1e19,
    1e-40,
    float("inf"),
    -float("inf"),
    float("nan"),
)
INTEGERS = (0, 1, -1, 2, 3, -3, 7, -8, 63, 100, -128, 127)
STORED = {t: launcher.DTYPES[t.name] for t in DTYPES.values()}


def run(program: Program, inputs: list[torch.Tensor]) -> tuple[guarded.Outcome, tuple[np.ndarray, ...]]:
    """What MLIR makes of a program, twice, and what the interpreter does, if the data may be."""
    lowering = lower(program, target("mlir"), source="tensor")
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


def program(inputs: list[torch.Tensor], dtypes: list[DType], equations: list[Equation]) -> Program:
    one = (const(1),)
    given = tuple(
        Tensor(f"x{n}", t, (const(len(x)),), one) for n, (x, t) in enumerate(zip(inputs, dtypes, strict=True))
    )
    results = tuple(Tensor(e.name, e.dtype, (e.axes[0].extent,), one) for e in equations)
    return Program("f", given, (Group("k", tuple(equations)),), results)


@needs_tools
@pytest.mark.parametrize("dtype", [f32, f64, i64, i32, i8, u8, boolean], ids=str)
def test_every_operation_on_every_argument(dtype: DType) -> None:
    rows = list(itertools.product(values(dtype), repeat=2))
    inputs = [torch.tensor(column, dtype=STORED[dtype]) for column in zip(*rows, strict=True)]
    axis = Axis("i", const(len(rows)))
    x, y = (Load(f"x{n}", (axis.var,), dtype) for n in range(2))
    arguments = {1: (x,), 2: (x, y), 3: (x, y, x)}
    names = [n for n, row in OPS.items() if dtype.kind in row.kinds and n not in ("where", "require")]
    equations: list[Equation] = [Map(n + "_", (axis,), Op(n, arguments[OPS[n].arity])) for n in names]
    outcome, wanted = run(program(inputs, [dtype] * 2, equations), inputs)
    for n, made, right in zip(names, outcome.outputs, wanted, strict=True):
        kind = np.finfo(right.dtype) if right.dtype.kind == "f" else None
        units = FUNCTIONS[n].cpu[dtype is f64] + 0.5 if n in FUNCTIONS else 0.0
        off = {"rtol": units * kind.eps, "atol": units * kind.smallest_subnormal} if kind else {"rtol": 0}
        np.testing.assert_allclose(made.numpy(), right, err_msg=n, **off)
        if kind and n not in ("min", "max", "fma"):  # which of two zeros these give is nobody's matter
            given = made.numpy()
            np.testing.assert_array_equal(np.signbit(given[~np.isnan(given)]), np.signbit(right[~np.isnan(right)]), n)


@needs_tools
def test_every_conversion_of_every_argument() -> None:
    types = list(DTYPES.values())
    given = [torch.tensor(values(t), dtype=torch.float64 if t.is_float else None).to(STORED[t]) for t in types]
    equations: list[Equation] = []
    for n, (source, x) in enumerate(zip(types, given, strict=True)):
        axis = Axis("i", const(len(x)))
        equations += [Map(f"{source}_to_{t}", (axis,), cast(Load(f"x{n}", (axis.var,), source), t)) for t in types]
    outcome, wanted = run(program(given, types, equations), given)
    for e, made, right in zip(equations, outcome.outputs, wanted, strict=True):
        np.testing.assert_array_equal(executable.to_array(made), right, e.name)


@needs_tools
@pytest.mark.parametrize("at", [[3, -1, 8, 0], [3, 9, 0, 0]], ids=["inside", "outside"])
def test_what_is_required_is_an_error_and_no_value(at: list[int]) -> None:
    text = """def f(x: i64[4, 5], at: i64[4]):
    with kernel("k"):
        c[i: 4, j: 5]: i64 = scan(sum, j, x[i, j])
        h[k: 9]: i64 = scatter(sum, 0, [([require(at[i] < 9, at[i])], c[i, 4], at[i] >= 0) for i in range(4)])
    result(h, i64[9])
    result(c, i64[4, 5])
"""
    outcome, wanted = run(tensor_text.parse(text), [torch.arange(20).reshape(4, 5) - 7, torch.tensor(at)])
    if 9 in at:
        assert outcome.complaints == (guarded.INVALID,)
        return
    for made, right in zip(outcome.outputs, wanted, strict=True):
        np.testing.assert_array_equal(made.numpy(), right)


def test_without_the_tools_the_target_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlir, "_path", lambda name: None)
    said = "target mlir needs mlir-opt-22, mlir-translate-22, llc-22 to run: `apt-get install mlir-22-tools llvm-22`"
    with pytest.raises(CompilerError, match=said):
        run(tensor_text.parse("def f(x: f32[2]):\n    result(x, f32[2])\n"), [torch.ones(2)])
