"""Sorting: runs of neighbours are sorted by counting, then merged in pairs until one is left, all as gathers.

By counting, the position of an element is the number of those that come before it: m² comparisons for a run of m, but
one flat sum. In a merge, each position of the result finds by bisection how many of the elements before it are of the
first run: about log2 m comparisons. If only the first k positions are needed, runs keep at most k elements; if these
are few, they are found without sorting (`first`).

Targets with a sort of their own get one `Order` equation instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir import dtype as dt
from compiler.ir.expr import Const, Expr, Size, both, cast, const, dim, hint, op, product, static, variables
from compiler.passes.torch_to_tensor.builder import (
    Builder,
    Index,
    Rule,
    Shape,
    Value,
    drop_dims,
    ensure_stored_dtype,
    set_dim,
)
from compiler.passes.torch_to_tensor.first import (
    LAUNCH,
    Precedes,
    cheapest_grouping,
    pick_by_groups,
    pick_in_turn,
    strict_order,
)
from compiler.passes.torch_to_tensor.positions import clamp_index, is_empty, is_wide, one_dim, stored_element, zeros
from compiler.passes.torch_to_tensor.views import expand_to

# Costs in comparisons of a counting sum. A step of a bisection costs ten of them on a CPU, where counting is
# vectorised, and two or three on a GPU.
BISECTION_COST = 3
MOST_PICKED = 8  # the most elements that are found one after the other


def sort(b: Builder, self: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    return _first_elements(b, self, dim, self.shape, descending)


def stable_sort(
    b: Builder, self: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    del stable  # always so here
    return sort(b, self, dim, descending)


def topk(
    b: Builder, self: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    """Of equal elements the first ones are taken; torch leaves that open."""
    del sorted  # always so here
    return _first_elements(
        b, self, dim, set_dim(self.shape, one_dim(b, dim, self.rank), k) if self.rank else (), largest
    )


def _first_elements(b: Builder, self: Value, along: int, shape: Shape, descending: bool) -> tuple[Value, Value]:
    """The elements at the positions of `shape` along a dimension, and their indices.

    Elements are as torch would have stored them, since that decides which ones are equal and keep their order.
    """
    index_like = Value("", dt.i64, shape, dt.i64)
    if is_empty(shape):
        return zeros(b, shape, self), zeros(b, shape, index_like)
    if not self.rank or not is_wide(self.shape[one_dim(b, along, self.rank)]):
        return expand_to(b, self, shape), zeros(b, shape, index_like)
    self, d = ensure_stored_dtype(b, self), one_dim(b, along, self.rank)
    precedes = strict_order(descending)
    if b.order_equations and is_wide(shape[d]):
        return _sort_equation(b, self, d, shape, descending)
    if isinstance(shape[d], Const) and isinstance(self.shape[d], Const):
        if 0 < static(shape[d]) <= MOST_PICKED:
            return pick_in_turn(b, self, d, shape, descending)
        if _groups_are_cheaper(self.shape, d, shape[d]):
            return pick_by_groups(b, self, d, shape, _elements(self.shape, d), descending)
    runs = _sort_runs(b, self, d, run_length(self.shape, d, shape[d]), shape[d], precedes)
    while runs.number > 1:
        runs = _merge_runs(b, runs, shape[d], precedes)

    def run_index(index: Index) -> Index:
        return (*drop_dims(index, (d,)), dim(0), index[d])

    values = b.map(shape, lambda i: runs.values.at(run_index(i)), "value")
    return values, b.map(shape, lambda i: cast(runs.indices.at(run_index(i)), dt.i64), "index")


def _sort_equation(b: Builder, self: Value, d: int, shape: Shape, descending: bool) -> tuple[Value, Value]:
    """The same by one equation for the indices."""
    direction = "descending" if descending else "ascending"
    positions = b.order(direction, shape, d, self.shape[d], lambda i: stored_element(self, i), "place")
    return b.map(shape, lambda i: stored_element(self, set_dim(i, d, positions.at(i))), "value"), positions


def run_length(shape: Shape, d: int, kept: Expr) -> Expr:
    """The cheapest length of the runs to sort by counting along dimension `d`; all of it if sizes are symbolic."""
    extent = shape[d]
    if not (isinstance(extent, Const) and isinstance(kept, Const)):
        return extent
    n, k = int(extent.value), int(kept.value)
    elements = _elements(shape, d)
    lengths = [n, *(1 << e for e in range(2, 11) if 1 << e < n)]
    return dim(min(lengths, key=lambda length: _run_cost(n, k, length, elements)))


def _groups_are_cheaper(shape: Shape, d: int, kept: Expr) -> bool:
    """Whether finding the first elements by groups costs less than sorting runs."""
    n, k, elements = static(shape[d]), static(kept), _elements(shape, d)
    cost, group = cheapest_grouping(n, k, elements / n)
    return group > 0 and cost < _run_cost(n, k, static(run_length(shape, d, kept)), elements)


def _elements(shape: Shape, d: int) -> int:
    """The number of elements, by hints of symbolic sizes; if there are none, of one row."""
    have_hints = all(isinstance(v, Size) for s in shape for v in variables(s))
    return hint(product(shape)) if have_hints else static(shape[d])


def _run_cost(n: int, k: int, length: int, elements: int) -> float:
    """Comparisons to find the first `k` of `n` in order from runs of `length`, in all `elements / n` rows."""
    cost = float(n * length + -(-n // length) * min(k, length) * length) * (elements / n)
    while length < n:
        steps = len(_bisection_steps(min(k, length))) + 1
        length *= 2
        cost += -(-n // length) * min(k, length) * steps * BISECTION_COST * (elements / n) + LAUNCH
    return cost


@dataclass(frozen=True)
class _Runs:
    """Sorted runs, each with the first elements of `length` neighbours: tensors [rows.., number, kept].

    `indices` are positions in the row. Entries beyond the elements of the last run are undefined.
    """

    values: Value
    indices: Value
    length: int
    extent: Expr

    @property
    def number(self) -> int:
        return static(self.indices.shape[-2])

    @property
    def kept(self) -> int:
        return static(self.indices.shape[-1])


def _sort_runs(b: Builder, x: Value, d: int, length: Expr, limit: Expr, precedes: Precedes) -> _Runs:
    """Sorted runs of `length` neighbours along dimension `d`, each with at most `limit` elements."""
    extent, rows = x.shape[d], drop_dims(x.shape, (d,))
    is_one_run = length is extent
    number = dim(1) if is_one_run else dim(-(-static(extent) // static(length)))
    fills_runs = is_one_run or static(extent) % static(length) == 0
    kept = limit if is_one_run else dim(min(static(limit), static(length)))
    index_dtype = dt.i32 if isinstance(extent, Const) else dt.i64

    def position(run: Expr, k: Expr) -> Expr:
        return run * length + k

    def element_at(row: Index, position: Expr) -> Expr:
        inside = position if fills_runs else clamp_index(position, extent)
        return x.at((*row[:d], inside, *row[d:]))

    def exists(run: Expr, k: Expr) -> Expr:
        return const(True, dt.boolean) if fills_runs else op("lt", position(run, k), extent)

    def comes_before(i: Index, r: Index) -> Expr:
        """Whether element `r` of a run goes before element `e`; equal elements keep their order."""
        *row, run, e = i
        other, this = element_at(tuple(row), position(run, r[0])), element_at(tuple(row), position(run, e))
        earlier = op("lt", cast(r[0], index_dtype), cast(e, index_dtype))
        comes_first = op("where", earlier, op("not", precedes(this, other)), precedes(other, this))
        return cast(both(exists(run, r[0]), comes_first), index_dtype)

    ranks = b.reduce("sum", (*rows, number, length), (length,), comes_before, "place")

    def position_of_rank(i: Index, r: Index) -> Expr:
        *row, run, rank = i
        has_rank = op("eq", ranks.at((*row, run, r[0])), cast(rank, index_dtype))
        return op(
            "where", both(exists(run, r[0]), has_rank), cast(position(run, r[0]), index_dtype), const(0, index_dtype)
        )

    indices = b.reduce("sum", (*rows, number, kept), (length,), position_of_rank, "from")
    values = b.map(indices.shape, lambda i: element_at(i[:-2], cast(indices.at(i), dt.i64)), "first")
    return _Runs(values, indices, 0 if is_one_run else static(length), extent)


def _merge_runs(b: Builder, runs: _Runs, limit: Expr, precedes: Precedes) -> _Runs:
    """Merge pairs of neighbouring runs; of equal elements those of the first run go first.

    Among the first p elements of a merged run, at least t are of the first run exactly if its element t-1 goes before
    element p-t of the second. A bisection finds the largest such t, from p minus the length of the second run up to p.
    """
    kept, extent = runs.kept, static(runs.extent)
    number, length = -(-runs.number // 2), 2 * runs.length
    shape = (*runs.indices.shape[:-2], dim(number), dim(min(static(limit), length)))
    are_full = runs.number % 2 == 0 and extent >= (runs.number - 1) * runs.length + kept

    def element_index(i: Index, second: int, k: Expr) -> Index:
        """The index of element `k` of the first or second run of a pair."""
        run = i[-2] * 2 + second
        return (*i[:-2], run if are_full or not second else op("min", run, runs.number - 1), k)

    def second_count(i: Index) -> Expr:
        """The number of elements of the second run."""
        remaining = extent - (i[-2] * 2 + 1) * runs.length
        return dim(kept) if are_full else op("max", op("min", remaining, kept), 0)

    def second_goes_first(i: Index, first: Expr, second: Expr) -> Expr:
        """Whether an element of the second run goes before one of the first; indices beyond the runs are clamped."""
        first_value = runs.values.at(element_index(i, 0, first))
        return precedes(runs.values.at(element_index(i, 1, op("min", second, kept - 1))), first_value)

    lower_bound: Value | None = None
    for half in _bisection_steps(kept):

        def raise_bound(i: Index, before: Value | None = lower_bound, half: int = half) -> Expr:
            bound = before.at(i) if before else op("max", i[-1] - second_count(i), 0)
            candidate = op("min", bound + half, op("min", i[-1], kept))
            # The outcome is random, so a branch would be mispredicted half the time.
            return op("where", second_goes_first(i, op("max", candidate - 1, 0), i[-1] - candidate), bound, candidate)

        lower_bound = b.map(shape, raise_bound, "taken")
    assert lower_bound is not None
    count = lower_bound

    def is_from_first(i: Index) -> Expr:
        first, second = count.at(i), i[-1] - count.at(i)
        goes_first = op("not", second_goes_first(i, op("min", first, kept - 1), second))
        return op("and", op("lt", first, kept), op("or", op("ge", second, second_count(i)), goes_first))

    first = b.map(shape, is_from_first, "first")

    def merge(x: Value) -> Value:
        def merged(i: Index) -> Expr:
            first_index, second_index = op("min", count.at(i), kept - 1), op("min", i[-1] - count.at(i), kept - 1)
            return op(
                "where", first.at(i), x.at(element_index(i, 0, first_index)), x.at(element_index(i, 1, second_index))
            )

        return b.map(shape, merged, "merged")

    values, indices = merge(runs.values), merge(runs.indices)
    return _Runs(values, indices, length, runs.extent)


def _bisection_steps(count: int) -> list[int]:
    """Steps of a bisection of 0 .. count: the remainder is halved each time and never exceeded."""
    out = []
    while count:
        out.append((count + 1) // 2)
        count //= 2
    return out


RULES: dict[str, Rule] = {"aten.sort.default": sort, "aten.sort.stable": stable_sort, "aten.topk.default": topk}
