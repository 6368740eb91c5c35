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
Place = int | range | Node | None  # the selected elements of an axis: one, a range, a list, or all


@dataclass(frozen=True)
class _Put:
    """`value` is stored into `base` at `places`, which has an entry for each axis of `base`."""

    base: Node
    places: tuple[Place, ...]
    value: Node


def as_puts(graph: GraphModule, value: Node, place: Node) -> Node:
    """Return the value to write to the input `place`, rewritten as `index_put` if possible. Changes the graph."""
    found = _put(value)
    if found is None or not _leads_to(found.base, place):
        return value
    base = as_puts(graph, found.base, place)
    with graph.graph.inserting_before(value):
        made = _index_put(graph, base, found)
    made.meta["val"] = value.meta["val"]
    value.replace_all_uses_with(made)
    return made


def _leads_to(base: Node, place: Node) -> bool:
    while base is not place and base.target in _VIEWS:
        base = base.all_input_nodes[0]
    return base is place


def _put(node: Node) -> _Put | None:
    """The write that a node performs on its first argument; None for other nodes and for symbolic sizes."""
    if node.target is _aten.index_put.default:
        return _listed(node)
    words = _words(node) if node.target in _VIEWS else None
    if words is None:
        return None
    base, source, dim = words.pop("input", None) or words["self"], words["src"], words["dim"]
    shape = _shape(base)
    if shape is None:
        return None
    axis = dim % len(shape)
    if node.target is _aten.select_scatter.default:
        here: int | range = words["index"] % shape[axis]
    else:
        here = range(*slice(words["start"], words["end"], words["step"]).indices(shape[axis]))
    inner = _put(source) if _is_view(getattr(source, "args", (None,))[0], node, base) else None
    if inner is None:
        value = source.args[1] if source.target is _aten.copy.default else source
        inner = _Put(base, (None,) * (len(shape) - isinstance(here, int)), value)
    places = list(inner.places)
    if isinstance(here, int):
        places.insert(axis, here)
    else:
        places[axis] = _within(here, places[axis])
    if inner.value.meta["val"].dtype != base.meta["val"].dtype or any(p is NotImplemented for p in places):
        return None
    return _Put(base, tuple(places), inner.value)


def _listed(node: Node) -> _Put | None:
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


def _within(outer: range, inner: Place) -> Any:
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
    own, other = _words(x), _words(node)
    return own is not None and other is not None and all(own[k] == other[k] for k in own if k not in ("self", "input"))


def _words(node: Node) -> dict[str, Any] | None:
    """All arguments by name; None if one of them, other than the tensors, is symbolic."""
    found = normalize_function(node.target, node.args, node.kwargs, normalize_to_only_use_kwargs=True)  # type: ignore[arg-type]
    words = dict(found.kwargs) if found is not None else None
    if words is None or any(isinstance(v, Node) for k, v in words.items() if k not in ("self", "input", "src")):
        return None
    return words


def _shape(base: Any) -> tuple[int, ...] | None:
    shape = base.meta["val"].shape
    return tuple(shape) if all(isinstance(n, int) for n in shape) else None


def _index_put(graph: GraphModule, base: Node, put: _Put) -> Node:
    """Call `index_put` with an index for each axis from the first to the last restricted one, to keep their order."""
    shape = _shape(base)
    assert shape is not None
    whole = [p is None or p == range(n) for p, n in zip(put.places, shape, strict=True)]
    if all(whole):
        return graph.graph.call_function(_aten.expand.default, (put.value, list(shape)))
    first, last = whole.index(False), len(whole) - 1 - whole[::-1].index(False)
    places = [range(n) if p is None else p for p, n in zip(put.places, shape, strict=True)][first : last + 1]
    after = [sum(not isinstance(p, int) for p in places[k + 1 :]) for k in range(len(places))]
    lists = [_list(graph, p, n, base.meta["val"]) for p, n in zip(places, after, strict=True)]
    return graph.graph.call_function(_aten.index_put.default, (base, [*[None] * first, *lists], put.value))


def _list(graph: GraphModule, place: Place, after: int, like: torch.Tensor) -> Node:
    """The selected elements as an index tensor with `after` trailing axes of size 1, on the device of `like`."""
    words = {"dtype": torch.int64, "device": like.device, "pin_memory": False}
    if isinstance(place, Node):
        return _called(graph, like, _aten.view.default, (place, [-1] + [1] * after))
    if isinstance(place, int):
        return _called(graph, like, _aten.full.default, ([], place), words)
    assert isinstance(place, range)
    made = _called(graph, like, _aten.arange.start_step, (place.start, place.stop, place.step), words)
    return _called(graph, like, _aten.view.default, (made, [len(place)] + [1] * after)) if after else made


def _called(graph: GraphModule, like: Any, op: Any, args: tuple[Any, ...], words: dict[str, Any] | None = None) -> Node:
    made = graph.graph.call_function(op, args, words or {})
    with like.fake_mode:
        values = [a.meta["val"] if isinstance(a, Node) else a for a in args]
        made.meta["val"] = op(*values, **(words or {}))
    return made
