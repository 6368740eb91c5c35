"""Random programs: they are what their seed says, eager runs them, and what is wrong with a compiler shows in them."""

from __future__ import annotations

import ast
import contextlib
import importlib
import math
import random
import re
import runpy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import compiler
from conformance.fuzz import asked, blame, check, exported, generate, reduce, runs
from conformance.fuzz.drawing import DISCARDING, Drawing, NotFitting, Value
from conformance.fuzz.operations import OPERATIONS, Row
from conformance.fuzz.program import Program, arguments, as_line, call_arguments, function, gradient_flags
from conformance.fuzz.runs import Run
from conformance.judge import ladder
from conformance.shapes import inputs
from conformance.shapes.cases import Arg
from conformance.tests.pretence import mlcomp

pytest_plugins = ["pytester"]
SEED = random.SystemRandom().randrange(2**31)
CONSTANT = 1.5 + SEED / 2**32  # in the text of a kernel that no other run has built

X = Arg("x0", (6, 7), "f32", "transposed(0,1)")
PLAIN = Program(SEED, 0, (X,), (f"t0 = x0 * {CONSTANT}", "t1 = torch.relu(t0).sum(1)"), ("t1", "t0"))
OPTIONS = {"target": "cpu"}


def told(at: str) -> None:
    """Nobody listens."""


@pytest.fixture(scope="module")
def drawn() -> list[Program]:
    return [generate.program(SEED, index) for index in range(30)]


def test_a_program_is_what_its_numbers_say(drawn: list[Program]) -> None:
    assert generate.program(SEED, 17) == drawn[17]
    assert len({as_line(program) for program in drawn}) > 25, SEED
    for program in drawn:
        ast.parse(as_line(program))
        assert 1 <= len(program.lines) <= generate.MOST_CALLS, as_line(program)


def test_eager_runs_every_program_and_f64_agrees(drawn: list[Program]) -> None:
    for program in drawn:
        for point in program.points:
            taken, needed = call_arguments(program, point), gradient_flags(program)
            made = runs.call(function(program), runs.copy_arguments(taken), needed)
            with runs.in_f64():
                right = runs.call(function(program), [runs.perturb(x) for x in taken], needed)
            assert [*check.differences_of_runs(made, made, right)] == [], (SEED, as_line(program))


def test_the_reference_of_f64_keeps_ties() -> None:
    sizes = torch.rand(100, dtype=torch.float64)
    first, negated, whole = runs.perturb(torch.cat([sizes, -sizes, sizes.round()])).split(100)
    assert 0 < (first - sizes).abs().max() < 1e-15
    assert torch.equal(first, -negated)
    assert torch.equal(whole, sizes.round())


def test_programs_have_everything_that_is_promised() -> None:
    many = [generate.program(3, index) for index in range(120)]  # the same ones in each run
    text = " ".join(map(as_line, many))
    assert sum(bool(program.gradients) for program in many) >= 12
    assert sum(program.dynamic for program in many) >= 8
    assert sum(len(program.results) > 1 for program in many) >= 40
    assert sum("_(" in as_line(program) for program in many) >= 10
    calls = [[re.sub(r"\bt\d+\b", "t", text) for text in program.lines] for program in many]
    assert sum(bool(program.numbers) for program in many) >= 6
    assert sum(len(set(texts)) < len(texts) for texts in calls) >= 10, "layers that follow each other"
    assert {arg.dtype for program in many for arg in program.args} >= {"f32", "bf16", "f16", "f64", "i64", "bool"}
    assert {arg.layout.partition("(")[0] for program in many for arg in program.args} >= {
        "contig", "transposed", "strided", "expanded", "offset",
    }  # fmt: skip
    for word in ("matmul", ".sum(", "softmax", "F.conv", "F.pad", ".reshape(", "torch.where", "torch.cat"):
        assert word in text, word


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 0, 4), (0, 2, 3, 3)])
def test_what_does_not_fit_an_operand_is_drawn_again(shape: tuple[int, ...]) -> None:
    kinds = [(f"x{k}", shape, dtype) for k, dtype in enumerate(("f32", "i64", "bool"))]
    for row in OPERATIONS:
        d = Drawing(SEED, 0, random.Random(f"{SEED} {row.name}"), "f32")
        d.values = {
            n: Value(n, x, x, True, True) for n, x in ((n, torch.zeros(s, dtype=inputs.DTYPES[t])) for n, s, t in kinds)
        }
        with contextlib.suppress(*DISCARDING):
            assert row.text(d), (SEED, row.name)


