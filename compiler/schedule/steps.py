"""How to run a kernel, as a value: an ordered tuple of steps, each of which is one mechanical change of Tile IR.

```
split("i", 64)
bind("i0", blocks)
bind("j", vector, width=8, unroll=4)
fold("e", "i0")
```
A step names loops by their variable and buffers by their name. A schedule prints one step a line and parses back.
"""

from __future__ import annotations

import ast
import re

from compiler.ir.node import Node


class Step(Node):
    """One change."""


class Split(Step):
    """Loop `loop` of extent n becomes `loop`0 of ceil(n / factor) around `loop`1 of `factor`, cut short at the end."""

    loop: str
    factor: int


class Cover(Step):
    """As `split`, but the last piece of `loop` begins as much earlier as makes it whole: some iterations run twice."""

    loop: str
    factor: int


class Reorder(Step):
    """The perfectly nested loops named take this order, outermost first."""

    loops: tuple[str, ...]


class Collapse(Step):
    """Two perfectly nested loops become one, named after both, that counts through them."""

    outer: str
    inner: str


class Bind(Step):
    """Loop `loop` runs at `level`, one of `tile.LEVELS`, with the level's whole numbers."""

    loop: str
    level: str
    args: tuple[tuple[str, int], ...] = ()


class Fold(Step):
    """Temporary `buffer`, of this kernel alone, shrinks to what one iteration of `loop` and what is around it needs.

    What is left is a tile in `space`, one of `tile.SPACES`.
    """

    buffer: str
    loop: str
    space: str = "local"


class Stage(Step):
    """What an iteration of `loop` loads of `buffer` is first copied into the tile `tile` in `space`, each element once.

    The copy is made by loops called `tile`_at, or `tile`_at0, `tile`_at1, .. along the axes that are left. Rows of the
    tile lie `pad` elements further apart than they are long.
    """

    buffer: str
    tile: str
    loop: str
    space: str
    pad: int = 0


class Permute(Step):
    """What the kernel loads of `buffer` it loads of the temporary `tile`, whose axes are the buffer's in this `order`.

    A nest of its own copies all of it beforehand, by loops called `tile`_at0, `tile`_at1, .. along the axes of `tile`.
    With `every`, it is every so many elements along each of the buffer's axes that are copied.
    """

    buffer: str
    tile: str
    order: tuple[int, ...]
    every: tuple[int, ...] = ()


class Distribute(Step):
    """The perfectly nested loops `loops` around `accumulator` run thrice: for its first value, its sum, what follows.

    The scalar becomes a tile over them in `space`. The loops around the sum keep their names, so that it can be
    reordered; the others are called `i_first` and `i_last`.
    """

    accumulator: str
    loops: tuple[str, ...]
    space: str = "local"


class Pack(Step):
    """The factor of a sum of products that loads `buffer` is computed into the local tile `tile` beforehand.

    The tile lies in the order of `loops`, along some of which the factor may be the same, as what is broadcast is. It
    is filled as far outside as the factor allows: by one copy where the factor is a block of the buffer, else by loops
    called `i_tile`, or `i_tile0`, `i_tile1`, .. for the digits that the factor takes of `i`; the innermost is cleared
    of guards and bound to vectors of `width` lanes.
    """

    buffer: str
    tile: str
    loops: tuple[str, ...]
    width: int = 1


class Tensorize(Step):
    """The perfectly nested loops `loops` (m, n, k, or n, k) around a sum of products become one tensor instruction."""

    loops: tuple[str, ...]
    instruction: str


class Pad(Step):
    """The perfectly nested loops `loops` run to `lengths`: what lies beyond where they ended counts as zero.

    Factors of a sum of products are guarded, and so is what is stored outside the kernel's own tiles, which grow.
    """

    loops: tuple[str, ...]
    lengths: tuple[int, ...]


class Cache(Step):
    """The factor of a sum of products that loads `buffer` is brought into the tile `tile` in `space` beforehand.

    Of a factor that is only widened from 16 bits the tile holds the narrow elements. A block of a buffer is copied by
    `how`, one of `tile.COPIES`, in the order of the buffer's axes; with no `how`, a loop `tile`_at computes the
    elements of a tile that lies in the order of `loops`.
    """

    buffer: str
    tile: str
    loops: tuple[str, ...]
    space: str
    how: str = ""
    swizzle: int = 0


class Promote(Step):
    """What each iteration of `loop` adds to the tile `accumulator` is summed in `tile` first, beginning with zero."""

    accumulator: str
    loop: str
    tile: str


class Compensate(Step):
    """The factors of the sum of products within `loops`, tiles of f32, become sums of two tf32 numbers each.

    The three larger of the four products remain, the smaller ones first, in loops called `i_0`, `i_1`, and `i`.
    """

    loops: tuple[str, ...]


class Writeback(Step):
    """What the perfectly nested loops `loops` store to `buffer` is put into the tile `tile` in shared memory first.

    The tile lies as the buffer does, and is copied to it by `how`, one of `tile.COPIES`.
    """

    buffer: str
    tile: str
    loops: tuple[str, ...]
    how: str
    swizzle: int = 0


