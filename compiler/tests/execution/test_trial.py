"""Texts of every stage, run and checked by themselves: as they were made, and edited."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import compiler
from compiler import cli, pipeline
from compiler.errors import CompilerError
from compiler.execution import buffers, dumps, gpu_programs, trial
from compiler.ir import kernel as k
from compiler.ir.stages import IRS
from compiler.render import header
from compiler.tests.kernel_samples import SCALE

PRODUCT = "F.softmax(torch.randn(33, 100), -1) @ torch.randn(100, 7)"
LAYER = "nn.Linear(20, 6)(torch.randn(5, 20))"
SUFFIXES = {**{stage: f".{stage}" for stage in IRS}, "cpp": ".cpp", "cuda": ".cu"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path / "cache"))


def lowered(code: Callable[..., Any], *inputs: torch.Tensor, target: str = "cpu", **how: Any) -> compiler.Lowering:
    return compiler.lower(compiler.capture(code, list(inputs), **how).program, compiler.target(target))


def text_of(expression: str, stage: str, target: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert cli.main(["show", "-c", expression, "--ir", stage, "--target", target]) == 0
    path = folder / f"text{SUFFIXES[stage]}"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.parametrize("expression", [PRODUCT, LAYER])
@pytest.mark.parametrize(
    ("stage", "target"),
    [*((stage, "cpu") for stage in compiler.STAGES), ("loop", "sm_90a"), ("kernel", "sm_90a"), ("cuda", "sm_90a")],
)
def test_the_text_of_every_stage_runs_and_agrees_with_eager(
    stage: str, target: str, expression: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = text_of(expression, stage, target, tmp_path, capsys)
    own = [] if stage in ("cpp", "cuda") else ["--target", target]
    assert cli.main(["run", "--from", str(path), *own, "-c", expression, "--seed", "3"]) == 0
    assert capsys.readouterr().out.endswith(": ok\n")
    assert cli.main(["run", "--from", str(path), *own]) == 0
    assert "f32[" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "old", "new"), [("tile", " / ", " * "), ("cpp", "mlc_reduce_add(", "mlc_reduce_max(")]
)
def test_an_edit_that_computes_something_else_is_wrong(
    stage: str, old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = text_of(PRODUCT, stage, "cpu", tmp_path, capsys)
    path.write_text(path.read_text().replace(old, new))
    assert cli.main(["run", "--from", str(path), "-c", PRODUCT]) == 1
    assert ": WRONG\nelement [" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "target", "old", "new", "died"),
    [
        ("tile", "cpu", r"for j in vector\(64", "for j in vector(40000000", "SIGSEGV"),
        ("cpp", "cpu", r"(\n  for)", r"\n  __builtin_trap();\1", "SIG(ILL|TRAP)"),
        ("cuda", "sm_90a", r"(__global__ [^{]*\{)", r"\1 ((float*)8)[0] = 1;", "SIGSEGV"),
    ],
)
def test_a_text_that_crashes_is_told_in_a_line(
    stage: str, target: str, old: str, new: str, died: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = text_of("F.rms_norm(torch.randn(4, 64), (64,))", stage, target, tmp_path, capsys)
    edited, count = re.subn(old, new, path.read_text())
    path.write_text(edited)
    assert count and cli.main(["run", "--from", str(path), *([] if stage != "tile" else ["--target", target])]) == 1
    assert re.search(rf"^mlcomp: {path} does not run to its end: it died of {died}$", capsys.readouterr().err)


def test_a_text_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial, "PATIENCE", 0.2)
    path = text_of("torch.randn(4, 64) + 1", "cpp", "cpu", tmp_path, capsys)
    path.write_text(path.read_text().replace("\n  for", "\n  for (volatile int k = 0; k < 1;) {}\n  for", 1))
    assert cli.main(["run", "--from", str(path)]) == 1
    assert "does not run to its end: it did not end within 0.2 s" in capsys.readouterr().err


def test_run_fails_when_the_result_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By less than ten roundings, where the bound is one."""
    path = tmp_path / "scale.loop"
    path.write_text(SCALE.replace("2.0", "2.000001"), encoding="utf-8")
    assert cli.main(["run", "--from", str(path), "-c", "torch.randn(4, 40) * 2"]) == 1
    out = capsys.readouterr().out
    assert "WRONG" in out and re.search(r"element \[\d, \d+\] is \S+, expected \S+ within \S+; \d+ of 160", out)
    path.write_text(SCALE, encoding="utf-8")
    assert cli.main(["run", "--from", str(path), "-c", "torch.randn(4, 40) * 2"]) == 0
    assert "largest difference from eager 0, largest error 0 of its bound: ok" in capsys.readouterr().out


