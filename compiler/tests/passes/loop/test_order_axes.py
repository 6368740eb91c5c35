"""Temporaries of GPUs lie as their readers go over them, whatever order inputs have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compiler
from compiler.ir.expr import const
from compiler.targets.nvidia import SM_90A
from compiler.tests.called import called
from compiler.tests.meaning import fresh_seed

BATCH, CHANNELS, SIZE = 2, 32, 12
Program = Callable[[Tensor, Tensor, Tensor], Tensor]


def _filters(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, padding=1, groups=x.shape[1])


# What reads the first temporary, and the axis that should be innermost in it.
PROGRAMS: dict[str, tuple[Program, int]] = {
    "convolutions read all channels": (lambda x, w, d: F.conv2d(F.conv2d(x, w, padding=1).relu(), w), 1),
    "depthwise filters, neighbouring ones": (lambda x, w, d: _filters(F.conv2d(x, w), d), 1),
    "norms over channels, these": (lambda x, w, d: F.layer_norm(F.conv2d(x, w).permute(0, 2, 3, 1), (CHANNELS,)), 1),
    "norms of groups take channels apart": (lambda x, w, d: F.group_norm(F.conv2d(x, w), 4), 3),
    "sums over pixels go along rows": (lambda x, w, d: F.conv2d(x, w).exp().sum((2, 3)), 3),
}


def inputs(order: torch.memory_format) -> list[Tensor]:
    x = torch.randint(-2, 3, (BATCH, CHANNELS, SIZE, SIZE)).float().to(memory_format=order)
    return [x, torch.randint(-1, 2, (CHANNELS, CHANNELS, 3, 3)) / 16, torch.randint(-2, 3, (CHANNELS, 1, 3, 3)) / 4]


def test_temporaries_of_a_network_with_branches_lie_alike() -> None:
    torch.manual_seed(fresh_seed())
    x, wide = (t.bfloat16() for t in (torch.randn(2, 16, 10, 10), torch.randn(64, 16, 1, 1) / 4))
    short, narrow = (t.bfloat16() for t in (torch.randn(64, 16, 1, 1) / 4, torch.randn(16, 64, 1, 1) / 8))

    def branches(x: Tensor, wide: Tensor, short: Tensor, narrow: Tensor) -> Tensor:
        x = F.max_pool2d(F.conv2d(x, wide), 3, 2, 1)[:, :16]
        y = (F.conv2d(F.conv2d(x, narrow[:, :16]).relu(), wide) + F.conv2d(x, short)).relu()
        return y + F.conv2d(F.conv2d(y, narrow).relu(), wide)

    given = [x, wide, short, narrow]
    lowering = compiler.lower(compiler.capture(branches, given).program, SM_90A)
    images = [t for t in lowering.stages["loop"].temps if len(t.shape) == 4]
    assert len(images) > 3 and all(t.strides[1] is const(1) for t in images), images
    torch.testing.assert_close(called(branches, given, SM_90A.name), branches(*given), rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=["pixels", "channels"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_temporary_lies_as_it_is_read(name: str, order: torch.memory_format) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    (program, axis), given = PROGRAMS[name], inputs(order)
    lowering = compiler.lower(compiler.capture(program, given).program, SM_90A)
    images = [t for t in lowering.stages["loop"].temps if len(t.shape) == 4]
    assert all(t.strides[axis] is const(1) for t in images if not t.name.endswith("_runs")), images
    torch.testing.assert_close(called(program, given, SM_90A.name), program(*given), msg=lambda m: f"{m}, seed {seed}")


def test_an_input_of_depthwise_filters_is_copied_into_the_order_of_what_is_made() -> None:
    torch.manual_seed(fresh_seed())

    def program(x: Tensor, w: Tensor, d: Tensor) -> Tensor:
        return F.layer_norm(_filters(x, d).permute(0, 2, 3, 1), (CHANNELS,))

    for order, copies in ((torch.contiguous_format, 1), (torch.channels_last, 0)):
        given = inputs(order)
        lowering = compiler.lower(compiler.capture(program, given).program, SM_90A)
        assert sum("ordered" in k.name for k in lowering.stages["loop"].kernels) == copies
        torch.testing.assert_close(called(program, given, SM_90A.name), program(*given), rtol=1e-4, atol=1e-4)


def test_what_joins_tensors_is_stored_before_it_is_multiplied_often() -> None:
    torch.manual_seed(fresh_seed())
    x, y, w = torch.randn(2, 8, 8, 8), torch.randn(2, 24, 8, 8), torch.randn(32, 32, 3, 3)
    given = [t.bfloat16() for t in (x, y, w)]

    def joined(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(torch.cat([x, y], 1), w, padding=1)

    kernels = compiler.lower(compiler.capture(joined, given).program, SM_90A).stages["loop"].kernels
    assert "cat_2x32x8x8_bf16" in {k.name for k in kernels}
    few = [given[0], given[1], given[2][:8]]
    kernels = compiler.lower(compiler.capture(joined, few).program, SM_90A).stages["loop"].kernels
    assert not any(k.name.startswith("cat") for k in kernels), "each element is multiplied eight times"
    torch.testing.assert_close(called(joined, given, SM_90A.name), joined(*given), rtol=2e-2, atol=2e-2)
