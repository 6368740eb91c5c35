"""Few long rows on a machine of many cores: each sweep is a kernel that all of the machine takes part in."""

import math

import pytest
import torch
import torch.nn.functional as F

from compiler import frontend, pipeline
from compiler.ir.expr import static
from compiler.targets import cpu, nvidia
from compiler.targets.target import Target
from compiler.tests.called import called
from compiler.tests.meaning import fresh_seed


def normalised(x: torch.Tensor) -> torch.Tensor:
    """By what a batch gives, as a module does while it is trained."""
    return F.batch_norm(x, None, None, training=True)


def blocks(shape: tuple[int, ...], target: Target) -> list[int]:
    program = frontend.capture(normalised, [torch.empty(shape)]).program
    functions = pipeline.lower(program, target, until="kernel").stages["kernel"].functions
    return [math.prod(static(n) for n in f.grid) for f in functions]


@pytest.mark.parametrize("shape", [(204800, 32), (64, 32, 56, 56)])
def test_columns_of_a_batch_are_shared_out(shape: tuple[int, ...]) -> None:
    assert all(n >= nvidia.SM_90A.cores for n in blocks(shape, nvidia.SM_90A)), blocks(shape, nvidia.SM_90A)


def test_where_rows_are_short_or_cores_are_few_they_are_read_once() -> None:
    assert len(blocks((2048, 32), nvidia.SM_90A)) == 1
    assert len(blocks((204800, 32), cpu.AVX2)) == 1


def test_what_is_shared_out_is_right() -> None:
    torch.manual_seed(fresh_seed())
    x = torch.randn(1 << 16, 4) + 3
    torch.testing.assert_close(called(normalised, [x], "sm_90a"), normalised(x), rtol=1e-4, atol=1e-4)
