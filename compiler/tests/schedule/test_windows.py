"""Windows of an image with weights of each channel's own: what is taken for that, and that it is right."""

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler.schedule.steps import Margin, Pack, Peel

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
