"""Gradients of a convolution's weights on tensor cores: sums over boxes of pixels, by every layout, step and type."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.ir.tile import Copy
from compiler.tests.schedule.test_gpu_conv import Conv, copies
from compiler.tests.schedule.test_gpu_matmul import SMALL, check, instructions


def weighing(c: Conv) -> str:
    """For each weight the sum over the images of the result's gradient times the pixels that the weight has seen."""
    moved = [f"{v} * {c.stride} + {w} * {c.dilation}" for v, w in (("y", "r"), ("x1", "s"))]
    inside = " & ".join(f"({e} >= {c.padding}) & ({e} < {c.side + c.padding})" for e in moved)
    channel = f"f // {c.filters // c.groups} * {c.channels // c.groups} + c" if c.groups > 1 else "c"
    g, x = "g[n, f, y, x1]", f"x[n, {channel}, {', '.join(f'{e} - {c.padding}' for e in moved)}]"
    if c.dtype != "f32":
        g, x = f"f32({g})", f"f32({x})"
    inputs = c.type(c.images, c.filters, c.out), c.type(c.images, c.channels, c.side)
    shape = (c.filters, c.channels // c.groups, c.window, c.window)
    depth = f"for n in range({c.images}) for y in range({c.out}) for x1 in range({c.out})"
    return f"""def f(g: {inputs[0]}, x: {inputs[1]}):
    with kernel("weights"):
        o[{", ".join(map("{}: {}".format, "fcrs", shape))}]: f32 = sum({g} * ({x} if {inside} else 0.0) {depth})
    result(o, f32[{", ".join(map(str, shape))}])
"""


WAYS = [
    Conv(images=3, side=8, filters=64),
    Conv(images=3, side=15, filters=72, stride=2),
    Conv(images=4, side=8, dilation=2, padding=2, filters=64),
    Conv(images=5, side=7, window=1, padding=0, filters=64),
    Conv(images=2, side=8, channels=128, groups=2, filters=128),
]


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("conv", WAYS, ids=str)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_pixels_with_channels_last_come_in_boxes(target: str, conv: Conv, dtype: str) -> None:
    made = check(weighing(replace(conv, dtype=dtype)), SMALL[target])
    assert instructions(made)
    assert copies(made) & {"cp.async", "tma"}


def test_hopper_multiplies_boxes_from_shared_memory() -> None:
    made = check(weighing(Conv(images=4, side=8, filters=64)), SMALL["sm_90a"])
    assert copies(made) == {"tma"}
    assert all(name.startswith("wgmma") for name in instructions(made))


def test_images_with_channels_first_are_permuted_once() -> None:
    made = check(weighing(Conv(images=8, side=16, filters=64, layout="first")), SMALL["sm_90a"])
    assert {t.name for t in made.temps} >= {"x_runs", "g_runs"}
    assert copies(made) == {"tma"}


def test_boxes_go_beyond_the_last_image_alone() -> None:
    """Rows of 7 are gone through whole: beyond them is the next row of the image. Images are padded to 16."""
    made = check(weighing(Conv(images=9, side=7, filters=64)), SMALL["sm_90a"])
    sources = {n.source.lengths for k in made.kernels for s in k.body for n in s.walk() if isinstance(n, Copy)}
    assert sources >= {(16, 64, 0, 7)}
