"""Scatters hold the maps that only they read; on CPUs, counts of numbers up to a place are running totals."""

import pytest
import torch

import compiler
from compiler.execution.expression import capture
from compiler.pipeline import Lowering, lower
from compiler.targets.cpu import AVX512
from compiler.targets.nvidia import SM_90A

ENDS = [-(2**63), 2**63 - 1, -1, 0, 39, 40]


def lowered(expression: str, target: compiler.Target = AVX512) -> Lowering:
    return lower(capture(expression, 1)[2].program, target, until="loop")


@pytest.mark.parametrize("how", ["<=", "<"])
def test_a_count_up_to_each_place_is_a_running_total(how: str) -> None:
    """Whatever the numbers are: in any order, several times, or no places."""

    def counted(x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(40)[:, None]
        return (x <= places if how == "<=" else x < places).sum(-1)

    x = torch.cat([torch.randint(-3, 44, (50,)), torch.tensor(ENDS)])[torch.randperm(56)]
    made = compiler.compile(counted, [x])
    assert torch.equal(made(x), counted(x)), x
    assert [t.name for t in made.lowering.stages["loop"].temps] == ["sum_1_each"]


def test_a_few_numbers_are_compared_with_each_place() -> None:
    assert not lowered("(torch.randint(0, 9, (5,)) <= torch.arange(40)[:, None]).sum(-1)").stages["loop"].temps


def test_a_scatter_makes_what_only_it_reads() -> None:
    text = "torch.zeros(9, 8).index_add(0, torch.randint(0, 9, (70,)), torch.randn(70, 8) * 2 + 1)"
    assert not lowered(text).stages["loop"].temps
    assert len(lowered(text, SM_90A).stages["loop"].temps) == 1  # made once, and not while blocks wait for each other


@pytest.mark.parametrize("target", [AVX512, SM_90A])
def test_elements_that_are_set_are_made_there_from_several_maps(target: compiler.Target) -> None:
    """Such as the rotated keys of a token, in the kernel that writes them to a cache."""
    text = """
(lambda cache, at, x, c, s: cache.index_copy(0, at, x * c + torch.cat([-x[:, 4:], x[:, :4]], 1) * s))(
    torch.zeros(9, 8), torch.tensor([4, 2, 7]), torch.randn(3, 8), torch.randn(8), torch.randn(8))
"""
    assert not lowered(text, target).stages["loop"].temps


@pytest.mark.parametrize(
    ("source", "temporaries", "results"),
    [
        ("torch.randn(70, 8).exp()", 1, 1),  # dear, and better made by all cores
        (
            "(lambda x: (x, torch.zeros(9, 8).index_add(0, torch.randint(0, 9, (70,)), x)))(torch.randn(70, 8) * 2)",
            0,
            2,
        ),
        ("(torch.randn(70, 8).exp() + torch.randn(70, 8).sin())", 1, 1),  # one tensor is less to store than two
    ],
)
def test_what_is_read_elsewhere_or_costs_more_is_made_before(source: str, temporaries: int, results: int) -> None:
    text = source if results > 1 else f"torch.zeros(9, 8).index_add(0, torch.randint(0, 9, (70,)), {source})"
    program = lowered(text).stages["loop"]
    assert (len(program.temps), len(program.outputs)) == (temporaries, results)


def test_what_is_updated_in_place_is_read_before() -> None:
    def updated(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.index_add_(0, index, x * 2)

    x, index = torch.randn(70, 8), torch.randint(0, 70, (70,))
    expected = updated(x.clone(), index)
    torch.testing.assert_close(torch.compile(updated, backend="mlcomp")(x, index), expected)
    torch.testing.assert_close(x, expected)
