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

from compiler.ir.node import Node


class Step(Node):
    """One change."""


class Split(Step):
    """Loop `loop` of extent n becomes `loop`0 of ceil(n / factor) around `loop`1 of `factor`, cut short at the end."""

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

    The copy is made by loops called `tile`_at, or `tile`_at0, `tile`_at1, .. along the axes that are left.
    """

    buffer: str
    tile: str
    loop: str
    space: str


class Distribute(Step):
    """The perfectly nested loops `loops` around `accumulator` run thrice: for its first value, its sum, what follows.

    The scalar becomes a local tile over them. The loops around the sum keep their names, so that it can be reordered;
    the others are called `i_first` and `i_last`.
    """

    accumulator: str
    loops: tuple[str, ...]


class Pack(Step):
    """The factor of a sum of products that loads `buffer` is computed into the local tile `tile` beforehand.

    The tile lies in the order of `loops`. It is filled as far outside as the factor allows: by one copy where the
    factor is a block of the buffer, else by loops called `i_tile`, or `i_tile0`, `i_tile1`, .. for the digits that the
    factor takes of `i`; the innermost is cleared of guards and bound to vectors of `width` lanes.
    """

    buffer: str
    tile: str
    loops: tuple[str, ...]
    width: int = 1


class Tensorize(Step):
    """The perfectly nested loops `loops` (m, n, k, or n, k) around a sum of products become one tensor instruction."""

    loops: tuple[str, ...]
    instruction: str


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


STEPS: dict[str, type[Step]] = {
    s.__name__.lower(): s for s in (Split, Reorder, Collapse, Bind, Fold, Stage, Distribute, Pack, Tensorize, Interior)
}


def show(schedule: Schedule) -> str:
    """One step a line."""
    return "".join(show_step(s) + "\n" for s in schedule.steps)


def show_step(step: Step) -> str:
    fields = [getattr(step, f) for f in type(step).fields]
    match step:
        case Bind(loop, level, args):
            said = [repr(loop), level, *(f"{n}={v}" for n, v in args)]
        case Fold(buffer, loop, "local"):
            said = [repr(buffer), repr(loop)]
        case _:
            said = [repr(f) for f in fields]
    return f"{type(step).__name__.lower()}({', '.join(said)})".replace("'", '"')


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
