"""Kernels for Triton compute what eager does, by its interpreter where there is no GPU; cases test their texts."""

import importlib.util
import re

import pytest
import torch

import compiler
from compiler.runtime import triton

needs_triton = pytest.mark.skipif(bool(triton.missing()), reason=triton.missing() or "never")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def softmax_of_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax((x @ w).relu(), -1)


@needs_triton
def test_a_compiled_function_computes_what_eager_does() -> None:
    x, w = torch.randn(33, 70, device=DEVICE), torch.randn(70, 19, device=DEVICE)
    made = compiler.compile(softmax_of_product, [x, w], "triton")
    assert "tl.dot(" in made.source and "tl.reduce(" in made.source
    torch.testing.assert_close(made(x, w), softmax_of_product(x, w), rtol=1e-4, atol=1e-5)
    fast = torch.compile(softmax_of_product, backend="mlcomp", options={"target": "triton"})
    torch.testing.assert_close(fast(x, w), softmax_of_product(x, w), rtol=1e-4, atol=1e-5)


def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.nll_loss(x.log_softmax(1), target)


def test_the_negative_of_a_difference_has_parentheses() -> None:
    captured = compiler.capture(loss, [torch.zeros(9, 5), torch.zeros(9, dtype=torch.int64)])
    text = str(compiler.lower(captured.program, compiler.target("triton")).stages["triton"])
    assert re.search(r"\(x0?_ - \w+ - libdevice\.log\(\w+\)\) \* -1\.0", text), text


@needs_triton
def test_negatives_of_differences_and_complements_of_bytes_are_eagers() -> None:
    x, target = torch.randn(9, 5, device=DEVICE), torch.randint(0, 5, (9,), device=DEVICE)
    torch.testing.assert_close(compiler.compile(loss, [x, target], "triton")(x, target), loss(x, target))
    small = target.to(torch.uint8)
    assert torch.equal(compiler.compile(torch.bitwise_not, [small], "triton")(small), ~small)


@needs_triton
def test_an_index_out_of_range_is_refused_as_eager_does() -> None:
    at, table = torch.tensor([1, 4], device=DEVICE), torch.randn(5, 3, device=DEVICE)
    made = compiler.compile(torch.nn.functional.embedding, [at, table], "triton")
    assert torch.equal(made(at, table), table[at])
    with pytest.raises((IndexError, compiler.InvalidData)):
        made(at + 1, table)


def test_what_triton_cannot_say_is_refused_by_name() -> None:
    x, at = torch.zeros(9, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64)
    captured = compiler.capture(lambda x, at, y: x.index_add(0, at, y), [x, at, torch.ones(5, dtype=torch.uint8)])
    with pytest.raises(compiler.Unsupported, match=r"store by sum\(u8\): Triton has no such atomic operation"):
        compiler.lower(captured.program, compiler.target("triton"))


def test_without_triton_the_text_is_made_and_a_run_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(compiler.CompilerError, match=r"target triton needs triton to run: `pip install triton`"):
        compiler.compile(torch.relu, [torch.zeros(3)], "triton")


@needs_triton
def test_one_function_serves_every_size() -> None:
    x, dim = torch.randn(5, 70, device=DEVICE), torch.export.Dim("n", min=2, max=1 << 20)
    made = compiler.compile(lambda x: (x @ x.T).sum(0), [x], "triton", dynamic_shapes=[{0: dim}])
    for n in (5, 67):
        y = torch.randn(n, 70, device=DEVICE)
        torch.testing.assert_close(made(y), (y @ y.T).sum(0), rtol=1e-3, atol=1e-3)
