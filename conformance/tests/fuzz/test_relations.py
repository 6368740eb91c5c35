"""Relations between calls on different data: eager keeps them, a compiler that breaks one is found without eager."""

from __future__ import annotations

import importlib
import itertools
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.fuzz import axes, check, generate, regression, relations
from conformance.fuzz.program import Altered, Program, arguments, as_line, function
from conformance.fuzz.tracing import trace_program
from conformance.shapes.cases import Arg

SEED = random.SystemRandom().randrange(2**31)
CONSTANT = 2.5 + SEED / 2**32  # in the text of a kernel that no other run has built
SQUARE = Arg("x0", (6, 6), "f32")


def program(*lines: str, args: tuple[Arg, ...] = (SQUARE,), **more: Any) -> Program:
    name = lines[-1].partition(" =")[0]
    return Program(SEED, 0, args, lines, (name,), **more)


def batches(*lines: str, args: tuple[Arg, ...] = (SQUARE,)) -> list[tuple[dict[str, Any], Any]]:
    known = trace_program(program(*lines, args=args))
    assert known is not None
    return [(dict(one.arguments), one.results[0]) for one in axes.families(known)]


def test_eager_keeps_every_relation() -> None:
    met: Counter[str] = Counter()
    for index in range(200):
        if index >= 12 and met:  # one program in two has no relation
            break
        drawn = generate.program(SEED, index)
        before = relations.run(function(drawn), drawn, "cpu")
        for one in relations.relations(drawn):
            met[one.kind] += 1
            if one.kind in ("scaling", "order"):  # the text of a program may name a size
                said = relations.violation(one, before, relations.run(function(one.program), one.program, "cpu"))
                assert not said, (SEED, index, as_line(drawn), said)
    assert met, SEED


@pytest.mark.parametrize(
    ("lines", "exponents"),
    [
        (("t0 = x0 * x0", "t1 = t0.sum(1) / x0.amax(0)"), {1}),
        (("t0 = torch.sqrt(x0.abs())", "t1 = t0.mean(0)"), {0.5}),
        (("t0 = torch.softmax(x0, 1)",), set()),
        (("t0 = torch.relu(x0) + 1",), set()),
        (("t0 = torch.exp(x0 / x0.norm())",), {0}),
        (("t0 = torch.argmax(x0, 1)",), {0}),
        (("t0 = x0.sum(1, dtype=torch.int32)",), set()),
        (("t0 = (x0.view(torch.int32) ^ 0).view(torch.float32)",), set()),
    ],
)
def test_scales_are_those_of_the_dimensions(lines: tuple[str, ...], exponents: set[float]) -> None:
    found = [one for one in relations.relations(program(*lines)) if one.kind == "scaling"]
    scales = [one.program.altered.scales["x0"] for one in found if one.program.altered]
    assert {one.exponents[0] / e for one, e in zip(found, scales, strict=True)} == exponents


def test_a_call_may_leave_out_results() -> None:
    shapes = ((2, 3, 4), (1, 2, 5), (1, 2, 5), (20, 4), (20, 5), (20,), (20,))  # of an LSTM, as it is on CPUs
    args = tuple(Arg(f"x{k}", shape, "f32") for k, shape in enumerate(shapes))
    options = "True, 1, 0.0, False, False, True"
    made = program(f"t0 = torch.lstm(x0, (x1, x2), [x3, x4, x5, x6], {options})[0]", args=args)
    known = trace_program(made)
    assert known is not None and any(None in n.meta["val"] for n in known.graph.graph.nodes if "rnn_layer" in n.name)
    assert not [*relations.relations(made)]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (("t0 = torch.softmax(x0, 1)",), [({"x0": (0,)}, (0,))]),
        (("t0 = x0 + x0.mT",), [({"x0": (0, 1)}, (0, 1))]),
        (("t0 = x0.cumsum(0).unsqueeze(1).permute(2, 0, 1)",), [({"x0": (1,)}, (0,))]),
        (("t0 = (x0 @ x1).reshape(6, 2, 4)",), [({"x0": (0,)}, (0,))]),
        (("t0 = torch.addmm(x0, x1, x1.mT)",), [({"x0": (0, 1), "x1": (0,)}, (0, 1))]),
        (("t0 = torch.addmm(x0.sum(0), x1, x1.mT)",), [({"x0": (1,), "x1": (0,)}, (0, 1))]),
        (("t0 = x0.flip(0).sum(1)",), []),
        (("t0 = x0.flatten()",), []),
        (("t0 = x0[1:, 2]",), []),
    ],
)
def test_batches_are_the_axes_whose_positions_never_meet(lines: tuple[str, ...], found: list[Any]) -> None:
    args = (SQUARE, Arg("x1", (6, 8), "f32")) if "x1" in lines[0] else (SQUARE,)
    assert [one for one in batches(*lines, args=args) if "x0" in one[0]] == found


