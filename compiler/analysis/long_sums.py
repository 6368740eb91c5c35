"""Tile IR in; out the loops whose sums take so many additions one after the other that their rounding errors grow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compiler.analysis.vectors import scalars
from compiler.ir import tile
from compiler.ir.expr import Var, sizes_in
from compiler.ir.index import extent_range, value_range
from compiler.ir.multiples import ceildiv
from compiler.ir.ranges import Range
from compiler.ir.statement import Accum, If, Init, Stmt, within

# An f32 sum of equal terms, the worst there is, is off by up to 2**-25 of itself for each of them: 6e-5 for so many.
LONG = 2048  # additions one after the other that are left so
LEAST = 512  # additions of a partial sum
UNKNOWN = 1 << 20  # iterations of a loop whose length is not known

Body = tuple[Stmt, ...]


@dataclass(frozen=True)
class LongSum:
    """A loop whose sums are better made of partial sums of `length` iterations, and the scalars to which it adds."""

    loop: tile.For
    length: int
    scalars: tuple[Var, ...]


@dataclass(frozen=True)
class _Loop:
    """A loop around a sum: how many additions it makes one after the other, at most or about, and for how many sums at
    a time."""

    loop: tile.For
    additions: int
    lanes: int
    known: bool


def added_to(f: tile.For, kernel: Body) -> tuple[Var, ...]:
    """The scalars of floating types from around a loop to which its statements add, in the order in which they do.

    All that happens to them within the loop is that something is added.
    """
    types = scalars(kernel)
    own = {s.name for s in within(f.body, Init)} | {s.name for s in within(f.body, Accum) if s.op != "sum"}
    names = dict.fromkeys(s.name for s in within(f.body, Accum) if s.name not in own)
    return tuple(Var(n, types[n]) for n in names if types[n].is_float)


def long_sums(kernel: Body) -> list[LongSum]:
    """The loops of a scheduled kernel whose sums are long, those around others first, each once."""
    found: dict[str, LongSum] = {}
    for loops in _sums(kernel, (), {}, {}):
        for f, length in reversed(list(_cuts(loops))):
            names = added_to(f, kernel)
            known = found.get(f.var)
            if names:
                found[f.var] = LongSum(f, min(length, known.length) if known else length, names)
    return list(found.values())


def _sums(
    body: Body, around: tuple[_Loop, ...], begun: Mapping[str, int], ranges: Mapping[str, Range]
) -> Iterator[tuple[_Loop, ...]]:
    """For each addition to a scalar the loops between it and where the scalar begins, outermost first."""
    begun = dict(begun)
    for s in body:
        match s:
            case Init(name):
                begun[name] = len(around)
            case Accum(name, "sum") if name in begun:
                yield around[begun[name] :]
            case If(body=inner):
                yield from _sums(inner, around, begun, ranges)
            case tile.For(var, extent, body=inner):
                known = {**ranges, var: extent_range(extent)}
                yield from _sums(inner, (*around, _loop(s, ranges)), begun, known)


def _loop(f: tile.For, ranges: Mapping[str, Range]) -> _Loop:
    longest = value_range(f.extent, ranges)[1]
    known = longest is not None and not sizes_in(f.extent)
    most = UNKNOWN if longest is None else longest if known else min(longest, UNKNOWN)
    given = dict(f.bind.args)
    lanes = given["width"] * given.get("unroll", 1) if f.bind.level == "vector" else 1
    return _Loop(f, ceildiv(most, lanes), lanes, known)


def _cuts(loops: tuple[_Loop, ...]) -> Iterator[tuple[tile.For, int]]:
    """The loops to take apart, from the innermost, and how many iterations each piece has."""
    chain = 1  # additions to one scalar, by the loops so far
    for x in reversed(loops):
        if chain * x.additions <= LONG:
            chain *= x.additions
            continue
        length = max(1, LEAST // chain)
        if x.known and ceildiv(x.additions, length) > LONG:
            length = 1 << math.ceil(math.log2(x.additions) / 2)
        chain = ceildiv(x.additions, length)
        if chain > 1:
            yield x.loop, length * x.lanes
