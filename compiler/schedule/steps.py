"""A schedule: how to run a kernel, as an ordered tuple of steps. Each step is one mechanical change of Tile IR.

```
split("i", 64, into=("i0", "i1"))
bind("i0", blocks)
bind("j", vector, width=8, unroll=4)
store_at("e", "i0")
```
A step refers to loops by their variable, to buffers and tiles by name, and states the names of what it creates; all
names in a kernel are distinct. A step that creates many names adds endings to stems: with the stem `i`, the loop over
rows that initialises an accumulator is `i_first`. `width` is the number of elements that a thread copies at once,
`rounds` the unroll factor of such copies; 0 means as many as possible.
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
from compiler.schedule.hint_steps import CacheHints as CacheHints
from compiler.schedule.hint_steps import Checks as Checks
from compiler.schedule.hint_steps import Hoist as Hoist
from compiler.schedule.hint_steps import Multicast as Multicast
from compiler.schedule.name_suffixes import strings, suffixed
from compiler.schedule.step import Step as Step
from compiler.schedule.sum_steps import PartialSums as PartialSums
from compiler.schedule.sum_steps import Promote as Promote
from compiler.schedule.sum_steps import SplitReduction as SplitReduction
from compiler.schedule.sum_steps import SplitScan as SplitScan
from compiler.schedule.sum_steps import StoreSums as StoreSums


class Split(Step):
    """Split `loop`, of extent n, into a loop of extent ceil(n / factor) around one of `factor`; guard the last piece.

    `into` names the outer and the inner loop.
    """

    makes = ("into",)
    loop: str
    factor: int
    into: tuple[str, str]


class SplitShifted(Step):
    """Like `split`, but the last piece of `loop` starts earlier so that it is full: some iterations run twice."""

    makes = ("into",)
    loop: str
    factor: int
    into: tuple[str, str]


class Wrap(Step):
    """Put a loop `into` of extent 1 around `loop`, so that a matrix-vector product is a product of matrices."""

    makes = ("into",)
    loop: str
    into: str


class Reorder(Step):
    """Reorder perfectly nested loops into the order given, outermost first."""

    loops: tuple[str, ...]


class Collapse(Step):
    """Fuse two perfectly nested loops into one loop `into` over all their iterations."""

    makes = ("into",)
    outer: str
    inner: str
    into: str


class Bind(Step):
    """Bind `loop` to `level`, one of `tile.LEVELS`, with the integer arguments of that level."""

    loop: str
    level: str
    args: tuple[tuple[str, int], ...] = ()


class StoreAt(Step):
    """Shrink the kernel's own temporary `buffer` to a tile in `space` for what one iteration of `loop` needs."""

    buffer: str
    loop: str
    space: str = "local"


