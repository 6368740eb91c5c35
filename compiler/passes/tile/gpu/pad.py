"""The schedule step `pad`: run loops that a split cut short in full, with guards for what lies outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from compiler.analysis.guarded_factors import block, guarded, unwidened, zero
from compiler.analysis.nests import wrap
from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Load, Op, Select, Var, both, cast, dim, loads, names, op, static
from compiler.ir.index import simplify
from compiler.ir.linear import from_linear, linear
from compiler.ir.ranges import Range
from compiler.ir.rewrite import replaced, statements
from compiler.ir.statement import Accum, If, Init, Kernel, Let, Stmt, Store, within
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import conjuncts
from compiler.passes.tile.nests import Body, find_nest, max_length, padded_strides, ranges_of
from compiler.schedule.steps import Pad, ScheduleError


def pad(kernel: Kernel, step: Pad) -> Kernel:
    """`pad(("l",), (4,))`

    before:
        for i in serial(4):
            for l0 in serial(3):
                for l in serial(min(4, 10 - l0 * 4), reduce):
                    c[i] += a[i, l0 * 4 + l] * b[l0 * 4 + l]
    after:
        for i in serial(4):
            for l0 in serial(3):
                for l in serial(4, reduce):
                    c[i] += (a[i, l0 * 4 + l] if l0 * 4 + l < 10 else 0.0) * (b[l0 * 4 + l] if l0 * 4 + l < 10 else 0.0)

    A row or column outside is computed from anything within the buffers, or from zero, and not stored. Only reduction
    loops must not add anything.
    """
    around, nest = find_nest(kernel, step, step.loops)
    ranges = ranges_of((*around, *nest))
    for f, n in zip(nest, step.lengths, strict=True):
        if max_length(step, f, ranges) > n:
            raise ScheduleError(step, f"{f.var} may be longer than {n}")
    full = tuple(f.replace(extent=dim(n)) for f, n in zip(nest, step.lengths, strict=True))
    ranges |= ranges_of(full)
    guards = {
        f.var: _less_than(Var(f.var), f.extent)
        for f, whole in zip(nest, full, strict=True)
        if f.extent is not whole.extent
    }
    if any(f.kind == "scan" for f in nest):
        raise ScheduleError(step, "a scan runs in order")
    tiles = {n.tensor.name for n in within(kernel.body, tile.Alloc)}
    summing = {f.var for f in nest if f.kind == "reduce"}
    inside = _Inside(guards, summing, {p.name: p for p in kernel.params}, ranges)
    made = replaced(kernel.body, nest[0], wrap(full, _pad_body(step, nest[-1].body, inside, tiles)))
    for stored in nest[-1].body:
        if isinstance(stored, Store) and stored.buffer in tiles:
            made = _enlarge_tile(made, stored, dict(zip(map(Var, step.loops), step.lengths, strict=True)))
    return kernel.replace(body=made)


def _pad_body(step: Pad, body: Body, inside: _Inside, tiles: Set[str]) -> Body:
    """The body of a nest whose loops have extra iterations, with guards."""
    guards = inside.guards
    only_read = inside.tensors.keys() - {n.buffer for n in within(body, Store)}
    match body:
        case _ if any(within(body, Init)) and only_read | tiles >= {x.buffer for s in body for x in loads(s)}:
            return _pad_row(step, body, inside)
        case (Store(buffer, index, Op("mul", factors), "sum") as s,):
            moving = {n for i in index for n in names(i)}
            asked = [g for v, g in guards.items() if v in moving] if buffer not in tiles else []
            return _guard_body((s.replace(value=op("mul", *map(inside.factor, factors))),), asked)
        case (Accum(_, "sum", Op("mul", factors)) as s,):
            return (s.replace(value=op("mul", *map(inside.factor, factors))),)
        case (Store(buffer, _, value, "set"),) if buffer in tiles and tiles >= {x.buffer for x in loads(value)}:
            return body
    return _guard_body(body, list(guards.values()))


def _enlarge_tile(body: Body, stored: Store, lengths: Mapping[Var, int]) -> Body:
    """The kernel with the stored tile enlarged to at least the lengths of the loops along its axes."""

    def grown(s: Stmt) -> Stmt | None:
        match s:
            case tile.Alloc(t) if t.name == stored.buffer:
                wanted = [lengths.get(i, 0) if isinstance(i, Var) else 0 for i in stored.index]
                shape = tuple(dim(max(n, static(old))) for n, old in zip(wanted, t.shape, strict=True))
                apart = static(t.strides[-2]) - static(t.shape[-1]) if len(shape) > 1 else 0
                return s.replace(tensor=t.replace(shape=shape, strides=padded_strides(shape, apart)))
        return None

    return statements(body, grown)


def _guard_body(body: Body, conditions: Sequence[Expr]) -> Body:
    match body:
        case (If(cond, inner),):
            return (If(both(*dict.fromkeys((*conditions, *conjuncts(cond)))), inner),)
    return (If(both(*conditions), body),) if conditions else body


def _pad_row(step: Pad, body: Body, inside: _Inside) -> Body:
    """The body of a row for rows beyond the end: sums read nothing outside the buffers, and what follows is skipped."""
    out: list[Stmt] = []
    for n, s in enumerate(body):
        match s:
            case Let() | Init() | Accum():
                out.append(s.replace(value=inside.clipped(s.value)))
            case tile.For():
                known = replace(inside, ranges={**inside.ranges, **ranges_of((s,))})
                out.append(s.replace(body=_pad_row(step, s.body, known)))
                if s.kind != "parallel" and any(isinstance(x, Init) for x in body):
                    return (*out, *_guard_body(body[n + 1 :], list(inside.guards.values())))
            case _:
                raise ScheduleError(step, f"{type(s).__name__} stands in a sum")
    return tuple(out)


def _less_than(value: Expr, end: Expr) -> Expr:
    """`value < end` with positive terms on the left and constants on the right; of a minimum, the end that varies."""
    if isinstance(end, Op) and end.name == "min":
        varying = [e for e in end.args if not isinstance(e, Const)]
        if len(varying) == 1:
            end = varying[0]
    terms, rest = linear(value - end)
    added = {t: c for t, c in terms.items() if c > 0}
    taken = {t: -c for t, c in terms.items() if c < 0}
    return op("lt", from_linear((added, 0)), from_linear((taken, -rest)))


@dataclass(frozen=True)
class _Inside:
    """For each padded loop the condition to be inside, the reduction loops among them, and the kernel's buffers."""

    guards: Mapping[str, Expr]
    summing: Set[str]
    tensors: Mapping[str, Tensor]
    ranges: Mapping[str, Range]

    def clipped(self, value: Expr) -> Expr:
        """A value that is zero where its loads are outside their buffers."""
        narrowed = unwidened(value)
        if narrowed is not value:
            return cast(self.clipped(narrowed), value.dtype)
        load = value.then if isinstance(value, Select) and value.other is zero(value) else value
        if isinstance(load, Load):
            mine = [v for v in self.guards if v in names(load)]
            if load.buffer not in self.tensors:
                # A thread does not wait for what it does not use: it could exit, and then the block that has the tile.
                return guarded(value, [self.guards[v] for v in mine])
            return guarded(value, [b for v in mine for b in self.within(load, v)])
        return value.map(lambda x: self.clipped(x) if isinstance(x, Expr) else x)

    def factor(self, factor: Expr) -> Expr:
        """A factor that is zero where a reduction loop is outside, and reads nothing outside its buffers.

        This includes a factor broadcast along the sum: infinity times the other factor's zero would be NaN.
        """
        narrowed = unwidened(factor)
        if narrowed is not factor:
            return cast(self.factor(narrowed), factor.dtype)
        wanted = [g for v, g in self.guards.items() if v in self.summing]
        known = self.tensors.keys() >= {x.buffer for x in loads(factor)}
        load = block(factor, {name: t.shape for name, t in self.tensors.items()}) if known else None
        load = factor if isinstance(factor, Load) else load
        for v in self.guards:
            if v in names(factor) and v not in self.summing:
                wanted += [self.guards[v]] if load is None else self.within(load, v)
        return guarded(factor, wanted)

    def within(self, load: Load, var: str) -> list[Expr]:
        """Conditions that keep a load in its buffer: the loop's own end, unless the index only grows with it."""
        if not all(_is_increasing(i, var) for i in load.index):
            return [self.guards[var]]
        if load.buffer not in self.tensors:
            return []
        extents = zip(load.index, self.tensors[load.buffer].shape, strict=True)
        found = [simplify(_less_than(i, n), self.ranges) for i, n in extents if var in names(i)]
        return [g for g in found if not isinstance(g, Const)]


def _is_increasing(index: Expr, var: str) -> bool:
    """Whether the variable occurs in the index only as a positive multiple, if at all."""
    terms, _ = linear(index)
    return all((isinstance(t, Var) and c > 0) or var not in names(t) for t, c in terms.items())
