"""Whose a difference is: PyTorch's own compiler may have it too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import compiler
from conformance.fuzz import blame, check, runs
from conformance.fuzz.program import Program
from conformance.shapes.cases import Arg

SEED = random.SystemRandom().randrange(2**31)
X = Arg("x0", (6, 7), "f32", "transposed(0,1)")
PLAIN = Program(SEED, 0, (X,), ("t0 = x0 * 1.5", "t1 = torch.relu(t0).sum(1)"), ("t1", "t0"))
OPTIONS = {"target": "cpu"}


def told(at: str) -> None:
    """Nobody listens."""


def test_torchs_own_compiler_is_asked_where_the_program_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    def differing(program: Program, compiled: object, device: str) -> Iterator[check.Difference]:
        yield from [check.Difference("stride", "on GPUs only")] if device == "cuda" else []

    monkeypatch.setattr(compiler, "on_gpu", lambda target: target.kind == "cuda")
    monkeypatch.setattr(compiler, "tensors_on", lambda target: target.kind)
    monkeypatch.setattr(check, "differences", differing)
    row = check.check_program(PLAIN, {"target": "sm_90a", "what": ("graph",)}, told)
    assert (row.verdict, row.kind) == ("torch", "stride"), row


@pytest.mark.parametrize("also", [0, 1])
def test_a_difference_is_pytorchs_if_it_has_it_beside_others(also: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does to another tensor says nothing, what it does first hides nothing."""
    program = replace(PLAIN, lines=("t0 = x0 * 2", "t1 = x0 + 1"), results=("t0", "t1"))

    def wrong(program: Program, backend: str, **options: Any) -> Any:
        ours = backend == "mlcomp"
        return lambda x: (x * 2 if ours else x * 2 + 1, x + 1 + (ours or also))

    monkeypatch.setattr(check, "fresh_compiled", wrong)
    found = check.find_difference(program, "cpu")
    assert found is not None and (found.kind, found.tensor) == ("value", "result 1")
    assert check.same_as_aot(program, found, "cpu") == bool(also)


def test_what_pytorch_itself_does_otherwise_is_not_counted() -> None:
    lines = ("t0 = x0.abs() + 5", "t1 = t0.expand(3, -1, -1)", "t2 = t1.detach()", "t1.zero_()")
    row = check.check_program(replace(PLAIN, lines=lines, results=("t2", "t1"), index=20), OPTIONS, told)
    assert row.verdict == "torch", (SEED, row)


def test_a_result_without_gradient_is_pytorchs_if_it_has_none_there_either() -> None:
    lines = ("t0 = x0.detach()", "t0.add_(x0)")
    row = check.check_program(replace(PLAIN, lines=lines, results=("t0",), gradients=("x0",), index=21), OPTIONS, told)
    assert (row.verdict, row.kind) == ("torch", "gradient"), (SEED, row)


@pytest.mark.parametrize(("gradient", "kind"), [(0.0, "zeros"), (2.0, "gradient")])
def test_zeros_where_eager_has_no_gradient_are_pytorchs(gradient: float, kind: str) -> None:
    """PyTorch's own compiler cannot run the program, which changes a saved tensor, and eager and ours can."""
    x, y, z = (Arg(name, (1, 1), "f32", inputs={"kind": "ones"}) for name in ("x0", "x1", "x2"))
    program = Program(
        SEED, 0, (x, y, z), ("t0 = (x0.abs() + 0.5) ** x1.clamp(-2, 2)", "x1 += x2"), ("t0",), gradients=("x0", "x2")
    )
    expected = runs.Run((), (), (torch.ones(1), None))
    ours = runs.Run((), (), (torch.ones(1), torch.tensor([gradient])))
    (found,) = check.differences_of_runs(ours, expected, expected)
    assert (found.kind, found.tensor) == (kind, "gradient 1")
    assert check.same_as_aot(program, found, "cpu") == (kind == "zeros")