@pytest.mark.filterwarnings("ignore")  # PyTorch's, of what is drawn again
def test_every_call_can_be_drawn() -> None:
    for row in OPERATIONS:
        assert any(_is_drawn(row, attempt) for attempt in range(200)), (SEED, row.name)


def test_what_takes_pytorch_down_is_not_drawn() -> None:
    x = torch.tensor([torch.iinfo(torch.int64).min, -1])
    d = Drawing(SEED, 0, random.Random(SEED), "i64", specials=True)
    d.values = {"x0": Value("x0", x, x, True, True)}
    with pytest.raises(NotFitting):
        next(row for row in OPERATIONS if row.name == "gcd").text(d)


def test_elements_scattered_in_place_come_from_other_memory() -> None:
    memory = torch.arange(6.0)
    values = {"x0": memory, "x1": memory.flip(0), "x2": memory[:]}
    row = next(row for row in OPERATIONS if row.name == "masked_scatter_")
    for attempt in range(40):
        d = Drawing(SEED, attempt, random.Random(f"{SEED} {attempt}"), "f32")
        d.values = {name: Value(name, x, x, True, True) for name, x in values.items()}
        row.text(d)
        assert len({v.eager.untyped_storage().data_ptr() for v in d.operands}) == len(d.operands), (SEED, attempt)


@pytest.mark.parametrize(("kind", "rows"), [("lstm", 20), ("gru", 15)])
def test_networks_run_only_where_their_weights_fit(kind: str, rows: int) -> None:
    state = "(x1, x1)" if kind == "lstm" else "x1"
    shapes = {"x0": (2, 3, 4), "x1": (2, 2, 5), "x2": (rows, 4), "x3": (rows, 5), "x4": (rows,)}
    weights = "[x2, x3, x4, x4, x2, x3, x4, x4]"
    text = f"t0 = torch.{kind}(x0, {state}, {weights}, True, 1, 0.0, False, True, True)[0]"

    def runs_with(**changed: tuple[int, ...]) -> bool:
        args = tuple(Arg(name, shape, "f32") for name, shape in (shapes | changed).items())
        return generate.runs_at(Program(SEED, 32, args, (text,), ("t0",)), {})

    assert runs_with()
    # PyTorch reads what is not its own for some of these, or goes down.
    wrong = {"x0": (3, 2, 4), "x1": (2, 1, 5), "x2": (0, 4), "x3": (rows, 0), "x4": (2 * rows,)}
    for name, shape in wrong.items():
        assert not runs_with(**{name: shape}), (name, shape)


def _is_drawn(row: Row, attempt: int) -> bool:
    rng = random.Random(f"{SEED} {row.name} {attempt}")
    d = Drawing(SEED, attempt, rng, ("f32", "i64", "bool", "f16")[attempt % 4], integers=attempt % 3 > 0)
    with contextlib.suppress(*DISCARDING):
        d.start()
        d.accept()
        text = row.text(d)
        return bool(generate._add_mutation(d, row, text, ()) if row.mutates else generate._add_call(d, row, text, 0))
    return False


def test_a_sound_compiler_passes() -> None:
    row = check.check_program(PLAIN, OPTIONS, told)
    assert row.verdict == "pass", (SEED, row)