class Stage(Step):
    """Copy what an iteration of `loop` loads from `buffer` into `tile` in memory `space` first, each element once.

    Loops `into` copy along the axes that `loop` leaves open. Rows of the tile are padded by `pad` elements and swizzled
    over `swizzle` bytes. If `how` is given, one of `tile.COPIES`, one copy statement replaces the loops: a pipeline can
    run it ahead, elements are converted when loaded from the tile, and adjacent axes of the buffer that are copied
    whole become one axis of the tile. Threads copy `width` neighbours at once; "cp.async" also prefetches `prefetch`
    bytes of the cache line to the second-level cache. With `turned`, the tile of such a copy is transposed in memory:
    it is contiguous along its first axis.
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
    prefetch: int = 0
    turned: int = 0


class Margin(Step):
    """Copy what an iteration of `loop` loads from `buffer`, padding beyond its edges included, into `tile` first.

    Loops `into` do the copy. Floats that the loads widen are widened by the copy.
    """

    makes = ("tile", "into")
    buffer: str
    tile: str
    loop: str
    into: tuple[str, ...]


class Permute(Step):
    """Copy `buffer` into the temporary `tile` with its axes in this `order`, and load from the copy instead.

    A loop nest of its own, with loops `into` along the axes of `tile`, copies all of the buffer before the kernel's
    other nests. `every` gives a stride for each axis of the buffer; only those elements are copied. Rows of `tile`
    begin at multiples of `multiple` elements, if that is not 0.
    """

    makes = ("tile", "into")
    temporaries = ("tile",)
    buffer: str
    tile: str
    order: tuple[int, ...]
    into: tuple[str, ...]
    every: tuple[int, ...] = ()
    multiple: int = 0


class Distribute(Step):
    """Distribute `loops`, perfectly nested around `accumulator`, over its initialisation, its sum and its epilogue.

    The scalar becomes a tile over these loops in `space`. The loops around the sum keep their names, so that they can
    be reordered; those of the initialisation and of the epilogue have the endings `_first` and `_last` after the stems
    `into`.
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
    """Compute the operand of a contraction that loads `buffer` into the local tile `tile` beforehand.

    The axes of the tile are in the order of `loops`; the operand may be constant along some of them (broadcast). The
    tile is filled as far outside as the operand's dependences allow: by one copy if the operand is a block of the
    buffer, otherwise by loops `into`. A loop whose variable the operand divides (`//` and `%`) becomes several numbered
    loops, one per digit. The innermost loop is peeled of its guards and bound to vectors of at most `width` lanes;
    `again` is passed to that binding. With `masked`, the innermost loop stays whole as long as all addresses have a
    constant stride along it, its guards become masks of vectors, and loops on which no guard depends move inside it. A
    `narrow` tile keeps the operand's narrow type and widens elements as they are read. Rows of the tile are padded by
    `pad` elements.
    """

    makes = ("tile", "into")
    worded = ("narrow", "pad", "again", "masked")
    buffer: str
    tile: str
    loops: tuple[str, ...]
    into: tuple[str, ...]
    width: int = 1
    narrow: bool = False
    pad: int = 0
    again: bool = False
    masked: bool = False


class Tensorize(Step):
    """Replace `loops` (m, n, k or n, k), perfectly nested around a contraction, by one tensor instruction.

    `grid` gives the number of thread groups along m and n that share the accumulator, of as many threads as the
    instruction needs; it is empty for a CPU. Along the axes `neighbours` of "mn", registers of a thread hold adjacent
    elements, so that operands contiguous there are loaded four at once. With `again`, columns left over by a CPU's
    blocks are in one more block that ends with the last column, so that some are computed twice.
    """

    worded = ("neighbours", "again")
    loops: tuple[str, ...]
    instruction: str
    grid: tuple[int, ...] = ()
    neighbours: str = ""
    again: bool = False


class Pad(Step):
    """Extend the perfectly nested loops `loops` to `lengths`; iterations beyond the old extents contribute zero.

    Loads of a contraction's operands get predicates, and so do stores to buffers; the kernel's own tiles grow.
    """

    loops: tuple[str, ...]
    lengths: tuple[int, ...]


class Cache(Step):
    """Bring the operand of a contraction that loads `buffer` into `tile` in memory `space` beforehand.

    If the operand is only widened from 16 bits, the tile holds the 16-bit elements. With `how`, one of `tile.COPIES`, a
    block of the buffer is copied, with the axes in the buffer's order. Without it, loops `into` compute the elements of
    a tile whose axes are in the order of `loops`. Two steps may name the same tile if they need the same block.
    `swizzle` is the width in bytes of the tile's swizzle, 0 for none; `width` and `prefetch` are as in `stage`.
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
    prefetch: int = 0


class SplitTf32(Step):
    """Replace the f32 operands `tiles` of the contraction in `loops` by sums of two tf32 numbers each.

    Three of the four products are kept, without the product of the two small parts. The smaller two come first, in
    loops with the endings `_0` and `_1`; the largest is in the original loops. The parts of a tile have the endings
    `_big` and `_small`, and the loops that compute them `_at0` and `_at1`. `into` has the stems: of the loops, then of
    the tiles.
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
        """For each tile: its big part, its small part, and the two loops that compute them."""
        return tuple((f"{x}_big", f"{x}_small", f"{x}_at0", f"{x}_at1") for x in self.into[-2:])


