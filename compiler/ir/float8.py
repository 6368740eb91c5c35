"""8-bit floats: the values of all bit patterns, and rounding to nearest, ties to even.

As in PyTorch, values that are too large, infinities included, become the largest number in `f8e4m3` and infinity in
`f8e5m2`.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from compiler.ir.dtype import DType


class Format(NamedTuple):
    """Bits of the fraction, exponent of the smallest normal number, and the bit pattern for overflow."""

    fraction: int
    least: int
    over: int


FORMATS = {"f8e4m3": Format(3, -6, 0x7E), "f8e5m2": Format(2, -14, 0x7C)}
NAN = 0x7F


@functools.cache
def values(name: str) -> tuple[float, ...]:
    """The value of each of the 256 bit patterns."""
    fraction, least, over = FORMATS[name]
    positive = []
    for bits in range(128):
        exponent, rest = bits >> fraction, bits & ((1 << fraction) - 1)
        scale = 2.0 ** (least - fraction + max(exponent - 1, 0))
        positive.append((rest + (bool(exponent) << fraction)) * scale)
    if name == "f8e5m2":
        positive[over:] = [math.inf, *[math.nan] * (127 - over)]
    positive[NAN] = math.nan
    return tuple(positive) + tuple(-x for x in positive)


def bits_of(value: float, dtype: DType) -> int:
    """The bit pattern of the number of that type closest to a value.

    >>> from compiler.ir.dtype import f8e4m3, f8e5m2
    >>> [hex(bits_of(x, t)) for x, t in ((-1.0, f8e4m3), (1e9, f8e4m3), (1e9, f8e5m2))]
    ['0xb8', '0x7e', '0x7c']
    """
    sign = 0x80 if math.copysign(1.0, value) < 0 else 0
    if math.isnan(value):
        return sign | NAN
    fraction, least, over = FORMATS[dtype.name]
    size = abs(value)
    if math.isinf(size):
        return sign | over
    exponent = max(math.frexp(size)[1] - 1, least) if size else least
    steps = round(math.ldexp(size, fraction - exponent))  # ties to even
    return sign | min(steps + ((exponent - least) << fraction), over)
