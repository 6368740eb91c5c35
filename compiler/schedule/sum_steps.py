"""Steps that make sums of partial sums: for accuracy, and so that several threads or blocks make one."""

from __future__ import annotations

from compiler.schedule.name_suffixes import numbered
from compiler.schedule.step import Step


class Promote(Step):
    """Sum what one iteration of `loop` adds to the tile `accumulator` in `tile` first, starting from zero.

    Loops along its `axes` clear the tile and others add it to the accumulator. Their names are the tile's with the
    endings `_first0`, `_first1` and `_last0`, `_last1`, or `_first` and `_last` if the tile has one axis.
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


class StoreSums(Step):
    """Let the tensor instruction that makes the sums `accumulator` round and store them itself, without their tile.

    The sums must start from zero, be made by one instruction, and be only stored, each to an element of its own. This
    saves writing and reading a tile that may not fit in the first-level cache.
    """

    accumulator: str


class SplitScan(Step):
    """Compute the prefix sum `accumulator` over `loop` in parts of `length` iterations, in two loop nests.

    The first nest computes the total of each part, in the scalar `total`, and stores it to the temporary `tile`. Its
    loops are, from outside in: `into[0]` over the parts, `rows` over the rows, and `into[1]` within a part. The second
    nest computes the parts: its loop over the parts, `into[2]`, is around the original loops over rows, and each part
    starts from the sum, over `into[3]`, of the totals before it.
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


class PartialSums(Step):
    """Sum `length` iterations of the reduction or scan `loop` at a time from zero, then add up these partial sums.

    Rounding errors grow with the longer of the two sums, not with their product. `piece` names the loop over pieces,
    inside which `loop` has the iterations of one; `partial` the scalars that hold partial sums, one for each scalar of
    a floating type to which `loop` adds, in the order in which it does.
    """

    makes = ("piece", "partial")
    loop: str
    length: int
    piece: str
    partial: tuple[str, ...]


class SplitReduction(Step):
    """Split the reduction over `loop` into the scalar `accumulator` into `parts` partial sums (split-k).

    `rows` are the perfectly nested loops around it whose partial sums are exchanged through `tile`: in "shared" memory
    between threads of a block, or in "cluster" or "device" memory between blocks. `into` names the loop over the parts
    and the loop of a second nest that combines them into the scalar `total`, inside loops `combining` over the rows. A
    row of partial sums is padded by `pad` elements.
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