class SplitScan(Step):
    """The running total `accumulator` over `loop` is made in parts of `length` iterations.

    The totals of the parts go to the temporary `accumulator`_parts, by a loop `loop`_part around the rows, called
    `i_sum`, and over `loop`_sum. A second nest makes the parts, by a loop `loop`_next around the rows as they were,
    each from the sum over `loop`_before of the totals before it.
    """

    accumulator: str
    loop: str
    length: int


class Share(Step):
    """The reduction into the scalar `accumulator` over `loop` is made in `parts` in each iteration of what is around.

    `rows` are the perfectly nested loops around it whose parts come together. Threads of a block pass what they find
    through the tile `accumulator`_shares in "shared" memory, made by a loop `loop`_share, and a second nest with loops
    `i_all` combines it. Blocks pass theirs through `accumulator`_parts in the memory of a "cluster" or of the "device",
    made by a loop `loop`_part, and the second nest has loops `i_sum`. Rows of a part lie `pad` elements further apart
    than they are long.
    """

    accumulator: str
    loop: str
    parts: int
    rows: tuple[str, ...]
    space: str
    pad: int = 0


class Raster(Step):
    """Two perfectly nested loops become one that goes through `group` iterations of `outer` for each of `inner`.

    Neighbours in time then share what they read of either factor in the last level of cache.
    """

    outer: str
    inner: str
    group: int


class Persist(Step):
    """The perfectly nested loops `loops` over blocks are gone through by `blocks` of them.

    Each takes every so manieth iteration, in a loop called after all of them: `ij_turn` inside `ij_block`.
    """

    loops: tuple[str, ...]
    blocks: int


class Online(Step):
    """The sum weighted by a softmax into the scalar `accumulator` is made in one pass over blocks of keys.

    Blocks are of `rows` x `keys`; what they are multiplied with is padded to multiples of `unit`. Accumulators are
    tiles in registers, weights one in `space`, laid out there by `swizzle`. Of the loops over queries, keys and
    features, `q`, `j` and `d`, are made q0 and j0 over blocks and, with ends, those over scores (`q_score`), the
    softmax (`q_row`) and values (`q_value`). Buffers `masks` that scores load by query and key are copied to shared
    memory in such blocks, by tensor maps. Weights that come `late` take the place of their scores at first, and are
    rounded to their type (`q_weight`) right before they are multiplied.
    """

    accumulator: str
    rows: int
    keys: int
    unit: int = 1
    space: str = "registers"
    swizzle: int = 0
    masks: tuple[str, ...] = ()
    late: int = 0


class Interior(Step):
    """The iterations of `loop` where all its guards hold become a loop without them, amid `loop_low`, `loop_high`."""

    loop: str


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


_ALL = (
    Split, Cover, Reorder, Collapse, Bind, Fold, Stage, Permute, Distribute, Pack, Tensorize, Interior, Pad, Cache,
    Promote, Compensate, SplitScan, Share, Raster, Persist, Online, Writeback,
)  # fmt: skip


def word(step: type[Step]) -> str:
    """What a step is called in the text: `SplitScan` is `split_scan`."""
    return re.sub("(?<!^)(?=[A-Z])", "_", step.__name__).lower()


STEPS: dict[str, type[Step]] = {word(s): s for s in _ALL}


def show(schedule: Schedule) -> str:
    """One step a line."""
    return "".join(show_step(s) + "\n" for s in schedule.steps)


def show_step(step: Step) -> str:
    fields = [getattr(step, f) for f in type(step).fields]
    match step:
        case Bind(loop, level, args):
            said = [repr(loop), level, *(f"{n}={v}" for n, v in args)]
        case Fold(first, second, "local") | Distribute(first, second, "local"):
            said = [repr(first), repr(second)]
        case Online(masks=(), late=0):
            said = [repr(f) for f in fields[:-2]]
        case Stage(pad=0) | Share(pad=0) | Online(late=0) | Permute(every=()):
            said = [repr(f) for f in fields[:-1]]
        case _:
            said = [repr(f) for f in fields]
    return f"{word(type(step))}({', '.join(said)})".replace("'", '"')


def parse(text: str) -> Schedule:
    """A schedule from its text; raises ValueError naming the line."""
    try:
        tree = ast.parse(text)
    except SyntaxError as e:
        raise ValueError(f"schedule, line {e.lineno}: {e.msg}") from e
    return Schedule(tuple(_step(s) for s in tree.body))


def _step(s: ast.stmt) -> Step:
    match s:
        case ast.Expr(ast.Call(ast.Name(name), args, keywords)) if name in STEPS:
            values = [a.id if isinstance(a, ast.Name) else ast.literal_eval(a) for a in args]
            given = [tuple((k.arg or "", ast.literal_eval(k.value)) for k in keywords)] if name == "bind" else []
            try:
                return STEPS[name](*values, *given)
            except TypeError as e:
                raise ValueError(f"schedule, line {s.lineno}: {ast.unparse(s)}: {e}") from e
    raise ValueError(f"schedule, line {s.lineno}: {ast.unparse(s)} is not a step; steps are {', '.join(STEPS)}")
