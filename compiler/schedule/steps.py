"""How to run a kernel, as a value: an ordered tuple of steps, each of which is one mechanical change of Tile IR.

```
split("i", 64, into=("i0", "i1"))
bind("i0", blocks)
bind("j", vector, width=8, unroll=4)
store_at("e", "i0")
```
A step names loops by their variable and buffers by their name, and says what those that it makes are called: no two of
a kernel may be called the same. One that makes many adds endings to stems: the loop over rows that clears a scalar
is `i_first` by the stem `i`. Threads that copy move `width` neighbours at once, by default as many as they can; so many
`rounds` of this are written out at a time, by default all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import MISSING
from typing import Any

from compiler.ir.node import Node
from compiler.ir.text import syntax
from compiler.schedule.block_steps import Chain, Online
from compiler.schedule.endings import numbered, strings, suffixed
from compiler.schedule.step import Step as Step


class Split(Step):
    """Loop `loop` of extent n becomes one of ceil(n / factor) around one of `factor`, cut short at the end.

    `into` names the two.
    """

    makes = ("into",)
    loop: str
    factor: int
    into: tuple[str, str]


class SplitShifted(Step):
    """As `split`, but the last piece of `loop` begins as much earlier as makes it whole: some iterations run twice."""

    makes = ("into",)
    loop: str
    factor: int
    into: tuple[str, str]


class Wrap(Step):
    """A loop `into` of one iteration comes around `loop`: a product by a vector is one by a matrix of a row."""

    makes = ("into",)
    loop: str
    into: str


class Reorder(Step):
    """The perfectly nested loops named take this order, outermost first."""

    loops: tuple[str, ...]


class Collapse(Step):
    """Two perfectly nested loops become one, `into`, that counts through them."""

    makes = ("into",)
    outer: str
    inner: str
    into: str


class Bind(Step):
    """Loop `loop` runs at `level`, one of `tile.LEVELS`, with the level's whole numbers."""

    loop: str
    level: str
    args: tuple[tuple[str, int], ...] = ()


class StoreAt(Step):
    """Temporary `buffer`, of this kernel alone, shrinks to what one iteration of `loop` and what is around it needs.

    What is left is a tile in `space`, one of `tile.SPACES`.
    """

    buffer: str
    loop: str
    space: str = "local"


class Stage(Step):
    """What an iteration of `loop` loads of `buffer` is first copied into the tile `tile` in `space`, each element once.

    The copy is made by loops called `into`, along the axes that are left. Rows of the tile lie `pad` elements further
    apart than they are long. With `how`, one of `tile.COPIES`, it is one copy instead, without loops: pipelines run it
    ahead, whatever is made of the elements where they are loaded. Axes that lie together are one axis of the tile then.
    """

    makes = ("tile", "into")
    buffer: str
    tile: str
    loop: str
    space: str
    into: tuple[str, ...] = ()
    pad: int = 0
    how: str = ""
    swizzle: int = 0
    width: int = 0
    rounds: int = 0


class Margin(Step):
    """What an iteration of `loop` loads of `buffer`, or has beyond its edges, loops `into` put into `tile` first."""

    makes = ("tile", "into")
    buffer: str
    tile: str
    loop: str
    into: tuple[str, ...]


class Permute(Step):
    """What the kernel loads of `buffer` it loads of the temporary `tile`, whose axes are the buffer's in this `order`.

    A nest of its own copies all of it beforehand, by loops called `into` along the axes of `tile`. With `every`, it is
    every so many elements along each of the buffer's axes that are copied. Rows of `tile` lie `pad` elements further
    apart than they are long.
    """

    makes = ("tile", "into")
    temporaries = ("tile",)
    buffer: str
    tile: str
    order: tuple[int, ...]
    into: tuple[str, ...]
    every: tuple[int, ...] = ()
    pad: int = 0


class Distribute(Step):
    """The perfectly nested loops `loops` around `accumulator` run thrice: for its first value, its sum, what follows.

    The scalar becomes a tile over them in `space`. The loops around the sum keep their names, so that it can be
    reordered; the others end in `_first` and `_last`, after the stems `into`.
    """

    makes = ("first", "last")
    stems = ("into",)
    accumulator: str
    loops: tuple[str, ...]
    into: tuple[str, ...]
    space: str = "local"

    @property
    def first(self) -> tuple[str, ...]:
        return suffixed(self.into, "first")

    @property
    def last(self) -> tuple[str, ...]:
        return suffixed(self.into, "last")


