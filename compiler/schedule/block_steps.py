"""Steps that make a kernel one pass over blocks of columns, with what other matmuls give them in registers."""

from __future__ import annotations

from compiler.schedule.endings import ChainLoops, OnlineLoops
from compiler.schedule.step import Step


class Online(Step):
    """The sum weighted by a softmax into the scalar `accumulator` is made in one pass over blocks of keys.

    Blocks are of `rows` x `keys`; what they are multiplied with is padded to multiples of `unit`. Accumulators are
    tiles in registers, weights one in `space`, laid out there by `swizzle`. Buffers `masks` that scores load by query
    and key are copied to shared memory in such blocks, called `held`, by tensor maps. Weights that come `late` take the
    place of their scores at first, and are rounded to their type right before they are multiplied.

    `into` has the stems of loops over queries, keys and features: blocks of the first two end in `0`, the others in
    what `OnlineLoops` calls them. The factors to rescale by, the weights and, where tiles are local, the sums as they
    are stored end in `_scale`, `_weights` and `_rows` after the first of `tiles`; the second is the tile of the scores.
    """

    makes = ("made", "made_tiles", "held")
    stems = ("into", "tiles")
    accumulator: str
    rows: int
    keys: int
    into: tuple[str, str, str]
    tiles: tuple[str, str]
    unit: int = 1
    space: str = "registers"
    swizzle: int = 0
    masks: tuple[str, ...] = ()
    late: int = 0
    held: tuple[str, ...] = ()

    @property
    def made(self) -> OnlineLoops:
        q, j, d = self.into
        scores = {end: (f"{q}_{end}", f"{j}_{end}") for end in ("zero", "score", "edge", "weight")}
        sums = {end: (f"{q}_{end}", f"{d}_{end}") for end in ("begin", "scale", "last")}
        row, value = (f"{q}_row", f"{j}_max", f"{j}_exp"), (f"{q}_value", f"{d}_value", f"{j}_value")
        return OnlineLoops((f"{q}0", f"{j}0"), (f"{q}_first",), row=row, value=value, **scores, **sums)

    @property
    def made_tiles(self) -> tuple[str, str, str, str]:
        """The factors to rescale by, the weights, the scores, and the sums as they are stored."""
        stem, scores = self.tiles
        return f"{stem}_scale", f"{stem}_weights", scores, f"{stem}_rows"


class Chain(Step):
    """The sum into `accumulator`, of values times weights that are made of products, is made by blocks of columns.

    Blocks are of `rows` x `columns`; what they are multiplied with is padded to multiples of `unit`. Products, weights
    and sums are tiles in registers. `into` has the stems of loops over rows, columns and features, to which
    `ChainLoops` adds endings: blocks of rows and of columns end in `0`. `tiles` are called the weights, then what these
    load once for each row of a block, or each column.
    """

    makes = ("made", "tiles", "held")
    stems = ("into",)
    accumulator: str
    rows: int
    columns: int
    into: tuple[str, str, str]
    products: tuple[str, ...]
    tiles: tuple[str, ...]
    unit: int = 1

    @property
    def held(self) -> tuple[str, ...]:
        return (self.accumulator, *self.products)

    @property
    def made(self) -> ChainLoops:
        q, j, d = self.into
        every = range(len(self.products))
        zero, score = (tuple((f"{q}_{end}{n}", f"{j}_{end}{n}") for n in every) for end in ("zero", "score"))
        begin, last = ((f"{q}_{end}", f"{d}_{end}") for end in ("begin", "last"))
        value = f"{q}_value", f"{d}_value", f"{j}_value"
        column, weight = (f"{q}_all", f"{j}_first"), (f"{q}_weight", f"{j}_weight")
        return ChainLoops((f"{q}0", f"{j}0"), (f"{q}_first",), column, begin, zero, score, weight, value, last)
