"""Save images of convolutions for the backward graph with channels innermost, as kernels for GPUs make and read them.

Only the two graphs see a saved tensor, so the order of its axes is free. In eager's order, the result of a convolution
would be transposed when it is saved, and again by each kernel that reads it beside an image with channels innermost.
The weights of a convolution, of which copies in 16 bits are saved, are treated alike.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from compiler.backend.saved_rows import depends_on_strides, is_view
from compiler.frontend import graphs
from compiler.frontend.graphs import memory_of

_aten = torch.ops.aten
# Convolutions: the number of images among their arguments, which come first, and the position of `groups`.
_CONVOLUTIONS = {_aten.convolution.default: (1, 8), _aten.convolution_backward.default: (2, 9)}
RANK = 3  # at least: batch, channels, places
ROW_BYTES = 16  # the channels of a place are copied in units of so many bytes


def put_channels_innermost(forward: GraphModule, backward: GraphModule, results: int) -> None:
    """Change, in both graphs, the strides of saved images.

    The first `results` outputs of `forward` are visible outside and stay as they are. So do inputs and views, tensors
    that are viewed or share memory with another output, and those whose channels are not a multiple of 16 bytes.
    """
    outputs: Sequence[Any] = graphs.output(forward).args[0]
    placeholders = graphs.placeholders_by_name(backward)
    memory = [memory_of(n) for n in (*graphs.placeholders(forward), *outputs)]
    images = {n.name for graph in (forward, backward) for n in _images(graph)}
    for node in dict.fromkeys(n for n in outputs[results:] if isinstance(n, Node) and n.name in images):
        pair = [node, placeholders[node.name]] if node.name in placeholders else []
        if not pair or memory.count(memory_of(node)) > 1 or not all(map(_has_free_strides, pair)):
            continue
        x: FakeTensor = node.meta["val"]
        for n in pair:
            with x.fake_mode:
                _replace_value(n, torch.empty_strided(x.shape, _channels_innermost(x), dtype=x.dtype, device=x.device))


def _images(graph: GraphModule) -> set[Node]:
    """The images that convolutions make or read, and what a call makes from one of those, or reads beside one."""
    found: set[Node] = set()
    front = [n for call in graph.graph.nodes if call.target in _CONVOLUTIONS for n in _images_of_convolution(call)]
    while front:
        node = front.pop()
        if node not in found:
            found.add(node)
            front += _images_beside(node)
    return found


def _images_of_convolution(call: Node) -> Iterator[Node]:
    """The images that a convolution reads or makes; of grouped ones, only if each channel is a group."""
    count, position = _CONVOLUTIONS[call.target]  # type: ignore[index]
    for n in (*call.args[:count], *_results(call)):
        if isinstance(n, Node) and _rank(n) >= RANK and call.args[position] in (1, n.meta["val"].shape[1]):
            yield n


def _images_beside(image: Node) -> Iterator[Node]:
    """Other arguments and results of calls around an image that have as many axes and the same batch and channels."""
    maker = image.args[0] if image.target is operator.getitem else image
    places = image.meta["val"].shape
    for call in (maker, *image.users):
        if isinstance(call, Node) and call.op == "call_function" and not is_view(call):
            for n in (*call.all_input_nodes, *_results(call)):
                if _rank(n) == len(places) and n.meta["val"].shape[:2] == places[:2]:
                    yield n


def _results(call: Node) -> list[Node]:
    return [n for n in call.users if n.target is operator.getitem] or [call]


def _rank(node: Node) -> int:
    x = node.meta.get("val")
    return x.dim() if isinstance(x, Tensor) else 0


def _has_free_strides(node: Node) -> bool:
    """Whether a value is made by a call and dense, whole rows of channels fit, and no call depends on its strides."""
    x = node.meta.get("val")
    if not isinstance(x, FakeTensor) or x.layout is not torch.strided or is_view(node):
        return False
    if not all(isinstance(n, int) for n in (*x.shape, *x.stride())) or not x.is_contiguous():
        return False
    depends = (is_view(n) or depends_on_strides(n) for n in node.users)
    return x.numel() > 0 and x.shape[1] * x.element_size() % ROW_BYTES == 0 and not any(depends)


def _replace_value(node: Node, x: Tensor) -> None:
    node.meta["val"] = x
    if node.target is operator.getitem:
        call, position = node.args
        values = list(call.meta["val"])  # type: ignore[union-attr]
        values[position] = x  # type: ignore[index]
        call.meta["val"] = tuple(values)  # type: ignore[union-attr]


def _channels_innermost(x: Tensor) -> tuple[int, ...]:
    return x.movedim(1, -1).contiguous().movedim(-1, 1).stride()
