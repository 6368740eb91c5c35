"""Programs of hundreds of calls: no recursion runs out, and kernels stay of a size that can be compiled."""

import sys
from collections.abc import Callable

import pytest
import torch

from compiler import frontend, pipeline
from compiler.targets import cpu


def waves(x: torch.Tensor) -> torch.Tensor:
    for _ in range(120):
        x = torch.sin(x) * 1.5
    return x


def softmaxes(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        x = torch.softmax(x, -1) + x
    return x


@pytest.mark.parametrize("function", [waves, softmaxes])
def test_long_chains(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    program = frontend.capture(function, [torch.randn(4, 64)]).program
    lowering = pipeline.lower(program, cpu.AVX2)
    assert 1 < len(lowering.stages["kernel"].functions) <= 8
    assert len(lowering.stages["cpp"]) < 200_000


def test_the_recursion_limit_stays_until_the_last_has_done() -> None:
    before = sys.getrecursionlimit()
    first, second = pipeline._deep_recursion(), pipeline._deep_recursion()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getrecursionlimit() == max(before, pipeline._DEEP)
    second.__exit__(None, None, None)
    assert sys.getrecursionlimit() == before
