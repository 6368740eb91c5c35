"""Each step of a schedule is an application of its own: numbered, traced, and left out or replaced at a gate."""

from __future__ import annotations

from itertools import pairwise

import pytest

from compiler import pipeline
from compiler.ir import loop_text
from compiler.ir.stages import IRS
from compiler.passes.applications import Application, Gate
from compiler.schedule.steps import Schedule, ScheduleError, parse
from compiler.targets import cpu

TEXT = """
def two(x: f32[64, 48], *, y: f32[64, 48], z: f32[64]):
    with kernel("scaled", [x, y], writes=[y]):
        for i in parallel(64):
            for j in parallel(48):
                y[i, j] = x[i, j] * 2.0
    with kernel("summed", [x, z], writes=[z]):
        for i in parallel(64):
            s: f32 = 0.0
            for j in reduce(48):
                s += x[i, j]
            z[i] = s
"""
SCHEDULES = {
    "scaled": parse('split("i", 16, into=("i0", "i1"))\nbind("i0", blocks)\nbind("j", vector, width=8)\n'),
    "summed": parse('bind("i", blocks)\nbind("j", vector, width=4, unroll=2)\n'),
}


def lowered(gate: Gate | None = None) -> tuple[str, list[Application]]:
    """The Tile IR, and the applications of steps."""
    seen: list[Application] = []
    given = loop_text.parse(TEXT)
    made = pipeline.lower(given, cpu.AVX2, SCHEDULES, source="loop", until="tile", gate=gate, trace=seen.append)
    return made.show("tile"), [a for a in seen if a.part_of]


def up_to(last: int) -> Gate:
    return lambda _, number: number <= last


def test_each_step_is_traced_as_what_it_changes() -> None:
    whole, steps = lowered()
    assert [a.kernel for a in steps] == ["scaled"] * 3 + ["summed"] * 2
    assert [a.name.partition("(")[0] for a in steps] == ["split", "bind", "bind", "bind", "bind"]
    assert [a.number for a in steps] == list(range(steps[0].number, steps[0].number + 5))
    assert all(a.before is b.after for b, a in pairwise(steps))
    assert IRS["tile"].show(steps[-1].after) == whole


def test_who_watches_changes_nothing() -> None:
    made = pipeline.lower(loop_text.parse(TEXT), cpu.AVX2, SCHEDULES, source="loop", until="tile")
    assert made.show("tile") == lowered()[0]


def test_a_bisect_cuts_between_steps() -> None:
    _, steps = lowered()
    for cut, last in enumerate(steps):
        made, some = lowered(up_to(last.number))
        assert [a.name for a in some] == [a.name for a in steps[: cut + 1]]
        assert made == IRS["tile"].show(last.after)


def test_a_step_is_left_out_by_name() -> None:
    made, steps = lowered(lambda name, _: not name.startswith('bind("j", vector, width=8'))
    assert "for j in serial(48)" in made and "width=4" in made and len(steps) == 4


def test_a_step_is_replaced_by_name() -> None:
    other = parse('split("i", 32, into=("i0", "i1"))')

    def gate(name: str, _: int) -> bool | Schedule:
        return other if name.startswith("split(") else True

    assert "for i0 in blocks(2)" in lowered(gate)[0]


def test_steps_that_need_one_that_is_left_out_say_so() -> None:
    with pytest.raises(ScheduleError, match="has no loop i0") as refused:
        lowered(lambda name, _: not name.startswith("split("))
    assert "a step before it was left out or replaced" in refused.value.__notes__
