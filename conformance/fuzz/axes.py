"""Find the batch axes of a traced program, along which every position is computed alike and independently.

The axes of all values are grouped into equivalence classes (union-find). A call that pairs two axes joins their
classes. A call that combines positions of an axis makes its class mixed, and so does every call without a rule here.
Along the axes of a class that is not mixed, permuting, dropping or adding positions of the arguments does the same to
the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from conformance.fuzz.tracing import Traced, arguments_of, name_of, operands_of, shapes_of

MIXED = 0  # the class of axes whose positions are combined
# Calls that mix the axes in their argument `dim` or `dims`, or all axes without it, and keep the others.
MIXING = frozenset({
    "sum", "mean", "amax", "amin", "var", "prod", "any", "all", "argmax", "argmin", "max", "min", "logsumexp",
    "linalg_vector_norm", "_softmax", "_log_softmax", "cumsum", "cumprod", "cummax", "cummin", "sort", "topk", "slice",
    "select", "gather", "index_select", "scatter", "scatter_add", "slice_scatter", "select_scatter", "cat", "flip",
    "roll", "unfold", "split_with_sizes", "index_add",
})  # fmt: skip
ELEMENTWISE = frozenset({"_to_copy", "copy", "copy_", "full_like", "expand", "where", "alias", "detach"})
RESHAPES = frozenset({"view", "reshape", "_unsafe_view", "squeeze", "unsqueeze"})
# Products in the notation of `torch.einsum`; a dot marks an axis that is mixed.
PRODUCTS = {"mm": "mk,kn->mn", "bmm": "bmk,bkn->bmn", "convolution": "b.,.,.->b."}

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Family:
    """The axes of one class: positions in each argument and in each result.

    `least` is the smallest length at which the program keeps its axes: `squeeze` drops those of length 1.
    """

    arguments: Mapping[str, Dims]
    results: tuple[Dims, ...]
    least: int = 1


@dataclass
class _Classes:
    """Union-find over axes, which are numbers; the class of 0 has the mixed ones."""

    parents: list[int] = field(default_factory=lambda: [MIXED])

    def new_axes(self, shape: Sequence[int]) -> Dims:
        """Return new axes for a shape, each in its own class."""
        first = len(self.parents)
        self.parents += range(first, first + len(shape))
        return tuple(range(first, first + len(shape)))

    def class_of(self, axis: int) -> int:
        """Return the class of an axis."""
        while self.parents[axis] != axis:
            axis = self.parents[axis]
        return axis

    def join(self, axes: Iterable[int]) -> None:
        """Join the classes of these axes."""
        roots = sorted({self.class_of(axis) for axis in axes})  # MIXED comes first and stays a root
        for root in roots[1:]:
            self.parents[root] = roots[0]

    def mix(self, axes: Iterable[int]) -> None:
        """Join the classes of these axes with the mixed one."""
        self.join([MIXED, *axes])


Operand = tuple[Dims, Sequence[int]]


def families(traced: Traced) -> list[Family]:
    """Return the classes that are not mixed and have an argument's axis of more than one position."""
    classes = _Classes()
    dims: dict[Node, Any] = {}
    squeezed: list[int] = []
    for node in traced.graph.graph.nodes:
        if name_of(node) == "squeeze":
            squeezed += _squeezed_axes(node, dims[node.args[0]])
        if node.op == "placeholder":
            dims[node] = classes.new_axes(shapes_of(node)[0])
        elif node.op == "call_function" and name_of(node) == "getitem":
            dims[node] = dims[node.args[0]][node.args[1]]
        elif node.op == "call_function":
            results = _result_axes(classes, node, dims)
            dims[node] = results if isinstance(node.meta["val"], tuple | list) else results[0]
        elif node.op == "get_attr":
            dims[node] = tuple(MIXED for _ in getattr(traced.graph, str(node.target)).shape)
    inputs = {arg: (dims[node], shapes_of(node)[0]) for arg, node in traced.arguments.items()}
    roots = {
        classes.class_of(axis) for axes, shape in inputs.values() for axis, n in zip(axes, shape, strict=True) if n > 1
    }

    def positions_of(axes: Dims, root: int) -> Dims:
        return tuple(k for k, axis in enumerate(axes) if classes.class_of(axis) == root)

    return [
        Family(
            {arg: positions for arg, (axes, _) in inputs.items() if (positions := positions_of(axes, root))},
            tuple(positions_of(dims[node], root) for node in traced.results),
            2 if root in map(classes.class_of, squeezed) else 1,
        )
        for root in sorted(roots - {MIXED})
    ]


