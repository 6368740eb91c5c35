"""Gradients that torch has as kernels only, by definitions of our own, against eager."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from compiler.frontend import decompositions

aten: Any = torch.ops.aten


def agree(op: Any, *given: Any, of: Any = "") -> None:
    """Our definition and eager give the same, but for what one of them leaves out."""
    for found, want in zip(
        pytree.tree_leaves(decompositions()[op](*given)), pytree.tree_leaves(op(*given)), strict=True
    ):
        if found is not None:
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5, equal_nan=True, msg=f"{op} {of or given}")


@pytest.mark.parametrize("p", [0, 0.5, 1, 1.5, 2, 3, math.inf])
def test_distances_that_are_zero_or_equal(p: float, seed: int) -> None:
    torch.manual_seed(seed)
    a, b, x = torch.randn(2, 4, 3), torch.randn(2, 5, 3), torch.randn(6, 3)
    b[0, 1], b[1, 4] = a[0, 2], torch.tensor([1.0, -1.0, 1.0])
    a[1, 0, 1], a[1, 3], x[3] = b[1, 2, 1], 0, x[1]
    every = aten._cdist_forward(a, b, p, None)
    agree(aten._cdist_backward.default, torch.randn_like(every), a, b, p, every)
    agree(aten._pdist_forward.default, x, p)
    pairs = torch.pdist(x, p)
    agree(aten._pdist_backward.default, torch.randn_like(pairs), x, p, pairs)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("corners", [False, True])
def test_samples_at_edges_and_outside(rank: int, corners: bool, seed: int) -> None:
    torch.manual_seed(seed)
    kind, sizes = torch.float64, (3, 4, 2)[:rank]  # differences of f32 cancel
    x, grad = torch.randn(2, 3, *(4, 5, 3)[:rank], dtype=kind), torch.randn(2, 3, *sizes, dtype=kind)
    grid = torch.rand(2, *sizes, rank, dtype=kind) * 4 - 2
    grid.view(-1)[:6] = torch.tensor([1, -1, 1, 0.5, -1, 1], dtype=kind)
    ops = {2: "grid_sampler_2d", 3: "grid_sampler_3d"}
    forward, backward = (getattr(aten, ops[rank] + part).default for part in ("", "_backward"))
    for how, padding in itertools.product((0, 1, 2) if rank == 2 else (0, 1), (0, 1, 2)):
        agree(forward, x, grid, how, padding, corners)
        agree(backward, grad, x, grid, how, padding, corners, [True, True])
        agree(backward, grad, x, grid, how, padding, corners, [False, True])
    grid.view(-1)[:3] = torch.tensor([math.nan, math.inf, -math.inf], dtype=kind)
    for how in (0, 1):  # elsewhere eager reads what is not its own
        agree(backward, grad, x, grid, how, 0, corners, [True, True])


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_bags_with_equal_rows(mode: int, seed: int) -> None:
    torch.manual_seed(seed)
    table = decompositions()
    weight, index = torch.randn(6, 3), torch.tensor([1, 2, 2, 5, 0, 2])
    weight[5] = weight[2]
    factors = torch.randn(6) if mode == 0 else None
    for padding, starts in itertools.product((-1, 2), ([0, 2, 2], [0, 0, 6], [0, 3, 4])):
        offsets = torch.tensor(starts)
        leaves = [x.clone().requires_grad_() for x in (weight, factors) if x is not None]
        want = aten._embedding_bag(
            leaves[0], index, offsets, False, mode, False, (*leaves[1:], None)[0], False, padding
        )
        grad = torch.randn_like(want[0])
        want[0].backward(grad)
        made = table[aten._embedding_bag.default](weight, index, offsets, False, mode, False, factors, False, padding)
        _, bag, size, largest = made
        found: list[Tensor] = [
            table[aten._embedding_bag_backward.default](
                grad, index, offsets, bag, size, largest, 6, False, mode, False, factors, padding
            )
        ]
        if factors is not None:
            how = table[aten._embedding_bag_per_sample_weights_backward.default]
            found.append(how(grad, weight, index, offsets, bag, mode, padding))
        torch.testing.assert_close(made[0], want[0])
        torch.testing.assert_close(found, [x.grad for x in leaves], msg=str((mode, padding, starts)))


def test_medians_and_masks() -> None:
    for x in (torch.randn(4, 7), torch.randn(4, 6), torch.randn(1, 3), torch.randint(0, 3, (4, 5)).float()):
        holes = x.masked_fill(torch.rand_like(x) < 0.2, math.nan)
        for given, axis, keep in itertools.product((x, holes), (0, 1), (False, True)):
            found, want = decompositions()[aten.median.dim](given, axis, keep), given.median(axis, keep)
            torch.testing.assert_close(found[0], want.values, equal_nan=True)
            assert found[1].shape == want.indices.shape
        picked = decompositions()[aten.median.dim](holes, 1, True)[1]
        torch.testing.assert_close(holes.gather(1, picked), holes.median(1, True).values, equal_nan=True)
        agree(aten.median.default, x)
        agree(aten.median.default, holes)
    agree(aten.masked_scatter_backward.default, torch.randn(4, 5), torch.rand(4, 5) < 0.5, [4, 6])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_what_passes_a_threshold_has_its_gradient(dtype: torch.dtype) -> None:
    """Rounded to 16 bits, numbers are above or below the threshold that they were."""
    for number in (0.1, 0.3, -0.7, 1.1):
        x = torch.tensor([number, -number, 0.0, math.nan], dtype=dtype)
        agree(aten.threshold_backward.default, torch.full_like(x, 3.0), x, number)


@pytest.mark.parametrize("eps", [None, -1.0, 0.0, 0.1])
def test_logits_at_their_ends(eps: float | None) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, 0.5, 0.05, 0.95, -1.0, 2.0, math.inf, -math.inf, math.nan])
    agree(aten.logit_backward.default, torch.full_like(x, 3.0), x, eps)
