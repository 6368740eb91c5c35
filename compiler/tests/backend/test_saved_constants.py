"""Constants that a forward graph saves: the seeds of an attention without dropout, two zeros for each call."""

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule

from compiler.backend import mlcomp, saved_constants
from compiler.frontend import graphs

_aten = torch.ops.aten


def attention_graphs(dropout: float, dtype: torch.dtype) -> tuple[GraphModule, GraphModule]:
    """Two calls of an attention that only GPUs have, and a graph that reads their seeds."""
    forward, backward = Graph(), Graph()
    with FakeTensorMode():
        example = torch.empty(2, 4, 8, 16)
        seed = torch.empty((), dtype=dtype)
    x = forward.placeholder("primals_1")
    x.meta["val"] = example
    seeds: list[Any] = []
    for _ in range(2):
        call = forward.call_function(
            _aten._scaled_dot_product_efficient_attention.default, (x, x, x, None, True, dropout)
        )
        out, *numbers = (forward.call_function(operator.getitem, (call, k)) for k in (0, 2, 3))
        out.meta["val"] = example
        for n in numbers:
            n.meta["val"] = seed
        seeds += numbers
    forward.output((out, x, *seeds))
    read = [backward.placeholder(n.name) for n in (x, *seeds)]
    tangent = backward.placeholder("tangents_1")
    for n, p in zip((x, *seeds, out), (*read, tangent), strict=True):
        p.meta["val"] = n.meta["val"]
    backward.output((backward.call_function(_aten.add.Tensor, (tangent, read[1])), *read[2:]))
    return GraphModule({}, forward), GraphModule({}, backward)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64])  # of flash attention they are u64
@pytest.mark.parametrize(("dropout", "saved"), [(0.0, 1), (0.5, 5)])
def test_seeds_are_saved_only_if_there_is_dropout(dropout: float, saved: int, dtype: torch.dtype) -> None:
    forward, backward = attention_graphs(dropout, dtype)
    saved_constants.hold(forward, backward, results=1)
    forward.graph.lint()
    backward.graph.lint()
    assert len(graphs.output(forward).args[0]) == 1 + saved
    assert [p.name for p in graphs.placeholders(backward)][-1] == "tangents_1"
    assert len(graphs.placeholders(backward)) == saved + 1
    assert [x.dtype for x in backward.buffers()] == ([] if dropout else [torch.int64])
    held = [n.meta["val"].dtype for n in backward.graph.nodes if n.op == "get_attr"]
    assert held == ([] if dropout else [torch.int64] * 4)


@pytest.mark.filterwarnings("ignore:mlcomp recompiles")
def test_seeds_are_found_beside_sizes() -> None:
    """A forward graph returns sizes after the tensors that it saves; the backward graph takes them first."""

    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Any:
        masked = mask.expand(*q.shape[:3], k.shape[2])
        return _aten._scaled_dot_product_efficient_attention(q, k, v, masked, True, 0.0, False, scale=0.25)[0]

    inputs = [torch.randn(1, 2, n, 4, requires_grad=True) for n in (9, 8, 8)]
    inputs += [torch.randn(1, 1, 1, 8, requires_grad=True)]
    compiled = torch.compile(attention, backend=mlcomp, dynamic=True, options={"fallback": "error"})
    made = torch.autograd.grad(compiled(*inputs).square().sum(), inputs)
    q, k, v, mask = inputs
    wanted = F.scaled_dot_product_attention(q, k, v, mask, scale=0.25)
    torch.testing.assert_close(made, torch.autograd.grad(wanted.square().sum(), inputs))