@pytest.mark.parametrize(
    ("text", "value", "target", "gap"),
    [
        ("F.linear(x0, x1)", math.inf, "sm_90a", True), ("F.linear(x0, x1)", math.nan, "sm_90a", False),
        ("F.linear(x0, x1)", math.inf, "sm_90a:strict", False), ("F.linear(x0, x1)", math.inf, "cpu", False),
        ("F.linear(x0.half(), x1.half())", math.inf, "sm_90a", False), ("x0 * x1.mT", math.inf, "sm_90a", False),
        ("F.bilinear(x1, x1, x0[None])", math.inf, "sm_90a", True),
    ],
)  # fmt: skip
def test_infinite_factors_of_products_in_tf32_are_left_out(text: str, value: float, target: str, *, gap: bool) -> None:
    args = (Arg("x0", (7, 7), "f32", inputs={"kind": "choice", "values": (value,)}), Arg("x1", (7, 7), "f32"))
    made = Program(SEED, 33, args, (f"t0 = {text}",), ("t0",))
    assert bool(check.reason_to_skip(made, compiler.target(target))) == gap


def test_gradients_and_sizes_that_vary_pass() -> None:
    varying = replace(
        PLAIN, gradients=("x0",), points=({"n": 6}, {"n": 3}, {"n": 17}), varying={"x0": {0: "n"}}, index=1
    )
    row = check.check_program(varying, OPTIONS, told)
    assert row.verdict == "pass", (SEED, row)


def test_a_wrong_text_is_found_and_its_pass_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    render = importlib.import_module("compiler.pass_order").cpp.render  # not of the public surface

    def wrong(*args: Any, **kwargs: Any) -> str:
        text: str = render(*args, **kwargs)
        return text.replace(str(CONSTANT)[:6], "9.5678")

    monkeypatch.setattr("compiler.pass_order.cpp.render", wrong)
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path / "cache"))  # not to be met again when the pass is right
    planted = replace(PLAIN, index=2, lines=(f"t0 = x0 * {CONSTANT} - 3", *PLAIN.lines[1:]))
    row = check.check_program(planted, OPTIONS | {"dump": str(tmp_path / "repro")}, told)
    assert (row.verdict, row.kind) == ("fail", "value"), (SEED, row)
    assert row.first_bad_stage == "cpp" and (row.first_bad_pass or "").startswith("render#"), row
    assert (tmp_path / "repro" / "graph0" / "kernel.cpp").exists()
    runpy.run_path(str(tmp_path / "repro" / "run.py"))


def test_a_wrong_pass_in_the_middle_is_found_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pass_order = importlib.import_module("compiler.pass_order")  # not of the public surface
    compose, ir = pass_order.compose, compiler.IRS["tensor"]

    def wrong(*call_arguments: Any) -> Any:
        return ir.parse(ir.show(compose(*call_arguments)).replace(" * ", " + ", 1))

    monkeypatch.setattr("compiler.pass_order.compose", wrong)
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path))
    row = check.check_program(
        replace(PLAIN, index=10, lines=(f"t0 = x0 * {CONSTANT} + 4", *PLAIN.lines[1:])), OPTIONS, told
    )
    assert (row.verdict, row.kind, row.first_bad_stage) == ("fail", "value", "tensor"), (SEED, row)
    assert (row.first_bad_pass or "").startswith("compose#"), row


def test_a_pass_that_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> Any:
        raise IndexError("no such axis")

    monkeypatch.setattr("compiler.pass_order.fuse", wrong)
    row = check.check_program(replace(PLAIN, lines=("t0 = x0 - 77", *PLAIN.lines[1:])), OPTIONS, told)
    assert (row.verdict, row.kind) == ("fail", "exception") and "no such axis" in row.detail, row
    assert (row.first_bad_pass or "").startswith("fuse#"), row


