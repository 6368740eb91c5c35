"""Pooling and resizing: the Tensor program gives what eager gives, for windows over every kind of edge."""

import pytest
import torch

from compiler.errors import Unsupported
from compiler.tests.eager import check, expressions

nan, inf = float("nan"), float("inf")


def inputs() -> dict[str, torch.Tensor]:
    x = torch.randn(2, 3, 11, 9)
    special = torch.randint(-2, 3, (1, 2, 6, 5)).float()
    special[0, 0, 1, 2], special[0, 0, 4], special[0, 1, :3, :3] = nan, inf, -inf
    special[0, 1, 5, 3:] = nan
    return {
        "x": x, "h": x.bfloat16(), "d": x.double(), "last": x.to(memory_format=torch.channels_last),
        "line": torch.randn(2, 3, 17),
        "box": torch.randn(1, 2, 5, 6, 4), "single": torch.randn(3, 7, 10), "special": special,
        "i": torch.randint(-9, 9, (2, 3, 6, 6)),
        "image": torch.randn(2, 3, 5, 4), "u": torch.randint(0, 255, (1, 2, 5, 4), dtype=torch.uint8),
        "wide": torch.randn(1, 1, 3, 41), "ramp": torch.arange(60.0).view(1, 1, 6, 10),
        "dimage": torch.randn(1, 2, 5, 4).double(),
    }  # fmt: skip


POOLS = """
    F.max_pool2d(x, 3), F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, (3, 2), (2, 1), (1, 0)), F.max_pool2d(x, 2, 1, 0, 2)
    F.max_pool2d(x, 2, 2, 1, ceil_mode=True), F.max_pool2d(x, 3, 3, 1, 2, True)
    F.max_pool2d(h, 3, 2), F.max_pool2d(last, 3, 2, 1)
    F.max_pool2d(single, 2), F.max_pool2d(i, 3, 1, 1)
    F.max_pool2d(d, 2, return_indices=True)
    F.max_pool1d(line, 3, 2, 1, ceil_mode=True)
    F.max_pool2d(special, 2, 1, 1)
    F.max_pool2d(special, 3, 2, 1, return_indices=True)
    F.max_pool2d(special, 2, 2, return_indices=True)
    F.max_pool1d(line, 2, 1, return_indices=True), F.max_pool1d(line[0], 4)
    F.max_pool3d(box, 2, 2, 1), F.max_pool3d(box, 2, return_indices=True)
    F.avg_pool2d(x, 3), F.avg_pool2d(x, 3, 2, 1)
    F.avg_pool2d(x, (3, 2), (2, 1), (1, 1), True)
    F.avg_pool2d(x, 3, 2, 1, True, False)
    F.avg_pool2d(x, 2, 2, 1, False, False), F.avg_pool2d(x, 3, 2, 1, True, True, 5)
    F.avg_pool2d(h, 3, 2), F.avg_pool2d(single, 2)
    F.avg_pool2d(i, 2, 2, 1), F.avg_pool2d(i, 3, 2, 1, True, False)
    F.avg_pool2d(x, 1), F.avg_pool2d(last, 4, 3, 2, True)
    F.avg_pool1d(line, 3, 2, 1, True), F.avg_pool1d(line, 3, 2, 1, True, False)
    F.avg_pool1d(line[0], 5), F.avg_pool3d(box, 2, 2, 1, True, False)
    F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (3, 5))
    F.adaptive_avg_pool2d(x, (None, 4)), F.adaptive_avg_pool2d(x, (14, 9))
    F.adaptive_avg_pool2d(single, (2, 5)), F.adaptive_avg_pool2d(h, 3)
    F.adaptive_avg_pool1d(line, 4), F.adaptive_avg_pool3d(box, (2, 3, 3))
    F.adaptive_avg_pool2d(x, 0), F.adaptive_avg_pool1d(line[0], 17)
    F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool2d(x, (3, 5), return_indices=True)
    F.adaptive_max_pool2d(special, 2, return_indices=True)
    F.adaptive_max_pool1d(line, 4, return_indices=True)
    F.adaptive_max_pool1d(line[0], 3), F.adaptive_max_pool3d(box, (2, 3, 3))
    F.lp_pool2d(x.abs(), 2, 2), F.max_pool2d(x[:0], 2), F.avg_pool2d(x[:0], 2)
"""

