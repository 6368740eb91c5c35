"""The tiles of a block of queries and keys in a one-pass softmax."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis import online_softmax as recognised
from compiler.analysis.nests import loop_ranges
from compiler.analysis.online_softmax import reach
from compiler.ir.dtype import DType, f32
from compiler.ir.expr import Expr, Var, dim, op, static
from compiler.ir.multiples import is_constant_multiple
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import extent_range
from compiler.passes.tile.places import Places, pieces
from compiler.schedule.block_steps import Online


@dataclass
class Block(Places):
    """The places of the rows, columns and features of a block, and loops over them."""

    found: recognised.Online
    step: Online
    tensors: dict[str, Tensor]

    def __post_init__(self) -> None:
        f = self.found
        self.query, self.feature = f.query.var, f.feature.var
        self.rows, self.queries = self.step.rows, f.query.extent
        self.cols, self.keys = self.step.keys, f.keys
        self.features = static(f.feature.extent)
        self.unit = self.step.unit
        self.width = self.padded(self.features)
        self.depth = static(f.scores.depth.extent) if f.scores else 0
        self.dtype: DType = f.accumulator.dtype
        # Local weights mostly stay wide: each row of most instructions would have to widen them again.
        self.weight = self.dtype if self.step.space == "local" and not self.step.narrow else f.weight
        self.factor, self.base = recognised.scaled(f.score) if self.dtype is f32 else (1.0, f.score)
        self.ranges = loop_ranges(f.rows)
        self.masks = [x for x in recognised.masks(f.score, self.query) if x.buffer in self.step.masks]
        self.held = dict(zip(self.step.masks, self.step.held, strict=True))
        self.local = self.step.space == "local"
        (place, self.turn), count = map(Var, self.step.made.blocks), pieces(self.queries, self.rows)
        self.scale, self.weights, self.scores, self.turned_sums = self.step.made_tiles
        self.ranges[place.name] = extent_range(count)
        self.blocks = place, count
        self.block: Expr = count - 1 - place if reach(f.score, self.query) else place
        self.top, self.start = self.block * self.rows, self.turn * self.cols
        self.ranges[self.turn.name] = extent_range(pieces(self.keys, self.cols))
        left = self.keys - self.turn * self.cols
        whole = not self.local or is_constant_multiple(self.keys, self.cols)
        self.columns = dim(self.cols) if whole else op("min", self.cols, left)