class Writeback(Step):
    """Collect what the perfectly nested loops `loops` store to `buffer` in `tile` in shared memory first.

    The tile has the buffer's order of axes, and is copied to it by `how`, one of `tile.COPIES`. `swizzle` is the width
    in bytes of the tile's swizzle, 0 for none. With `initial`, a buffer of the same element type that `loops` load
    where they store, the tile first receives that block, copied likewise at the start of the surrounding loop.
    """

    makes, worded = ("tile",), ("width", "rounds", "initial")
    buffer: str
    tile: str
    loops: tuple[str, ...]
    how: str
    swizzle: int = 0
    width: int = 0
    rounds: int = 0
    initial: str = ""


class LoadAhead(Step):
    """Load what the perfectly nested `loops` read from `buffer` into `tile` in registers before the preceding nest.

    Loops `into`, along those of `loops` that the index depends on, fill it at the start of the surrounding loop.
    """

    makes = ("tile", "into")
    buffer: str
    tile: str
    loops: tuple[str, ...]
    into: tuple[str, ...]


class Raster(Step):
    """Fuse two perfectly nested loops into `into`, which runs `group` iterations of `outer` per iteration of `inner`.

    Blocks that run at the same time then share operands in the last-level cache.
    """

    makes = ("into",)
    outer: str
    inner: str
    group: int
    into: str


class Persist(Step):
    """Run the perfectly nested loops `loops` over blocks by `blocks` persistent blocks.

    Each block takes every `blocks`-th iteration. `into` names the loop over blocks, the loop over a block's turns
    inside it, and the number of the iteration. The variables of the original loops are computed from that number.
    """

    makes = ("into",)
    loops: tuple[str, ...]
    blocks: int
    into: tuple[str, str, str]


class Peel(Step):
    """Move the iterations of `loop` where all its guards hold into an unguarded loop, between two loops `into`."""

    makes = ("into",)
    loop: str
    into: tuple[str, str]


class Flatten(Step):
    """Treat `axes` axes of `buffer` from `axis` on, which are contiguous together in memory, as one axis."""

    buffer: str
    axis: int
    axes: int


class Partition(Step):
    """Split a loop at the iterations `at` into consecutive loops `into`.

    Conditions, minima and absolute values that are constant within one of them are simplified.
    """

    makes = ("into",)
    loop: str
    at: tuple[int, ...]
    into: tuple[str, ...]


class Owners(Step):
    """Distribute the ordered updates in `loop` over `parts` owners, a loop `into`; each updates only its own elements.

    Every owner runs the whole loop, so each element sees its updates in the original order and no result changes.
    """

    makes = ("into",)
    loop: str
    parts: int
    into: str


class Schedule(Node):
    """An ordered tuple of steps, first to last; schedules can be concatenated by `+`."""

    steps: tuple[Step, ...] = ()

    def __add__(self, other: Schedule) -> Schedule:
        return Schedule(self.steps + other.steps)


class ScheduleError(ValueError):
    """A step that cannot be applied; `step` is the step and `reason` says why."""

    def __init__(self, step: Step, reason: str) -> None:
        super().__init__(f"{show_step(step)}: {reason}")
        self.step, self.reason = step, reason


