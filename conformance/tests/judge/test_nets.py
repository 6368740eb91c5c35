"""The nets of a case's check: each catches a planted fault that passes once this net is switched off."""

from __future__ import annotations

import dataclasses
import importlib
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import compiler
from conformance.judge import ladder, oracle, subject
from conformance.judge.oracle import Verdict
from conformance.shapes.cases import Case
from conformance.tests.judge.test_ladder import SEED, THREADS, broken, case, check, dynamic

Patch = pytest.MonkeyPatch
Change = Callable[[Patch], None]
guarded = importlib.import_module("compiler.runtime.guarded")
verdicts = importlib.import_module("compiler.interpret.verdicts")


@dataclass(frozen=True)
class Fault:
    """A fault of a case's lowering, the stage and the words of its finding, and how the net is switched off.

    The net is off by a change, or by `others`, other options under which the case passes.
    """

    net: str
    name: str
    made: Case
    plant: Change
    stage: str
    said: str
    off: Change = lambda _: None
    options: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)


def replaced(name: str, *edits: tuple[str, str], ir: str = "") -> Change:
    """Let a pass make another text; each edit is a pattern, which must be there, and what comes in its place."""

    def spoil(program: Any) -> Any:
        text = compiler.IRS[ir].show(program) if ir else str(program)
        for old, new in edits:
            assert re.search(old, text), f"nothing is like {old} in {text}"
            text = re.sub(old, new, text)
        return compiler.IRS[ir].parse(text) if ir else text

    return lambda patch: broken(patch, name, spoil)


def captured_wrongly(patch: Patch) -> None:
    capture = compiler.capture

    def scaled(function: Callable[..., Any], arguments: Any, **more: Any) -> Any:
        return capture(lambda *x: function(*x) * 1.001, arguments, **more)

    patch.setattr(compiler, "capture", scaled)


def compiled_wrongly(patch: Patch) -> None:
    build = compiler.compile

    def compiled(function: Any, arguments: Any, *more: Any, **named: Any) -> Any:
        return build(lambda *x: function(*x) * 1.001, arguments, *more, **named)

    patch.setattr(compiler, "compile", compiled)


def _no_element(*_: Any) -> Any:
    return np.zeros(6, np.bool_)


def _right(*_: Any, **__: Any) -> Verdict:
    return Verdict(True, 0.0)


# The remainder of v * v + v divided by 2, which is 0; no compiler knows that.
EVEN = r"x[\1] + rem(x[\1 + 1] * x[\1 + 1] + x[\1 + 1], i32(2)) +"
EMULATED: dict[str, Any] = {"target": "sm_90a", "stages": THREADS}
NATIVE = {"stages": ["cpp"]}
# Whether the output still holds the results of an earlier run is asked before the kernel, and used after it.
LEFT_OVER = (
    (r"(?<=float\* add = \(float\*\)buffers\[1\];)", " const bool again = add[0] == add[0];"),
    (r"(?=return 0;)", "if (again) add[0] = 0; "),
)
FAULTS = (
    Fault(
        "comparison with eager", "another function is captured", case("x.exp()"), captured_wrongly, "torch",
        "elements are wrong", others={"stages": compiler.STAGES[1:]},
    ),
    Fault(
        "algebra in f64", "a constant is off by less than a rounding", case("x * 0.1", "bf16"),
        replaced("decompose", (r"0\.1000\d+", "0.1000002"), ir="tensor"), "tensor", "in f64",
        lambda patch: patch.setattr(subject.Truth, "judge_algebra", _right),
    ),
    Fault(
        "error bounds", "a constant is off by a little", case("x * 0.1"),
        replaced("render", (r"0\.1f", "0.1001f")), "cpp", "elements are wrong",
        lambda patch: patch.setattr(subject.Truth, "judge", _right),
    ),
    Fault(
        "guard zones", "an element is stored behind the output", case("x + 1"),
        replaced("render", (r"(?=return 0;)", "add[165] = 1.0f; ")), "cpp", "memory was written 0 bytes behind",
        lambda patch: patch.setattr(guarded, "_forbidden_writes", lambda *_: []), NATIVE,
    ),
    Fault(
        "closed pages", "what lies behind an input is read and dropped", case("x + 1"),
        replaced("render", (r"(?=return 0;)", "(void)*(volatile float*)(x + 165); ")), "cpp",
        "beside pages that may not be accessed, it died of SIGSEGV",
        lambda patch: patch.setattr(guarded, "_edge_complaints", lambda *_: ()), NATIVE,
    ),
    Fault(
        "repeated runs", "later runs differ", case("x + 1"), replaced("render", *LEFT_OVER), "cpp",
        "3 runs on the same inputs gave different results", lambda patch: patch.setattr(ladder, "RUNS", 1), NATIVE,
    ),
    Fault(
        "refusals", "a wrong index ends a kernel without a word", case("x[torch.tensor([0, 7])]", raises="IndexError"),
        replaced("render", (r"return mlc_fail\(failed\);", "return;")), "cpp",
        "found nothing wrong with the data, and should raise IndexError", options=NATIVE,
        off=lambda patch: patch.setattr(ladder, "_refusal_complaint", lambda *_: ""),
    ),
    Fault(
        "compiled calls", "the function that users call is another", dynamic("x + 1", (5, 9)), compiled_wrongly, "cpp",
        "the function that was compiled once, called at N = 5: element",
        lambda patch: patch.setattr(ladder, "judge_compiled_calls", lambda *_: ""),
    ),
    Fault(
        "check mode", "an integer behind the input is read for nothing", case("x + 1", "i32"),
        replaced("tile-to-threads", (r"x\[(.*)\] \+", EVEN), ir="kernel"),
        "kernel", "out of bounds", options=EMULATED,
        others={"stages": [stage for stage in THREADS if stage != "kernel"]},
    ),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault.net}: {fault.name}" for fault in FAULTS])
