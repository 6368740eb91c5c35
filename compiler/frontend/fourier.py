"""Discrete Fourier transforms along the last dimension, as products with matrices of at most `LEAF` rows.

A longer length is split recursively into two factors (Cooley-Tukey), with a multiplication by twiddle factors between
the two transforms. A prime length up to `LONGEST` is one matrix product. Matrices and twiddle factors are constants of
the graph, computed in f64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LEAF = 64  # the longest transform that is not split
LONGEST = 1024  # a prime length beyond this is refused

# Looks up a constant.
ConstantLookup = Callable[["Roots"], Tensor]


@dataclass(frozen=True)
class Roots:
    """A constant of n-th roots of unity with exponents of sign `sign`.

    For the kind "matrix": a [2n, 2n] matrix that multiplies rows of n real parts and n imaginary parts. For "cosines"
    and "sines": the twiddle factors at j * k for j < rows and k < n / rows.
    """

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
        exponents = torch.arange(self.rows).unsqueeze(1) * torch.arange(columns) % self.n
        angle = exponents.double() * (2 * math.pi / self.n)
        cosine, sine = torch.cos(angle), self.sign * torch.sin(angle)
        if self.kind == "matrix":
            table = torch.cat([torch.cat([cosine, sine], 1), torch.cat([-sine, cosine], 1)], 0)
        else:
            table = cosine if self.kind == "cosines" else sine
        return table.to(self.dtype)


def split_factor(n: int) -> int:
    """The largest divisor of a length up to its square root; 1 if the length is not split."""
    if n <= LEAF:
        return 1
    return max((d for d in range(1, math.isqrt(n) + 1) if n % d == 0), default=1)


def transform(re: Tensor, im: Tensor, sign: int, constant: ConstantLookup) -> tuple[Tensor, Tensor]:
    """The sums over j of x[j] exp(sign 2 pi i j k / n), along the last dimension."""
    n = re.shape[-1]
    first = split_factor(n)
    if first == 1:
        product = torch.matmul(torch.cat([re, im], -1), constant(Roots("matrix", n, n, sign, re.dtype)))
        return product[..., :n], product[..., n:]
    second = n // first
    rows = [x.reshape(*x.shape[:-1], first, second).transpose(-1, -2) for x in (re, im)]
    re, im = transform(rows[0], rows[1], sign, constant)
    cosine, sine = (constant(Roots(kind, n, second, sign, re.dtype)) for kind in ("cosines", "sines"))
    twiddled = (re * cosine - im * sine, re * sine + im * cosine)
    re, im = transform(twiddled[0].transpose(-1, -2), twiddled[1].transpose(-1, -2), sign, constant)
    return re.transpose(-1, -2).flatten(-2), im.transpose(-1, -2).flatten(-2)


def needed_constants(n: int, sign: int, dtype: torch.dtype) -> list[Roots]:
    """The constants of a transform; empty if its length is refused."""
    first = split_factor(n)
    if first == 1:
        return [Roots("matrix", n, n, sign, dtype)] if n <= LONGEST else []
    of_factors = [needed_constants(first, sign, dtype), needed_constants(n // first, sign, dtype)]
    twiddles = [Roots(kind, n, n // first, sign, dtype) for kind in ("cosines", "sines")]
    return [*twiddles, *of_factors[0], *of_factors[1]] if all(of_factors) else []