def test_a_result_whose_size_the_program_names_breaks_no_relation(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = program("t0 = x0.exp()", "t1 = t0[:2]")
    part = replace(drawn, altered=Altered({}, {"x0": (0,)}, (0, 3, 4)))
    claimed = relations.Relation("slice", part, (0, 0), ((0,), (0,)), unit=1e-7)
    monkeypatch.setattr(check, "relations_of", lambda drawn: [claimed])
    assert check.first_broken_relation(drawn, function(drawn), "cpu") is None, SEED


@pytest.mark.parametrize("call", ["squeeze()", "squeeze(-2)", "squeeze((0, 1))", "unsqueeze(0).squeeze()"])
@pytest.mark.parametrize("n", [2, 3])
def test_an_axis_that_squeeze_would_drop_keeps_two_positions(
    call: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relations, "RESIZED_SHARE", 1.0)
    drawn = program(f"t0 = x0.exp().{call}", "t1 = t0.sum(1)", args=(Arg("x0", (n, 6), "f32"),))
    kinds: Counter[str] = Counter()
    for index in range(60):
        made = replace(drawn, index=index)
        before = relations.run(function(made), made, "cpu")
        for one in relations.relations(made):
            kinds[one.kind] += 1
            said = relations.violation(one, before, relations.run(function(one.program), one.program, "cpu"))
            assert not said, (SEED, index, one.kind, said)
    assert kinds.keys() == {"order", "margin"} | ({"slice"} if n > 2 else set()), (SEED, kinds)


def test_a_result_with_fewer_axes_violates_a_relation(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = program("t0 = x0.exp()")
    part = replace(drawn, altered=Altered({}, {"x0": (0,)}, (3,)))
    claimed = relations.Relation("slice", part, (0, 0), ((0,), (0,)), unit=1e-7)
    call = function(drawn)
    for lose in (torch.squeeze, torch.sum):
        said = relations.violation(
            claimed,
            relations.run(call, drawn, "cpu"),
            relations.run(lambda x, lose=lose: lose(call(x)) if len(x) == 1 else call(x), part, "cpu"),
        )
        assert said == f"result 0 has shape {[6] if lose is torch.squeeze else []}", SEED
    monkeypatch.setattr(check, "relations_of", lambda drawn: [claimed])
    found = check.first_broken_relation(drawn, lambda x: call(x).squeeze() if len(x) > 1 else call(x).sum(), "cpu")
    assert found is not None and (found.kind, found.message) == ("slice", "result 0 has shape []"), SEED


def test_altered_data_lie_as_those_drawn() -> None:
    for layout in ("transposed(0,1)", "strided(-1,2)"):
        drawn = program("t0 = x0.amax(1)", args=(replace(SQUARE, layout=layout),))
        for one in relations.relations(drawn):
            x, y = (arguments(p, {})["x0"] for p in (drawn, one.program))
            if one.kind in ("scaling", "order"):
                assert (x.shape, x.stride(), x.storage_offset()) == (y.shape, y.stride(), y.storage_offset())


def test_what_only_a_relation_shows_is_found_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    render = importlib.import_module("compiler.pass_order").cpp.render  # not of the public surface

    def wrong(*args: Any, **kwargs: Any) -> str:
        text: str = render(*args, **kwargs)
        return text.replace("-__builtin_inff()", "-12345.0f")

    monkeypatch.setattr("compiler.pass_order.cpp.render", wrong)
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path / "cache"))  # not to be met again when the pass is right
    lines = (f"t0 = -(x0.abs() * {CONSTANT})", "t1 = t0.amax(1)")
    for index in range(100):  # one whose data are scaled up
        planted = replace(program(*lines), index=index)
        altered = relations.alter(planted, "scaling").altered
        if altered is not None and altered.scales["x0"] > 20:
            break
    options = {"target": "cpu", "dump": str(tmp_path / "repro")}
    alone = check.check_program(planted, {**options, "what": ("graph",)}, lambda at: None)
    assert alone.verdict == "pass", (SEED, alone)
    row = check.check_program(planted, {**options, "what": ("relation",)}, lambda at: None)
    assert (row.verdict, row.kind, row.first_bad_stage) == ("fail", "scaling", "cpp"), (SEED, row)
    text = regression.shape_file(relations.alter(planted, "scaling"), "scaled")
    assert "x0 = x0 * 2.0**" in text
    (x,) = torch.load(tmp_path / "repro" / "inputs.pt")[0]
    assert float(x.abs().max()) > 2**20


def test_another_order_a_part_and_margins_are_told_from_what_they_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relations, "RESIZED_SHARE", 1.0)
    drawn = program("t0 = x0.exp().sum(1)")
    kinds: dict[str, relations.Relation] = {}
    for index in itertools.count():  # each draws an order, and a part or margins
        kinds |= {one.kind: one for one in relations.relations(replace(drawn, index=index))}
        if kinds.keys() >= {"order", "slice", "margin"}:
            break
    call = function(drawn)

    def wrong(x: torch.Tensor) -> Any:  # a row takes notice of its neighbour, of its place, and of how many there are
        return call(x + 0.1 * x.roll(1, 0).nan_to_num(3.0)) + torch.arange(len(x)) / len(x)

    for one in kinds.values():
        drawn = replace(one.program, altered=None)
        for made, found in ((call, False), (wrong, True)):
            monkeypatch.setattr(check, "relations_of", lambda _, one=one: [one])
            said = check.first_broken_relation(drawn, made, "cpu")
            assert (said is not None and said.kind == one.kind) == found, (SEED, one.kind, said)


def test_a_relation_whose_data_eager_refuses_does_not_hold() -> None:
    labels = Arg("x1", (6,), "i64", inputs={"kind": "index", "below": 6})
    drawn = program("t0 = torch.nn.functional.cross_entropy(x0, x1)", args=(SQUARE, labels))
    fewer_scores = replace(drawn, altered=Altered({}, {"x0": (0,)}, (0, 3, 4)))
    assert not relations.holds_in_eager(relations.Relation("slice", fewer_scores, (0,), ((),)), drawn, "cpu")
