"""What torch traces by its own definitions in Python stays an op where that has a rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._C import DispatchKey

from compiler import frontend
from compiler.tests.meaning import fresh_seed

MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")


def resized(mode: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.interpolate(x, scale_factor=1.5, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_resizing_is_an_op_and_so_is_its_gradient(mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path))  # where no process before has left the graph
    seen: list[torch.fx.GraphModule] = []
    asserting = frontend.with_assertions

    def heard(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
        seen.append(graph)
        return asserting(graph)

    monkeypatch.setattr(frontend, "with_assertions", heard)
    torch.manual_seed(fresh_seed())
    x, program = torch.randn(2, 3, 6, 5), resized(mode)
    kernels = dict(torch.ops.aten.upsample_bilinear2d.vec.py_kernels)
    for derived in (False, True):
        own, eager = (x.clone().requires_grad_(derived) for _ in range(2))
        seen.clear()
        torch._dynamo.reset()
        got = torch.compile(program, backend="mlcomp", options={"fallback": "error"})(own)
        wanted = program(eager)
        torch.testing.assert_close(got, wanted)
        names = [str(n.target) for graph in seen for n in graph.graph.nodes]
        assert any("upsample" in name and "backward" not in name for name in names)
        if derived:
            (gradient,), (expected,) = torch.autograd.grad(got.sum(), own), torch.autograd.grad(wanted.sum(), eager)
            torch.testing.assert_close(gradient, expected)
            assert any("_backward" in str(n.target) for graph in seen for n in graph.graph.nodes)
    assert torch.ops.aten.upsample_bilinear2d.vec.py_kernels == kernels
    assert DispatchKey.CompositeImplicitAutograd in kernels


def test_sizes_that_vary_are_resized_too() -> None:
    torch.manual_seed(fresh_seed())
    compiled = torch.compile(resized("bilinear"), backend="mlcomp", dynamic=True, options={"fallback": "error"})
    for n in (4, 7, 12):
        x = torch.randn(1, 2, n, n + 2)
        torch.testing.assert_close(compiled(x), resized("bilinear")(x))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_no_images_are_resized(mode: str, axes: int) -> None:
    """PyTorch's shape functions raise for them."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=3, mode=mode).sin()

    x = torch.ones(0, 2, *(4, 5, 6)[:axes], requires_grad=True)
    result = torch.compile(program, backend="mlcomp", options={"fallback": "error"})(x)
    assert result.shape == program(x).shape
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert gradient.shape == x.shape
