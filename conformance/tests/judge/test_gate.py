"""The gate: every kernel of a case with its figures, timed rows in the types that GPUs multiply, refusals in words."""

import dataclasses
from typing import Any

import pytest

import compiler
from conformance.judge import gate
from conformance.rows import Gate
from conformance.shapes.cases import Arg, BenchCase, Case, to_json


def case(kind: type[Case], expr: str, shape: tuple[int, ...] = (5, 33), **changes: Any) -> Case:
    made = kind(
        id="case[N4.f32.contig]", file="case.toml", line=1, suite="case", op="case", expr=expr,
        args=(Arg("x", shape, "f32"),), dims={}, params={}, consts={}, dtype="f32", layout="contig",
        distribution="normal", targets=("cuda",), tier="smoke",
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def run(*some: Case) -> Gate:
    told: list[str] = []
    row = gate.run([to_json(x) for x in some], {"seed": 1}, told.append)
    assert told[-1] == "the compiler"
    return row


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path))
    try:
        compiler.inspect([])
    except compiler.ToolchainError as missing:
        pytest.skip(str(missing))


def test_each_kernel_of_each_architecture_has_its_figures() -> None:
    row = run(case(Case, "F.softmax(x, -1)"), case(Case, "torch.linalg.svd(x).S"))
    assert (row.verdict, row.cases, row.detail) == ("pass", 2, "")  # what is unsupported, its check tells
    assert [k.arch for k in row.kernels] == list(gate.ARCHITECTURES)
    assert all(k.registers > 8 and k.name.startswith("softmax_") and not k.complaints for k in row.kernels)


def test_other_architectures_can_be_asked_for() -> None:
    row = gate.run([to_json(case(Case, "x * 2"))], {"seed": 1, "architectures": ("sm_86", "sm_89")}, lambda _: None)
    assert [k.arch for k in row.kernels] == ["sm_86", "sm_89"]


def test_rows_that_are_timed_come_in_both_types() -> None:
    row = run(case(BenchCase, "x * 2", (64, 1024), family="pointwise.row"))
    assert row.verdict == "pass", row.detail
    assert {k.case for k in row.kernels} == {"case[N4.f32.contig]", "case[N4.bf16.contig]"}


def test_a_row_that_is_timed_in_both_types_anyway_is_compiled_once() -> None:
    first = case(BenchCase, "x * 2", (64, 1024))
    second = dataclasses.replace(first, id="case[N4.bf16.contig]", dtype="bf16", args=(Arg("x", (64, 1024), "bf16"),))
    kernels = run(first, second).kernels
    assert len(kernels) == len({(k.case, k.arch) for k in kernels}) == 6


def test_what_a_pass_raises_and_what_a_family_lacks_are_complaints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "FAMILIES", {"pointwise": "contraction"})
    row = run(case(Case, "x.reshape(7, 7)"), case(BenchCase, "x * 2", (64, 1024), family="pointwise"))
    assert row.verdict == "fail" and row.detail.startswith("case[N4.f32.contig]: ") and "invalid for" in row.detail
    if all(k.disassembled for k in row.kernels):
        assert "case[N4.bf16.contig] for sm_90a: contraction of bf16: has no HGMMA" in row.detail
