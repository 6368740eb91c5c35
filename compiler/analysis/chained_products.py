"""Recognise a matmul one factor of which is computed element by element from other matmuls.

```
for q in rows:
    c_j = sum over r of x_qr * k_jr
    t_j = sum over r of g_qr * v_jr
    e_j = ...                                  # any expression of c_j and t_j
    for d: o_d = sum over j of e_j * k_jd
```
This is a gradient of attention. Computed by blocks of columns j, e need never be in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from compiler.analysis.online_softmax import KEY, For, NotRecognised, Reader, Scores, nest_of, require
from compiler.ir.dtype import STORAGE_ONLY, DType, f32
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, const, loads, names, op
from compiler.ir.linear import linear
from compiler.ir.rewrite import nodes
from compiler.ir.statement import Kernel, Store
from compiler.ir.value_ranges import conjuncts


@dataclass(frozen=True)
class Chained:
    """A sum over columns of `weight` times `value` into `accumulator`; `after` are the stores of the result.

    Expressions are in terms of the row variables, `KEY` for the column, and the names of the `products`, whose left
    factors depend on the row and right factors on the column. Weights are rounded to `kind` before they are multiplied.
    `inner` are the buffers that live within a row.
    """

    rows: tuple[For, ...]
    row: For
    columns: Expr
    column: str
    products: tuple[Scores, ...]
    weight: Expr
    kind: DType
    value: Expr
    feature: For
    accumulator: Var
    after: tuple[Store, ...]
    inner: tuple[str, ...]

    @property
    def batch(self) -> tuple[For, ...]:
        return tuple(f for f in self.rows if f is not self.row)


def recognise(kernel: Kernel) -> Chained | None:
    """The chained matmul that a kernel of one nest computes; None if it computes anything else."""
    rows, body = nest_of(kernel)
    if len(body) < 2 or not rows:
        return None
    *before, last = body
    if not isinstance(last, For) or not all(isinstance(s, For) for s in before):
        return None
    reader = Reader(rows, kernel)
    try:
        for s in before:
            assert isinstance(s, For)
            require(s.kind == "parallel")
            reader.read_elements(s)
        return _read_weighted_sum(reader, last)
    except NotRecognised:
        return None


def chained(kernel: Kernel, private: Iterable[str]) -> Chained | None:
    """The chained matmul, if all sizes are known and all buffers within a row are `private`; else None."""
    found = recognise(kernel)
    if found is None or not set(found.inner) <= set(private):
        return None
    loops = (*found.rows, found.feature, *(p.depth for p in found.products))
    return found if all(isinstance(e, Const) for e in (found.columns, *(f.extent for f in loops))) else None


def reach(weight: Expr, row: str) -> Iterator[tuple[int, int, int]]:
    """Bounds of the non-zero weights: triples (s, a, b), all of which hold for them: s * column <= s * (a * row + b).

    The sign s is 1 or -1, and a is not negative.
    """
    for c in _nonzero_conditions(weight):
        match c:
            case Op("le" | "lt" | "ge" | "gt" as how, (a, b)) if a.dtype is KEY.dtype:
                terms, rest = linear(a - b if how[0] == "l" else b - a)  # at most 0, or less
                sign, rest = terms.get(KEY, 0), rest + (how[1] == "t")
                slope = -sign * terms.get(Var(row), 0)
                if abs(sign) == 1 and terms.keys() <= {KEY, Var(row)} and slope >= 0:
                    yield sign, slope, -sign * rest


def _nonzero_conditions(e: Expr) -> Iterator[Expr]:
    """Conditions without which an expression is zero."""
    match e:
        case Cast(arg):
            yield from _nonzero_conditions(arg)
        case Op("mul", (a, b)):
            yield from _nonzero_conditions(a)
            yield from _nonzero_conditions(b)
        case Op("where", (cond, _, Const(0.0))) | Select(cond, _, Const(0.0)):
            yield from conjuncts(cond)
        case Op("exp", (power,)):
            yield from _finite_conditions(power)


def _finite_conditions(e: Expr) -> Iterator[Expr]:
    """Conditions without which an expression is -inf."""
    match e:
        case Op("sub" | "add", (a, _)):
            yield from _finite_conditions(a)
        case Op("where", (cond, value, Const(low))) | Select(cond, value, Const(low)) if low == -math.inf:
            yield from conjuncts(cond)
            yield from _finite_conditions(value)


def _read_weighted_sum(reader: Reader, last: For) -> Chained:
    first, nest, value, after = reader.read_last_sum(last)
    require(last.kind == "parallel" and isinstance(value, Op) and value.name == "mul")
    assert isinstance(value, Op)
    product_names = set(reader.sums)
    weights = [x for x in value.args if last.var not in names(x) and product_names & set(x.walk())]
    require(len(weights) == 1)
    other = next(x for x in value.args if x is not weights[0])
    require(bool(loads(other)) and not product_names & set(other.walk()))
    weight, kind = weights[0], weights[0].dtype
    while isinstance(weight, Cast):
        kind = weight.arg.dtype if weight.arg.dtype in STORAGE_ONLY else kind
        weight = weight.arg
    accumulator = Var(first.name, first.value.dtype)
    require(weight.dtype is accumulator.dtype)
    stores = reader.result_stores(after)
    used_products = [v for v in reader.sums if v in set(weight.walk())]
    row = reader.query(other, *(reader.scores(v, set()) for v in used_products))
    products = tuple(reader.scores(v, {row.var}) for v in used_products)
    require(len({p.depth.var for p in products}) == len(products) and reader.keys is not None)
    assert reader.keys is not None
    return Chained(
        reader.rows, row, reader.keys, nest.var, products, weight, kind, other, last, accumulator, stores,
        tuple(reader.stored),
    )  # fmt: skip


# ---- weights as threads compute them


@dataclass(frozen=True)
class Made:
    """A weight in terms of the products' names, of variables in `rows` and of variables in `columns`.

    The expressions of these variables are the same for all columns, or for all rows: each is computed once per block.
    """

    weight: Expr
    rows: dict[Var, Expr]
    columns: dict[Var, Expr]


def made(found: Chained) -> Made:
    """The weight with powers of two instead of e (for f32); loads per row or per column get names."""
    weight = nodes(found.weight, _with_powers_of_two) if found.accumulator.dtype is f32 else found.weight
    products = {p.name for p in found.products}
    rows: dict[Var, Expr] = {}
    columns: dict[Var, Expr] = {}

    def name_loads(e: Expr) -> Expr:
        inside = set(e.walk())
        is_nameable = e.dtype is f32 and bool(loads(e)) and not inside & products
        if is_nameable and not (KEY in inside and found.row.var in names(e)):
            table, word = (columns, "column") if KEY in inside else (rows, "row")
            known = next((v for v, x in table.items() if x is e), None)
            v = known or Var(f"{found.accumulator.name}_{word}{len(table)}", e.dtype)
            table[v] = e
            return v
        return e if isinstance(e, Load) else e.map(lambda n: name_loads(n) if isinstance(n, Expr) else n)

    return Made(name_loads(weight), rows, columns)


def _with_powers_of_two(e: Expr) -> Expr | None:
    match e:
        case Op("exp", (power,)):
            return op("exp2_ftz", _base_two_exponent(power))
    return None


def _base_two_exponent(e: Expr) -> Expr:
    """The exponent of 2 for an exponent of e. A difference of large numbers is rounded once before scaling (fma)."""
    match e:
        case Op("sub", (Op("where", (cond, value, Const(low))), less)) if low == -math.inf:
            return op("where", cond, _base_two_exponent(value - less), low)
        case Op("sub", (Op("mul", (value, Const() as factor)), less)):
            e = op("fma", value, factor, op("neg", less))
    return e * const(math.log2(math.e), e.dtype)
