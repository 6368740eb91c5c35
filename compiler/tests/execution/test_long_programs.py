"""Programs of hundreds of calls: no recursion runs out, kernels stay of a size that can be compiled, passes linear."""

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import pytest
import torch

from compiler import frontend, pipeline
from compiler.ir import aten
from compiler.pipeline import Lowering
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
    assert sys.getrecursionlimit() == max(before, pipeline._RECURSION_LIMIT)
    second.__exit__(None, None, None)
    assert sys.getrecursionlimit() == before


def cell(x: torch.Tensor, w: torch.Tensor, steps: int) -> torch.Tensor:
    h = torch.zeros(x.shape[1], w.shape[1])
    out = []
    for t in range(steps):
        h = torch.tanh(torch.cat([x[t], h], 1) @ w)
        out.append(h)
    return torch.stack(out)


def calls(work: Callable[[], object]) -> int:
    """How many functions of this project are called: a measure of work that no other process disturbs."""
    count = 0

    def seen(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and "compiler" in frame.f_code.co_filename

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def passes(program: aten.Program) -> Lowering:
    return pipeline.lower(program, cpu.AVX2, until="loop")


def test_passes_of_an_unrolled_loop_are_linear() -> None:
    """Four times the steps are about four times the work, where a search through all groups for each is 16 times."""
    counts = []
    for steps in (24, 96):
        example = [torch.randn(steps, 2, 3), torch.randn(8, 5)]
        program = frontend.capture(partial(cell, steps=steps), example).program
        counts.append(calls(partial(passes, program)))
    assert counts[1] < 4.6 * counts[0], counts
