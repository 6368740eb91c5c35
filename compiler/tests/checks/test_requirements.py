"""What a target needs and this machine has not."""

import pytest

import compiler
from compiler.execution import named
from compiler.runtime import mlir, triton


@pytest.mark.parametrize("name", ["cpu", *compiler.cpus(), "cuda", "sm_80"])
def test_what_this_machine_runs_or_emulates_needs_nothing(name: str) -> None:
    assert compiler.missing_requirement(name) == ""


def test_the_tools_of_other_toolchains_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlir, "missing", lambda: "install LLVM")
    monkeypatch.setattr(triton, "missing", lambda: "install Triton")
    assert compiler.missing_requirement("mlir:tosa") == "install LLVM"
    assert compiler.missing_requirement("triton") == "install Triton"


def test_missing_instructions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "_this_cpu", lambda: named.target("cpu:baseline"))
    said = compiler.missing_requirement("cpu:avx2")
    assert said.startswith("this machine cannot run code for cpu:avx2: it has no ") and "use cpu:baseline" in said
