"""How loops access memory: flat addresses, strides per loop variable, and whether a loop may become vector lanes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from compiler.ir import loop, tile
from compiler.ir.dtype import i32, i64
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, both, dim, loads, names, op
from compiler.ir.index import simplify
from compiler.ir.linear import linear
from compiler.ir.statement import Accum, If, Init, Let, Stmt, Store, within
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import Ranges, conjuncts, range_below

LOOPS = (loop.For, tile.For)


def address(index: tuple[Expr, ...], tensor: Tensor, ranges: Ranges) -> Expr:
    """The element offset of `index` in `tensor`, simplified."""
    out: Expr = dim(0)
    for i, s in zip(index, tensor.strides, strict=True):
        out = out + i * s
    return simplify(out, ranges, index=True)


def inside(index: tuple[Expr, ...], tensor: Tensor, ranges: Ranges) -> Expr:
    """The condition that an element is within its tensor; bounds that are known to hold are left out."""
    ends = (c for i, n in zip(index, tensor.shape, strict=True) for c in (op("ge", i, 0), op("lt", i, n)))
    return both(*(simplify(c, ranges) for c in ends))


def is_surely_inside(e: Load, tensor: Tensor, ranges: Ranges, known: Collection[Expr]) -> bool:
    """Whether a load is within its tensor wherever the `known` conditions hold."""
    if len(tensor.shape) != len(e.index):
        return False
    bounds = inside(e.index, tensor, ranges)
    return bounds is both() or all(c in known for c in conjuncts(bounds))


def parts_of_guard(
    e: Select, tensors: Mapping[str, Tensor], ranges: Ranges, varies: Callable[[Expr], bool]
) -> tuple[Expr, Expr] | None:
    """The guard of `e` split into the conjuncts that are the same in all lanes, and the rest.

    None unless both parts exist and some load may be out of bounds without the guard.
    """
    parts = {same: [c for c in conjuncts(e.cond) if varies(c) != same] for same in (True, False)}
    if not all(parts.values()) or all(
        is_surely_inside(n, tensors[n.buffer], ranges, ()) for n in e.then.walk() if isinstance(n, Load)
    ):
        return None
    return both(*parts[True]), both(*parts[False])


def stride(place: Expr, var: Var) -> int | None:
    """How far one step of `var` moves an address; None if that is not a constant."""
    terms, _ = linear(place)
    if any(var in set(atom.walk()) for atom in terms if atom is not var):
        return None
    return terms.get(var, 0)


def accesses(body: tuple[Stmt, ...]) -> Iterator[tuple[str, tuple[Expr, ...], bool]]:
    """Every load and store below `body`: buffer, index, and whether it writes."""
    for s in body:
        for n in s.walk():
            if isinstance(n, Load):
                yield n.buffer, n.index, False
            elif isinstance(n, Store):
                yield n.buffer, n.index, True


def picked(n: object) -> bool:
    """Whether it is a load whose index contains a load: a gather."""
    return isinstance(n, Load) and any(loads(i) for i in n.index)


def strides(
    body: tuple[Stmt, ...], var: Var, tensors: Mapping[str, Tensor], ranges: Ranges, named: bool = False
) -> list[int | None]:
    """The stride of `var` in each access below `body`; None where it is not constant.

    Values that the body names count as independent of `var`. With `named`, their dependences are followed: a gather
    through a name then has stride None.
    """
    found = [address(index, tensors[b], ranges) for b, index, _ in accesses(body) if b in tensors]
    varying = {var}
    for n in within(body, Let) if named else ():
        if varying & set(n.value.walk()):
            varying.add(Var(n.name, n.value.dtype))
    return [None if (varying - {var}) & set(place.walk()) else stride(place, var) for place in found]


def not_vectorizable(
    body: tuple[Stmt, ...], var: Var, tensors: Mapping[str, Tensor], ranges: Ranges, masked: bool = False
) -> str:
    """Why the iterations of `var` cannot be the lanes of vectors; empty if they can. With `masked`, contiguous loads
    may be predicated per lane."""
    return _LaneAnalysis(var, tensors, ranges, masked).body(body)


class _LaneAnalysis:
    """Tracks which names differ from lane to lane."""

    def __init__(self, var: Var, tensors: Mapping[str, Tensor], ranges: Ranges, masked: bool) -> None:
        self.varying: set[Var] = {var}
        self.masked = masked
        self.var, self.tensors, self.ranges = var, tensors, ranges

    def varies(self, e: Expr) -> bool:
        return any(isinstance(n, Var) and n in self.varying for n in e.walk())

    def body(self, body: tuple[Stmt, ...]) -> str:
        for s in body:
            problem = self.stmt(s)
            if problem:
                return problem
        return ""

    def stmt(self, s: Stmt) -> str:
        match s:
            case Let(name, value) | Init(name, value):
                # A mutable scalar initialised inside the lanes is private to each lane.
                if self.varies(value) or isinstance(s, Init):
                    self.varying.add(Var(name, value.dtype))
                return self.expr(value)
            case Accum(_, _, value):
                return self.expr(value)
            case Store(buffer, index, value, _):
                place = address(index, self.tensors[buffer], self.ranges)
                if stride(place, self.var) != 1 or any(self.varies(a) for a in linear(place)[0] if a is not self.var):
                    return f"the store to {buffer} is not to consecutive elements"
                return self.expr(value) or next((p for i in index if (p := self.loads_in(i))), "")
            case If(cond, body):
                return "a condition differs from lane to lane" if self.varies(cond) else self.body(body)
            case loop.For(var, extent, kind, body) | tile.For(var, extent, kind, _, body):
                if self.varies(extent):
                    return "a loop inside runs differently often from lane to lane"
                self.ranges = {**self.ranges, var: range_below(extent, self.ranges)}
                return "a scan inside" if kind == "scan" else self.body(body)
        return f"{type(s).__name__} inside"

    def loads_in(self, e: Expr) -> str:
        return self.expr(e)

    def expr(self, e: Expr) -> str:
        for n in e.walk():
            match n:
                case Select(cond, then, other) if self.varies(cond):
                    uniform = frozenset(c for c in conjuncts(cond) if not self.varies(c))
                    branches = [(other, frozenset[Expr]()), *([] if self.may_be_masked(then) else [(then, uniform)])]
                    if any(self.needs_guard(x, known) for y, known in branches for x in y.walk()):
                        return "a guarded load differs from lane to lane"
        return ""

    def may_be_masked(self, e: Expr) -> bool:
        """Whether it is a contiguous load whose index can be computed in every lane."""
        if not (self.masked and isinstance(e, Load) and e.buffer in self.tensors):
            return False
        place = address(e.index, self.tensors[e.buffer], self.ranges)
        others = (a for a in linear(place)[0] if a is not self.var)
        return stride(place, self.var) == 1 and not loads(place) and not any(map(self.varies, others))

    def needs_guard(self, e: object, known: frozenset[Expr]) -> bool:
        """Whether `e` may be evaluated only where more than `known` holds: a check, or a load possibly out of range."""
        if isinstance(e, Load):
            return e.buffer not in self.tensors or not is_surely_inside(e, self.tensors[e.buffer], self.ranges, known)
        return isinstance(e, Op) and e.name == "require"


# Bytes per lane of a vector of bools (a mask), unless the compared values decide.
MASK = 4


def widest(body: tuple[Stmt, ...], lanes: Collection[str] = ()) -> int:
    """Bytes of the widest element type that is computed below `body`.

    An index counts only if it comes from data that differs between `lanes` (names of loop variables); others are
    addresses. Values that are the same in all lanes count where they meet values that differ.
    """
    sizes, varying = {1}, {*lanes}
    for s in body:
        for n in s.walk():
            match n:
                case Let(_, value) if lanes and not names(value) & varying:
                    pass
                case Let(_, value) | Init(_, value) | Accum(_, _, value):
                    varying.update([n.name] if lanes else [])
                    sizes |= _value_sizes(value, varying)
                case Store(_, _, value, _):
                    sizes |= _value_sizes(value, varying)
    return max(sizes)


def _is_affine_index(e: Expr) -> bool:
    """Whether an index consists of sums and products of loop variables and constants."""
    steps = ("add", "sub", "mul", "neg")
    return all(isinstance(n, Var | Const) or (isinstance(n, Op) and n.name in steps) for n in e.walk())


def _value_sizes(value: Expr, lanes: Collection[str]) -> set[int]:
    """Bytes of the element types that are computed below an expression, of which parts may be shared."""
    sizes: set[int] = set()
    seen: set[Expr] = set()
    left = [value]
    while left:
        e = left.pop()
        if e in seen:
            continue
        seen.add(e)
        if not isinstance(e, Const):
            sizes.add(MASK if e.dtype.kind == "bool" else e.dtype.bytes)
        if lanes and names(e).isdisjoint(lanes):
            continue
        if isinstance(e, Load):
            inside = [n for i in e.index for n in i.walk() if isinstance(n, Load)]
            sizes |= {i64.bytes for n in inside if not names(n).isdisjoint(lanes)}
        elif isinstance(e, Cast) and e.dtype is i32 and e.arg.dtype is i64 and _is_affine_index(e.arg):
            pass  # computed in 32 bits
        else:
            below = (c for c in e.children() if isinstance(c, Expr))
            left += (c for c in below if not (isinstance(e, Select | Op) and c.dtype.kind == "bool"))
    return sizes
