"""Programs that reach new rules of the compiler are kept, shared and made into others, which are sound programs too."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import compiler
from conformance import rows
from conformance.fuzz import asked, check, corpus, drawing, generate, mutate
from conformance.fuzz.program import Program, arguments, as_line, function
from conformance.shapes.cases import Arg
from conformance.tests.pretence import mlcomp

pytest_plugins = ["pytester"]
SEED = random.SystemRandom().randrange(2**31)
PLAIN = Program(SEED, 0, (Arg("x0", (6, 7), "f32"),), ("t0 = torch.relu(x0)", "t1 = t0.sum(1)"), ("t1",))


def lower(program: Program) -> None:
    (x,) = arguments(program, {}).values()
    compiler.lower(compiler.capture(function(program), (x,)).program, compiler.target("cpu"))


def lowered(program: Program) -> set[str]:
    with corpus.Coverage() as reached:
        lower(program)
    return reached.places()


def test_rules_that_gave_something_are_reached() -> None:
    less, more = lowered(replace(PLAIN, lines=PLAIN.lines[:1], results=("t0",))), lowered(PLAIN)
    assert any(place.startswith("passes/torch_to_tensor/") for place in less)
    assert all(place.count(":") == 2 for place in less) and more - less, "a sum takes rules of its own"


def test_what_reaches_something_new_is_kept_and_comes_back(tmp_path: Path) -> None:
    for index in range(5):
        drawn = generate.program(SEED, index)
        assert corpus.program_from_json(corpus.program_to_json(drawn)) == drawn, (SEED, index)
    assert corpus.add(tmp_path / "c", PLAIN, ["a", "b"]) == ["a", "b"]
    assert corpus.add(tmp_path / "c", replace(PLAIN, index=1), ["b"]) == []
    assert corpus.add(tmp_path / "c", replace(PLAIN, index=2), ["c", "a"]) == ["c"]
    assert corpus.known_places(tmp_path / "c") == {"a", "b", "c"}
    assert sorted(p.name for p in (tmp_path / "c").glob("*")) == [f"{SEED}.0.json", f"{SEED}.2.json", "reached.txt"]


def test_programs_made_of_others_are_sound_and_what_their_numbers_say() -> None:
    made = set()
    for index in range(8):
        parent = generate.program(SEED, index)
        child = mutate.mutate(parent, SEED, 100 + index, asked.DEFAULT)
        assert child == mutate.mutate(parent, SEED, 100 + index, asked.DEFAULT), (SEED, index)
        assert all(generate.runs_at(child, point) for point in child.points), (SEED, index, as_line(child))
        made.add((as_line(child), child.args) != (as_line(parent), parent.args))
    assert made == {True}


def test_a_size_is_not_replaced_where_that_makes_a_value_of_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the values of such a program would be allocated before they are found to be too large."""
    tried: list[Program] = []

    def keep(_before: Program, after: Program, _rng: random.Random) -> Program:
        tried.append(after)
        return after

    monkeypatch.setattr(mutate, "_require_valid", keep)
    cube = Program(SEED, 0, (Arg("x0", (3, 3, 3, 3), "f32"),), ("t0 = x0.abs()",), ("t0",))
    tiled = Program(SEED, 0, (Arg("x0", (2, 5), "f32"),), ("t0 = x0.repeat(2, 2, 2)",), ("t0",))
    for index in range(100):
        for parent in (cube, tiled):
            mutate.mutate(parent, SEED, index, asked.DEFAULT)
    assert len({(one.args, one.lines) for one in tried}) > 5, SEED
    assert all(math.prod(arg.shape) <= drawing.LARGE[1] for one in tried for arg in one.args), SEED
    assert not any(re.search(r"repeat\((\d{3}), \1, \1\)", as_line(one)) for one in tried), SEED


def test_a_run_takes_programs_from_the_corpus_and_adds_to_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    met: list[Program] = []

    def passes(program: Program, *_: Any) -> rows.Fuzz:
        met.append(program)
        lower(PLAIN)
        return rows.Fuzz(index=program.index, seed=program.seed)

    monkeypatch.setattr(check, "check_program", passes)
    folder = asked.FuzzRequest(range(9), corpus=tmp_path / "c")
    for index in (0, 1, 2, 3, 4, 5, 6, 7):
        check.fuzz(SEED, index, folder.options(SEED, index), lambda at: None)
    assert [path.stem for path in (tmp_path / "c").glob("*.json")] == [f"{SEED}.0"], "only the first reached more"
    assert len(met) == 8
    assert any(folder.options(SEED, index)["entry"] for index in range(1, 40))
    (tmp_path / asked.PROGRAM_FILE).write_text(corpus.program_to_json(PLAIN))
    again = asked.FuzzRequest(range(1), program=tmp_path / asked.PROGRAM_FILE)
    check.fuzz(SEED, 0, again.options(SEED, 0), lambda at: None)
    assert met[-1] == PLAIN


def test_a_corpus_is_an_option_of_a_run(box: pytest.Pytester) -> None:
    (box.path / "c").mkdir()
    (box.path / "c" / "reached.txt").write_text("passes/x.py:f:1\n")
    result = mlcomp(box, "--mlcomp-fuzz", "1", "--mlcomp-fuzz-corpus", "c")
    result.stdout.fnmatch_lines(["the corpus has 0 programs, which reach 1 places of rules"])
    result = mlcomp(box, "--mlcomp-fuzz-corpus", "c")
    result.stderr.fnmatch_lines(["*--mlcomp-fuzz-corpus: no programs are asked for; add --mlcomp-fuzz 600s"])
    result = mlcomp(box, "--mlcomp-fuzz-what", "graph")
    result.stderr.fnmatch_lines(["*--mlcomp-fuzz-what: no programs are asked for; add --mlcomp-fuzz 600s"])
