"""What steps make is called as nothing else of a kernel is."""

from __future__ import annotations

import pytest

from compiler import pipeline
from compiler.ir import loop_text
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.tile.fresh_names import fresh_names
from compiler.passes.tile.steps import apply
from compiler.schedule.steps import NameTaken, parse, show
from compiler.targets import cpu
from compiler.tests.meaning import fresh_seed, same_meaning

# What a matmul's loop j is split into is called as a loop of it, and as a value beside it.
PRODUCT = """
def matmul(a: f32[130, 520], b: f32[520, 900], *, y: f32[130, 900]):
    with kernel("matmul", [a, b, y], writes=[y]):
        for j in parallel(130):
            for j1 in parallel(900):
                c: f32 = 0.0
                for k in reduce(520):
                    c += a[j, k] * b[k, j1]
                k0 = c + 1.0
                y[j, j1] = max(k0, 0.0)
"""
TAKEN = {
    "a loop": ('split("j", 4, into=("j0", "j1"))', "j1"),
    "a scalar": ('split("j", 4, into=("c", "j2"))', "c"),
    "a value": ('collapse("j", "j1", into="k0")', "k0"),
    "a buffer": ('split("j", 4, into=("j0", "y"))', "y"),
    "its own": ('split("j", 4, into=("j0", "j0"))', "j0"),
    "what another step made": ('split("j", 4, into=("j0", "j2"))\nsplit("j1", 4, into=("j2", "j3"))', "j2"),
    "what a stem makes": ('split("j", 4, into=("j0", "j1_first"))\ndistribute("c", ("j1",), into=("j1",))', "j1_first"),
}


@pytest.mark.parametrize("how", TAKEN)
def test_a_name_that_is_taken_is_refused(how: str) -> None:
    steps, name = TAKEN[how]
    program = loop_to_tile(loop_text.parse(PRODUCT))
    with pytest.raises(NameTaken, match=f"kernel matmul has something else that is called {name}; choose another name"):
        apply(program, program.kernels[0], parse(steps))


def test_what_a_step_replaces_leaves_its_name() -> None:
    program = loop_to_tile(loop_text.parse(PRODUCT))
    made = apply(program, program.kernels[0], parse('split("j", 4, into=("j", "i"))'))
    same_meaning(("tile", program), ("tile", made), fresh_seed())


def test_a_stem_becomes_longer_where_one_of_its_names_is_taken() -> None:
    given = loop_text.parse(PRODUCT.replace("k0", "j1_first"))
    steps = parse('distribute("c", ("j1",), into=("j1",))\nbind("j1_last", vector, width=8)')
    made = fresh_names(given, given.kernels[0], steps)
    assert show(made) == 'distribute("c", ("j1",), into=("j1_",))\nbind("j1__last", vector, width=8)\n'


def test_a_stem_stays_where_the_loop_that_it_is_like_is_called_otherwise() -> None:
    given = loop_text.parse(PRODUCT.replace("k0", "j10"))
    steps = 'split("j1", 4, into=("{0}", "j11"))\ndistribute("c", ("{0}", "j11"), into=("j10", "i"))\n'
    assert show(fresh_names(given, given.kernels[0], parse(steps.format("j10")))) == steps.format("j10_")


def test_a_heuristic_finds_other_names() -> None:
    given = loop_text.parse(PRODUCT)
    made = pipeline.lower(given, cpu.AVX2, source="loop", until="tile")
    (text,) = map(show, made.schedules.values())
    assert made.fallbacks == () and "tensorize" in text, text
    assert "k0_" in text, text
    same_meaning(("loop", given), ("tile", made.stages["tile"]), fresh_seed())
