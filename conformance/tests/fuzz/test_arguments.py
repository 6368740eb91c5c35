"""Random programs whose arguments are Python's numbers, or tensors of many elements."""

from __future__ import annotations

import random
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import compiler
from conformance.fuzz import blame, check, corpus, generate, literals, mutate, reduce, regression, relations, runs
from conformance.fuzz.asked import DEFAULT
from conformance.fuzz.drawing import LARGE, Drawing, NotFitting, Value
from conformance.fuzz.program import (
    Program,
    as_line,
    bind_numbers,
    call_arguments,
    describe_arguments,
    function,
    gradient_flags,
)
from conformance.shapes.cases import Arg

SEED = random.SystemRandom().randrange(2**31)
OPTIONS = {"target": "cpu"}
X = Arg("x0", (6, 7), "f32")
LINES = ("t0 = torch.clamp(x0, -k0, k1)", "t1 = t0.sum(k2) * k0", "t1.add_(k0)")
POINTS = ({"k0": 0.5, "k1": 2, "k2": 0}, {"k0": 1.0, "k1": 3, "k2": 1})
NUMBERED = Program(SEED, 0, (X,), LINES, ("t1",), (), POINTS, numbers=("k0", "k1", "k2"))


def told(at: str) -> None:
    """Nobody listens."""


def test_numbers_become_arguments_with_the_values_that_they_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "NUMBER_SHARES", (0.5, 0.5))
    drawn = [generate.program(SEED, index) for index in range(30)]
    some = [p for p in drawn if p.numbers]
    assert len(some) >= 10 and any(p.dynamic for p in some), SEED
    assert {type(n) for p in some for n in call_arguments(p, p.points[0])[len(p.args) :]} == {int, float}, SEED
    for p in some:
        plain = p.lines
        for name in p.numbers:
            assert literals.is_used(p.lines, name) and name in as_line(p) and f"{name} = " in describe_arguments(p), (
                SEED,
                as_line(p),
            )
            plain = tuple(literals.substitute_number(text, name, p.points[0][name]) for text in plain)
        without = replace(p, lines=plain, points=({},), varying={}, numbers=())
        first = replace(p, points=p.points[:1], varying={})
        a, b = (runs.call(function(q), call_arguments(q, q.points[0]), gradient_flags(q)) for q in (first, without))
        for x, y in zip(a.outputs, b.outputs, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
        assert corpus.program_from_json(corpus.program_to_json(p)) == p
        assert all(generate.runs_at(p, point) for point in p.points), (SEED, as_line(p))


def test_a_text_without_numbers_has_none_to_name() -> None:
    assert literals.replace_number("x0[True] + x1 + '2'", "k0", random.Random(SEED)) is None


def test_numbers_pass_every_check() -> None:
    what = ("graph", "relation", "export", "schedule")
    row = check.check_program(NUMBERED, {**OPTIONS, "what": what}, told)
    assert row.verdict == "pass", (SEED, row)
    named, cleared = blame.blame_program(NUMBERED, OPTIONS, told)
    assert cleared, named
    assert [one.kind for one in relations.relations(replace(NUMBERED, lines=(*LINES[:1], "t1 = t0 * k1")))], SEED


@pytest.mark.parametrize("others", [(5, 9), (5, 0), (5, -2)])
def test_numbers_that_a_program_is_told_are_judged_with_it(others: tuple[int, int]) -> None:
    points = tuple({"k0": n} for n in others)
    made = Program(SEED, 3, (X,), ("t0 = x0 * k0 + k0",), ("t0",), (), points, numbers=("k0",))
    assert check.find_difference(made, "cpu", ("graph",)) is None, SEED
    named, cleared = blame.blame_program(made, OPTIONS, told)
    assert cleared, (SEED, named)


def test_a_wrong_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(program: Program, **options: object) -> object:
        first = bind_numbers(program, program.points[0])
        return lambda x, *_: first(x)

    monkeypatch.setattr(check, "fresh_compiled", stale)
    found = check.find_difference(NUMBERED, "cpu")
    assert found is not None and "k0 = 1.0" in found.message, found


def test_a_program_with_numbers_is_reduced_and_written_down(tmp_path: Path) -> None:
    least = reduce.minimise(NUMBERED, lambda p: "clamp" in as_line(p))
    assert least.numbers == () and len(least.lines) == 1, as_line(least)
    kept = reduce.minimise(NUMBERED, lambda p: "k1" in p.numbers)
    assert kept.numbers == ("k1",), as_line(kept)
    assert "k1 = 2\n" in regression.shape_file(NUMBERED, "there")
    blame.write_repro(NUMBERED, {**OPTIONS, "dump": str(tmp_path)}, [[torch.ones(2), 3]])
    runpy.run_path(str(tmp_path / "run.py"))


def test_programs_made_of_one_with_numbers_have_names_of_their_own() -> None:
    parent = replace(NUMBERED, points=POINTS[:1], lines=LINES[:2], numbers=("k0", "k1", "k2"))
    for index in range(6):
        child = mutate.mutate(parent, SEED, index, DEFAULT)
        assert len(set(child.numbers)) == len(child.numbers), as_line(child)
        assert all(generate.runs_at(child, point) for point in child.points), (SEED, index, as_line(child))


def test_some_programs_have_many_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "LARGE_SHARE", 1.0)
    drawn = [generate.program(SEED, index, ("graph", "layout")) for index in range(5)]
    for program in drawn:
        assert LARGE[0] / 3 < torch.Size(program.args[0].shape).numel() <= LARGE[1], (SEED, as_line(program))
        assert generate.runs_at(program, program.points[0]), (SEED, as_line(program))


def test_what_would_have_far_too_many_elements_is_not_run() -> None:
    d = Drawing(SEED, 0, random.Random(SEED), "f32", most=LARGE[1])
    x = torch.zeros(LARGE[0])
    d.values = {"x0": Value("x0", x, x, True, True)}
    with pytest.raises(NotFitting):
        generate._refuse_larger(d, "torch.diag_embed(x0)")
    generate._refuse_larger(d, "torch.relu(x0)")


def test_programs_of_many_elements_are_run_but_not_step_by_step() -> None:
    x = Arg("x0", (3, 20_001), "f32", "transposed(0,1)")
    large = Program(SEED, 7, (x,), ("t0 = x0.softmax(1)", "t1 = t0.sum(0)"), ("t1", "t0"))
    row = check.check_program(large, OPTIONS, told)
    assert row.verdict == "pass", (SEED, row)
    heard: list[str] = []
    _, cleared = blame.blame_program(large, OPTIONS, heard.append)
    assert cleared and any("cpp" in at for at in heard) and not any("tile" in at for at in heard), (SEED, heard)
    row = check.check_program(large, {"target": "sm_90a"}, told)
    assert row.verdict == ("pass" if compiler.on_gpu(compiler.target("sm_90a")) else "unsupported"), row
