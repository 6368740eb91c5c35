"""Arrays of mbarriers: who has still to arrive, and which phase has ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.interpret.scalar import Array
from compiler.ir.expr import Expr


@dataclass
class Mbarriers:
    """The state of an array of mbarriers, which there is once for each point of the axes that `private` tells."""

    arrivals: int
    private: tuple[Expr, ...]
    left: Array
    bytes: Array
    phase: Array
    changes: int = 0

    def ended(self, at: tuple[Array, ...], parity: Array) -> bool:
        return bool((self.phase[at] != parity).all())

    def tell(self, at: tuple[Array, ...], arrivals: int, expected: int) -> bool:
        """So many arrive, and expect so many bytes, or fewer than before; false where more arrive than should."""
        self.changes += 1
        self.left[at] -= arrivals
        self.bytes[at] += expected
        right = bool((self.left[at] >= 0).all())
        over = (self.left == 0) & (self.bytes == 0)
        self.phase[over] ^= 1
        self.left[over] = self.arrivals
        return right


def made(points: list[int], count: int, arrivals: int, private: tuple[Expr, ...]) -> Mbarriers:
    shape = (*points, count)
    bytes_, phase = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    return Mbarriers(arrivals, private, np.full(shape, arrivals, np.int64), bytes_, phase)
