"""Functions that jump see 16-bit values as torch would have stored them, so that they give exactly what eager gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compiler
from compiler.tests.meaning import fresh_seed

# Of numbers of which many are equal, or whole, or zero, once they are rounded.
JUMPS: dict[str, Callable[[Tensor], Tensor]] = {
    "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round, "frac": torch.frac,
    "round to decimals": lambda x: x.round(decimals=1), "sign": lambda x: (x * 1e-9).sign(),
    "heaviside": lambda x: torch.heaviside(x * 1e-9, x), "threshold": lambda x: F.threshold(x, 1.0, 20.0),
    "hardshrink": lambda x: F.hardshrink(x, 1.0), "floor division": lambda x: x // 0.3,
    "to integers": lambda x: x.long(),
    "to bytes": lambda x: x.to(torch.int8), "to truth values": lambda x: (x * 1e-9).bool(),
    "copied to integers": lambda x: torch.zeros(x.shape, dtype=torch.int32).copy_(x),
    "filled into integers": lambda x: torch.zeros(3, dtype=torch.int32).fill_(x[0, 0]),
    "any": lambda x: (x * 1e-9).any(1), "all": lambda x: (x * 1e-9).all(1),
    "whole sum": lambda x: x.sum(dtype=torch.int64), "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(0), "place of the maximum": lambda x: x.max(1).indices,
    "stable sort": lambda x: x.sort(stable=True).indices, "cummax": lambda x: x.cummax(1).indices,
    "cummin": lambda x: x.cummin(0).indices, "pool": lambda x: F.max_pool1d(x[None], 3, return_indices=True)[1],
    "pool to a size": lambda x: F.adaptive_max_pool1d(x[None], 5, return_indices=True)[1],
    "next": lambda x: torch.nextafter(x, x + 1), "compared": lambda x: x == x.amax(1, keepdim=True),
    "remainder": lambda x: x % 0.3,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_jumps_gives_what_eager_gives(dtype: torch.dtype) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)

    def function(x: Tensor) -> list[Tensor]:
        x = x * 3.3
        return [jump(x) for jump in JUMPS.values()]

    x = torch.randn(32, 64).to(dtype)
    lowering = compiler.lower(compiler.capture(function, [x]).program, compiler.target("cpu"))
    made = compiler.execute(lowering, "tensor", [x])
    for name, mine, its in zip(JUMPS, made, function(x), strict=True):
        assert mine.dtype is its.dtype and torch.equal(mine.reshape(its.shape), its), f"{name}, seed {seed}"