RESIZING = """
    F.interpolate(image, size=(10, 12)), F.interpolate(image, size=(7, 3))
    F.interpolate(image, size=1), F.interpolate(u, size=(7, 9))
    F.interpolate(image, scale_factor=2), F.interpolate(image, scale_factor=1.5)
    F.interpolate(image, scale_factor=(3, 0.5))
    F.interpolate(image, scale_factor=0.7), F.interpolate(wide, scale_factor=(1, 2.3))
    F.interpolate(wide, size=(3, 100)), F.interpolate(wide, size=(7, 29))
    F.interpolate(wide, scale_factor=1.7, recompute_scale_factor=True)
    F.interpolate(image.bfloat16(), size=8), F.interpolate(image[..., 0], size=9)
    F.interpolate(image[..., 0], scale_factor=3.0)
    F.interpolate(box, size=(7, 3, 9)), F.interpolate(box, scale_factor=2)
    F.interpolate(ramp, size=(9, 7), mode="nearest-exact")
    F.interpolate(image, scale_factor=1.5, mode="nearest-exact")
    F.interpolate(dimage, size=(9, 11))
    F.interpolate(image[..., 0], size=9, mode="nearest-exact")
    F.interpolate(box, size=(7, 3, 9), mode="nearest-exact")
    F.interpolate(image, size=(10, 12), mode="bilinear")
    F.interpolate(image, size=(10, 12), mode="bilinear", align_corners=True)
    F.interpolate(image, size=(7, 3), mode="bilinear")
    F.interpolate(image, size=1, mode="bilinear", align_corners=True)
    F.interpolate(image, scale_factor=1.5, mode="bilinear")
    F.interpolate(image, scale_factor=(3, 0.5), mode="bilinear", align_corners=True)
    F.interpolate(image, scale_factor=0.7, mode="bilinear")
    F.interpolate(image, scale_factor=(1.1, 2), mode="bilinear")
    F.interpolate(dimage, size=(9, 11), mode="bilinear")
    F.interpolate(image.half(), size=7, mode="bilinear")
    F.interpolate(image[..., 0], size=9, mode="linear")
    F.interpolate(image[..., 0], scale_factor=2.0, mode="linear", align_corners=True)
    F.interpolate(box, size=(7, 3, 9), mode="trilinear")
    F.interpolate(box, scale_factor=2, mode="trilinear", align_corners=True)
    F.interpolate(image, size=(9, 7), mode="bicubic")
    F.interpolate(image, scale_factor=1.5, mode="bicubic", align_corners=True)
    F.interpolate(dimage, size=(3, 2), mode="bicubic")
    F.pixel_shuffle(x[:, :1].expand(2, 4, 11, 9), 2), F.pixel_unshuffle(i, 3)
    F.channel_shuffle(image.expand(2, 3, 5, 4), 3)
"""


@pytest.mark.parametrize("expression", expressions(POOLS + RESIZING))
def test_agrees_with_eager(expression: str) -> None:
    check(f"({expression},)", inputs)


def test_interpolation_of_integers_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"upsample_bilinear2d.*integers"):
        check("F.interpolate(u, size=8, mode='bilinear')", inputs)
    with pytest.raises(Unsupported, match=r"upsample_bilinear2d_aa.*integers"):
        check("F.interpolate(u, size=8, mode='bilinear', antialias=True)", inputs)


def test_a_scale_by_which_pixels_are_made_of_none_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"upsample_bilinear2d_aa.*made of none"):
        check("torch.ops.aten._upsample_bilinear2d_aa(image, [10, 8], False, 0.5, 1.0)", inputs)
