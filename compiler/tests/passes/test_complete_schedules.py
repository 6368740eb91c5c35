"""What a schedule is completed with decides what is emitted: it replays, and without it other code is emitted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler.ir.expr import static
from compiler.ir.tile import Alloc
from compiler.schedule import steps
from compiler.schedule.steps import Bind, Cache, Checks, Schedule, ScheduleError
from compiler.targets import cpu


def softmax_sum(x: Any) -> Any:
    return torch.softmax(x, -1) + 1


CASES: list[tuple[Callable[[Any], Any], tuple[int, ...], str, str, str]] = [
    (torch.exp, (20,), "cpu:avx2", "vector", "again"),
    (softmax_sum, (5, 100), "cpu:avx2", "vector", "again"),
    (torch.sum, (1 << 20,), "sm_90a", "lanes", "ahead"),
]


def lowered(program: Any, target: str, schedules: dict[str, Schedule] | None = None) -> tuple[Any, dict[str, Schedule]]:
    made = compiler.lower(program, compiler.target(target), schedules)
    return [f.body for f in made.stages["kernel"].functions], dict(made.schedules)


@pytest.mark.parametrize(("function", "shape", "target", "level", "argument"), CASES)
def test_arguments_of_bindings(
    function: Callable[[Any], Any], shape: tuple[int, ...], target: str, level: str, argument: str
) -> None:
    program = compiler.capture(function, [torch.zeros(shape)]).program
    emitted, chosen = lowered(program, target)
    ((name, schedule),) = chosen.items()
    bound = [s for s in schedule.steps if isinstance(s, Bind) and s.level == level]
    assert any(argument in dict(s.args) for s in bound)
    assert lowered(program, target, {name: steps.parse(steps.show(schedule))})[0] == emitted

    def without(s: Any) -> Any:
        return s.replace(args=tuple(a for a in s.args if a[0] != argument)) if s in bound else s

    bare = Schedule(tuple(map(without, schedule.steps)))
    assert lowered(program, target, {name: bare})[0] != emitted


def test_lines_that_copies_ask_for() -> None:
    """Those of 128 bytes by default; of other sizes, or of none, if the schedule says so."""
    inputs = [torch.zeros(256, 256, dtype=torch.bfloat16) for _ in range(2)]
    program = compiler.capture(torch.mm, inputs).program
    emitted, chosen = lowered(program, "sm_80")
    ((name, schedule),) = chosen.items()
    assert {s.prefetch for s in schedule.steps if isinstance(s, Cache) and s.how == "cp.async"} == {128}
    assert lowered(program, "sm_80", {name: steps.parse(steps.show(schedule))})[0] == emitted

    def asking(prefetch: int) -> Any:
        changed = (s.replace(prefetch=prefetch) if isinstance(s, Cache) and s.prefetch else s for s in schedule.steps)
        return lowered(program, "sm_80", {name: Schedule(tuple(changed))})[0]

    assert emitted == asking(128) != asking(64) != asking(0) != emitted


def test_checks_of_data() -> None:
    program = compiler.capture(lambda x, i: x[:, i], [torch.zeros(50, 99), torch.zeros(40, dtype=torch.int64)]).program
    emitted, chosen = lowered(program, "cpu:avx2")
    ((name, schedule),) = chosen.items()
    assert isinstance(schedule.steps[-1], Checks)
    assert lowered(program, "cpu:avx2", {name: steps.parse(steps.show(schedule))})[0] == emitted
    assert lowered(program, "cpu:avx2", {name: Schedule(schedule.steps[:-1])})[0] != emitted
    with pytest.raises(ScheduleError, match="threads check data one iteration at a time"):
        lowered(program, "sm_90a", {name: Schedule((Checks(ahead=8),))})


def test_rows_of_tiles_do_not_share_few_sets_of_a_cache() -> None:
    """Those of the panel of weights, 512 f32 wide, would all fall on two of every 64 lines: they are a line longer."""
    machine = cpu.AVX512.replace(cores=2, l1=48 << 10, l2=1 << 20)
    program = compiler.capture(F.linear, [torch.zeros(64, 2048), torch.zeros(2048, 2048)]).program
    made = compiler.lower(program, machine, until="tile").stages["tile"]
    tiles = [n.tensor for k in made.kernels for s in k.body for n in s.walk() if isinstance(n, Alloc)]
    steps_between = {t.name: [static(n) * t.dtype.bytes for n in t.strides] for t in tiles}
    assert tiles and not [x for x in steps_between.values() if any(n % 512 == 0 for n in x)], steps_between
