"""Convolutions scheduled for tensor cores: boxes of images, by every layout, step and type, keep their meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from compiler.ir import tile
from compiler.ir.expr import Select, static
from compiler.schedule.gpu.box_shapes import box, count
from compiler.tests.schedule.test_gpu_matmul import SMALL, check, instructions


@dataclass(frozen=True)
class Conv:
    """A convolution of `images` x `channels` x `side` x `side` with `filters` of `window` x `window`."""

    images: int = 2
    channels: int = 64
    side: int = 9
    filters: int = 24
    window: int = 3
    stride: int = 1
    padding: int = 1
    dilation: int = 1
    groups: int = 1
    dtype: str = "bf16"
    layout: str = "last"

    @property
    def out(self) -> int:
        return (self.side + 2 * self.padding - self.dilation * (self.window - 1) - 1) // self.stride + 1

    def type(self, n: int, c: int, side: int) -> str:
        sizes = (n, c, side, side)
        first = (c * side * side, side * side, side, 1)
        last = (c * side * side, 1, side * c, c)
        steps = last if self.layout == "last" else first
        return f"{self.dtype}[{', '.join(f'{a}: {b}' for a, b in zip(sizes, steps, strict=True))}]"

    @property
    def text(self) -> str:
        each = self.channels // self.groups
        moved = [f"{v} * {self.stride} + {w} * {self.dilation}" for v, w in (("y", "r"), ("x1", "s"))]
        inside = " & ".join(f"({e} >= {self.padding}) & ({e} < {self.side + self.padding})" for e in moved)
        at = ", ".join(f"{e} - {self.padding}" for e in moved)
        channel = f"f // {self.filters // self.groups} * {each} + c" if self.groups > 1 else "c"
        x, w, end = f"x[n, {channel}, {at}]", "w[f, c, r, s]", "o[n, f, y, x1]"
        if self.dtype != "f32":
            x, w, end = f"f32({x})", f"f32({w})", f"{self.dtype}(max(o[n, f, y, x1] + b[f], 0.0))"
        inputs = self.type(self.images, self.channels, self.side), self.type(self.filters, each, self.window)
        axes = f"n: {self.images}, f: {self.filters}, y: {self.out}, x1: {self.out}"
        depth = f"for c in range({each}) for r in range({self.window}) for s in range({self.window})"
        return f"""def f(x: {inputs[0]}, w: {inputs[1]}, b: f32[{self.filters}]):
    with kernel("conv"):
        o[{axes}]: f32 = sum(({x} if {inside} else 0.0) * {w} {depth})
        p[{axes}]: {self.dtype} = {end}
    result(p, {self.type(self.images, self.filters, self.out)})
