"""ONNX's own tests as cases: they pass, what is refused is named, what is wrong is seen."""

import random
from typing import Any

import pytest

import compiler
from conformance import rows
from conformance.opinfo import ratchet

pytest.importorskip("onnx", reason="the extra onnx is not installed")
from conformance.onnx import check

OPTIONS = {"target": "cpu", "threads": 1}


def run(name: str, dtype: str) -> rows.OpInfo:
    return check.check(name, dtype, OPTIONS, lambda where: None)


def test_node_tests_pass_and_others_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {("add", "f32"), ("reshape_zero_dim", "f32"), ("cast_BFLOAT16_to_FLOAT", "bf16")} <= set(check.list_tests())
    row = run("slice_neg_steps", "f32")  # places and steps are inputs
    assert row.verdict == "pass", row
    refused = run("nonzero_example", "bool")
    assert (refused.verdict, refused.missing) == ("unsupported", ("onnx.NonZero",)), refused
    built = compiler.compile

    def off(captured: Any, target: str) -> Any:
        made = built(captured, target=target)
        return lambda *inputs: [x + 1e-3 for x in made(*inputs)]

    monkeypatch.setattr(compiler, "compile", off)
    wrong = run("slice_neg_steps", "f32")
    assert wrong.verdict == "wrong" and "Mismatched elements" in wrong.detail, wrong


def test_what_has_passed_means_the_same_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the tests that have passed, their Torch IR by eager: a row that changes its meaning is seen at once."""

    def in_eager(captured: Any, target: str) -> Any:
        lowering = compiler.lower(captured.program, compiler.target(target), until="torch")

        def run(*inputs: Any) -> Any:
            left = iter(inputs)
            every = [captured.constants[i.name] if i.constant else next(left) for i in captured.program.inputs]
            with compiler.FirstOfEqual():
                return captured.rebuild(compiler.execute(lowering, "torch", every))

        return run

    monkeypatch.setattr(compiler, "compile", in_eager)
    seed = random.randrange(1 << 31)
    for entry in random.Random(seed).sample(sorted(ratchet.passed_before("onnx", "cpu")), 30):
        row = run(*entry)
        assert row.verdict == "pass", (seed, row)
