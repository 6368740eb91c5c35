"""Windows of an image with weights of each channel's own: what is taken for that, and that it is right."""

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler.schedule.steps import Margin, Pack, Peel, Permute

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# How images and weights are multiplied, the shape of the weights of 6 channels, and the steps of such a schedule.
PROGRAMS: dict[str, tuple[Program, tuple[int, ...], set[type]]] = {
    "padded": (lambda x, w: F.conv2d(x, w, padding=(1, 2), groups=6), (6, 1, 3, 5), {Margin, Peel}),
    "of rows alone": (lambda x, w: F.conv2d(x, w, padding=(2, 0), groups=6), (6, 1, 4, 3), {Margin}),
    "whole": (lambda x, w: F.conv2d(x, w, groups=6).relu(), (6, 1, 3, 3), set()),
    "dilated": (lambda x, w: F.conv2d(x, w, padding=2, dilation=2, groups=6), (6, 1, 3, 3), {Margin, Peel}),
    "two of each": (lambda x, w: F.conv2d(x, w, padding=1, groups=6), (12, 1, 3, 3), {Margin, Peel}),
    "with steps": (lambda x, w: F.conv2d(x, w, padding=1, stride=2, groups=6), (6, 1, 3, 3), {Margin, Peel}),
    "of every third": (lambda x, w: F.conv2d(x, w, padding=2, stride=(2, 3), groups=6), (6, 1, 3, 5), {Margin, Peel}),
    "groups": (lambda x, w: F.conv2d(x, w, padding=1, groups=3), (6, 2, 3, 3), {Pack}),
    "groups of one result": (lambda x, w: F.conv2d(x, w, padding=1, groups=3), (3, 2, 3, 3), {Pack}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_channels_by_themselves_are_not_packed(name: str, dtype: torch.dtype) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    function, shape, wanted = PROGRAMS[name]
    x = torch.randn(chance.randint(1, 3), 6, chance.randint(5, 20), chance.randint(26, 50), dtype=dtype)
    w = torch.randn(shape, dtype=dtype)
    lowering = compiler.lower(compiler.capture(function, [x, w]).program, compiler.target("cpu:avx2"))
    steps = {type(step) for schedule in lowering.schedules.values() for step in schedule.steps}
    # Short floats are widened into a tile, with or without a margin.
    widened = {Margin} - wanted if dtype is not torch.float32 and Pack not in wanted else set()
    assert steps & {Margin, Peel, Pack} == wanted | widened, lowering.schedules
    expected = function(x.double(), w.double()).to(dtype)
    torch.testing.assert_close(compiler.compile(function, [x, w])(x, w), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stride", [1, 2])
def test_channels_that_are_neighbours_are_the_lanes(stride: int, dtype: torch.dtype) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    torch.manual_seed(seed)
    chance = random.Random(seed)
    batch, channels, rows, columns = (chance.randint(*ends) for ends in ((1, 3), (8, 70), (5, 12), (5, 12)))
    x = torch.randn(batch, channels, rows, columns, dtype=dtype).to(memory_format=torch.channels_last)
    w, b = torch.randn(channels, 1, 3, 3, dtype=dtype), torch.randn(channels, dtype=dtype)

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, b, padding=1, stride=stride, groups=channels).relu()

    lowering = compiler.lower(compiler.capture(function, [x, w, b]).program, compiler.target("cpu:avx2"))
    (schedule,) = lowering.schedules.values()
    assert {type(s) for s in schedule.steps} & {Margin, Pack, Permute} == {Permute}, schedule
    expected = function(x.double(), w.double(), b.double()).to(dtype)
    torch.testing.assert_close(compiler.compile(function, [x, w, b])(x, w, b), expected)


def test_what_pads_before_is_a_margin() -> None:
    def causal(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv1d(F.pad(x, (3, 0)), w, groups=6)

    torch.manual_seed(seed := random.randrange(2**32))
    print(f"seed {seed}")
    x, w = torch.randn(2, 6, 50, dtype=torch.bfloat16), torch.randn(6, 1, 4, dtype=torch.bfloat16)
    lowering = compiler.lower(compiler.capture(causal, [x, w]).program, compiler.target("cpu:avx2"))
    steps = {type(step) for schedule in lowering.schedules.values() for step in schedule.steps}
    assert Margin in steps and Pack not in steps, lowering.schedules
    torch.testing.assert_close(compiler.compile(causal, [x, w])(x, w), causal(x.double(), w.double()).bfloat16())
