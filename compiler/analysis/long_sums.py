"""Loops of Tile IR whose sums have so many sequential additions that rounding errors accumulate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compiler.analysis.vectors import scalars
from compiler.ir import tile
from compiler.ir.expr import Var, sizes_in
from compiler.ir.multiples import ceildiv
from compiler.ir.ranges import Range
from compiler.ir.statement import Accum, If, Init, Stmt, within
from compiler.ir.value_ranges import extent_range, value_range

# An f32 sum of equal terms, the worst case, is off by up to 2**-25 of itself per addition: 6e-5 for LONG additions.
LONG = 2048  # sequential additions that are acceptable
LEAST = 512  # additions per partial sum
UNKNOWN = 1 << 20  # assumed iterations of a loop of unknown length

Body = tuple[Stmt, ...]


@dataclass(frozen=True)
class LongSum:
    """A loop whose sums should be made of partial sums of `length` iterations, and the scalars to which it adds."""

    loop: tile.For
    length: int
    scalars: tuple[Var, ...]


@dataclass(frozen=True)
class _Loop:
    """A loop around a sum: the sequential additions that it makes, whether their number is `known` or an estimate, and
    its lanes, each with a sum of its own."""

    loop: tile.For
    additions: int
    lanes: int
    known: bool


def added_to(f: tile.For, kernel: Body) -> tuple[Var, ...]:
    """The floating-point scalars from outside a loop to which its statements add, in order of the additions.

    Within the loop they are only added to.
    """
    types = scalars(kernel)
    own = {s.name for s in within(f.body, Init)} | {s.name for s in within(f.body, Accum) if s.op != "sum"}
    names = dict.fromkeys(s.name for s in within(f.body, Accum) if s.name not in own)
    return tuple(Var(n, types[n]) for n in names if types[n].is_float)


def long_sums(kernel: Body) -> list[LongSum]:
    """The loops of a scheduled kernel with long sums, outer loops first, each once."""
    found: dict[str, LongSum] = {}
    for loops in _loops_of_additions(kernel, (), {}, {}):
        for f, length in reversed(list(_splits(loops))):
            names = added_to(f, kernel)
            known = found.get(f.var)
            if names:
                found[f.var] = LongSum(f, min(length, known.length) if known else length, names)
    return list(found.values())


def _loops_of_additions(
    body: Body, around: tuple[_Loop, ...], init_depth: Mapping[str, int], ranges: Mapping[str, Range]
) -> Iterator[tuple[_Loop, ...]]:
    """For each addition to a scalar, the loops between it and the scalar's initialisation, outermost first."""
    init_depth = dict(init_depth)
    for s in body:
        match s:
            case Init(name):
                init_depth[name] = len(around)
            case Accum(name, "sum") if name in init_depth:
                yield around[init_depth[name] :]
            case If(body=inner):
                yield from _loops_of_additions(inner, around, init_depth, ranges)
            case tile.For(var, extent, body=inner):
                known = {**ranges, var: extent_range(extent)}
                yield from _loops_of_additions(inner, (*around, _describe_loop(s, ranges)), init_depth, known)


def _describe_loop(f: tile.For, ranges: Mapping[str, Range]) -> _Loop:
    longest = value_range(f.extent, ranges)[1]
    known = longest is not None and not sizes_in(f.extent)
    iterations = UNKNOWN if longest is None else longest if known else min(longest, UNKNOWN)
    args = dict(f.bind.args)
    lanes = args["width"] * args.get("unroll", 1) if f.bind.level == "vector" else 1
    return _Loop(f, ceildiv(iterations, lanes), lanes, known)


def _splits(loops: tuple[_Loop, ...]) -> Iterator[tuple[tile.For, int]]:
    """The loops to split, innermost first, and how many iterations each piece has."""
    additions = 1  # sequential additions to one scalar in the loops so far
    for x in reversed(loops):
        if additions * x.additions <= LONG:
            additions *= x.additions
            continue
        length = max(1, LEAST // additions)
        if x.known and ceildiv(x.additions, length) > LONG:
            length = 1 << math.ceil(math.log2(x.additions) / 2)
        additions = ceildiv(x.additions, length)
        if additions > 1:
            yield x.loop, length * x.lanes
