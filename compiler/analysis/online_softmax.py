"""Recognise a weighted sum whose weights are a softmax, which one pass over the keys can compute.

```
for q in rows:
    s_j = ...                                  # any expression; a contraction where there is one
    m = max over j of s_j
    l = sum over j of exp(s_j - m)
    o_d = sum over j of exp(s_j - m) / l * v_jd
```
A pass that has seen some j knows m, l and o for these; a larger maximum rescales l and o by exp(m_old - m_new).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from compiler.analysis.nests import perfect
from compiler.analysis.size_hints import number
from compiler.ir import loop, tile
from compiler.ir.dtype import STORAGE_ONLY, DType
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, identity, loads, names, op, select, substitute
from compiler.ir.linear import linear
from compiler.ir.statement import Accum, Init, Kernel, Let, Stmt, Store
from compiler.ir.value_ranges import conjuncts

For = loop.For | tile.For
# Stands for the variables of all loops over keys.
KEY = Var("every key")


@dataclass(frozen=True)
class Scores:
    """`name` sums left * right over `depth`; left depends on the query, right on the key."""

    name: Var
    depth: For
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Online:
    """A softmax-weighted sum; expressions are in terms of the row variables, `KEY`, and the name of the scores.

    `score` is the argument of the softmax, `weight` the type that weights are rounded to before they are multiplied.
    `accumulator` sums weight times `value` over keys; `last` is the final result in terms of it, `maximum` and `total`;
    `after` are the statements that use it. `inner` are the buffers that live within a row. `row_after` are stores of
    values of each row's maximum and total.
    """

    rows: tuple[For, ...]
    query: For
    keys: Expr
    key: str
    scores: Scores | None
    score: Expr
    maximum: Var
    total: Var
    weight: DType
    value: Expr
    feature: For
    accumulator: Var
    last: Expr
    after: tuple[Store, ...]
    inner: tuple[str, ...]
    row_after: tuple[Store, ...] = ()

    @property
    def batch(self) -> tuple[For, ...]:
        return tuple(f for f in self.rows if f is not self.query)


def recognise(kernel: Kernel) -> Online | None:
    """The softmax-weighted sum that a kernel of one nest computes; None if it computes anything else."""
    rows, body = nest_of(kernel)
    if len(body) < 2 or not rows:
        return None
    try:
        return Reader(rows, kernel).read(body)
    except NotRecognised:
        return None


def nest_of(kernel: Kernel) -> tuple[tuple[For, ...], tuple[Stmt, ...]]:
    """The row loops of a kernel of one nest, of Loop IR or of Tile IR, and their body."""
    rows, body = perfect(loop.For, kernel.body)
    if rows:
        return tuple(rows), body
    tiled, body = perfect(tile.For, kernel.body)
    return tuple(tiled), body


def attention(kernel: Kernel, private: Iterable[str]) -> tuple[Online, Scores] | None:
    """The softmax-weighted sum, if its scores are contractions and all sizes are known, and the scores; else None.

    `private` names the temporaries that no other kernel uses: the buffers within a row must be among them.
    """
    found = recognise(kernel)
    if found is None or found.scores is None or not set(found.inner) <= set(private):
        return None
    known = (*found.rows, found.feature, found.scores.depth)
    if not all(isinstance(f.extent, Const) for f in known) or not isinstance(found.keys, Const):
        return None
    return found, found.scores


class NotRecognised(Exception):
    """The nest computes something else."""


def require(holds: bool) -> None:
    if not holds:
        raise NotRecognised


@dataclass
class Reader:
    """Reads the statements of a row; `values` of names and `stored` elements are kept fully inlined."""

    rows: tuple[For, ...]
    kernel: Kernel
    values: dict[Expr, Expr] = field(default_factory=dict)
    stored: dict[str, tuple[tuple[Expr, ...], Expr]] = field(default_factory=dict)
    totals: dict[Var, tuple[str, Expr]] = field(default_factory=dict)
    sums: dict[Var, tuple[For, Expr]] = field(default_factory=dict)
    keys: Expr | None = None
    row_after: list[Store] = field(default_factory=list)

    def read(self, body: tuple[Stmt, ...]) -> Online:
        *before, last = body
        inits: dict[str, Init] = {}
        for s in before:
            match s:
                case Let(name, value):
                    self.values[Var(name, value.dtype)] = self.inline(value)
                case Init(name, value):
                    inits[name] = s
                case Store(_, index, _, "set"):
                    require(not any(loads(i) for i in index))
                    self.row_after.append(s.replace(value=self.inline(s.value)))
                case loop.For(kind="reduce") | tile.For(kind="reduce"):
                    self.read_reduction(s, inits)
                case loop.For(kind="parallel") | tile.For(kind="parallel"):
                    self.read_elements(s)
                case _:
                    raise NotRecognised
        require(isinstance(last, For) and last.kind == "parallel")
        assert isinstance(last, For)
        return self.read_weighted_sum(last)

    # ---- loops over keys

    def set_keys(self, f: For) -> None:
        require(self.keys is None or f.extent is self.keys)
        self.keys = f.extent

    def read_reduction(self, f: For, inits: dict[str, Init]) -> None:
        """Read a loop that sums or takes a maximum over all keys."""
        self.set_keys(f)
        for name, (how, value) in self.key_body(f, f.body).items():
            require(name in inits and inits[name].value is identity(how, value.dtype))
            self.totals[Var(name, value.dtype)] = how, value

    def read_elements(self, f: For) -> None:
        """Read a loop that computes values for each key."""
        self.set_keys(f)
        require(not self.key_body(f, f.body))

    def key_body(self, f: For, body: tuple[Stmt, ...]) -> dict[str, tuple[str, Expr]]:
        found: dict[str, tuple[str, Expr]] = {}
        names: list[Expr] = []
        init: Init | None = None
        for s in body:
            match s:
                case Let(name, value):
                    names.append(Var(name, value.dtype))
                    self.values[names[-1]] = self.inline(value, f.var)
                case Init(value=Const(0.0)) if init is None:
                    init = s
                case loop.For(kind="reduce") | tile.For(kind="reduce") if init is not None:
                    self.read_contraction(s, init, f.var)
                    init = None
                case Accum(name, how, value) if name not in found:
                    found[name] = how, self.inline(value, f.var)
                case Store(buffer, index, value, "set") if buffer not in self.stored:
                    places = tuple(KEY if i is Var(f.var) else i for i in index)
                    require(KEY in places and all(i is KEY or self.is_row_index(i) for i in places))
                    self.stored[buffer] = places, self.inline(value, f.var)
                case _:
                    raise NotRecognised
        return found

    def is_row_index(self, e: Expr) -> bool:
        """Whether an index depends on rows only. No other row then has the same, or both would write one element."""
        return not loads(e) and names(e) <= {f.var for f in self.rows}

    def read_contraction(self, f: For, init: Init, key: str) -> None:
        """Read a sum for each key, over a loop of its own."""
        value = self.added_value(f, init, key)
        self.sums[Var(init.name, init.value.dtype)] = f, value

    def added_value(self, f: For, init: Init, key: str) -> Expr:
        """The value that a loop adds to a scalar that began as zero; `NotRecognised` if it does anything else."""
        *lets, last = f.body
        for s in lets:
            require(isinstance(s, Let))
            assert isinstance(s, Let)
            self.values[Var(s.name, s.value.dtype)] = self.inline(s.value, key)
        match last:
            case Accum(init.name, "sum", value):
                return self.inline(value, key)
        raise NotRecognised

    def inline(self, e: Expr, key: str = "") -> Expr:
        """The expression with named and stored values of the row inlined."""
        table = dict(self.values)
        if key:
            table[Var(key)] = KEY
        for n in e.walk():
            if isinstance(n, Load) and n.buffer in self.stored:
                places, value = self.stored[n.buffer]
                index = tuple(KEY if key and i is Var(key) else i for i in n.index)
                require(index == places)
                table[n] = value
        return substitute(e, table)

    # ---- the weighted sum

    def read_last_sum(self, f: For) -> tuple[Init, For, Expr, tuple[Stmt, ...]]:
        """In a loop over features: initialisation of its sum, loop over keys, value added, statements after."""
        place = next((n for n, s in enumerate(f.body) if isinstance(s, Init)), None)
        require(place is not None and place + 2 <= len(f.body) and not any(isinstance(s, For) for s in f.body[:place]))
        assert place is not None
        first, nest, after = f.body[place], f.body[place + 1], f.body[place + 2 :]
        require(isinstance(nest, For) and nest.kind == "reduce" and all(isinstance(s, Let | Store) for s in after))
        assert isinstance(first, Init) and isinstance(nest, For)
        require(isinstance(first.value, Const) and first.value.value == 0.0)
        self.set_keys(nest)
        for s in f.body[:place]:
            require(isinstance(s, Let))
            assert isinstance(s, Let)
            self.values[Var(s.name, s.value.dtype)] = self.inline(s.value)
        value = self.added_value(nest, first, nest.var)
        return first, nest, value, after

    def result_stores(self, after: tuple[Stmt, ...]) -> tuple[Store, ...]:
        """The stores of the completed sums."""
        for s in after:
            if isinstance(s, Let):
                self.values[Var(s.name, s.value.dtype)] = self.inline(s.value)
        stores = (s for s in after if isinstance(s, Store))
        results = tuple(s.replace(value=self.inline(s.value), index=tuple(map(self.inline, s.index))) for s in stores)
        require(bool(results) and not any(v in set(s.walk()) for s in results for v in (KEY, *self.sums)))
        require(not any(isinstance(n, Load) and n.buffer in self.stored for s in results for n in s.walk()))
        return results

    def read_weighted_sum(self, f: For) -> Online:
        """Read the loop over features, which reads all weights of the row."""
        first, nest, value, after = self.read_last_sum(f)
        require(isinstance(value, Op) and value.name == "mul")
        assert isinstance(value, Op)
        feature = Var(f.var)
        weights = [x for x in value.args if feature not in set(x.walk()) and set(self.totals) & set(x.walk())]
        require(len(weights) == 1)
        value_factor = next(x for x in value.args if x is not weights[0])
        require(bool(loads(value_factor)))  # tiles are named after buffers, which constants lack
        accumulator = Var(first.name, first.value.dtype)
        score, maximum, total, last, kind, safe = self.softmax(weights[0], accumulator)
        score_names = [v for v in self.sums if v in set(score.walk())]
        require(len(score_names) <= 1 and not any(v in set(value_factor.walk()) for v in self.sums))
        stores = self.result_stores(after)
        if not safe:
            last, stores, self.row_after = self.nan_where_masked(last, stores, accumulator, maximum, total)
        query = self.query(value_factor, *(self.scores(v, set()) for v in score_names))
        scores = self.scores(score_names[0], {query.var}) if score_names else None
        assert self.keys is not None
        inner = tuple(self.stored)
        require(not any(isinstance(n, Load) and n.buffer in inner for s in self.row_after for n in s.walk()))
        require(not {s.buffer for s in self.row_after} & {x.buffer for s in self.kernel.body for x in loads(s)})
        return Online(
            self.rows, query, self.keys, nest.var, scores, score, maximum, total, kind, value_factor, f, accumulator,
            last, stores, inner, tuple(self.row_after),
        )  # fmt: skip

    def nan_where_masked(
        self, last: Expr, after: tuple[Store, ...], accumulator: Var, maximum: Var, total: Var
    ) -> tuple[Expr, tuple[Store, ...], list[Store]]:
        """The results, as NaN where the maximum is -inf: scores of -inf minus -inf are NaN.

        One pass has zeros there, whose quotient is NaN as well; other expressions get an explicit condition.
        """

        def of(x: Var) -> Expr:
            return op("where", op("eq", maximum, -math.inf), math.nan, x)

        def stored(s: Store) -> Store:
            return s.replace(value=substitute(s.value, {total: of(total)}))

        if last is not op("div", accumulator, total):
            last = substitute(last, {total: of(total), accumulator: of(accumulator)})
        return last, tuple(map(stored, after)), [*map(stored, self.row_after)]

    def softmax(self, weight: Expr, accumulator: Var) -> tuple[Expr, Var, Var, Expr, DType, bool]:
        """The score, its maximum, the sum of exponentials, the result in terms of the accumulator, the type of weights,
        and whether a maximum of -inf is replaced by zero."""
        kind = weight.dtype
        while isinstance(weight, Cast):
            kind = weight.arg.dtype if weight.arg.dtype in STORAGE_ONLY else kind
            weight = weight.arg
        require(weight.dtype is accumulator.dtype)
        power, last = _without_factor(weight, accumulator)
        total = next((v for v, (how, value) in self.totals.items() if how == "sum" and value is power), None)
        require(total is not None)
        assert total is not None
        match power:
            case Op("exp", (Op("sub", (score, shift)),)):
                for v, (how, value) in self.totals.items():
                    if how == "max" and value is score and shift in (v, guarded(v)):
                        require(not set(self.totals) & set(score.walk()) and len(self.totals) == 2)
                        return score, v, total, last, kind, shift is not v
        raise NotRecognised

    def scores(self, name: Var, queries: set[str]) -> Scores:
        f, value = self.sums[name]
        match value:
            case Op("mul", (left, right)):
                if KEY in set(left.walk()):
                    left, right = right, left
                require(KEY not in set(left.walk()) and KEY in set(right.walk()) and not queries & names(right))
                require(bool(loads(left)) and bool(loads(right)))
                return Scores(name, f, left, right)
        raise NotRecognised

    def query(self, value: Expr, *scores: Scores) -> For:
        """The longest row that neither keys nor values depend on."""
        other_names = names(value).union(*(names(s.right) for s in scores))
        free = [f for f in self.rows if f.var not in other_names and not names(f.extent) & {r.var for r in self.rows}]
        require(bool(free))
        return max(reversed(free), key=lambda f: number(f.extent))


def guarded(maximum: Expr) -> Expr:
    """A maximum that can be subtracted where nothing is attended to: zero instead of -inf."""
    return op("where", op("eq", maximum, -math.inf), 0.0, maximum)


def _without_factor(weight: Expr, accumulator: Var) -> tuple[Expr, Expr]:
    """A weight without its factor that is the same for the whole row, and the sum with that factor applied."""
    match weight:
        case Op("div", (power, divisor)) if KEY not in set(divisor.walk()):
            return power, accumulator / divisor
        case Op("mul", (power, factor)) if KEY not in set(factor.walk()):
            return power, accumulator * factor
        case Op("mul", (factor, power)) if KEY not in set(factor.walk()):
            return power, accumulator * factor
    return weight, accumulator


def scaled(score: Expr) -> tuple[float, Expr]:
    """A score as a positive factor times another expression, which orders keys in the same way."""
    match score:
        case Op("mul", (rest, Const(factor))) | Op("mul", (Const(factor), rest)) if 0 < factor < math.inf:
            more, inner = scaled(rest)
            return more * factor, inner
        case Op("where", (cond, value, Const(low) as least)) if low == -math.inf:
            factor, inner = scaled(value)
            return factor, op("where", cond, inner, least)
        case Select(cond, value, Const(low) as least) if low == -math.inf:
            factor, inner = scaled(value)
            return factor, select(cond, inner, least)
    return 1.0, score


def reach(score: Expr, query: str) -> list[tuple[int, int]]:
    """Bounds beyond which a score is -inf: pairs (a, b) such that only keys up to a * query + b count."""
    match score:
        case Op("where", (cond, _, Const(value))) | Select(cond, _, Const(value)) if value == -math.inf:
            return [found for c in conjuncts(cond) if (found := _key_bound(c, query)) is not None]
    return []


def masks(score: Expr, query: str) -> list[Load]:
    """Loads by query and key that are contiguous along the key, each from a buffer with no other load."""
    found = {n for n in score.walk() if isinstance(n, Load) and KEY in set(n.walk())}
    moving = {n: [d for d, e in enumerate(n.index) if names(e) & {query, KEY.name}] for n in found}
    by_query_and_key = [n for n in found if [n.index[d] for d in moving[n]] == [Var(query), KEY] and n.index[-1] is KEY]
    return sorted(
        (n for n in by_query_and_key if sum(m.buffer == n.buffer for m in found) == 1), key=lambda n: n.buffer
    )


def told_by_places(score: Expr, query: str, name: Var) -> bool:
    """Whether a score is `name`, or `name` where bounds on the positions of key and query hold and -inf elsewhere."""
    match score:
        case Op("where", (cond, value, Const(low))) | Select(cond, value, Const(low)) if low == -math.inf:
            return value is name and all(_key_bound(c, query) is not None for c in conjuncts(cond))
    return score is name


def _key_bound(cond: Expr, query: str) -> tuple[int, int] | None:
    match cond:
        case Op("le" | "lt" | "ge" | "gt" as how, (a, b)) if a.dtype is KEY.dtype:
            terms, rest = linear(a - b if how[0] == "l" else b - a)
            others = {t: c for t, c in terms.items() if t is not KEY}
            if terms.get(KEY) != 1 or any(t is not Var(query) for t in others):
                return None
            slope = -others.get(Var(query), 0)
            return (slope, -rest - (how[1] == "t")) if slope >= 0 else None
    return None
