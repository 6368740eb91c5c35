"""Steps that compute chained matmuls (attention and its gradients) in one pass over blocks of columns."""

from __future__ import annotations

from compiler.schedule.name_suffixes import ChainLoops, OnlineLoops
from compiler.schedule.step import Step


class Online(Step):
    """Compute the softmax-weighted sum into the scalar `accumulator` in one pass over blocks of keys (online softmax).

    Blocks are of `rows` queries by `keys` keys; the extents of their products are padded to multiples of `unit`.
    Accumulators are tiles in registers; the weights are a tile in `space` with this `swizzle`. The buffers `masks`,
    which scores load by query and key, are copied to shared memory in such blocks, called `held`, by tensor maps, with
    a swizzle of `mask_swizzle` bytes. With `late`, weights overwrite their scores and are rounded to their type only
    when they are multiplied. Local weights are rounded but kept in the sum's type, unless they are `narrow`.

    `into` has the stems of the loops over queries, keys and features. Block loops of the first two end in `0`; the
    other endings are in `OnlineLoops`. `tiles` names the sums and the scores. Tiles whose names are the first of them
    with the endings `_scale`, `_weights` and `_rows` hold the rescaling factors, the weights and, if tiles are local,
    the sums in the form in which they are stored.
    """

    makes = ("made", "made_tiles", "held")
    stems = ("into", "tiles")
    worded = ("mask_swizzle", "narrow")
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
    mask_swizzle: int = 0
    narrow: bool = False

    @property
    def made(self) -> OnlineLoops:
        q, j, d = self.into
        scores = {end: (f"{q}_{end}", f"{j}_{end}") for end in ("zero", "score", "edge", "weight")}
        sums = {end: (f"{q}_{end}", f"{d}_{end}") for end in ("begin", "scale", "last")}
        row, value = (f"{q}_row", f"{j}_max", f"{j}_exp"), (f"{q}_value", f"{d}_value", f"{j}_value")
        return OnlineLoops((f"{q}0", f"{j}0"), (f"{q}_first",), row=row, value=value, **scores, **sums)

    @property
    def made_tiles(self) -> tuple[str, str, str, str]:
        """The rescaling factors, the weights, the scores, and the sums in the form in which they are stored."""
        stem, scores = self.tiles
        return f"{stem}_scale", f"{stem}_weights", scores, f"{stem}_rows"


class Chain(Step):
    """Compute the sum into `accumulator`, of values times weights that are themselves products, by blocks of columns.

    Blocks are of `rows` x `columns`; the extents of their products are padded to multiples of `unit`. Products, weights
    and sums are tiles in registers. `into` has the stems of the loops over rows, columns and features; the block loops
    of rows and columns end in `0`, and the other endings are in `ChainLoops`. `tiles` names the weights and then the
    values that the weights need once per row, or once per column, of a block.
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