class Pack(Step):
    """The factor of a contraction that loads `buffer` is computed into the local tile `tile` beforehand.

    The tile lies in the order of `loops`, along some of which the factor may be the same, as what is broadcast is. It
    is filled as far outside as the factor allows: by one copy where the factor is a block of the buffer, else by loops
    called `into`, of which one is several, numbered, for the digits that the factor takes of it; the innermost is
    cleared of guards and bound to vectors of `width` lanes, as far as that leaves so many. A `narrow` tile holds what
    is widened as it is read. Rows of the tile lie `pad` elements further apart than they are long.
    """

    makes = ("tile", "into")
    worded = ("narrow", "pad")
    buffer: str
    tile: str
    loops: tuple[str, ...]
    into: tuple[str, ...]
    width: int = 1
    narrow: bool = False
    pad: int = 0


class Tensorize(Step):
    """The perfectly nested loops `loops` (m, n, k, or n, k) around a contraction become one tensor instruction.

    Groups of a block's threads, as many as the instruction needs, share the accumulator as a `grid`: so many along m,
    so many along n. A CPU needs none. Along the axes `neighbours` of "mn" the registers of a thread have neighbours, of
    which a factor that lies along such an axis in memory gives four at once. With `again` columns that whole blocks of
    a CPU's instruction leave over are made in one that ends with them, some of them twice, instead of by code of their
    own.
    """

    worded = ("neighbours", "again")
    loops: tuple[str, ...]
    instruction: str
    grid: tuple[int, ...] = ()
    neighbours: str = ""
    again: bool = False


class Pad(Step):
    """The perfectly nested loops `loops` run to `lengths`: what lies beyond where they ended counts as zero.

    Factors of a contraction are guarded, and so is what is stored outside the kernel's own tiles, which grow.
    """

    loops: tuple[str, ...]
    lengths: tuple[int, ...]


class Cache(Step):
    """The factor of a contraction that loads `buffer` is brought into the tile `tile` in `space` beforehand.

    Of a factor that is only widened from 16 bits the tile holds the narrow elements. A block of a buffer is copied by
    `how`, one of `tile.COPIES`, in the order of the buffer's axes; with no `how`, a loop called `into`, or one for each
    of several names, computes the elements of a tile that lies in the order of `loops`. Two steps may name one tile
    where it is the same block for both.
    """

    makes = ("tile", "into")
    buffer: str
    tile: str
    loops: tuple[str, ...]
    space: str
    how: str = ""
    swizzle: int = 0
    into: str | tuple[str, ...] = ""
    width: int = 0
    rounds: int = 0


class Promote(Step):
    """What each iteration of `loop` adds to the tile `accumulator` is summed in `tile` first, beginning with zero.

    Loops along its `axes` clear the tile, and others add it up: after its name they end in `_first0`, `_first1` and
    `_last0`, `_last1`, those of a tile with one axis in `_first` and `_last`.
    """

    makes = ("tile", "first", "last")
    stems = ("tile",)
    accumulator: str
    loop: str
    tile: str
    axes: int = 2

    @property
    def first(self) -> tuple[str, ...]:
        return numbered(f"{self.tile}_first", self.axes)

    @property
    def last(self) -> tuple[str, ...]:
        return numbered(f"{self.tile}_last", self.axes)


class SplitTf32(Step):
    """The factors of the contraction within `loops`, `tiles` of f32, become sums of two tf32 numbers each.

    The three larger of the four products remain, the smaller ones first: in loops with the endings `_0`, `_1`, and as
    they were. The parts of a tile end in `_big` and `_small`, the loops along its axes that make them in `_at0` and
    `_at1`. `into` has the stems, those of the loops, then those of the tiles.
    """

    makes = ("small", "cross", "halves")
    stems = ("into",)
    loops: tuple[str, ...]
    tiles: tuple[str, str]
    into: tuple[str, ...]

    @property
    def small(self) -> tuple[str, ...]:
        return suffixed(self.into[:-2], "0")

    @property
    def cross(self) -> tuple[str, ...]:
        return suffixed(self.into[:-2], "1")

    @property
    def halves(self) -> tuple[tuple[str, str, str, str], ...]:
        """Of each tile the larger part, the smaller one, and the loops that make them."""
        return tuple((f"{x}_big", f"{x}_small", f"{x}_at0", f"{x}_at1") for x in self.into[-2:])