def test_run_allows_what_a_sum_that_cancels_may_lose(capsys: pytest.CaptureFixture[str]) -> None:
    """Its error is that of its terms, however small it is itself."""
    assert cli.main(["run", "-c", "(torch.randn(8, 5000) + 10000).sum(1) - 50000000.0"]) == 0
    assert capsys.readouterr().out.endswith(": ok\n")


CPP = """\
// f, for cpu
// def f(x: f32[40], *, y: f32[40]):
extern "C" __attribute__((visibility("default"))) int mlc_entry(void** buffers, const long long*, int) {
  for (long i = 0; i < 40; i++) ((float*)buffers[1])[i] = ((float*)buffers[0])[i] * 2.0f;
  return 0;
}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("buffers[1])[i] =", "buffers[1])[i + 1] =", "memory was written "),
        ("buffers[1])[i] =", "buffers[0])[i] =", "input x was changed"),
    ],
)
def test_what_an_edit_does_to_memory_is_said(
    old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "twice.cpp"
    path.write_text(CPP)
    assert cli.main(["run", "--from", str(path)]) == 0
    path.write_text(CPP.replace(old, new))
    assert cli.main(["run", "--from", str(path)]) == 1
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("// def f", "// f", "no head says what it is called with"),
        ("f32[40], *", "f33[40], *", "line 2, column "),
        ("2.0f", "two", "twice.cpp:4:"),
    ],
)
def test_a_text_that_cannot_be_run_is_refused_with_its_line(
    old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "twice.cpp"
    path.write_text(CPP.replace(old, new, 1))
    assert cli.main(["run", "--from", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and said in err and str(path) in err and "internal error" not in err


def test_inputs_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "twice.cpp"
    path.write_text(CPP)
    assert cli.main(["run", "--from", str(path), "-c", "torch.randn(3) * 2"]) == 1
    assert "twice.cpp takes f32[40], and the expression has f32[3]" in capsys.readouterr().err
    assert cli.main(["run", "--from", str(path), "--arg", "x=[41]"]) == 1
    assert "x cannot be [41]: it is f32[40]" in capsys.readouterr().err
    assert cli.main(["run", "--from", str(path), "--bench"]) == 2
    assert cli.main(["run", "--from", str(path), "--target", "sm_90a"]) == 1
    assert "target sm_90a has no stage cpp" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_symbolic_sizes_are_chosen(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Dim("rows", min=1, max=65536)
    lowering = lowered(
        lambda x: torch.softmax(x, -1), torch.randn(9, 70), target=target, dynamic_shapes={"x": {0: rows}}
    )
    last = pipeline.TEXTS[lowering.target.kind]
    path = tmp_path / f"text{SUFFIXES[last]}"
    path.write_text(lowering.show(last))
    assert cli.main(["run", "--from", str(path)]) == 0 and "f32[9, 70]" in capsys.readouterr().out
    assert cli.main(["run", "--from", str(path), "--arg", "x=f32[33, 70]"]) == 0
    assert "f32[33, 70]" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["tile.ir", "kernel.cpp"])
def test_names_of_the_folders_of_failed_cases_are_taken(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = dumps.stage_of(Path(name))
    assert stage is not None
    text = text_of(PRODUCT, stage, "cpu", tmp_path, capsys).rename(tmp_path / name)
    assert cli.main(["show", "--from", str(text), "--ir", stage]) == 0
    assert capsys.readouterr().out == text.read_text()
    assert cli.main(["show", "--from", str(text), "--ir", "asm"]) == 0
    assert "mlc_entry:" in capsys.readouterr().out


# ---- heads

PROGRAMS: dict[str, Callable[[], compiler.Lowering]] = {
    "two kernels": lambda: lowered(
        lambda x, y: torch.softmax(x, -1) @ y, torch.randn(64, 100), torch.randn(100, 7), target="sm_90a"
    ),
    "tensor maps, shared memory of the launch": lambda: lowered(
        lambda x, y: x @ y, *(torch.randn(512, 512).bfloat16() for _ in "xy"), target="sm_90a"
    ),
    "no waiting": lambda: lowered(lambda x: x.sum(), torch.randn(100_000), target="sm_80"),
    "symbolic sizes": lambda: lowered(
        lambda x: x.sum(0),
        torch.randn(33, 50),
        target="sm_90a",
        dynamic_shapes={"x": {0: Dim("n", min=2, max=100_000)}},
    ),
    "requirements": lambda: lowered(lambda x, i: x[i], torch.randn(50, 8), torch.arange(7), target="sm_90a"),
    "strides": lambda: lowered(lambda x: x + 1, torch.randn(6, 8).t(), target="sm_120"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_head_launches_as_the_program_does(name: str) -> None:
    made = PROGRAMS[name]()
    text, program = made.stages["cuda"], made.stages["kernel"]
    head = header.parse(text)
    assert header.target(text) == made.target.name
    assert header.lines(head, made.target.name) == header.lines(program, made.target.name), "nothing is lost"
    plan = buffers.plan(made, trial.expected_sizes(made))
    wanted = gpu_programs.launches(program, plan)
    found = gpu_programs.launches(head, plan)
    # Any text may make its threads meet.
    meeting = tuple(dataclasses.replace(launch, synchronizes=True) for launch in wanted.launches)
    assert found == dataclasses.replace(wanted, launches=meeting)
    assert all(not isinstance(s, k.Store) for f in head.functions for s in f.body)


# ---- check


@pytest.fixture
def reduction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A text with shared memory and barriers."""
    path = text_of("torch.randn(8, 5000).sum(-1)", "cuda", "sm_90a", tmp_path, capsys)
    assert "mlc_block_reduce" in path.read_text()
    return path


