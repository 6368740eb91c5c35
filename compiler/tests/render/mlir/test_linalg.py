"""What MLIR's own tools make of linalg computes what the interpreter of Tensor IR says, for every argument."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import compiler
from compiler.errors import CompilerError
from compiler.execution import executable
from compiler.execution.named import target
from compiler.ir import tensor_text
from compiler.ir.dtype import DTYPES, EIGHTHS, DType, boolean, f32, f64, i8, i32, i64, u8
from compiler.ir.expr import OPS, Load, cast, const
from compiler.ir.functions import FUNCTIONS
from compiler.ir.tensor import Axis, Equation, Map
from compiler.pipeline import lower
from compiler.runtime import guarded, mlir
from compiler.tests.render.mlir.running import STORED, each, needs_tools, program, run, same, values


@needs_tools
@pytest.mark.parametrize("dtype", [f32, f64, i64, i32, i8, u8, boolean], ids=str)
def test_every_operation_on_every_argument(dtype: DType) -> None:
    names = [n for n, row in OPS.items() if dtype.kind in row.kinds and n not in ("where", "require")]
    outcome, wanted = run(*each(names, dtype))
    for n, made, right in zip(names, outcome.outputs, wanted, strict=True):
        same(n, made, right, FUNCTIONS[n].cpu[dtype is f64] + 0.5 if n in FUNCTIONS else 0.0)


@needs_tools
def test_every_conversion_of_every_argument() -> None:
    types = [t for t in DTYPES.values() if t not in EIGHTHS]
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


@needs_tools
def test_what_is_built_once_is_right_for_all_sizes(seed: int) -> None:
    torch.manual_seed(seed)
    text = """def f(n: size[1, inf, 5], x: f32[n: 1, 3: n], z: f32[n, 2 * n]):
    with kernel("k"):
        y[i: n, j: 6]: f32 = x[i, j % 3] - z[i, n + i]
        s[j: 6]: f32 = max(y[i, j] for i in range(n))
        c[i: n]: f32 = scan(max, i, z[i, 0])
    result(s, f32[6])
    result(y, f32[n: 1, 6: n])
    result(c, f32[n])
"""
    for n in (5, 1, 8):
        outcome, wanted = run(tensor_text.parse(text), [torch.randn(3, n).t(), torch.randn(n, 2 * n)])
        for made, right in zip(outcome.outputs, wanted, strict=True):
            np.testing.assert_array_equal(made.numpy(), right, f"{n} rows, seed {seed}")


@needs_tools
@pytest.mark.parametrize("spoilt", [False, True], ids=["all", "one_refused"])
def test_texts_are_built_together_or_alone(spoilt: bool, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    torch.manual_seed(seed)
    calls: list[str] = []
    x, number = torch.randn(3), torch.randn(4).tolist()
    started = mlir._run

    def noted(command: list[str], work: Path) -> None:
        calls.append(command[0])
        started(command, work)

    monkeypatch.setattr(mlir, "_run", noted)
    text = "def f(x: f32[3]):\n    with kernel('k'):\n        y[i: 3]: f32 = x[i] + {}\n    result(y, f32[3])\n"
    lowered = [lower(tensor_text.parse(text.format(n)), target("mlir"), source="tensor") for n in number]
    if spoilt:
        stages = {**lowered[1].stages, "mlir": lowered[1].stages["mlir"].replace("arith.addf", "arith.nothing")}
        lowered[1] = dataclasses.replace(lowered[1], stages=stages)
    compiler.build_together(lowered)
    assert calls.count("mlir-opt") == 1
    for n, lowering in enumerate(lowered):
        if spoilt and n == 1:
            with pytest.raises(CompilerError, match=r"arith\.nothing"):
                executable.execute_guarded(lowering, [x])
        else:
            torch.testing.assert_close(executable.execute_guarded(lowering, [x]).outputs[0], x + number[n])
    assert calls.count("mlir-opt") == (1 + len(number) if spoilt else 1)


@needs_tools
def test_a_compiled_function_raises_what_eager_raises(seed: int) -> None:
    torch.manual_seed(seed)
    table = torch.randn(5, 3)
    made = compiler.compile(torch.nn.functional.embedding, [torch.tensor([1, 4]), table], "mlir")
    torch.testing.assert_close(made(torch.tensor([0, 3]), table), table[[0, 3]], rtol=0, atol=0)
    with pytest.raises(IndexError, match="index 5 is out of range"):
        made(torch.tensor([0, 5]), table)


def test_what_was_captured_is_printed_in_either_dialect() -> None:
    captured = compiler.capture(torch.exp, [torch.ones(2)])
    assert '"math.exp"' in compiler.to_mlir(captured)
    assert '"tosa.exp"' in compiler.to_mlir(captured.program, "tosa")
    with pytest.raises(CompilerError, match="the dialects are linalg, tosa"):
        compiler.to_mlir(captured, "stablehlo")


def test_without_the_tools_the_target_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlir, "_path", lambda name: None)
    said = "target mlir needs mlir-opt-22, mlir-translate-22, llc-22 to run: `apt-get install mlir-22-tools llvm-22`"
    with pytest.raises(CompilerError, match=said):
        run(tensor_text.parse("def f(x: f32[2]):\n    result(x, f32[2])\n"), [torch.ones(2)])
