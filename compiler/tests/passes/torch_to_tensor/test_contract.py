"""Matmuls, einsum and convolution: the Tensor program gives what eager gives."""

import math

import pytest
import torch
import torch.nn.functional as F

from compiler import frontend
from compiler.ir.expr import static
from compiler.ir.tensor import Reduce
from compiler.passes.torch_to_tensor.lower import lower
from compiler.tests.called import called
from compiler.tests.eager import check, expressions
from compiler.tests.meaning import fresh_seed

nan = float("nan")


def matrices() -> dict[str, torch.Tensor]:
    i = torch.randint(-9, 10, (4, 5))
    return {
        "a": torch.randn(3, 4, 5), "m": torch.randn(4, 5), "k": torch.randn(5, 6), "v": torch.randn(5), "i": i,
        "j": torch.randint(-9, 10, (5, 3)), "bk": torch.randn(3, 5, 2), "ba": torch.randn(2, 1, 4, 5),
        "c": torch.randn(6), "l": torch.randn(6, 2), "row": torch.randn(4), "nans": torch.full((6,), nan),
        "w": torch.randn(7, 5), "bias": torch.randn(7), "one": torch.randn(1, 5, 2), "square": torch.randn(3, 3),
        "mt": torch.randn(5, 4).t(), "e": torch.zeros(3, 0), "f": torch.zeros(0, 2), "ring": torch.randn(2, 4),
        "start": torch.randn(3, 1, 2), "flat": torch.randn(4, 2), "heads": torch.randn(2, 3, 4, 5),
        "others": torch.randn(2, 3, 6, 5),
    }  # fmt: skip


def images() -> dict[str, torch.Tensor]:
    return {
        "x1": torch.randn(2, 4, 9), "x2": torch.randn(2, 4, 7, 8), "x3": torch.randn(1, 2, 4, 5, 6),
        "w1": torch.randn(6, 4, 3), "w2": torch.randn(6, 4, 3, 3), "w3": torch.randn(3, 2, 3, 3, 3),
        "grouped": torch.randn(6, 2, 3, 3), "depth": torch.randn(8, 1, 3, 3), "point": torch.randn(6, 4, 1, 1),
        "t1": torch.randn(4, 3, 3), "t2": torch.randn(4, 3, 3, 2), "t3": torch.randn(2, 3, 2, 2, 2),
        "b6": torch.randn(6), "last": torch.randn(2, 4, 7, 8).contiguous(memory_format=torch.channels_last),
    }  # fmt: skip


PRODUCTS = """
    m @ k
    mt @ k
    i @ j
    m.bfloat16() @ k.bfloat16()
    (m.bfloat16() @ k.bfloat16()) @ l.bfloat16()
    torch.bmm(a, bk)
    a @ k
    ba @ bk
    m @ v
    v @ k
    v @ v
    v @ bk
    a @ v
    e @ f
    torch.mv(m, v)
    torch.dot(v, v + 1)
    torch.outer(v, c)
    torch.outer(v.bfloat16(), c > 0)
    torch.outer(v > 0, c > 0)
    torch.addmm(c, m, k, beta=0.5, alpha=2)
    torch.addmm(nans, m, k, beta=0)
    torch.baddbmm(start, a, bk, alpha=2)
    torch.addmv(row, m, v)
    torch.addbmm(flat, a, bk)
    F.linear(a, w, bias)
    F.linear(v, w)
    F.linear(a, v)
    F.linear(a.bfloat16(), w.bfloat16(), bias.bfloat16())
    torch.einsum("ij,jk->ik", m, k)
    torch.einsum("ij,jk", m, k)
    torch.einsum("bij,kj->bik", a, w)
    torch.einsum("...ij,...jk->...ik", a, one)
    torch.einsum("ii->i", square)
    torch.einsum("ii", square)
    torch.einsum("ij->", m)
    torch.einsum("ij->ji", m)
    torch.einsum("i,j->ij", v, c)
    torch.einsum("ij,ij->i", m, m)
    torch.einsum("bhqd,bhkd->bhqk", heads, others)
    torch.einsum("...i,...i", a, a)
    torch.einsum("i...->...", a)
    torch.einsum("ab,bc,cd,da->", m, k, l, ring)
    torch.einsum("Ab,bA", square, square)
"""

CONVOLUTIONS = """
    F.conv1d(x1, w1, b6)
    F.conv1d(x1, w1, stride=2, padding=3, dilation=2)
    F.conv1d(x1, w1, padding="same")
    F.conv2d(x2, w2, b6, padding=1)
    F.conv2d(x2, grouped, groups=2, stride=(1, 2), padding=(0, 2), dilation=(2, 1))
    F.conv2d(x2, depth, groups=4, padding=1)
    F.conv2d(x2, point)
    F.conv2d(x2.bfloat16(), w2.bfloat16())
    F.conv2d(last, w2)
    F.conv3d(x3, w3, padding=1)
    F.conv_transpose1d(x1, t1, stride=2, padding=1, output_padding=1)
    F.conv_transpose2d(x2, t2, b6, stride=(2, 3), padding=1, dilation=2, groups=2)
    F.conv_transpose2d(x2, t2, stride=3, output_padding=2)
    F.conv_transpose3d(x3, t3)
"""


@pytest.mark.parametrize("expression", expressions(PRODUCTS))
def test_products(expression: str) -> None:
    check(expression, matrices)


@pytest.mark.parametrize("expression", expressions(CONVOLUTIONS))
def test_convolutions(expression: str) -> None:
    check(expression, images)


@pytest.mark.parametrize(
    ("size", "dilation", "taps"), [(3, 1, [1, 2, 2, 4]), (5, 1, [4, 6, 6, 9]), (1, 1, [1]), (3, 2, [9]), (4, 1, [4])]
)
def test_transposed_convolutions_by_parts_sum_no_zeros(size: int, dilation: int, taps: list[int]) -> None:
    """Each phase is a sum of its own where they have not all as many positions of the kernel; some have none."""
    torch.manual_seed(seed := fresh_seed())
    x, w = torch.randn(2, 4, 9, 9), torch.randn(4, 3, size, size)

    def doubled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(x, w, stride=2, dilation=dilation)

    program = lower(frontend.capture(doubled, [x, w]).program, split_sums=True)
    sums = [e for g in program.groups for e in g.equations if isinstance(e, Reduce)]
    assert sorted(math.prod(static(a.extent) for a in e.over[1:]) for e in sums) == taps
    near = x.contiguous(memory_format=torch.channels_last)
    for image in (x, near):
        torch.testing.assert_close(called(doubled, [image, w], "cpu"), doubled(image, w), msg=f"seed {seed}")