def test_a_text_as_it_was_made_has_no_findings(reduction: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(reduction)]) == 0
    assert capsys.readouterr().out == f"{reduction}: no findings, seed 0\n"


def test_findings_name_the_line(reduction: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = reduction.read_text().splitlines()
    number = max(n for n, line in enumerate(lines, 1) if "sum_1[i] = " in line)
    lines[number - 1] = lines[number - 1].replace("[i]", "[i + 1]")
    reduction.write_text("\n".join(lines) + "\n")
    assert cli.main(["check", str(reduction)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"{reduction}:{number}: out of bounds") for line in out), out
    assert "finding" in out[-1]


def test_other_launches_are_checked(reduction: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = header.parse(reduction.read_text()).functions[0]
    assert cli.main(["check", str(reduction), "--launch", f"{found.name}<<<9, {found.block[0]}>>>"]) == 1
    assert "out of bounds" in capsys.readouterr().out
    assert cli.main(["check", str(reduction), "--launch", "other<<<9, 256>>>"]) == 1
    assert "write KERNEL<<<GRID, BLOCK>>>; the kernels of" in capsys.readouterr().err


def test_check_is_for_cuda(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "twice.cpp"
    path.write_text(CPP)
    with pytest.raises(CompilerError, match="check mode is for CUDA texts"):
        trial.check(path, None, 0, {})
    assert cli.main(["check", "twice.txt"]) == 2
    assert "the suffix must name the stage" in capsys.readouterr().err
