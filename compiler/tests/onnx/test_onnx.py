"""ONNX models in ONNX's own text; Torch IR, what it computes beside onnx's evaluator, and refusals by name."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import compiler
from compiler import CompilerError, Undetermined, Unsupported
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


NEWEST = """agraph (float[2, 3, 4] x, float low, bool way) => (
  float[A] sliced, float[B] empty, float[C] reshaped, float[D] clipped, float[E] chosen, float[F] written, float[G] norm
) <int64[1] from = {-1}, int64[1] to = {-9}, int64[1] last = {-1}, int64[1] back = {-2}, int64[1] none = {0},
   int64[2] shape = {0, -1}, int64 turns = {3}, bool go = {1}> {
  sliced = Slice(x, from, to, last, back)
  nothing = Slice(x, none, none, last)
  empty = ReduceMax <keepdims = 0> (nothing, last)
  reshaped = Reshape(x, shape)
  clipped = Clip(x, low)
  chosen = If (way) <
    then_branch = yes () => (float[2, 3, 4] a) { a = Neg(x) }, else_branch = no () => (float[2, 3, 4] b) { b = Abs(x) }
  >
  written = Loop (turns, go, x) <
    body = once (int64 n, bool on, float[2, 3, 4] y) => (bool go_on, float[2, 3, 4] z) {
      go_on = Identity(on)
      f = Cast <to = 1> (n)
      z = Add(y, f)
    }
  >
  norm = MeanVarianceNormalization <axes = [0, 2]> (x)
}"""

# Axes and sizes as attributes.
OLDER = """agraph (float[2, 3, 1, 4] x) => (float[A] flat, float[B] sum, float[C] clipped, float[D] p, float[D] q) {
  flat = Squeeze <axes = [-2]> (x)
  sum = ReduceSum <axes = [-1], keepdims = 0> (x)
  clipped = Clip <max = 0.5> (x)
  p, q = Split <axis = 1, split = [1, 2]> (x)
}"""


@pytest.mark.parametrize(("graph", "opset"), [(NEWEST, 18), (OLDER, 10)], ids=["newest", "older"])
def test_versions_optional_inputs_axes_and_subgraphs(graph: str, opset: int, seed: int) -> None:
    torch.manual_seed(seed)
    scalars = [torch.tensor(0.25), torch.tensor(seed % 2 == 0)] if opset == 18 else []
    shape = (2, 3, 4) if opset == 18 else (2, 3, 1, 4)
    check(graph, torch.randn(shape), *scalars, opset=opset)


def test_an_old_softmax_is_over_all_axes_from_its_own_on() -> None:
    captured = compiler.from_onnx(model("agraph (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax(x) }", opset=11))
    x = torch.rand(2, 3, 4)
    torch.testing.assert_close(compiler.compile(captured)(x)[0], x.flatten(1).softmax(1).reshape(2, 3, 4))


def test_shapes_among_the_inputs_have_to_be_known() -> None:
    graph = (
        "agraph (float[2, 6] x, int64[2] shape) => (float[N] y) { twice = Add(shape, shape)\n y = Reshape(x, twice) }"
    )
    with pytest.raises(Undetermined, match="shape depends on shape, and must be known at compile time") as refused:
        compiler.from_onnx(model(graph))
    assert refused.value.inputs == ("shape",)
    fast = compiler.compile(compiler.from_onnx(model(graph), known={"shape": torch.tensor([3, 1])}))
    x = torch.rand(2, 6)
    assert torch.equal(fast(x)[0], x.reshape(6, 2)), fast.captured.arguments
    with pytest.raises(Unsupported, match=r"onnx\.Reshape"):  # 12 numbers are not 4 times 2
        compiler.from_onnx(model(graph), known={"shape": torch.tensor([2, 2])})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torch_exports_computes_the_same(tmp_path: Path, seed: int) -> None:
    torch.manual_seed(seed)
    body = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, 2, 1), torch.nn.BatchNorm2d(4), torch.nn.MaxPool2d(3, 2, 1))
    head = torch.nn.Sequential(torch.nn.Flatten(2), torch.nn.LayerNorm(4), torch.nn.GELU(), torch.nn.Linear(4, 5))
    module, x = torch.nn.Sequential(body, head).eval(), torch.randn(1, 3, 8, 8)
    torch.onnx.export(module, (x,), tmp_path / "m.onnx", dynamo=False, opset_version=17)
    (made,) = compiler.compile(compiler.from_onnx(tmp_path / "m.onnx"))(x)
    torch.testing.assert_close(made, module(x))


def test_refusals_name_the_op_and_why() -> None:
    with pytest.raises(Unsupported, match=r"onnx\.NonMaxSuppression\(.*no row for this op"):
        compiler.from_onnx(model(
            "agraph (float[1, 4, 4] boxes, float[1, 2, 4] scores) => (int64[N, 3] y) {\n"
            "  y = NonMaxSuppression(boxes, scores)\n}"
        ))  # fmt: skip
    with pytest.raises(Unsupported, match="onnx STRING"):
        compiler.from_onnx(model("agraph (string[2] x) => (string[2] y) { y = Identity(x) }"))
    with pytest.raises(CompilerError, match=r"nothing before onnx\.Relu is named z"):
        compiler.from_onnx(model("agraph (float[2] x) => (float[2] y) { y = Relu(z) }"))
    with pytest.raises(Unsupported, match="opset 6"):
        compiler.from_onnx(model("agraph (float[2] x) => (float[2] y) { y = Relu(x) }", opset=6))


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(CompilerError, match=r'need the package onnx.*pip install "pytest-mlcomp\[onnx\]"'):
        compiler.from_onnx(b"")


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
