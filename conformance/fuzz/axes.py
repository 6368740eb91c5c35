"""A traced program in; the axes along which it treats every position alike and alone, those of batches, out.

Every axis of every value has a class. A call that pairs two axes makes their classes one; a call that brings positions
of an axis together makes that class mixed, and so does every call that no row here knows. What is left in classes of
their own may be put in another order, cut or added to, and the same comes of the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from conformance.fuzz.tracing import Traced, given, name_of, operands_of, shapes_of

MIXED = 0  # the class of axes whose positions meet
# Calls over the axes that their arguments `dim` or `dims` name, or all: those are mixed, the others go through.
WITHIN = frozenset({
    "sum", "mean", "amax", "amin", "var", "prod", "any", "all", "argmax", "argmin", "max", "min", "logsumexp",
    "linalg_vector_norm", "_softmax", "_log_softmax", "cumsum", "cumprod", "cummax", "cummin", "sort", "topk", "slice",
    "select", "gather", "index_select", "scatter", "scatter_add", "slice_scatter", "select_scatter", "cat", "flip",
    "roll", "unfold", "split_with_sizes", "index_add",
})  # fmt: skip
ELEMENTWISE = frozenset({"_to_copy", "copy", "copy_", "full_like", "expand", "where", "alias", "detach"})
RESHAPED = frozenset({"view", "reshape", "_unsafe_view", "squeeze", "unsqueeze"})
# Products as `torch.einsum` has them; axes where a dot stands are mixed.
PRODUCTS = {"mm": "mk,kn->mn", "bmm": "bmk,bkn->bmn", "addmm": "n,mk,kn->mn", "convolution": "b.,.,.->b."}

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Family:
    """Axes of one class: those of each argument, and of each result."""

    arguments: Mapping[str, Dims]
    results: tuple[Dims, ...]


@dataclass
class _Classes:
    """Which axes are of one class, by a number each: 0 has those that are mixed."""

    above: list[int] = field(default_factory=lambda: [MIXED])

    def fresh(self, shape: Sequence[int]) -> Dims:
        """Axes of classes of their own."""
        first = len(self.above)
        self.above += range(first, first + len(shape))
        return tuple(range(first, first + len(shape)))

    def of(self, axis: int) -> int:
        """The class of an axis."""
        while self.above[axis] != axis:
            axis = self.above[axis]
        return axis

    def join(self, axes: Iterable[int]) -> None:
        """Make these one class."""
        roots = sorted({self.of(axis) for axis in axes})  # the mixed one first
        for root in roots[1:]:
            self.above[root] = roots[0]

    def mix(self, axes: Iterable[int]) -> None:
        """Make these mixed."""
        self.join([MIXED, *axes])


Operand = tuple[Dims, Sequence[int]]


def families(traced: Traced) -> list[Family]:
    """The classes of axes of arguments that are not mixed, of more than one position."""
    classes = _Classes()
    dims: dict[Node, Any] = {}
    for node in traced.graph.graph.nodes:
        if node.op == "placeholder":
            dims[node] = classes.fresh(shapes_of(node)[0])
        elif node.op == "call_function" and name_of(node) == "getitem":
            dims[node] = dims[node.args[0]][node.args[1]]
        elif node.op == "call_function":
            made = _call(classes, node, dims)
            dims[node] = made if isinstance(node.meta["val"], tuple | list) else made[0]
        elif node.op == "get_attr":
            dims[node] = tuple(MIXED for _ in getattr(traced.graph, str(node.target)).shape)
    inputs = {arg: (dims[node], shapes_of(node)[0]) for arg, node in traced.arguments.items()}
    roots = {classes.of(axis) for axes, shape in inputs.values() for axis, n in zip(axes, shape, strict=True) if n > 1}

    def having(axes: Dims, root: int) -> Dims:
        return tuple(k for k, axis in enumerate(axes) if classes.of(axis) == root)

    return [
        Family(
            {arg: found for arg, (axes, _) in inputs.items() if (found := having(axes, root))},
            tuple(having(dims[node], root) for node in traced.results),
        )
        for root in sorted(roots - {MIXED})
    ]


def _call(classes: _Classes, node: Node, dims: Mapping[Node, Any]) -> list[Dims]:
    """The axes of what a call gives."""
    outs, name = shapes_of(node), name_of(node)
    operands: list[Operand] = [(dims[x], shapes_of(x)[0]) for x in operands_of(node)]
    if name in WITHIN and operands:
        return [_within(classes, node, operands, out) for out in outs]
    if name in ELEMENTWISE or torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return [_elementwise(classes, operands, outs[0])]
    if name in RESHAPED:
        return [_reshaped(classes, *operands[0], outs[0])]
    if name == "permute":
        return [tuple(operands[0][0][k] for k in given(node)["dims"])]
    if name in PRODUCTS:
        return [_product(classes, PRODUCTS[name], operands, outs[0])]
    for axes, _ in operands:
        classes.mix(axes)
    return [tuple(MIXED for _ in out) for out in outs]


def _elementwise(classes: _Classes, operands: Sequence[Operand], out: Sequence[int]) -> Dims:
    """Aligned at their ends; an axis of one position goes with every other."""
    found = list(classes.fresh(out))
    for axes, shape in operands:
        for k in range(1, min(len(shape), len(out)) + 1):
            if shape[-k] > 1:
                classes.join((found[-k], axes[-k]))
    return tuple(found)


def _within(classes: _Classes, node: Node, operands: Sequence[Operand], out: Sequence[int]) -> Dims:
    (axes, shape), *_ = operands
    rank, words = len(shape), given(node)
    named = words.get("dim", words.get("dims"))
    over = {k % rank for k in ([named] if isinstance(named, int) else named or range(rank)) if rank}
    for other, sizes in operands:
        if len(sizes) != rank:
            classes.mix(other)
            continue
        for k in range(rank):
            # `gather` and its like take a part of axes that differ.
            together = (axes[k], other[k]) if sizes[k] == shape[k] else (MIXED, axes[k], other[k])
            classes.join((MIXED, *together) if k in over else together)
    kept = [(axes[k], shape[k]) for k in range(rank) if len(out) >= rank or k not in over]
    kept += [(MIXED, out[-1])] if len(out) > rank else []
    if len(kept) != len(out):
        classes.mix(axes)
        return tuple(MIXED for _ in out)
    return tuple(axis if n == size else MIXED for (axis, n), size in zip(kept, out, strict=True))


def _reshaped(classes: _Classes, axes: Dims, shape: Sequence[int], out: Sequence[int]) -> Dims:
    """An axis goes through where as many elements stand before it and behind it as did."""
    before = {(_count(shape[:k]), n): axes[k] for k, n in enumerate(shape) if n > 1}
    after = [(_count(out[:k]), n) for k, n in enumerate(out)]
    classes.mix(axis for key, axis in before.items() if key not in after)
    return tuple(classes.fresh([n])[0] if n == 1 else before.get((at, n), MIXED) for at, n in after)


def _count(shape: Sequence[int]) -> int:
    return torch.Size(shape).numel()


def _product(classes: _Classes, equation: str, operands: Sequence[Operand], out: Sequence[int]) -> Dims:
    terms, results = equation.partition("->")[0].split(","), equation.partition("->")[2].rstrip(".")
    letters: dict[str, list[int]] = {letter: [] for letter in results}
    for term, (axes, shape) in zip(terms, operands, strict=False):
        fits = term.endswith(".") or len(term) == len(axes)
        for k, (axis, n) in enumerate(zip(axes, shape, strict=True)):
            letter = term[k] if fits and k < len(term) else "."
            whole = letter in letters and n == out[results.index(letter)]
            letters.get(letter, []).append(axis) if whole else classes.mix([axis])
    for same in letters.values():
        classes.join(same)
    found = [same[0] if same else MIXED for same in letters.values()]
    return (*found, *[MIXED] * (len(out) - len(found)))