class Writeback(Step):
    """What the perfectly nested loops `loops` store to `buffer` is put into the tile `tile` in shared memory first.

    The tile lies as the buffer does, and is copied to it by `how`, one of `tile.COPIES`.
    """

    makes = ("tile",)
    buffer: str
    tile: str
    loops: tuple[str, ...]
    how: str
    swizzle: int = 0
    width: int = 0
    rounds: int = 0


class LoadAhead(Step):
    """What the perfectly nested `loops` load of `buffer` is in the tile `tile` in registers before what precedes them.

    Loops `into` fill it, along those of `loops` that the place loaded depends on, at the beginning of the loop around.
    """

    makes = ("tile", "into")
    buffer: str
    tile: str
    loops: tuple[str, ...]
    into: tuple[str, ...]


class SplitScan(Step):
    """The running total `accumulator` over `loop` is made in parts of `length` iterations.

    The totals of the parts go to the temporary `tile`. Of the loops `into`, the first goes through the parts, around
    the rows, called `rows` there, and around the second, which sums to the scalar `total`. The third is that of a
    second nest, around the rows as they were: it makes the parts, each from the sum over the fourth of the totals
    before it.
    """

    makes = ("tile", "total", "into", "rows")
    temporaries = ("tile",)
    accumulator: str
    loop: str
    length: int
    tile: str
    total: str
    into: tuple[str, str, str, str]
    rows: tuple[str, ...]


class SplitReduction(Step):
    """The reduction into the scalar `accumulator` over `loop` is made in `parts` in each iteration of what is around.

    `rows` are the perfectly nested loops around it whose parts come together in the tile `tile`: in "shared" memory,
    through which threads of a block pass what they find, or that of a "cluster" or of the "device", through which
    blocks do. Of the loops `into`, the first goes through the parts; the second is that of a second nest, which
    combines them to the scalar `total` in loops `combining` over the rows. Rows of a part lie `pad` elements
    further apart than they are long.
    """

    makes = ("tile", "total", "into", "combining")
    accumulator: str
    loop: str
    parts: int
    rows: tuple[str, ...]
    space: str
    tile: str
    total: str
    into: tuple[str, str]
    combining: tuple[str, ...]
    pad: int = 0


class Raster(Step):
    """Two perfectly nested loops become one, `into`, that takes `group` iterations of `outer` for each of `inner`.

    Neighbours in time then share what they read of either factor in the last level of cache.
    """

    makes = ("into",)
    outer: str
    inner: str
    group: int
    into: str


class CacheHints(Step):
    """Vectors that are loaded of the buffers `loads`, and stored to the buffers `stores`, need not stay in the caches.

    Of the former no element is read twice, of the latter nobody reads soon.
    """

    loads: tuple[str, ...]
    stores: tuple[str, ...] = ()


class Persist(Step):
    """The perfectly nested loops `loops` over blocks are gone through by `blocks` of them.

    Each takes every so manieth iteration: `into` names the loop over blocks, the one over turns inside it, and the
    number of the iteration. The loops' own variables become names for what they are in it.
    """

    makes = ("into",)
    loops: tuple[str, ...]
    blocks: int
    into: tuple[str, str, str]


class Peel(Step):
    """The iterations of `loop` where all its guards hold become a loop without them, amid two others, called `into`."""

    makes = ("into",)
    loop: str
    into: tuple[str, str]


class Partition(Step):
    """A loop becomes several, one after the other, called `into`, that begin at 0 and at each iteration of `at`.

    What is the same throughout such a part is simplified in it: conditions, minima and absolute values.
    """

    makes = ("into",)
    loop: str
    at: tuple[int, ...]
    into: tuple[str, ...]


class Owners(Step):
    """The updates that `loop` makes in order are made by `parts` owners, `into`, each of the elements that it owns.

    All go through the whole loop; no element sees another order, so no result differs.
    """

    makes = ("into",)
    loop: str
    parts: int
    into: str


class Schedule(Node):
    """Steps, first to last."""

    steps: tuple[Step, ...] = ()

    def __add__(self, other: Schedule) -> Schedule:
        return Schedule(self.steps + other.steps)


class ScheduleError(ValueError):
    """A step that cannot be applied: which, and why."""

    def __init__(self, step: Step, reason: str) -> None:
        super().__init__(f"{show_step(step)}: {reason}")
        self.step, self.reason = step, reason


