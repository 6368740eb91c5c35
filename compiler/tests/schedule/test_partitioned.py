"""Elementwise rows that are cut where a condition on their place changes: which are, and that each part is right."""

import doctest
import operator
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler.analysis import breakpoints as analysis
from compiler.analysis.breakpoints import breakpoints
from compiler.ir.dtype import f32
from compiler.ir.expr import Load, Var, dim, op
from compiler.ir.statement import Store
from compiler.schedule.steps import Partition

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cat": lambda x: torch.cat([x, x[:, :5] * 2, x], 1),
    "roll": lambda x: x.roll(3, -1),
    "reflect": lambda x: F.pad(x, (4, 2), mode="reflect"),
    "replicate": lambda x: F.pad(x, (4, 2), mode="replicate"),
    "circular": lambda x: F.pad(x, (4, 2), mode="circular"),
    "constant": lambda x: F.pad(x, (4, 2), value=1.5) + 1,
}

# Of the padding around images, where windows reach beyond them.
IMAGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "unfold": lambda x: F.unfold(x, 3, padding=1),
    "places of the largest": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[1],
    "gradient of an average": lambda x: torch.ops.aten.avg_pool2d_backward(
        F.avg_pool2d(x, 3, 2, 1), x, [3, 3], [2, 2], [1, 1], False, True, None
    ),
}

HOW = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


def test_docstring_examples() -> None:
    assert doctest.testmod(analysis).failed == 0


@pytest.mark.parametrize("name", [*PROGRAMS, *IMAGES])
def test_rows_with_edges_are_cut_at_them(name: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    planes = (2, 3) if name in IMAGES else ()
    x = torch.randn(*planes, chance.randint(2, 9), chance.randint(40, 90))
    function = (PROGRAMS | IMAGES)[name]
    lowering = compiler.lower(compiler.capture(function, [x]).program, compiler.target("cpu:avx2"))
    steps = [step for schedule in lowering.schedules.values() for step in schedule.steps]
    assert any(isinstance(step, Partition) for step in steps), "\n".join(map(repr, steps))
    within = 1e-5 if name.startswith("gradient") else 0
    torch.testing.assert_close(compiler.compile(function, [x])(x), function(x), rtol=within, atol=within)


def test_breakpoints_are_where_a_comparison_turns() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    j = Var("j")
    for _ in range(300):
        how, extent = chance.choice(("lt", "le", "gt", "ge")), chance.randint(2, 40)
        times, rest, other = chance.choice((-3, -2, -1, 1, 2, 3)), chance.randint(-20, 20), chance.randint(-20, 20)
        cond = op(how, j * times + rest, dim(other))
        body = (Store("y", (j,), Load("x", (op("where", cond, j, j + 1),), f32)),)

        held = [HOW[how](n * times + rest, other) for n in range(extent)]
        turns = tuple(n for n in range(1, extent) if held[n] != held[n - 1])
        assert breakpoints(body, j, extent, {}, 8) == turns, cond