def test_a_fault_is_caught_by_one_net_alone(fault: Fault, monkeypatch: Patch) -> None:
    assert check(fault.made, **fault.options).verdict == "pass", SEED
    fault.plant(monkeypatch)
    row = check(fault.made, **fault.options)
    assert (row.verdict, row.first_bad_stage) == ("fail", fault.stage) and fault.said in row.detail, (SEED, row)
    fault.off(monkeypatch)
    row = check(fault.made, **fault.options | fault.others)
    assert row.verdict == "pass", f"seed {SEED}: without {fault.net} it is caught by another net: {row.detail}"


def test_a_verifier_names_the_pass_that_broke_its_rule(monkeypatch: Patch) -> None:
    """Without it, a later pass fails in the same case."""

    def spoil(program: Any) -> Any:
        kernels = [dataclasses.replace(kernel, writes=()) for kernel in program.kernels]
        return dataclasses.replace(program, kernels=tuple(kernels))

    broken(monkeypatch, "tensor-to-loop", spoil)
    said = "pass tensor-to-loop raised ValueError: kernel exp_5x33_f32: stores to exp, which is not among its writes"
    row = check(case("x.exp()"))
    assert (row.verdict, row.first_bad_stage) == ("fail", "loop") and said in row.detail, (SEED, row)
    unverified = dataclasses.replace(compiler.IRS["loop"], verify=lambda _: None)
    monkeypatch.setitem(compiler.IRS, "loop", unverified)
    row = check(case("x.exp()"))
    assert (row.verdict, row.first_bad_stage) == ("fail", "tile") and said not in row.detail, (SEED, row)


OUTPUT = torch.arange(1.0, 7.0)
BOUND = oracle.Bounded(OUTPUT.numpy(), *(np.full(6, e) for e in (1e-3, 1e-12, 0.0)))  # deviation 1e-6, worst case 1e-3


def _with(**changes: Any) -> oracle.Bounded:
    return dataclasses.replace(BOUND, **{name: np.full(6, e) for name, e in changes.items()})


@pytest.mark.parametrize(
    ("bound", "result", "said", "name", "value"),
    [
        (BOUND, OUTPUT + 1e-4, "6 of 6 elements are wrong", "LAMBDA", 1e9),
        (_with(e1=1e-7, e2=1.0), OUTPUT + 1e-4, "6 of 6 elements are wrong", "FIRST_ORDER", 1e9),
        (BOUND, torch.where(OUTPUT == 3, torch.nan, OUTPUT), "element [2] is nan", "_wrong_class", _no_element),
        (BOUND, torch.where(OUTPUT == 3, torch.inf, OUTPUT), "element [2] is inf", "_wrong_class", _no_element),
    ],
    ids=["deviation", "worst case", "a NaN", "an infinity"],
)
def test_a_bound_finds_what_no_other_does(
    bound: oracle.Bounded, result: torch.Tensor, said: str, name: str, value: Any, monkeypatch: Patch
) -> None:
    assert oracle.judge(OUTPUT, bound, "f32").ok
    verdict = oracle.judge(result, bound, "f32")
    assert not verdict.ok and said in verdict.message
    monkeypatch.setattr(verdicts, name, value)
    assert oracle.judge(result, bound, "f32").ok


def test_signalling_nans_are_judged_without_a_warning() -> None:
    signalling = np.array([0x7F800001] + [0] * 5, np.uint32).view(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "element [0] is nan" in oracle.judge(signalling, BOUND, "f32").message
