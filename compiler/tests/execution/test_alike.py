"""Equal kernels of a program are lowered, written and built once: names do not count, and all else does."""

import re

import pytest
import torch

import compiler
from compiler import frontend, pipeline
from compiler.execution import named
from compiler.ir import alike
from compiler.render import cuda, header
from compiler.tests.called import placed
from compiler.tests.meaning import fresh_seed


def layers(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Four equal products with a softmax after each, two of which go back and forth, and one that is another."""
    a = torch.softmax(x @ w, -1)
    b = torch.softmax(a @ v, -1)
    c = torch.softmax(b @ w, -1)
    d = torch.softmax(w @ c, -1)
    return a, b, c, d, torch.softmax(d @ w, 0)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_equal_kernels_are_one_function(target: str) -> None:
    torch.manual_seed(fresh_seed())
    inputs = [torch.randn(24, 24) for _ in range(3)]
    given = placed(inputs, compiler.target(target))
    compiled = compiler.compile(layers, given, target)
    found = re.findall(r"^(?:static|extern \"C\" __global__) void .*?(\w+)\(", compiled.source, re.MULTILINE)
    own = [name for name in found if name != "mlc_entry"]
    assert len(own) < compiled.kernels, (own, compiled.kernels)
    for ours, eager in zip(compiled(*given), layers(*inputs), strict=True):
        torch.testing.assert_close(ours.cpu(), eager, rtol=1e-3, atol=1e-4)


def test_what_differs_in_more_than_names_is_another() -> None:
    def programs(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(1), y.sum(1), (x * 2).sum(1), x.sum(0), x.amax(1)

    captured = frontend.capture(programs, [torch.randn(8, 8), torch.randn(8, 8)])
    functions = pipeline.lower(captured.program, named.target("cpu")).stages["kernel"].functions
    firsts = alike.firsts(functions)
    assert len(functions) - len(set(firsts.values())) <= 1
    assert all(alike.shape_of(f) is alike.shape_of(alike.renamed(f, {n: f"{n}_x" for n in alike.names(f)}))
               for f in functions)  # fmt: skip


def test_a_text_by_itself_launches_what_it_holds() -> None:
    """What stands at its head says which of its functions each launch is of, equal ones and others."""

    def programs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.softmax(x, -1)
        return a, (x * 2).softmax(1), x.t().softmax(0), torch.softmax(a @ x, -1)

    program = frontend.capture(programs, [torch.randn(16, 16)]).program
    lowering = pipeline.lower(program, named.target("sm_90a"))
    called = cuda.names(lowering.stages["kernel"])
    assert cuda.names(header.parse(lowering.stages["cuda"])) == called
    assert 1 < len(set(called)) < len(called), called