def _result_axes(classes: _Classes, node: Node, dims: Mapping[Node, Any]) -> list[Dims]:
    """Return the axes of each result of a call, after joining classes by its rule."""
    shapes, name = shapes_of(node), name_of(node)
    operands: list[Operand] = [(dims[x], shapes_of(x)[0]) for x in operands_of(node)]
    if name in MIXING and operands:
        return [_mixing_call(classes, node, operands, out) for out in shapes]
    if name in ELEMENTWISE or torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return [_elementwise(classes, operands, shapes[0])]
    if name in RESHAPES:
        return [_reshape(classes, *operands[0], shapes[0])]
    if name == "permute":
        return [tuple(operands[0][0][k] for k in arguments_of(node)["dims"])]
    if name == "addmm":  # what is added is broadcast
        added, *factors = operands
        product = _product(classes, PRODUCTS["mm"], factors, shapes[0])
        return [_elementwise(classes, [added, (product, shapes[0])], shapes[0])]
    if name in PRODUCTS:
        return [_product(classes, PRODUCTS[name], operands, shapes[0])]
    for axes, _ in operands:
        classes.mix(axes)
    return [tuple(MIXED for _ in out) for out in shapes]


def _elementwise(classes: _Classes, operands: Sequence[Operand], out: Sequence[int]) -> Dims:
    """Broadcasting: axes are aligned from the last; those of size 1 are not joined."""
    result = list(classes.new_axes(out))
    for axes, shape in operands:
        for k in range(1, min(len(shape), len(out)) + 1):
            if shape[-k] > 1:
                classes.join((result[-k], axes[-k]))
    return tuple(result)


def _mixing_call(classes: _Classes, node: Node, operands: Sequence[Operand], out: Sequence[int]) -> Dims:
    (axes, shape), *_ = operands
    rank, arguments = len(shape), arguments_of(node)
    axis_argument = arguments.get("dim", arguments.get("dims"))
    mixed = {
        k % rank for k in ([axis_argument] if isinstance(axis_argument, int) else axis_argument or range(rank)) if rank
    }
    for other, sizes in operands:
        if len(sizes) != rank:
            classes.mix(other)
            continue
        for k in range(rank):
            # Calls such as `gather` use only a part of an axis whose size differs.
            pair = (axes[k], other[k]) if sizes[k] == shape[k] else (MIXED, axes[k], other[k])
            classes.join((MIXED, *pair) if k in mixed else pair)
    result_axes = [(axes[k], shape[k]) for k in range(rank) if len(out) >= rank or k not in mixed]
    result_axes += [(MIXED, out[-1])] if len(out) > rank else []
    if len(result_axes) != len(out):
        classes.mix(axes)
        return tuple(MIXED for _ in out)
    return tuple(axis if n == size else MIXED for (axis, n), size in zip(result_axes, out, strict=True))


def _reshape(classes: _Classes, axes: Dims, shape: Sequence[int], out: Sequence[int]) -> Dims:
    """Reshape: an axis is kept if the same number of elements is before and after it."""
    before = {(_element_count(shape[:k]), n): axes[k] for k, n in enumerate(shape) if n > 1}
    after = [(_element_count(out[:k]), n) for k, n in enumerate(out)]
    classes.mix(axis for key, axis in before.items() if key not in after)
    return tuple(classes.new_axes([n])[0] if n == 1 else before.get((at, n), MIXED) for at, n in after)


def _squeezed_axes(node: Node, axes: Dims) -> list[int]:
    """Return the axes that a call of `squeeze` drops where their length is 1."""
    named = arguments_of(node).get("dim", range(len(axes)))
    return [axes[k] for k in ([named] if isinstance(named, int) else named) if axes]


def _element_count(shape: Sequence[int]) -> int:
    return torch.Size(shape).numel()


def _product(classes: _Classes, equation: str, operands: Sequence[Operand], out: Sequence[int]) -> Dims:
    terms, results = equation.partition("->")[0].split(","), equation.partition("->")[2].rstrip(".")
    letters: dict[str, list[int]] = {letter: [] for letter in results}
    for term, (axes, shape) in zip(terms, operands, strict=False):
        fits = term.endswith(".") or len(term) == len(axes)
        for k, (axis, n) in enumerate(zip(axes, shape, strict=True)):
            letter = term[k] if fits and k < len(term) else "."
            is_kept = letter in letters and n == out[results.index(letter)]
            letters.get(letter, []).append(axis) if is_kept else classes.mix([axis])
    for joined in letters.values():
        classes.join(joined)
    kept = [joined[0] if joined else MIXED for joined in letters.values()]
    return (*kept, *[MIXED] * (len(out) - len(kept)))