def test_a_text_that_is_wrong_by_its_schedule_alone_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = {**OPTIONS, "what": ("schedule",), "dump": str(tmp_path / "repro")}
    program = replace(PLAIN, index=11)
    assert check.check_program(program, options, told).verdict == "pass", SEED
    render = importlib.import_module("compiler.pass_order").cpp.render  # not of the public surface
    target = compiler.target("cpu")
    (met,) = blame.record_graphs(program)
    sound = compiler.lower(blame.subject_of(met).program, target).stages["cpp"]

    def wrong(*args: Any, **kwargs: Any) -> str:
        text: str = render(*args, **kwargs)
        return text if text == sound else text.replace(str(CONSTANT)[:6], "9.5678")

    monkeypatch.setattr("compiler.pass_order.cpp.render", wrong)
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path / "cache"))
    row = check.check_program(program, options, told)
    assert (row.verdict, row.kind, row.first_bad_stage) == ("fail", "schedule", "cpp"), (SEED, row)
    (kernel,) = compiler.read_schedules(row.detail.partition("with\n")[2], None, target)
    assert kernel.startswith("mul_relu"), row.detail


def test_a_rule_that_no_graph_of_torch_compile_reaches_is_found_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    modes = importlib.import_module("compiler.passes.torch_to_tensor.join")._MODES  # not of the public surface
    options = OPTIONS | {"what": asked.DEFAULT}

    def padded(*before: str, index: int = exported.EXPORT_INTERVAL, by: int = 1) -> Program:
        lines = (*before, f"t0 = F.pad(x0, ({by}, 2), mode='circular')", "t1 = t0 + 1")
        return replace(PLAIN, index=index, lines=lines, results=("t1",))

    assert check.check_program(padded(), options, told).verdict == "pass", SEED
    monkeypatch.setitem(modes, "circular", modes["replicate"])
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path / "cache"))  # not to be met again when the rule is right
    row = check.check_program(padded(by=3), options | {"dump": str(tmp_path)}, told)
    assert (row.verdict, row.kind, row.first_bad_stage) == ("fail", exported.KIND, "tensor"), (SEED, row)
    assert (row.first_bad_pass or "").startswith("decompose#") and (tmp_path / "graph0" / "kernel.cpp").exists(), row
    assert reduce.fails_alike(padded(by=3, index=1), options | {"kind": row.kind})
    assert check.check_program(padded(by=3, index=1), options, told).verdict == "pass", "one of some is exported"
    special = replace(X, inputs={"kind": "choice", "values": (1.0, float("inf"))})
    assert check.check_program(replace(padded(by=3), args=(special,)), options, told).verdict == "pass", (
        "it may be left open"
    )
    # What is exported must leave its arguments as they are.
    assert check.check_program(padded("x0.add_(1)", by=3), options, told).verdict == "pass", SEED


def test_what_torch_has_no_graph_of_has_no_schedules() -> None:
    turned = replace(PLAIN, lines=("x0.unsqueeze_(0)", "t1 = x0 + 1"), results=("t1",))
    row = check.check_program(turned, {**OPTIONS, "what": ("schedule",)}, told)
    assert (row.verdict, row.kind) == ("torch", "exception"), row


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("value", lambda x: x + 1e-3),
        ("value", lambda x: x * float("nan")),
        ("dtype", lambda x: x.double()),
        ("shape", lambda x: x[:-1]),
        ("stride", lambda x: x.t().contiguous().t() if x.dim() > 1 else x),
        ("offset", lambda x: torch.cat([x[:1], x])[1:]),
        ("exception", lambda x: x.no_such_method()),
    ],
)
def test_what_a_backend_gets_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, kind: str, change: Callable[[Tensor], Tensor]
) -> None:
    def wrong(program: Program, **options: Any) -> Any:
        return lambda *xs: tuple(change(x) for x in function(program)(*xs)) if options["backend"] == "mlcomp" else None

    monkeypatch.setattr(check, "fresh_compiled", wrong)
    monkeypatch.setattr(check, "same_as_aot", lambda *call_arguments: False)
    found = check.find_difference(replace(PLAIN, args=(replace(X, layout="contig"),)), "cpu")
    assert found is not None and found.kind == kind, found


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_may_lie_as_torch_traces_them_but_no_other_way(
    monkeypatch: pytest.MonkeyPatch, *, dynamic: bool
) -> None:
    # Eager lays the result out as the boolean lies, the trace of torch as a matrix lies by default.
    args = (Arg("x0", (12, 21), "bf16", "expanded(1)"), Arg("x1", (21, 12), "f32"))
    points = ({"n": 12, "m": 21}, {"n": 5, "m": 40}) if dynamic else ({},)
    varying = {"x0": {0: "n", 1: "m"}, "x1": {0: "m", 1: "n"}} if dynamic else {}
    made = Program(SEED, 30, args, ("t0 = torch.maximum(x0, x1.t() > 0)",), ("t0",), (), points, varying)
    assert function(made)(*call_arguments(made, points[0])).stride() == (1, 12)

    def backend(program: Program, **options: Any) -> Callable[..., Tensor]:
        return lambda *xs: function(made)(*xs).contiguous()

    monkeypatch.setattr(check, "fresh_compiled", backend)
    assert check.find_difference(made, "cpu") is None
    monkeypatch.setattr(inputs, "predicted_layouts", lambda *call_arguments, **how: None)
    found = check.find_difference(made, "cpu")
    assert found is not None and found.kind == "stride", found


