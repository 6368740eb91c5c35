"""Which outputs of a forward program only its backward program reads, so that they may share an allocation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from compiler.execution.executable import Executable
from compiler.frontend import Captured
from compiler.frontend.results import View
from compiler.ir.expr import static


def saved_shapes(captured: Captured) -> set[tuple[int, ...]]:
    views = [v for v in captured.views or () if isinstance(v, View)]
    return {tuple(map(static, v.shape)) for v in views if v.source in captured.saved}


def run(f: Any, *inputs: Tensor) -> None:
    compiled: Any = torch.compile(f, backend="mlcomp", options={"fallback": "error"})
    for x in compiled(*inputs):
        torch.autograd.backward(x.sum(), retain_graph=True)


def test_what_is_returned_shares_no_allocation(made: list[Executable]) -> None:
    x, w, v = (torch.randn(*s, requires_grad=True) for s in ((3, 4), (4, 5), (5, 6)))

    def f(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        returned = (x @ w).exp()
        return returned, (returned @ v).sin()

    run(f, x, w, v)
    assert saved_shapes(made[0].captured) == {(3, 6)}  # the operand of sin; `returned` is saved too, and returned
    assert all(not x.captured.saved for x in made[1:])


def test_a_value_with_a_returned_view_shares_no_allocation(made: list[Executable]) -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = (x @ w).exp()
        return y[1:], (y @ w).sin()

    run(f, x, w)
    assert saved_shapes(made[0].captured) == {(3, 4)}


def test_what_is_read_from_the_beginning_of_its_memory_shares_no_allocation(made: list[Executable]) -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

    def f(x: Tensor, w: Tensor) -> tuple[Tensor]:
        y = x @ w
        return (checkpoint(lambda y: y.as_strided((3, 4), (1, 3), 0).cos() * y, y, use_reentrant=False) @ w,)

    run(f, x, w)
    assert not made[0].captured.saved
