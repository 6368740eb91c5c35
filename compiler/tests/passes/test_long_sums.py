"""Long sums on CPUs are made of partial sums: their errors grow with the root of their length, not with the length."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import compiler
from compiler.analysis.long_sums import LEAST, LONG, long_sums
from compiler.ir import tile
from compiler.schedule.steps import Bind, PartialSums

NUMBER = 0.1  # what is lost of equal terms adds up
BOUND = 2e-5  # of a sum: one addition after the other loses 6e-4 of the shortest of these
CASES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "columns": (lambda x: x.sum(0), (1 << 18, 7)),
    "all": (lambda x: x.sum(), (1 << 22,)),
    "middle": (lambda x: x.sum(1), (4, 1 << 17, 5)),
    "several": (lambda x: x.mean((0, 1, 2)), (32, 64, 64, 16)),
    "running": (lambda x: x.cumsum(0), (1 << 16,)),
    "running-columns": (lambda x: x.cumsum(0), (1 << 16, 9)),
    "products": (lambda x: x @ x, (1 << 21,)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_equal_terms_add_up(name: str, dynamic: bool) -> None:
    function, shape = CASES[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="mlcomp", fullgraph=True, dynamic=dynamic)
    if dynamic:
        compiled(torch.ones([max(3, n // 1024) for n in shape]))
    x = torch.full(shape, NUMBER)
    wanted = function(x.double())
    assert float(((compiled(x).double() - wanted) / wanted).abs().max()) < BOUND


def scheduled(function: Callable[[Any], Any], shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
    program = compiler.capture(function, [torch.ones(shape).to(dtype)]).program
    return compiler.lower(program, compiler.target("cpu:avx2"), until="tile")


def steps_of(lowering: Any) -> list[PartialSums]:
    return [s for x in lowering.schedules.values() for s in x.steps if isinstance(s, PartialSums)]


@pytest.mark.parametrize("length", [LONG, LONG + 1])
def test_only_long_sums_are_taken_apart(length: int) -> None:
    steps = steps_of(scheduled(lambda x: x.sum(0), (length, 8)))
    assert [s.length for s in steps] == ([LEAST] if length > LONG else [])


def test_lanes_share_a_sum() -> None:
    """Each accumulator of a vectorised sum makes one addition for as many elements as there are lanes."""
    lowering = scheduled(torch.sum, (1 << 20,))
    (bound,) = [dict(s.args) for x in lowering.schedules.values() for s in x.steps if isinstance(s, Bind)]
    lanes = bound["width"] * bound.get("unroll", 1)
    assert [s.length for s in steps_of(lowering)] == [LEAST * lanes]


@pytest.mark.parametrize("shape", [(1 << 18, 7), (1 << 12, 1 << 12), (3, 1 << 17, 5)])
def test_no_long_sum_is_left(shape: tuple[int, ...]) -> None:
    lowering = scheduled(lambda x: x.var(-2), shape)
    assert len(steps_of(lowering)) == 2
    (kernel,) = lowering.stages["tile"].kernels
    assert isinstance(kernel.body[0], tile.For)
    assert not long_sums(kernel.body)


def test_integers_are_summed_as_they_are() -> None:
    assert not steps_of(scheduled(lambda x: x.sum(0), (1 << 18, 7), torch.int64))