def test_a_fault_that_only_costs_compilations_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(program: Any, *others: Any, **more: Any) -> Any:
        if program.sizes:
            raise RuntimeError("planted")
        return lower(program, *others, **more)

    lower = compiler.lower
    monkeypatch.setattr("compiler.pipeline.lower", failing)
    varying = replace(PLAIN, points=({"n": 6}, {"n": 9}), varying={"x0": {0: "n"}})
    found = check.find_difference(varying, "cpu")
    assert found is not None and found.kind == "warning" and "planted" in found.message, found


def test_a_graph_of_sizes_that_it_is_not_given_is_judged_at_those_of_its_call() -> None:
    args = (Arg("x0", (19, 11), "f64"), Arg("x1", (19, 3), "i64", "strided(0,3)", {"kind": "index", "below": 11}))
    lines = ("t0 = torch.gather(x0, 1, x1)", "t1 = F.layer_norm(t0, (3,))")
    points = ({"n": 11, "m": 19}, {"n": 24, "m": 5})
    varying = {"x0": {0: "m", 1: "n"}, "x1": {0: "m"}}
    made = Program(SEED, 31, args, lines, ("t1",), (), points, varying)
    for one in blame.record_graphs(made):
        subject = blame.subject_of(blame.specialise_if_needed(one))
        row = ladder.judge(subject, ladder.climb(subject.program, compiler.target("cpu")), {}, told)
        assert row.verdict == "pass", (SEED, row)


def test_a_graph_that_is_not_lowered_for_all_sizes_is_judged_at_those_of_its_call() -> None:
    args = (Arg("x0", (1, 11, 19, 3), "f32"),)
    points, varying = ({"n": 11, "m": 19}, {"n": 24, "m": 2}), {"x0": {1: "n", 2: "m"}}
    lines = ("t0 = F.group_norm(torch.diag_embed(x0), 1)",)
    for one in blame.record_graphs(Program(SEED, 32, args, lines, ("t0",), (), points, varying)):
        climbed = ladder.climb(blame.subject_of(blame.specialise_if_needed(one)).program, compiler.target("cpu"))
        assert climbed.error is None and climbed.equations is not None


@pytest.mark.parametrize(("off", "alike"), [(1e-12, True), (1e-3, False)])
def test_what_cancels_is_held_to_the_bounds_of_the_graphs(
    monkeypatch: pytest.MonkeyPatch, off: float, *, alike: bool
) -> None:
    # Equal values have no variance: eager gives 0, and sums in any order nearly so.
    def otherwise(*call_arguments: Any, backend: Any, **options: Any) -> list[Run]:
        found = called(*call_arguments, backend=backend, **options)
        return (
            found if backend != "mlcomp" else [Run(moved(r.outputs, off), r.inputs, moved(r.gradients)) for r in found]
        )

    def moved(xs: Sequence[Tensor | None], off: float = 0.0) -> tuple[Tensor, ...]:
        return tuple(x * (1 + 2.0**-22) + off for x in xs if x is not None)

    called = blame._call_compiled
    monkeypatch.setattr(blame, "_call_compiled", otherwise)
    lines = (f"t0 = (x0 * 0 + {CONSTANT}).exp().var(1)", "t1 = x0.exp().var(1)")
    made = replace(PLAIN, lines=lines, results=("t0", "t1"), gradients=("x0",))
    assert blame._equals_last_stages(made, compiler.target("cpu")) is alike, f"seed {SEED}"


