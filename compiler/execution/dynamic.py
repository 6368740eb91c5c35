"""Call a program with symbolic sizes at any sizes, taken from the shapes of its arguments.

The code is the same for all sizes, which are arguments of its kernels. What else depends on them (shapes of outputs,
offsets of temporaries, grids) is planned at the first call with given sizes, and kept for the last `KEPT` sizes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from compiler.ir.expr import Size
from compiler.ir.sizes import Declared, bind
from compiler.runtime.launcher import Launcher

KEPT = 256


class AnySize:
    """A launcher that makes one for fixed sizes by `laid_out`, for each set of sizes that occurs.

    `declared` are the inputs that are arguments, in order, with symbolic shapes.
    """

    def __init__(
        self, sizes: Sequence[Size], declared: Declared, laid_out: Callable[[Mapping[Size, int]], Launcher]
    ) -> None:
        self._sizes, self._declared, self._laid_out = tuple(sizes), tuple(declared), laid_out
        self._places = [self._place(s) for s in self._sizes]
        self._made: OrderedDict[tuple[int, ...], Launcher] = OrderedDict()

    def _place(self, s: Size) -> tuple[int, int]:
        return next((n, d) for n, (_, shape) in enumerate(self._declared) for d, e in enumerate(shape) if e is s)

    def __call__(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        try:
            key = tuple(arguments[n].shape[d] for n, d in self._places)
        except (IndexError, AttributeError):
            key = ()
        made = self._made.get(key)
        if made is None:
            made = self._new(key, arguments)
        return made(*arguments)

    def _new(self, key: tuple[int, ...], arguments: Sequence[Any]) -> Launcher:
        if len(arguments) != len(self._declared):
            raise TypeError(f"expected {len(self._declared)} arguments, got {len(arguments)}")
        for n, x in enumerate(arguments):
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"argument {n} ({self._declared[n][0]}): expected a tensor, got {type(x).__name__}")
        made = self._laid_out(bind(self._sizes, self._declared, [x.shape for x in arguments]))
        self._made[key] = made
        if len(self._made) > KEPT:
            self._made.popitem(last=False)
        return made
