"""The prologue of a function: loop-invariant variables, arrays in shared memory, mbarriers, tensor maps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from compiler.ir import kernel as k
from compiler.ir.dtype import i64
from compiler.ir.expr import Const, Expr, Var, fresh, names
from compiler.ir.index import simplify
from compiler.ir.layout import Fragment
from compiler.ir.multiples import multiple
from compiler.ir.ranges import Range
from compiler.ir.value_ranges import value_range
from compiler.passes.gpu import fragments
from compiler.passes.gpu.facts import Facts
from compiler.passes.gpu.scope import WARP

Body = list[k.Stmt]


@dataclass(kw_only=True)
class Variables:
    """Names in use, and variables declared in the prologue.

    `start` declares the variables; `known` has their ranges, `multiples` known divisors of them.
    """

    facts: Facts
    taken: set[str]
    start: Body = field(default_factory=list)
    known: dict[str, Range] = field(default_factory=dict)
    multiples: dict[str, int] = field(default_factory=dict)
    origins: dict[Fragment, tuple[Expr, Expr]] = field(default_factory=dict)

    def fresh(self, name: str) -> str:
        return fresh(name, self.taken)

    def refuse(self, problem: str) -> ValueError:
        return ValueError(f"kernel {self.facts.name}: {problem}")

    def lane(self) -> Expr:
        """The index of this thread in its warp."""
        return self.once("lane", k.Builtin("thread.lane"), WARP)

    def warp(self) -> Expr:
        """The index of this thread's warp in the block; the same variable for all threads of a warp."""
        return self.once("warp", k.Builtin("thread.warp"), self.facts.threads // WARP)

    def once(self, stem: str, value: Expr, count: int) -> Expr:
        """A variable of the prologue with that value, which must be at least 0 and below `count`.

        Constants, variables, and values that depend on variables not known in the prologue are returned unchanged.
        """
        if isinstance(value, Const | Var) or not names(value) <= set(self.known):
            return value
        for s in self.start:
            if isinstance(s, k.Declare) and s.value is value:
                return Var(s.name)
        name = self.fresh(stem)
        self.start.append(k.Declare(name, value))
        low, high = value_range(value, self.known)
        self.known[name] = (low or 0, count - 1 if high is None else min(high, count - 1))
        self.multiples[name] = multiple(value, self.multiples)
        return Var(name)

    def origin(self, fragment: Fragment) -> tuple[Expr, Expr]:
        """The row and column at which this thread's part of a fragment begins."""
        if fragment not in self.origins:
            row, column = fragments.part_origin(fragment, self.lane(), self.warp(), self.known)
            rows, columns = fragment.shape
            self.origins[fragment] = self._begin("row", row, rows), self._begin("column", column, columns)
        return self.origins[fragment]

    def _begin(self, stem: str, value: Expr, count: int) -> Expr:
        """A place as a variable times a known divisor, so that digits of what is added to it can be told apart."""
        by = math.gcd(multiple(value, self.multiples), count)
        if by == 1 or isinstance(value, Const):
            return self.once(stem, value, count)
        return self.once(stem, simplify(value // by, self.known, index=True), count // by) * by


@dataclass(kw_only=True)
class Prologue(Variables):
    """Shared arrays; mbarriers as (array, count, arrivals), with the arrays by name, and the number of blocks whose
    threads arrive at those of an array, if several; tensor maps."""

    arrays: Body = field(default_factory=list)
    mbarriers: list[tuple[str, int, int]] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, int] = field(default_factory=dict)
    maps: dict[tuple[str, tuple[int, ...], int, tuple[int, ...]], str] = field(default_factory=dict)

    def barriers(self, name: str, count: int, arrivals: int, blocks: int = 1) -> None:
        """Declare an array of mbarriers, each of which expects so many arrivals, by threads of so many blocks."""
        array = self.named[name] = self.fresh(name)
        if blocks > 1:
            self.blocks[array] = blocks
        self.arrays.append(k.Array(array, i64, count, "shared", 8))
        self.mbarriers.append((array, count, arrivals))

    def map(self, buffer: str, box: tuple[int, ...], swizzle: int, steps: tuple[int, ...] = ()) -> str:
        """The name of the tensor map for boxes of a parameter."""
        key = (buffer, box, swizzle, steps)
        if key not in self.maps:
            self.maps[key] = self.fresh(f"{buffer}_map")
        return self.maps[key]