@pytest.mark.parametrize(("off", "alike"), [(1e-7, True), (1e-2, False)])
@pytest.mark.parametrize("is_returned", [False, True])
def test_bounds_are_known_of_gradients_that_autograd_copies_or_adds_to(
    off: float, *, alike: bool, is_returned: bool
) -> None:
    result = torch.randn(3, 4, generator=torch.Generator().manual_seed(SEED))
    bounded = compiler.Bounded(result.double().numpy(), *(np.full((3, 4), 1e-6) for _ in range(3)))
    known = [(torch.randn(3, 4), compiler.Bounded(np.zeros((3, 4)))), (result, bounded)]
    gradient = result + runs.weights(result) if is_returned else result.t().contiguous().t()
    assert blame._is_within_bounds(gradient, gradient + off, known) is alike, f"seed {SEED}"


def test_bounds_are_known_of_views_of_what_a_graph_gave() -> None:
    whole = torch.randn(4, 6, generator=torch.Generator().manual_seed(SEED))
    bounded = compiler.Bounded(whole.double().numpy(), *(np.random.default_rng(SEED).random((3, 4, 6))))
    known = [(torch.randn(4, 6), compiler.Bounded(np.zeros((4, 6)))), (whole, bounded)]
    for view in (whole, whole.t(), whole[1:3, ::2], whole[2]):
        found = blame._bounds_of(view, known)
        assert found is not None and np.array_equal(found.v, view.double().numpy()), SEED
        assert bounded.e1 is not None and found.e1 is not None and found.e1.shape == tuple(view.shape)
        assert all(bounded.e1[bounded.v == v] == e for v, e in zip(found.v.flat, found.e1.flat, strict=True)), SEED
    often = blame._bounds_of(whole[1].expand(3, 6), known)  # one error in many places is shared by them
    assert often is not None and often.v.shape == (3, 6) and not np.any(often.e2)
    assert {x.shape for x in (often.e1, often.e2, often.shared) if x is not None} == {(3, 6)}
    assert all(blame._bounds_of(x, known) is None for x in (whole.clone(), whole.view(torch.int32), whole[:0], 3))


def test_buffers_used_again_and_inputs_not_written_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = torch.empty(6)

    def reusing(program: Program, **options: Any) -> Any:
        made: list[int] = []

        def run(*xs: Tensor) -> tuple[Tensor, ...]:
            first, *rest = function(program)(*xs)
            made.append(1)
            return (buffer.copy_(first), *rest) if len(made) == 1 else (first.add_(buffer.fill_(0)), *rest)

        return run

    monkeypatch.setattr(check, "fresh_compiled", reusing)
    found = check.find_difference(PLAIN, "cpu")
    assert found is not None and found.kind == "reuse", found
    monkeypatch.setattr(check, "fresh_compiled", lambda program, **options: lambda x: x.clone().add_(1))
    found = check.find_difference(replace(PLAIN, lines=("t0 = x0.add_(1)",), results=("t0",)), "cpu")
    assert found is not None and found.message.startswith("input 0"), found


def test_outputs_that_share_storage_are_told_from_others() -> None:
    x = torch.randn(4)
    apart, together = Run((x, x.clone()), ()), Run((x, x[:]), ())
    assert [wrong.kind for wrong in check.differences_of_runs(apart, together, together)] == ["alias"]


def test_graphs_are_recorded_with_their_inputs() -> None:
    met = blame.record_graphs(replace(PLAIN, gradients=("x0",)))
    assert len(met) == 2  # forward and backward
    assert torch.equal(met[0].inputs[0], arguments(PLAIN, {})["x0"])


