"""Loops along which elements are neighbours in memory go over a GPU's threads, wherever they are in the program."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compiler
from compiler.ir.expr import Load, names
from compiler.schedule.steps import Reorder, Stage
from compiler.targets.nvidia import SM_90A
from compiler.tests.called import called
from compiler.tests.meaning import fresh_seed

Program = Callable[[Tensor], Tensor]
SHAPE = (2, 24, 12, 14)
PROGRAMS: dict[str, Program] = {
    "pointwise": lambda x: x.relu(),
    "a vector of channels": lambda x: x * torch.arange(24.0)[:, None, None],
    "some pixels": lambda x: x[:, :, 1:-1, ::2] * 2,
    "short windows": lambda x: F.avg_pool2d(x, 2),
    "long windows": lambda x: F.max_pool2d(x, 3, 2, 1),
    "windows of channels": lambda x: F.avg_pool3d((x * x)[:, None], (3, 1, 1), 1, (1, 0, 0))[:, 0].contiguous(
        memory_format=torch.channels_last
    ),
    "sums of rows": lambda x: x.sum(3),
    "sums of images": lambda x: x.sum((1, 2, 3)),
    "sums of everything": lambda x: x.sum(),
    "groups of channels": lambda x: F.group_norm(x, 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_channels_that_are_neighbours_are_innermost(name: str) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x, program = torch.randint(-9, 9, SHAPE).float().to(memory_format=torch.channels_last), PROGRAMS[name]
    lowering = compiler.lower(compiler.capture(program, [x]).program, SM_90A)
    for kernel in lowering.stages["loop"].kernels:
        loads = [n for s in kernel.body for n in s.walk() if isinstance(n, Load) and n.buffer == "x"]
        channels = {v for n in loads for v in names(n.index[1])}
        last = {s.loops[-1] for s in lowering.schedules[kernel.name].steps if isinstance(s, Reorder)}
        assert not channels or last & channels, compiler.show_schedules(lowering.schedules)
    torch.testing.assert_close(called(program, [x], SM_90A.name), program(x), msg=lambda m: f"{m}, seed {seed}")


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "windows of channels"])
def test_pixels_that_are_neighbours_stay_innermost(name: str) -> None:
    lowering = compiler.lower(compiler.capture(PROGRAMS[name], [torch.zeros(SHAPE)]).program, SM_90A)
    pixels = {s.loops for schedule in lowering.schedules.values() for s in schedule.steps if isinstance(s, Reorder)}
    assert all(len(loops) < 4 for loops in pixels), compiler.show_schedules(lowering.schedules)


def test_what_is_stored_in_another_order_than_loaded_goes_through_tiles() -> None:
    x = torch.randn(2, 32, 16, 32)
    lowering = compiler.lower(
        compiler.capture(lambda x: (x * 2).contiguous(memory_format=torch.channels_last), [x]).program, SM_90A
    )
    (schedule,) = lowering.schedules.values()
    assert any(isinstance(s, Stage) for s in schedule.steps), schedule