class NameTaken(ScheduleError):
    """A step that calls what it makes as something else of the kernel is called."""

    def __init__(self, step: Step, kernel: str, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        what = ", ".join(sorted(self.names))
        super().__init__(step, f"kernel {kernel} has something else that is called {what}; choose another name")


_ALL = (
    Split, SplitShifted, Wrap, Reorder, Collapse, Bind, StoreAt, Stage, Margin, Permute, Distribute, Pack, Tensorize,
    Peel, Pad, Cache, Promote, SplitTf32, SplitScan, SplitReduction, Raster, Persist, Online, Chain, Writeback,
    LoadAhead, Partition, CacheHints, Owners,
)  # fmt: skip


def word(step: type[Step]) -> str:
    """What a step is called in the text: `SplitScan` is `split_scan`."""
    return re.sub("(?<!^)(?=[A-Z])", "_", step.__name__).lower()


STEPS: dict[str, type[Step]] = {word(s): s for s in _ALL}


def show(schedule: Schedule) -> str:
    """One step a line."""
    return "".join(show_step(s) + "\n" for s in schedule.steps)


def show_step(step: Step) -> str:
    """The text of a step: defaults at its end are left out; all names of what it makes but a tile's are keywords."""
    said = [_said(f, getattr(step, f)) for f in _plain(type(step))]
    defaults = [_default(type(step), f) for f in _plain(type(step))]
    while said and said[-1] == defaults[-1]:
        said.pop()
        defaults.pop()
    if isinstance(step, Bind):
        said = [*said[:2], *(f"{n}={v}" for n, v in step.args)]
    keywords = ((f, _said(f, getattr(step, f))) for f in _named(type(step)))
    said += [f"{f}={value}" for f, value in keywords if value != _default(type(step), f)]
    return f"{word(type(step))}({', '.join(said)})".replace("'", '"')


def _said(field: str, value: Any) -> str:
    return str(value) if field == "level" else repr(value)


def _named(step: type[Step]) -> tuple[str, ...]:
    """The fields that are said by keyword."""
    return tuple(f for f in (*naming_fields(step), *step.worded) if f != "tile" and f in step.fields)


def naming_fields(step: type[Step]) -> tuple[str, ...]:
    """The fields that name what the step makes, or have stems of such names."""
    return tuple(f for f in dict.fromkeys((*step.stems, *step.makes)) if f in step.fields)


def _plain(step: type[Step]) -> tuple[str, ...]:
    """The fields that are said by their place."""
    return tuple(f for f in step.fields if f not in _named(step))


def _default(step: type[Step], field: str) -> str:
    default = step.__dataclass_fields__[field].default
    return "" if default is MISSING else repr(default)


def names_made(step: Step) -> tuple[str, ...]:
    """What a step calls the loops, tiles and scalars that it makes."""
    return tuple(strings(tuple(getattr(step, f) for f in step.makes)))


def temporaries_made(schedule: Schedule) -> set[str]:
    """What the steps of a schedule call the temporaries that they add to the program."""
    return set(strings(tuple(getattr(step, f) for step in schedule.steps for f in step.temporaries)))


def parse(text: str) -> Schedule:
    """A schedule from its text; raises ValueError naming the line."""
    try:
        return Schedule(tuple(map(step, syntax(text).body)))
    except SyntaxError as e:
        raise ValueError(f"schedule, line {e.lineno}: {e.msg}") from e


def step(s: ast.stmt) -> Step:
    """The step that a statement says; raises ValueError naming the line."""
    match s:
        case ast.Expr(ast.Call(ast.Name(name), args, keywords)) if name in STEPS:
            kind = STEPS[name]
            said = {k.arg or "": ast.literal_eval(k.value) for k in keywords}
            try:
                values = [a.id if isinstance(a, ast.Name) else ast.literal_eval(a) for a in args]
                fields = {"args": tuple(said.items())} if kind is Bind else said
                return kind(**_placed(kind, values), **fields)
            except (TypeError, ValueError) as e:
                raise ValueError(f"schedule, line {s.lineno}: {ast.unparse(s)}: {e}") from e
    raise ValueError(f"schedule, line {s.lineno}: {ast.unparse(s)} is not a step; steps are {', '.join(STEPS)}")


def _placed(step: type[Step], values: list[Any]) -> dict[str, Any]:
    """Values without keywords by field; raises TypeError where there are too many."""
    places = _plain(step)
    if len(values) > len(places):
        keywords = ", ".join(f"{f}=.." for f in _named(step))
        raise TypeError(f"takes {', '.join(places)}{' and ' if keywords else ''}{keywords}")
    return dict(zip(places, values, strict=False))
