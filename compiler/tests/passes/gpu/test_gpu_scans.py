"""Scans over threads: what is no running total is refused by name."""

import pytest

from compiler.ir import tile_text
from compiler.pipeline import from_tiles
from compiler.targets.nvidia import SM_80

RECURRENCE = """
def f(x: f32[3, 100], *, y: f32[3, 100]):
    with kernel("recurrence", [x, y], writes=[y]):
        for i in blocks(3):
            for j in lanes(100, scan, threads=64):
                y[i, j] = x[i, j]
"""


def test_a_recurrence_is_not_spread_over_threads() -> None:
    with pytest.raises(ValueError, match="kernel recurrence: the scan j is no running total"):
        from_tiles(tile_text.parse(RECURRENCE), SM_80)
