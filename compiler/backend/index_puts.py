"""Rewrite functionalised writes to slices and rows of a tensor as one `index_put`.

`x[0, :, 3:5] = v` is traced as views of views of x, each scattered back into its base. In that form the stored value is
hidden among selections from x. As one `index_put` with an index per axis, a kernel stores just the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.operator_schemas import normalize_function

_aten = torch.ops.aten
_VIEWS: dict[Any, Any] = {
    _aten.slice_scatter.default: _aten.slice.Tensor,
    _aten.select_scatter.default: _aten.select.int,
}
Selection = int | range | Node | None  # the selected elements of an axis: one, a range, a list, or all


@dataclass(frozen=True)
class _Put:
    """`value` is stored into `base` at `selections`, which has an entry for each axis of `base`."""

    base: Node
    selections: tuple[Selection, ...]
    value: Node


def rewrite_as_puts(graph: GraphModule, value: Node, written: Node) -> Node:
    """Return the value to write to the input `written`, rewritten as `index_put` if possible. Changes the graph."""
    put = _as_put(value)
    if put is None or not _has_root(put.base, written):
        return value
    base = rewrite_as_puts(graph, put.base, written)
    with graph.graph.inserting_before(value):
        made = _index_put(graph, base, put)
    made.meta["val"] = value.meta["val"]
    value.replace_all_uses_with(made)
    return made


def _has_root(base: Node, root: Node) -> bool:
    while base is not root and base.target in _VIEWS:
        base = base.all_input_nodes[0]
    return base is root


def _as_put(node: Node) -> _Put | None:
    """The write that a node performs on its first argument; None for other nodes and for symbolic sizes."""
    if node.target is _aten.index_put.default:
        return _put_of_one_list(node)
    arguments = _named_arguments(node) if node.target in _VIEWS else None
    if arguments is None:
        return None
    base, source, dim = arguments.pop("input", None) or arguments["self"], arguments["src"], arguments["dim"]
    shape = _shape(base)
    if shape is None:
        return None
    axis = dim % len(shape)
    if node.target is _aten.select_scatter.default:
        selection: int | range = arguments["index"] % shape[axis]
    else:
        selection = range(*slice(arguments["start"], arguments["end"], arguments["step"]).indices(shape[axis]))
    inner = _as_put(source) if _is_view(getattr(source, "args", (None,))[0], node, base) else None
    if inner is None:
        value = source.args[1] if source.target is _aten.copy.default else source
        inner = _Put(base, (None,) * (len(shape) - isinstance(selection, int)), value)
    selections = list(inner.selections)
    if isinstance(selection, int):
        selections.insert(axis, selection)
    else:
        selections[axis] = _compose_selections(selection, selections[axis])
    if inner.value.meta["val"].dtype != base.meta["val"].dtype or any(p is NotImplemented for p in selections):
        return None
    return _Put(base, tuple(selections), inner.value)


def _put_of_one_list(node: Node) -> _Put | None:
    """An `index_put` with a single one-dimensional list of integers; None for any other."""
    args: Any = node.args
    base, indices, value, *accumulate = args
    lists = [i for i in indices if i is not None]
    shape = _shape(base)
    if shape is None or any(accumulate) or len(lists) != 1 or lists[0].meta["val"].dtype is torch.bool:
        return None
    if lists[0].meta["val"].dim() != 1:
        return None
    return _Put(base, (*indices, *[None] * (len(shape) - len(indices))), value)


def _compose_selections(outer: range, inner: Selection) -> Any:
    """The place of `inner` inside of `outer`; NotImplemented for a list, whose elements may count from the end."""
    match inner:
        case None:
            return outer
        case int():
            return outer[inner]
        case range():
            return outer[inner.start : inner.stop : inner.step]
    return NotImplemented


def _is_view(x: Any, node: Node, base: Node) -> bool:
    """Whether `x` is the view of `base` that `node` scatters back."""
    if not isinstance(x, Node) or x.target is not _VIEWS[node.target] or x.args[0] is not base:
        return False
    view_arguments, scatter_arguments = _named_arguments(x), _named_arguments(node)
    return (
        view_arguments is not None
        and scatter_arguments is not None
        and all(view_arguments[k] == scatter_arguments[k] for k in view_arguments if k not in ("self", "input"))
    )


def _named_arguments(node: Node) -> dict[str, Any] | None:
    """All arguments by name; None if one of them, other than the tensors, is symbolic."""
    normalized = normalize_function(node.target, node.args, node.kwargs, normalize_to_only_use_kwargs=True)  # type: ignore[arg-type]
    arguments = dict(normalized.kwargs) if normalized is not None else None
    if arguments is None or any(isinstance(v, Node) for k, v in arguments.items() if k not in ("self", "input", "src")):
        return None
    return arguments


def _shape(base: Any) -> tuple[int, ...] | None:
    shape = base.meta["val"].shape
    return tuple(shape) if all(isinstance(n, int) for n in shape) else None


def _index_put(graph: GraphModule, base: Node, put: _Put) -> Node:
    """Call `index_put` with an index for each axis from the first to the last restricted one, to keep their order."""
    shape = _shape(base)
    assert shape is not None
    is_whole = [p is None or p == range(n) for p, n in zip(put.selections, shape, strict=True)]
    if all(is_whole):
        return graph.graph.call_function(_aten.expand.default, (put.value, list(shape)))
    first, last = is_whole.index(False), len(is_whole) - 1 - is_whole[::-1].index(False)
    selections = [range(n) if p is None else p for p, n in zip(put.selections, shape, strict=True)][first : last + 1]
    trailing_axes = [sum(not isinstance(p, int) for p in selections[k + 1 :]) for k in range(len(selections))]
    indices = [_index_tensor(graph, p, n, base.meta["val"]) for p, n in zip(selections, trailing_axes, strict=True)]
    return graph.graph.call_function(_aten.index_put.default, (base, [*[None] * first, *indices], put.value))


def _index_tensor(graph: GraphModule, selection: Selection, trailing_axes: int, like: torch.Tensor) -> Node:
    """The selected elements as an index tensor with `trailing_axes` trailing axes of size 1, on the device of
    `like`."""
    kwargs = {"dtype": torch.int64, "device": like.device, "pin_memory": False}
    if isinstance(selection, Node):
        return _add_call(graph, like, _aten.view.default, (selection, [-1] + [1] * trailing_axes))
    if isinstance(selection, int):
        return _add_call(graph, like, _aten.full.default, ([], selection), kwargs)
    assert isinstance(selection, range)
    made = _add_call(graph, like, _aten.arange.start_step, (selection.start, selection.stop, selection.step), kwargs)
    return (
        _add_call(graph, like, _aten.view.default, (made, [len(selection)] + [1] * trailing_axes))
        if trailing_axes
        else made
    )


def _add_call(
    graph: GraphModule, like: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> Node:
    made = graph.graph.call_function(op, args, kwargs or {})
    with like.fake_mode:
        values = [a.meta["val"] if isinstance(a, Node) else a for a in args]
        made.meta["val"] = op(*values, **(kwargs or {}))
    return made
