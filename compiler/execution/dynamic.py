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
    """A launcher that makes one for fixed sizes by `load`, for each set of sizes that occurs.

    `declared` are the inputs that are arguments, in order, with symbolic shapes.
    """

    def __init__(
        self, sizes: Sequence[Size], declared: Declared, load: Callable[[Mapping[Size, int]], Launcher]
    ) -> None:
        self._sizes, self._declared, self._load = tuple(sizes), tuple(declared), load
        self._axes = [self._axis_of(s) for s in self._sizes]
        self._launchers: OrderedDict[tuple[int, ...], Launcher] = OrderedDict()

    def _axis_of(self, s: Size) -> tuple[int, int]:
        return next((n, d) for n, (_, shape) in enumerate(self._declared) for d, e in enumerate(shape) if e is s)

    def __call__(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        try:
            key = tuple(arguments[n].shape[d] for n, d in self._axes)
        except (IndexError, AttributeError):
            key = ()
        launcher = self._launchers.get(key)
        if launcher is None:
            launcher = self._add(key, arguments)
        return launcher(*arguments)

    def _add(self, key: tuple[int, ...], arguments: Sequence[Any]) -> Launcher:
        if len(arguments) != len(self._declared):
            raise TypeError(f"expected {len(self._declared)} arguments, got {len(arguments)}")
        for n, x in enumerate(arguments):
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"argument {n} ({self._declared[n][0]}): expected a tensor, got {type(x).__name__}")
        launcher = self._load(bind(self._sizes, self._declared, [x.shape for x in arguments]))
        self._launchers[key] = launcher
        if len(self._launchers) > KEPT:
            self._launchers.popitem(last=False)
        return launcher
