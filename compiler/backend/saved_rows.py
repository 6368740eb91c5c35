"""Align the rows of tensors that a forward graph saves for its backward graph.

Only the two graphs see a saved tensor, so its rows may be padded to begin at multiples of 16 bytes, as `aligned_rows`
defines, where matmuls and wide loads need that. The case that matters is the scores over a vocabulary of 50,257 words:
the largest tensor of a language model's training step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from compiler.frontend import graphs
from compiler.frontend.graphs import memory_of
from compiler.frontend.types import IR_DTYPES
from compiler.ir.expr import dim, static
from compiler.ir.tensor import Tensor, aligned_rows

_ALSO_VIEWS = frozenset({torch.ops.aten._unsafe_view})
_STRIDE_DEPENDENT = frozenset(
    {torch.ops.aten.as_strided, torch.ops.aten.as_strided_copy, torch.ops.aten.as_strided_scatter}
)


def align_rows(forward: GraphModule, backward: GraphModule, results: int) -> None:
    """Pad, in both graphs, the rows of the tensors that `forward` returns after its first `results` outputs.

    Unchanged are inputs and views, tensors that share memory with another output, and tensors read by a call that
    depends on strides or splits rows.
    """
    listed: Sequence[Any] = forward.graph.output_node().args[0]  # type: ignore[assignment]
    outputs = [n for n in listed if isinstance(n, Node)]
    placeholders = graphs.placeholders_by_name(backward)
    memory = [memory_of(n) for n in outputs]
    for node in dict.fromkeys(n for n in listed[results:] if isinstance(n, Node)):
        placeholder = placeholders.get(node.name)
        if placeholder is None or memory.count(memory_of(node)) > 1 or node.op != "call_function" or is_view(node):
            continue
        strides = _aligned_strides(node.meta["val"])
        if strides is not None and _reads_whole_rows(node) and _reads_whole_rows(placeholder):
            for n in (node, placeholder):
                x: FakeTensor = n.meta["val"]
                with x.fake_mode:
                    n.meta["val"] = torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)


def _aligned_strides(x: object) -> tuple[int, ...] | None:
    """The aligned strides of a saved tensor; None if they are its own or cannot be computed."""
    if not isinstance(x, FakeTensor) or x.layout is not torch.strided or x.dtype not in IR_DTYPES:
        return None
    if not all(isinstance(n, int) for n in (*x.shape, *x.stride())):
        return None
    tensor = Tensor("saved", IR_DTYPES[x.dtype], tuple(map(dim, x.shape)), tuple(map(dim, x.stride())))
    strides = tuple(map(static, aligned_rows(tensor)))
    return strides if strides != x.stride() else None


def _reads_whole_rows(node: Node) -> bool:
    """Whether no call depends on the strides of a value or of its views, and the views keep each row whole."""
    row = _row_length(node)
    return all(
        not depends_on_strides(user) and (not is_view(user) or _row_length(user) == row) for user, _ in uses(node)
    )


def uses(node: Node) -> Iterator[tuple[Node, Node]]:
    """The calls that read a value or a view of it, each with the node that it reads."""
    for user in node.users:
        yield user, node
        if is_view(user):
            yield from uses(user)


def _row_length(node: Node) -> int:
    x = node.meta.get("val")
    if not isinstance(x, torch.Tensor):
        return 0
    return next((n for n, step in zip(x.shape, x.stride(), strict=True) if step == 1), 0)


def depends_on_strides(call: Node) -> bool:
    """Whether the result of a call depends on the strides of its argument, and on where its memory begins."""
    return getattr(call.target, "overloadpacket", None) in _STRIDE_DEPENDENT


def is_view(node: Node) -> bool:
    """Whether a call only re-indexes its argument and makes no copy in eager."""
    return isinstance(node.target, OpOverload) and (node.target.is_view or node.target.overloadpacket in _ALSO_VIEWS)