class NameTaken(ScheduleError):
    """A step gives a new loop or tile a name that the kernel already uses; `names` has these names."""

    def __init__(self, step: Step, kernel: str, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        what = ", ".join(sorted(self.names))
        super().__init__(step, f"the name {what} is already used in kernel {kernel}; choose another name")


_ALL = (
    Split, SplitShifted, Wrap, Reorder, Collapse, Bind, StoreAt, Stage, Margin, Permute, Distribute, Pack, Tensorize,
    Peel, Pad, Cache, Promote, SplitTf32, SplitScan, PartialSums, SplitReduction, Raster, Persist, Online, Chain,
    Writeback, LoadAhead, Partition, CacheHints, Checks, Owners, Flatten, Hoist, StoreSums, Multicast,
)  # fmt: skip


def word(step: type[Step]) -> str:
    """The name of a step in the text of a schedule: `SplitScan` is `split_scan`."""
    return re.sub("(?<!^)(?=[A-Z])", "_", step.__name__).lower()


STEPS: dict[str, type[Step]] = {word(s): s for s in _ALL}


def show(schedule: Schedule) -> str:
    """The text of a schedule, one step per line; `parse` reads it."""
    return "".join(show_step(s) + "\n" for s in schedule.steps)


def show_step(step: Step) -> str:
    """The text of a step. Trailing defaults are omitted; names of what it creates, except `tile`, are keywords."""
    arguments = [_argument_text(f, getattr(step, f)) for f in _positional_fields(type(step))]
    defaults = [_default_text(type(step), f) for f in _positional_fields(type(step))]
    while arguments and arguments[-1] == defaults[-1]:
        arguments.pop()
        defaults.pop()
    if isinstance(step, Bind):
        arguments = [*arguments[:2], *(f"{n}={v}" for n, v in step.args)]
    keywords = ((f, _argument_text(f, getattr(step, f))) for f in _keyword_fields(type(step)))
    arguments += [f"{f}={value}" for f, value in keywords if value != _default_text(type(step), f)]
    return f"{word(type(step))}({', '.join(arguments)})".replace("'", '"')


def _argument_text(field: str, value: Any) -> str:
    return str(value) if field == "level" else repr(value)


def _keyword_fields(step: type[Step]) -> tuple[str, ...]:
    """The fields that are keyword arguments in the text."""
    return tuple(f for f in (*naming_fields(step), *step.worded) if f != "tile" and f in step.fields)


def naming_fields(step: type[Step]) -> tuple[str, ...]:
    """The fields that name what the step creates, or hold stems of such names."""
    return tuple(f for f in dict.fromkeys((*step.stems, *step.makes)) if f in step.fields)


def _positional_fields(step: type[Step]) -> tuple[str, ...]:
    """The fields that are positional arguments in the text."""
    named = _keyword_fields(step)
    return tuple(f for f in step.fields if f not in named)


def _default_text(step: type[Step], field: str) -> str:
    default = step.__dataclass_fields__[field].default
    return "" if default is MISSING else repr(default)


def names_made(step: Step) -> tuple[str, ...]:
    """The names of the loops, tiles and scalars that a step creates."""
    return tuple(strings(tuple(getattr(step, f) for f in step.makes)))


def temporaries_made(schedule: Schedule) -> set[str]:
    """The names of the temporaries that the steps of a schedule add to the program."""
    return set(strings(tuple(getattr(step, f) for step in schedule.steps for f in step.temporaries)))


def parse(text: str) -> Schedule:
    """Parse a schedule; raises ValueError, with the line, for text that is not one."""
    try:
        return Schedule(tuple(map(step, syntax(text).body)))
    except SyntaxError as e:
        raise ValueError(f"schedule, line {e.lineno}: {e.msg}") from e


def step(s: ast.stmt) -> Step:
    """Parse one statement as a step; raises ValueError, with the line, if it is not one."""
    match s:
        case ast.Expr(ast.Call(ast.Name(name), args, keywords)) if name in STEPS:
            kind = STEPS[name]
            keyword_values = {k.arg or "": ast.literal_eval(k.value) for k in keywords}
            try:
                values = [a.id if isinstance(a, ast.Name) else ast.literal_eval(a) for a in args]
                fields = {"args": tuple(keyword_values.items())} if kind is Bind else keyword_values
                return kind(**_positional_arguments(kind, values), **fields)
            except (TypeError, ValueError) as e:
                raise ValueError(f"schedule, line {s.lineno}: {ast.unparse(s)}: {e}") from e
    raise ValueError(f"schedule, line {s.lineno}: {ast.unparse(s)} is not a step; the steps are {', '.join(STEPS)}")


def _positional_arguments(step: type[Step], values: list[Any]) -> dict[str, Any]:
    """Positional arguments by field; raises TypeError if there are too many."""
    fields = _positional_fields(step)
    if len(values) > len(fields):
        keywords = ", ".join(f"{f}=.." for f in _keyword_fields(step))
        raise TypeError(f"takes {', '.join(fields)}{' and ' if keywords else ''}{keywords}")
    return dict(zip(fields, values, strict=False))
