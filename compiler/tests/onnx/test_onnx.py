"""ONNX models in ONNX's own text; Torch IR, what it computes beside onnx's evaluator, and refusals by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

import compiler
from compiler import CompilerError, Unsupported
from compiler.cli import main
from compiler.ir import aten_text
from compiler.onnx import model as models

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
reference = pytest.importorskip("onnx.reference")

MLP = """
agraph (float[3, 8] x) => (float[3, 4] y)
<float[8, 4] w = {%s}, float[4] b = {1.0, 2.0, 3.0, 4.0}> {
  product = MatMul(x, w)
  sum = Add(product, b)
  positive = Relu(sum)
  y = Softmax <axis = -1> (positive)
}
""" % ", ".join(f"{(7 * n) % 5 - 2}.5" for n in range(32))  # noqa: UP031


def model(graph: str, opset: int = 21) -> Any:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>\n{graph}')


def check(graph: str, *inputs: torch.Tensor, opset: int = 21, **given: Any) -> compiler.Executable:
    """The model compiled gives what onnx's evaluator gives."""
    proto = model(graph, opset)
    names = [i.name for i in proto.graph.input]
    made = compiler.compile(compiler.from_onnx(proto, **given))
    wanted = reference.ReferenceEvaluator(proto).run(None, dict(zip(names, map(models.to_numpy, inputs), strict=True)))
    for ours, theirs in zip(made(*inputs), wanted, strict=True):
        assert ours.dtype == models.from_numpy(theirs).dtype
        torch.testing.assert_close(ours, models.from_numpy(theirs), equal_nan=True)
    return made


def test_a_model_is_calls_of_torch(seed: int) -> None:
    torch.manual_seed(seed)
    captured = compiler.from_onnx(model(MLP))
    assert aten_text.show(captured.program) == (
        "def agraph(x: f32[3, 8], w: constant(f32[8, 4]), b: constant(f32[4])):\n"
        "    matmul: f32[3, 4] = aten.matmul.default(x, w)\n"
        "    add: f32[3, 4] = aten.add.Tensor(matmul, b)\n"
        "    relu: f32[3, 4] = aten.relu.default(add)\n"
        "    softmax: f32[3, 4] = aten.softmax.int(relu, -1)\n"
        "    return softmax\n"
    )
    check(MLP, torch.randn(3, 8))


def test_integers_divide_as_in_c() -> None:
    graph = "agraph (int32[4] a, int32[4] b) => (int32[4] q, int32[4] r, int32[4] f) {\n"
    graph += "  q = Div(a, b)\n  r = Mod(a, b)\n  f = Mod <fmod = 1> (a, b)\n}"
    check(graph, torch.tensor([7, -7, 7, -7], dtype=torch.int32), torch.tensor([2, 2, -2, -2], dtype=torch.int32))


def test_refusals_name_the_op_and_why() -> None:
    with pytest.raises(Unsupported, match=r"onnx\.NonMaxSuppression\(.*no row for this op"):
        compiler.from_onnx(model(
            "agraph (float[1, 4, 4] boxes, float[1, 2, 4] scores) => (int64[N, 3] y) {\n"
            "  y = NonMaxSuppression(boxes, scores)\n}"
        ))  # fmt: skip
    with pytest.raises(Unsupported, match="onnx STRING"):
        compiler.from_onnx(model("agraph (string[2] x) => (string[2] y) { y = Identity(x) }"))
    with pytest.raises(Unsupported, match="opset 6"):
        compiler.from_onnx(model("agraph (float[2] x) => (float[2] y) { y = Relu(x) }", opset=6))


def test_sizes_left_open_are_asked_for() -> None:
    graph = "agraph (float[N, 3] x, float[N, 1] z) => (float[N, 3] y) { y = Add(x, z) }"
    with pytest.raises(CompilerError, match=r"input x is \[N, 3\]: say the size N"):
        compiler.from_onnx(model(graph))
    with pytest.raises(CompilerError, match=r"input z: shape \[4, 1\] does not fit \[N, 1\]"):
        compiler.from_onnx(model(graph), shapes={"x": (5, 3), "z": (4, 1)})
    check(graph, torch.ones(5, 3), torch.ones(5, 1), shapes={"x": (5, 3)})


def test_the_command_shows_and_runs_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mlp.onnx"
    onnx.save(model(MLP), path)
    assert main(["show", "--onnx", str(path), "--ir", "torch"]) == 0
    assert "aten.matmul.default(x, w)" in capsys.readouterr().out
    assert main(["run", "--onnx", str(path)]) == 0
    assert "largest difference from onnx's evaluator" in capsys.readouterr().out
    path.write_bytes(b"nothing")
    assert main(["run", "--onnx", str(path)]) == 1
    assert "no ONNX model" in capsys.readouterr().err
