"""ONNX's own tests as cases: they pass, what is refused is named, what is wrong is seen."""

from typing import Any

import pytest

import compiler
from conformance import rows

pytest.importorskip("onnx", reason="the extra onnx is not installed")
from conformance.onnx import check, nodes

OPTIONS = {"target": "cpu", "threads": 1}


def run(name: str, dtype: str) -> rows.OpInfo:
    return check.check(name, dtype, OPTIONS, lambda where: None)


def test_node_tests_pass_and_others_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {("add", "f32"), ("reshape_zero_dim", "f32"), ("cast_BFLOAT16_to_FLOAT", "bf16")} <= set(nodes.listed())
    for name in ("slice_neg_steps", "averagepool_2d_ceil_last_window_starts_on_pad"):  # shapes and steps are inputs
        row = run(name, "f32")
        assert row.verdict == "pass", row
    refused = run("nonzero_example", "bool")
    assert (refused.verdict, refused.missing) == ("unsupported", ("onnx.NonZero",)), refused
    built = compiler.compile

    def off(captured: Any, target: str) -> Any:
        made = built(captured, target=target)
        return lambda *inputs: [x + 1e-3 for x in made(*inputs)]

    monkeypatch.setattr(compiler, "compile", off)
    wrong = run("relu", "f32")
    assert wrong.verdict == "wrong" and "Mismatched elements" in wrong.detail, wrong