def test_programs_are_items_and_lost_ones_cost_themselves(box: pytest.Pytester) -> None:
    result = mlcomp(box, "--mlcomp-fuzz", "30", "--mlcomp-seed", "5")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([
        "*program 5.1 on cpu: crash: its process died of SIGSEGV*",
        "  def f(x0): return x0 + 1",
        "first bad stage: cpp, render#12",
        "again: pytest --mlcomp --mlcomp-fuzz-only 1 --mlcomp-seed 5",
        "reduced: def f(x0): return x0",
        "  # ++",
        "  there.toml",
        "*program 5.3 on cpu: value: element*",
        "*program 5.9 on cpu: crash: its process died of SIGSEGV*",  # and again in the search for the stage
        "  def f(x0): return x0 + 9",
        "*30 random programs: 25 pass, 3 fail, 1 unsupported, 1 differ or fail in PyTorch itself (1 crash in cpp, *",
    ])  # fmt: skip
    page = next((box.path / "reports").glob("*/fuzz.md")).read_text()
    repros = {path.name for path in (box.path / "reports").glob("*/repro/*")}
    assert repros == {"random-5.1-cpu", "random-5.9-cpu"}  # not 5, which PyTorch itself loses
    assert "seed 5" in page and "schedule#7" in page
    assert re.search(r"^\| +1 \| +2 \| .*aten.fancy", page, re.MULTILINE)  # one program, number 2


def test_one_program_runs_alone_and_workers_share_the_rest(box: pytest.Pytester) -> None:
    mlcomp(box, "--mlcomp-fuzz-only", "0", bare=True).assert_outcomes(passed=1)
    assert {path.name for path in (box.path / "reports" / ".last").iterdir()} == {"fuzz.md", ".gitignore"}
    mlcomp(box, "--mlcomp-fuzz-only", "3", "--mlcomp-target", "cpu,cuda").assert_outcomes(failed=2)
    mlcomp(box, "--mlcomp-fuzz", "80", workers=2).assert_outcomes(failed=1, passed=3)


def test_programs_go_on_for_as_long_as_is_said_and_say_what_was_asked(box: pytest.Pytester) -> None:
    result = mlcomp(box, "--mlcomp-fuzz", "1s", "--mlcomp-seed", "5", "--mlcomp-fuzz-what", "schedule,layout")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([
        "again: pytest --mlcomp --mlcomp-fuzz-only 1 --mlcomp-seed 5 --mlcomp-fuzz-what schedule,layout",
        "FAILED ::mlcomp-fuzz[[]1s-0of1-cpu[]]*",
    ])  # fmt: skip


def test_an_interrupted_run_leaves_what_it_found(box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERRUPTED", "1")
    words = ("--mlcomp-runner", "fake", "--mlcomp-report", "reports", "--mlcomp-fuzz", "30", "--mlcomp-seed", "5")
    box.runpytest_subprocess("-p", "conformance.plugin", "--mlcomp", *words)
    assert "program 5.3 on cpu: value" in next((box.path / "reports").glob("*/fuzz.md")).read_text()


@pytest.mark.parametrize(
    "words", [("--mlcomp-fuzz", "0"), ("--mlcomp-fuzz", "0s"), ("--mlcomp-fuzz", "many"), ("--mlcomp-fuzz-only", "-1")]
)
def test_numbers_that_make_no_sense_are_refused(box: pytest.Pytester, words: tuple[str, str]) -> None:
    result = mlcomp(box, *words)
    result.stderr.fnmatch_lines([f"*{words[0]}: {words[1]} is no number*"])


@pytest.mark.parametrize(("what", "said"), [("shape", "*add graph, relation, export, schedule"), ("pass", "no 'pass'")])
def test_words_that_check_nothing_are_refused(box: pytest.Pytester, what: str, said: str) -> None:
    result = mlcomp(box, "--mlcomp-fuzz", "3", "--mlcomp-fuzz-what", what)
    result.stderr.fnmatch_lines([f"*--mlcomp-fuzz-what: *{said}*"])
