"""Programs that go wrong become small ones that go wrong in the same way, and shape files that fail."""

from __future__ import annotations

import importlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import compiler
from conformance.fuzz import generate, reduce
from conformance.fuzz.asked import OUTCOMES_PREFIX
from conformance.fuzz.program import Program, as_line
from conformance.judge import ladder
from conformance.shapes.cases import Arg, to_json
from conformance.shapes.expand import expand
from conformance.shapes.files import load

SEED = random.SystemRandom().randrange(2**31)
X = Arg("x0", (6, 7), "f64", "transposed(0,1)")
LONG = Program(
    SEED, 0, (X, Arg("x1", (7, 5), "f64")),
    ("t0 = x0.abs() + 1", "t1 = torch.relu(t0).mT", "t1.add_(2)", "t2, t3 = t1.split(4)", "t4 = t2 * 3.25",
     "t5 = x0 @ x1", "t6 = t4.sum(1) - t2.amax(1)"),
    ("t6", "t5", "t3"), ("x0",),
)  # fmt: skip


def told(at: str) -> None:
    """Nobody listens."""


def test_what_does_not_matter_goes() -> None:
    least = reduce.minimise(LONG, lambda program: "* 3.25" in as_line(program))
    assert len(least.lines) == 1 and len(least.args) == 1 and not least.gradients, as_line(least)
    (arg,) = least.args
    assert (set(arg.shape), arg.dtype, arg.layout, arg.inputs["kind"]) == ({1}, "f32", "contig", "ones"), arg


def test_what_matters_stays() -> None:
    def fails(program: Program) -> bool:
        shapes = [arg.shape for arg in program.args]
        return ".add_(2)" in as_line(program) and bool(program.gradients) and any(n >= 5 for s in shapes for n in s)

    least = reduce.minimise(LONG, fails)
    assert fails(least) and least.gradients == ("x0",) and len(least.lines) <= 3, as_line(least)
    assert max(n for arg in least.args for n in arg.shape) == 5, least.args


def test_programs_of_every_kind_can_be_reduced() -> None:
    for index in range(12):
        program = reduce.without_unused(generate.program(SEED, index))
        if not program.lines:
            continue
        text = random.Random(SEED + index).choice(program.lines).partition(" = ")[2] or program.lines[0]
        call = text.partition("(")[0][-12:]
        least = reduce.minimise(program, lambda p, call=call: call in as_line(p))  # type: ignore[misc]
        assert call in as_line(least) and len(least.lines) <= len(program.lines), (SEED, index)
        assert len(least.lines) <= 5, (SEED, index, as_line(least))


def test_trials_of_another_process_are_not_made_again() -> None:
    asked: list[Program] = []

    def fails(program: Program) -> bool:
        asked.append(program)
        return "* 3.25" in as_line(program)

    whole = reduce.Trials(fails)
    least, count = reduce.minimise(LONG, whole), len(asked)
    said: list[str] = []
    rest = reduce.Trials(fails, said.append, whole.outcomes[: count - 3])
    assert reduce.minimise(LONG, rest) == least and len(asked) == count + 3
    assert said[0] == OUTCOMES_PREFIX + whole.outcomes[: count - 3]


def test_a_planted_miscompile_becomes_a_shape_file_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pass_order = importlib.import_module("compiler.pass_order")  # not of the public surface
    compose, ir = pass_order.compose, compiler.IRS["tensor"]
    lines = ("t0 = torch.relu(x0)", f"t1 = t0 * 3.25{SEED}", "t2 = t1.sum(0)")
    args = (replace(X, dtype="f32", layout="contig"),)
    monkeypatch.setattr(generate, "program", lambda *_: Program(SEED, 1, args, lines, ("t2",)))
    monkeypatch.setattr(
        "compiler.pass_order.compose", lambda *xs: ir.parse(ir.show(compose(*xs)).replace(" * 3.25", " + 3.25"))
    )
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path))
    options = {"target": "cpu", "kind": "value", "stage": "tensor", "dump": str(tmp_path / "dump"), "seconds": 15.0}
    made = reduce.reduce(SEED, 1, options, told)
    assert "* 3.25" in made["line"] and "relu" not in made["line"] and "sum" not in made["line"], made
    assert made["regression"].endswith("(fails; it is to be put into shapes/regressions with what mends it)"), made
    path = tmp_path / "dump" / "regression.toml"
    assert "wrong since tensor, compose#" in path.read_text()
    (case,) = expand(load(path, "smoke"), "smoke")
    monkeypatch.setattr("compiler.pass_order.compose", compose)
    known: dict[str, Any] = {"target": "cpu", "seed": SEED, "stages": ["tensor", "loop"]}
    assert ladder.check(to_json(case), known).verdict == "pass", (SEED, path.read_text())