"""


def copies(program: Any) -> set[str]:
    return {n.how for k in program.kernels for s in k.body for n in s.walk() if isinstance(n, tile.Copy)}


WAYS = [
    Conv(),
    Conv(stride=2),
    Conv(side=12, dilation=2, padding=2),
    Conv(window=1, padding=0, side=7),
    Conv(window=1, padding=0, side=7, stride=2),
    Conv(channels=128, groups=2, filters=48),
    Conv(images=1, channels=256, side=6, filters=32),
    Conv(side=11, stride=3),
]


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("conv", WAYS, ids=str)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_channels_last_is_copied_in_boxes(target: str, conv: Conv, dtype: str) -> None:
    made = check(Conv(**{**vars(conv), "dtype": dtype}).text, SMALL[target])
    assert instructions(made)
    assert copies(made) & {"cp.async", "tma"}


@pytest.mark.parametrize(("channels", "vector"), [(32, 8), (16, 4), (48, 4), (20, 1)])
def test_few_channels_of_a_group_are_brought_side_by_side(channels: int, vector: int) -> None:
    made = check(Conv(images=8, channels=channels, filters=32, groups=4, side=8).text, SMALL["sm_80"])
    inside = [n for k in made.kernels for s in k.body for n in s.walk()]
    (lanes,) = (n for n in inside if isinstance(n, tile.For) and n.var.startswith("x_tile_at"))
    assert dict(lanes.bind.args).get("vector", 1) == vector
    (sums,) = (n.tensor for n in inside if isinstance(n, tile.Alloc) and n.tensor.name == "o_")
    assert static(sums.shape[1]) == 8, "no more columns than a group has filters"


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("conv", [Conv(), Conv(images=3, side=16, filters=128), Conv(window=1, padding=0)], ids=str)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_channels_first_keeps_its_meaning(target: str, conv: Conv, dtype: str) -> None:
    made = check(Conv(**{**vars(conv), "dtype": dtype, "layout": "first"}).text, SMALL[target])
    assert instructions(made)


def test_large_images_are_permuted_once() -> None:
    made = check(Conv(images=16, side=16, filters=128, layout="first").text, SMALL["sm_90a"])
    assert {t.name for t in made.temps} >= {"x_permuted"}
    assert "tma" in copies(made)


def test_hopper_takes_images_by_the_copy_engine() -> None:
    made = check(Conv(images=8, filters=64, stride=2).text, SMALL["sm_90a"])
    assert copies(made) == {"tma"}
    assert all(name.startswith("wgmma") for name in instructions(made))


@pytest.mark.parametrize("extents", [(32, 56, 56), (8, 28, 28), (32, 14, 14), (1, 7, 7), (5, 9, 1)])
@pytest.mark.parametrize("length", [16, 64, 96, 128, 256])
def test_boxes_hold_what_was_asked_for(extents: tuple[int, ...], length: int) -> None:
    made = box(extents, length)
    size = 1
    for n in made:
        size *= n
    assert size == length
    assert count(extents, made) * length >= extents[0] * extents[1] * extents[2]
    assert all(n & (n - 1) == 0 for n in made[1:])


@pytest.mark.parametrize("filters", [24, 64])
def test_pixels_without_a_window_are_rows_of_a_matrix(filters: int) -> None:
    made = check(Conv(window=1, padding=0, side=8, filters=filters, layout="first").text, SMALL["sm_90a"])
    assert not made.temps
    assert copies(made) == {"tma"}


def test_what_a_step_leaves_out_is_not_permuted() -> None:
    conv = Conv(images=16, side=16, filters=128, window=1, padding=0, stride=2, layout="first")
    made = check(conv.text, SMALL["sm_90a"])
    assert [static(n) for t in made.temps for n in t.shape] == [16, 8, 8, 64]
    assert "tma" in copies(made)


SPREAD = """def f(x: {dtype}[4: 4096, 64: 1, 8: 512, 8: 64], w: {dtype}[64, 64, 3, 3]):
    with kernel("spread"):
        o[{axes}]: f32 = sum(({x} if {inside} else 0.0) * ({w} if {there} else 0.0) {depth})
    result(o, f32[4, 64, 2, 2, 8, 8])
"""


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_boxes_that_meet_no_position_of_a_kernel_are_zero(target: str, dtype: str) -> None:
    """Of a convolution transposed with steps of 2, each phase meets its own positions: whole boxes or none."""
    there = "(s * 2 + k < 3) & (t * 2 + l < 3)"
    x, w = "x[i, r, m - s, n - t]", "w[r, j, s * 2 + k, t * 2 + l]"
    given = {
        "dtype": dtype,
        "axes": "i: 4, j: 64, k: 2, l: 2, m: 8, n: 8",
        "x": x if dtype == "f32" else f"f32({x})",
        "w": w if dtype == "f32" else f"f32({w})",
        "inside": f"(m - s >= 0) & (n - t >= 0) & {there}",
        "there": there,
        "depth": "for r in range(64) for s in range(2) for t in range(2)",
    }
    made = check(SPREAD.format(**given), SMALL[target])
    assert instructions(made)
    assert copies(made) & {"cp.async", "tma"}
    boxes = [n.source for k in made.kernels for s in k.body for n in s.walk() if isinstance(n, tile.Copy)]
    assert any(isinstance(e, Select) for b in boxes for e in b.starts)