def test_eager_that_reads_other_elements_than_its_operands_is_pytorchs_bug() -> None:
    """PyTorch's median of an expanded row is an element of another row."""
    lines = ("t0 = x0.unsqueeze(1).expand(5, 7)", "t1 = t0.median(1).values")
    program = Program(SEED, 0, (Arg("x0", (5,), "i32"),), lines, ("t1",))
    x = torch.arange(5)
    right = torch.equal(x.unsqueeze(1).expand(5, 7).median(1).values, x)
    row = check.check_program(program, OPTIONS | {"what": ("export",)}, told)
    assert (row.verdict, row.kind) == (("pass", "") if right else ("torch", "export")), (SEED, row)


def test_a_program_that_looks_at_strides_is_not_run_with_others() -> None:
    x = torch.randn(3, 4).t()
    with runs.ContiguousOperands() as mode:  # type: ignore[no-untyped-call]
        assert torch.equal(x + 1, (x + 1).clone()) and not mode.uses_strides
        x.as_strided((2,), (1,))
    assert mode.uses_strides


def test_rounding_that_a_program_magnifies_is_not_counted() -> None:
    """The columns of t0 are equal, so that norms divide a rounding by another. The graph has a constant of its own."""
    inputs = (Arg("x0", (16, 64), "f32"), Arg("x1", (5, 64), "f32", "expanded(0)"), Arg("x2", (5,), "f32"))
    lines = ("t0 = x0 @ x1.t()", "x2[x2 <= -1] = 1", "t1 = F.rms_norm(F.layer_norm(t0, (5,)), (5,), x2)")
    row = check.check_program(Program(SEED, 0, inputs, lines, ("t1",)), OPTIONS, told)
    assert row.verdict == "pass", (SEED, row)


def test_the_sign_of_a_sum_that_is_zero_is_not_counted() -> None:
    """BLAS gives -0 for a sum of one product that is -0."""
    zeros, ones = (Arg(name, shape, "f32", inputs={"kind": "zeros" if name == "x0" else "ones"}) for name, shape in
                   (("x0", (8, 1)), ("x1", (1, 16))))  # fmt: skip
    lines = ("t0 = x0 @ -x1", "t1 = torch.signbit(t0)", "t2 = torch.copysign(x1, t0)")
    row = check.check_program(Program(SEED, 0, (zeros, ones), lines, ("t1", "t2")), OPTIONS, told)
    assert row.verdict == "pass", (SEED, row)


def test_graphs_whose_values_get_other_names_are_compared_with_their_last_stages() -> None:
    """Sizes that vary are values with names, which Torch IR leaves out before it numbers the names."""
    shapes = ((2, 3, 4), (1, 3, 4), (1, 3, 4), (16, 4), (16, 4))
    lines = ("t0, t1, t2 = torch.lstm(x0, (x1, x2), [x3, x4], False, 1, 0.0, False, False, False)",)
    program = Program(
        SEED, 0, tuple(Arg(f"x{n}", shape, "f64") for n, shape in enumerate(shapes)), lines, ("t2",),
        points=({"n": 3}, {"n": 5}), varying={name: {1: "n"} for name in ("x0", "x1", "x2")},
    )  # fmt: skip
    finding, cleared = blame.blame_program(program, OPTIONS, told)
    assert cleared, (SEED, finding)


def test_parts_of_an_input_are_no_results_of_a_graph() -> None:
    """They have the strides of the input, which the last stages of a graph do not know."""
    x = Arg("x0", (5, 19, 11, 2), "f32", "permuted")
    lines = ("t0, t1 = x0.split(k0)", "t2 = torch.exp(t1 * 0.7).sum(0)")
    points = ({"n": 19, "k0": 3}, {"n": 33, "k0": 3})
    program = Program(
        SEED, 0, (x,), lines, ("t0", "t2"), points=points, varying={"x0": {1: "n"}}, numbers=("k0",)
    )  # fmt: skip
    finding, cleared = blame.blame_program(program, OPTIONS, told)
    assert cleared, (SEED, finding)


def test_results_that_are_views_of_each_other_are_judged_too() -> None:
    views = replace(PLAIN, lines=("t0 = x0 * 1.5 + 9", "t1 = t0[1:]"), results=("t1", "t0.mT"), gradients=("x0",))
    named, cleared = blame.blame_program(views, OPTIONS, told)
    assert cleared, (SEED, named)
