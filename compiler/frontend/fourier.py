"""Discrete Fourier transforms along a dimension, as products with matrices of at most `LEAF` rows.

A length is split into two factors, and each of these again, as long as it is longer than that and has some (Cooley and
Tukey): what lies between the two steps is one multiplication by roots of unity. The matrices and the roots are
constants of the graph, which are computed in f64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LEAF = 64  # the longest transform that is not split
LONGEST = 1024  # a prime length beyond this is refused

# A constant by its name: `matrix`, or `cosines` and `sines` of two factors, with its sizes.
Constant = Callable[["Roots"], Tensor]


@dataclass(frozen=True)
class Roots:
    """Roots of unity of order n, turning by `sign`: as [2n, 2n] that a row of real parts and then of imaginary ones is
    multiplied by, or as cosines or sines at j * k for all j < rows and k < n / rows."""

    kind: str
    n: int
    rows: int
    sign: int
    dtype: torch.dtype

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.n}_{self.rows}_{'plus' if self.sign > 0 else 'minus'}_{str(self.dtype)[6:]}"

    def value(self) -> Tensor:
        columns = self.n if self.kind == "matrix" else self.n // self.rows
        turns = torch.arange(self.rows).unsqueeze(1) * torch.arange(columns) % self.n
        angle = turns.double() * (2 * math.pi / self.n)
        cosine, sine = torch.cos(angle), self.sign * torch.sin(angle)
        if self.kind == "matrix":
            made = torch.cat([torch.cat([cosine, sine], 1), torch.cat([-sine, cosine], 1)], 0)
        else:
            made = cosine if self.kind == "cosines" else sine
        return made.to(self.dtype)


def factor(n: int) -> int:
    """A divisor of a length that is to be split, the largest up to its root; 1 where it is not."""
    if n <= LEAF:
        return 1
    return max((d for d in range(1, math.isqrt(n) + 1) if n % d == 0), default=1)


def transform(re: Tensor, im: Tensor, sign: int, constant: Constant) -> tuple[Tensor, Tensor]:
    """The sums over j of x[j] exp(sign 2 pi i j k / n), along the last dimension."""
    n = re.shape[-1]
    first = factor(n)
    if first == 1:
        made = torch.matmul(torch.cat([re, im], -1), constant(Roots("matrix", n, n, sign, re.dtype)))
        return made[..., :n], made[..., n:]
    second = n // first
    rows = [x.reshape(*x.shape[:-1], first, second).transpose(-1, -2) for x in (re, im)]
    re, im = transform(rows[0], rows[1], sign, constant)
    cosine, sine = (constant(Roots(kind, n, second, sign, re.dtype)) for kind in ("cosines", "sines"))
    turned = (re * cosine - im * sine, re * sine + im * cosine)
    re, im = transform(turned[0].transpose(-1, -2), turned[1].transpose(-1, -2), sign, constant)
    return re.transpose(-1, -2).flatten(-2), im.transpose(-1, -2).flatten(-2)


def needed(n: int, sign: int, dtype: torch.dtype) -> list[Roots]:
    """The constants of a transform; none where its length is refused."""
    first = factor(n)
    if first == 1:
        return [Roots("matrix", n, n, sign, dtype)] if n <= LONGEST else []
    below = [needed(first, sign, dtype), needed(n // first, sign, dtype)]
    twiddles = [Roots(kind, n, n // first, sign, dtype) for kind in ("cosines", "sines")]
    return [*twiddles, *below[0], *below[1]] if all(below) else []
