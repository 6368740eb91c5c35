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
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Shape, Value, held, set_dim, without
from compiler.passes.torch_to_tensor.first import LAUNCH, Before, before, cheapest, chosen, grouped
from compiler.passes.torch_to_tensor.positions import clamped, is_empty, is_wide, one_dim, stored, zeros

# Costs in comparisons of a counting sum. A step of a bisection costs ten of them on a CPU, where counting is
# vectorised, and two or three on a GPU.
STEP = 3
MOST_CHOSEN = 8  # the most elements that are found one after the other


def sort(b: Builder, self: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    return _first(b, self, dim, self.shape, descending)


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
    return _first(b, self, dim, set_dim(self.shape, one_dim(b, dim, self.rank), k) if self.rank else (), largest)


def _first(b: Builder, self: Value, along: int, shape: Shape, descending: bool) -> tuple[Value, Value]:
    """The elements at the positions of `shape` along a dimension, and their indices.

    Elements are as torch would have stored them, since that decides which ones are equal and keep their order.
    """
    nowhere = Value("", dt.i64, shape, dt.i64)
    if is_empty(shape):
        return zeros(b, shape, self), zeros(b, shape, nowhere)
    if not self.rank or not is_wide(self.shape[one_dim(b, along, self.rank)]):
        return self, zeros(b, shape, nowhere)
    self, d = held(b, self), one_dim(b, along, self.rank)
    strictly = before(descending)
    if b.orders and is_wide(shape[d]):
        return _ordered(b, self, d, shape, descending)
    if isinstance(shape[d], Const) and isinstance(self.shape[d], Const):
        if 0 < static(shape[d]) <= MOST_CHOSEN:
            return chosen(b, self, d, shape, descending)
        if _groups_are_cheaper(self.shape, d, shape[d]):
            return grouped(b, self, d, shape, _elements(self.shape, d), descending)
    runs = _counted(b, self, d, run_length(self.shape, d, shape[d]), shape[d], strictly)
    while runs.number > 1:
        runs = _merged(b, runs, shape[d], strictly)

    def at(index: Index) -> Index:
        return (*without(index, (d,)), dim(0), index[d])

    values = b.map(shape, lambda i: runs.values.at(at(i)), "value")
    return values, b.map(shape, lambda i: cast(runs.indices.at(at(i)), dt.i64), "index")


def _ordered(b: Builder, self: Value, d: int, shape: Shape, descending: bool) -> tuple[Value, Value]:
    """The same by one equation for the indices."""
    how = "descending" if descending else "ascending"
    places = b.order(how, shape, d, self.shape[d], lambda i: stored(self, i), "place")
    return b.map(shape, lambda i: stored(self, set_dim(i, d, places.at(i))), "value"), places


def run_length(shape: Shape, d: int, kept: Expr) -> Expr:
    """The cheapest length of the runs to sort by counting along dimension `d`; all of it if sizes are symbolic."""
    extent = shape[d]
    if not (isinstance(extent, Const) and isinstance(kept, Const)):
        return extent
    n, k = int(extent.value), int(kept.value)
    elements = _elements(shape, d)
    lengths = [n, *(1 << e for e in range(2, 11) if 1 << e < n)]
    return dim(min(lengths, key=lambda length: _price(n, k, length, elements)))


def _groups_are_cheaper(shape: Shape, d: int, kept: Expr) -> bool:
    """Whether finding the first elements by groups costs less than sorting runs."""
    n, k, elements = static(shape[d]), static(kept), _elements(shape, d)
    price, group = cheapest(n, k, elements / n)
    return group > 0 and price < _price(n, k, static(run_length(shape, d, kept)), elements)


def _elements(shape: Shape, d: int) -> int:
    """The number of elements, by hints of symbolic sizes; if there are none, of one row."""
    known = all(isinstance(v, Size) for s in shape for v in variables(s))
    return hint(product(shape)) if known else static(shape[d])


def _price(n: int, k: int, length: int, elements: int) -> float:
    """Comparisons to find the first `k` of `n` in order from runs of `length`, in all `elements / n` rows."""
    price = float(n * length + -(-n // length) * min(k, length) * length) * (elements / n)
    while length < n:
        steps = len(_halves(min(k, length))) + 1
        length *= 2
        price += -(-n // length) * min(k, length) * steps * STEP * (elements / n) + LAUNCH
    return price


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


def _counted(b: Builder, x: Value, d: int, length: Expr, most: Expr, strictly: Before) -> _Runs:
    """Sorted runs of `length` neighbours along dimension `d`, each with at most `most` elements."""
    extent, rows = x.shape[d], without(x.shape, (d,))
    whole = length is extent
    number = dim(1) if whole else dim(-(-static(extent) // static(length)))
    exact = whole or static(extent) % static(length) == 0
    kept = most if whole else dim(min(static(most), static(length)))
    small = dt.i32 if isinstance(extent, Const) else dt.i64

    def position(run: Expr, k: Expr) -> Expr:
        return run * length + k

    def at(row: Index, position: Expr) -> Expr:
        inside = position if exact else clamped(position, extent)
        return x.at((*row[:d], inside, *row[d:]))

    def exists(run: Expr, k: Expr) -> Expr:
        return const(True, dt.boolean) if exact else op("lt", position(run, k), extent)

    def comes_before(i: Index, r: Index) -> Expr:
        """Whether element `r` of a run goes before element `e`; equal elements keep their order."""
        *row, run, e = i
        there, here = at(tuple(row), position(run, r[0])), at(tuple(row), position(run, e))
        earlier = op("lt", cast(r[0], small), cast(e, small))
        before = op("where", earlier, op("not", strictly(here, there)), strictly(there, here))
        return cast(both(exists(run, r[0]), before), small)

    places = b.reduce("sum", (*rows, number, length), (length,), comes_before, "place")

    def has(i: Index, r: Index) -> Expr:
        *row, run, place = i
        found = op("eq", places.at((*row, run, r[0])), cast(place, small))
        return op("where", both(exists(run, r[0]), found), cast(position(run, r[0]), small), const(0, small))

    indices = b.reduce("sum", (*rows, number, kept), (length,), has, "from")
    values = b.map(indices.shape, lambda i: at(i[:-2], cast(indices.at(i), dt.i64)), "first")
    return _Runs(values, indices, 0 if whole else static(length), extent)


def _merged(b: Builder, runs: _Runs, most: Expr, strictly: Before) -> _Runs:
    """Merge pairs of neighbouring runs; of equal elements those of the first run go first.

    Among the first p elements of a merged run, at least t are of the first run exactly if its element t-1 goes before
    element p-t of the second. A bisection finds the largest such t, from p minus the length of the second run up to p.
    """
    kept, extent = runs.kept, static(runs.extent)
    number, length = -(-runs.number // 2), 2 * runs.length
    shape = (*runs.indices.shape[:-2], dim(number), dim(min(static(most), length)))
    full = runs.number % 2 == 0 and extent >= (runs.number - 1) * runs.length + kept

    def of(i: Index, second: int, k: Expr) -> Index:
        """The index of element `k` of the first or second run of a pair."""
        run = i[-2] * 2 + second
        return (*i[:-2], run if full or not second else op("min", run, runs.number - 1), k)

    def seconds(i: Index) -> Expr:
        """The number of elements of the second run."""
        left = extent - (i[-2] * 2 + 1) * runs.length
        return dim(kept) if full else op("max", op("min", left, kept), 0)

    def second_goes(i: Index, first: Expr, second: Expr) -> Expr:
        """Whether an element of the second run goes before one of the first; indices beyond the runs are clamped."""
        one = runs.values.at(of(i, 0, first))
        return strictly(runs.values.at(of(i, 1, op("min", second, kept - 1))), one)

    taken: Value | None = None
    for half in _halves(kept):

        def more(i: Index, before: Value | None = taken, half: int = half) -> Expr:
            sure = before.at(i) if before else op("max", i[-1] - seconds(i), 0)
            t = op("min", sure + half, op("min", i[-1], kept))
            # The outcome is random, so a branch would be mispredicted half the time.
            return op("where", second_goes(i, op("max", t - 1, 0), i[-1] - t), sure, t)

        taken = b.map(shape, more, "taken")
    assert taken is not None
    count = taken

    def mine(i: Index) -> Expr:
        first, second = count.at(i), i[-1] - count.at(i)
        better = op("not", second_goes(i, op("min", first, kept - 1), second))
        return op("and", op("lt", first, kept), op("or", op("ge", second, seconds(i)), better))

    first = b.map(shape, mine, "first")

    def of_both(x: Value) -> Value:
        def chosen(i: Index) -> Expr:
            one, other = op("min", count.at(i), kept - 1), op("min", i[-1] - count.at(i), kept - 1)
            return op("where", first.at(i), x.at(of(i, 0, one)), x.at(of(i, 1, other)))

        return b.map(shape, chosen, "merged")

    values, indices = of_both(runs.values), of_both(runs.indices)
    return _Runs(values, indices, length, runs.extent)


def _halves(count: int) -> list[int]:
    """Steps of a bisection of 0 .. count: the remainder is halved each time and never exceeded."""
    out = []
    while count:
        out.append((count + 1) // 2)
        count //= 2
    return out


RULES: dict[str, Rule] = {"aten.sort.default": sort, "aten.sort.stable": stable_sort, "aten.topk.default": topk}
