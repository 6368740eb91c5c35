"""Constants that a forward graph saves for its backward graph: the backward graph holds them itself.

Attention saves the seeds of its dropout, two numbers for each call, which are zeros if there is none.
"""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from compiler import frontend
from compiler.frontend import graphs


def hold(forward: GraphModule, backward: GraphModule, results: int) -> None:
    """Remove constants from the outputs of `forward` after its first `results`, and from the inputs of `backward`."""
    readers = graphs.placeholders_by_name(backward)  # numbers come first, but last among the outputs
    names = [n.name if isinstance(n, Node) else None for n in graphs.output(forward).args[0]]
    with _disable_current_modes():  # AOTAutograd's fake mode makes constants fake
        frontend.without_dropout(forward)
    output = graphs.output(forward)
    outputs = list(output.args[0])
    saved: list[Any] = []
    for n, name in zip(outputs[results:], names[results:], strict=True):
        if isinstance(n, Node) and n.op == "get_attr" and name in readers:
            _replace(backward, readers[name], n)
        else:
            saved.append(n)
    output.args = ((*outputs[:results], *saved),)
    forward.recompile()
    backward.recompile()


def _replace(graph: GraphModule, reader: Node, constant: Node) -> None:
    """Replace an input by a constant of another graph, which is held once under its name."""
    name, holder = str(constant.target), constant.graph.owning_module
    assert holder is not None
    graph.register_buffer(name, holder.get_buffer(name))
    with graph.graph.inserting_before(reader):
        held = graph.graph.get_attr(name)
    held.meta = {"val": constant.meta["val"]}
    reader.replace_all_uses_with(held)
    graph.graph.erase_node(reader)
