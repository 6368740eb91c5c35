"""The ladder: a sound case passes in every stage; a planted miscompile is named by stage and by pass, and kept."""

import dataclasses
import importlib
import random
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import compiler
from conformance.judge import ladder, sanitizer
from conformance.rows import CaseResult
from conformance.shapes.cases import Arg, Case, Dynamic, Tolerance, to_json

SEED = random.SystemRandom().randrange(2**31)
THREADS = compiler.stages(compiler.target("sm_90a"))


def case(expr: str, dtype: str = "f32", **changes: Any) -> Case:
    shape = changes.pop("shape", (5, 33))
    arg = Arg("x", shape, dtype, changes.pop("layout", "contig"), {"kind": changes.pop("inputs", "normal")})
    made = Case(
        id=f"case[{dtype}]", file="case.toml", line=1, suite="case", op="case", expr=expr, args=(arg,), dims={},
        params={}, consts={}, dtype=dtype, layout="contig", distribution="normal", targets=("cpu",), tier="smoke",
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def check(made: Case, **options: Any) -> CaseResult:
    given = {"target": "cpu", "stages": compiler.STAGES, "seed": SEED, "threads": 1, "backend": None, "dump": None}
    return ladder.check(to_json(made), given | options)


def test_a_case_may_be_judged_through_torch_compile_alone() -> None:
    row = check(case("torch.cumsum(x, 0) + x.amax(1, True)", entry="compile"))
    assert row.verdict == "pass", (SEED, row)
    assert [stage.stage for stage in row.stages] == ["cpp"]


def test_what_was_lowered_ahead_is_not_lowered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [case(expr, id=expr) for expr in ("x + 1", "x.nothing()", "x * 2")]
    options = {"target": "mlir", "stages": ("torch", "tensor"), "seed": SEED}
    ladder.lower_ahead([to_json(one) for one in some], options)
    monkeypatch.setattr(ladder, "climb", lambda *_: pytest.fail("lowered again"))
    assert [ladder.check(to_json(one), options).verdict for one in some] == ["pass", "fail", "pass"], SEED


def verdicts(row: CaseResult) -> dict[str, str]:
    return {stage.stage: stage.verdict for stage in row.stages}


@pytest.mark.parametrize(
    ("expr", "dtype", "changes"),
    [
        ("F.softmax(x, dim=-1)", "bf16", {}),
        ("x.sum(0), x.argmax(1), x > 0", "f32", {"layout": "strided(-1,2)", "inputs": "integers"}),
        ("(x / x.sum(), x)", "f64", {"layout": "transposed(0,1)"}),
        ("x * 2 + 1", "i32", {}),
        ("torch.log(x)", "f16", {"inputs": "specials"}),
        ("F.relu(x)", "f32", {"shape": (0, 3)}),
        ("torch.exp(x)", "f32", {"tolerance": Tolerance("fixed", 1e-6, 1e-6, "tested here")}),
    ],
)
def test_sound_cases_pass_in_every_stage(expr: str, dtype: str, changes: dict[str, Any]) -> None:
    told: list[str] = []
    row = ladder.check(to_json(case(expr, dtype, **changes)), {"target": "cpu", "seed": SEED}, told.append)
    assert row.verdict == "pass", (SEED, row)
    assert verdicts(row) == dict.fromkeys(compiler.STAGES, "pass") and told == list(compiler.STAGES)
    assert all((stage.err_over_tol or 0.0) <= 1 and stage.executor for stage in row.stages)


@pytest.mark.parametrize(
    ("expr", "dtype", "changes"),
    [
        ("F.softmax(x, dim=-1)", "bf16", {"layout": "transposed(0,1)"}),
        ("x.sum(0), x.argmax(1), x.cumsum(0)", "f32", {"layout": "strided(-1,2)"}),
        ("torch.tanh(x)", "f32", {"shape": (0, 3)}),
    ],
)
def test_sound_cases_pass_in_every_stage_for_threads(expr: str, dtype: str, changes: dict[str, Any]) -> None:
    row = check(case(expr, dtype, **changes), target="sm_90a", stages=THREADS)
    assert row.verdict == "pass", (SEED, row)
    executors = {stage.stage: stage.executor for stage in row.stages}
    assert tuple(executors) == THREADS and executors["kernel"] == "emulated, every access checked"


GRADIENTS: list[tuple[str, str, dict[str, Any]]] = [
    ("F.avg_pool1d(x, 3, stride=2)", "f32", {}),
    ("torch.cumprod(x, 1), x.amax(1), x > 0", "bf16", {"inputs": "integers"}),
    ("F.silu(nn.Linear(33, 4)(x))", "f32", {}),
    # Eager rounds the sigmoid to bf16 on the way; the captured gradient does not.
    ("F.glu(x, 0)", "bf16", {"shape": (8, 99)}),
]


@pytest.mark.parametrize(("expr", "dtype", "changes"), GRADIENTS)
def test_gradients_pass_in_every_stage(expr: str, dtype: str, changes: dict[str, Any]) -> None:
    row = check(case(expr, dtype, grad=("x",), **changes))
    assert row.verdict == "pass", (SEED, row)
    assert verdicts(row) == dict.fromkeys(compiler.STAGES, "pass")


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A rule that averages over one element too many; the script that is left behind shows it as well."""
    rules = importlib.import_module("compiler.passes.torch_to_tensor.pool_backward")
    averaged_count = rules.averaged_count
    monkeypatch.setattr(rules, "averaged_count", lambda *args: averaged_count(*args) + 1)
    row = check(case(GRADIENTS[0][0], grad=("x",)), dump=str(tmp_path / "kept"))
    assert (row.verdict, row.first_bad_stage, row.first_bad_pass) == ("fail", "tensor", "decompose#1"), (SEED, row)
    script = subprocess.run([sys.executable, tmp_path / "kept" / "run.py"], capture_output=True, text=True)
    assert script.stdout.count("largest difference from f64") == len(compiler.STAGES), script


def test_a_gradient_that_is_captured_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """However far eager itself is from its bound."""
    glu = torch.ops.aten.glu_backward.default
    gradient = importlib.import_module("compiler.frontend.gradient")
    table = gradient.decompositions()
    monkeypatch.setattr(gradient, "decompositions", lambda: {**table, glu: lambda *args: 1.02 * table[glu](*args)})
    expr, dtype, changes = GRADIENTS[-1]
    row = check(case(expr, dtype, grad=("x",), **changes))
    assert (row.verdict, row.first_bad_stage, row.first_bad_pass) == ("fail", "torch", "capture"), (SEED, row)


@pytest.mark.parametrize(
    ("name", "stage", "kind"),
    [
        ("schedule", "tile", "accumulation dropped"),
        ("tile-to-threads", "kernel", "own value only"),
        ("render-cuda", "cuda", "reduction changed"),
    ],
)
def test_a_miscompile_for_threads_is_named_by_stage_and_pass(
    monkeypatch: pytest.MonkeyPatch, name: str, stage: str, kind: str
) -> None:
    broken(monkeypatch, name, spoiled(stage, kind))
    row = check(case("(x + 1).sum(-1)"), target="sm_90a", stages=THREADS)
    assert (row.first_bad_stage, guilty_pass(row)) == (stage, name), (SEED, row)
    assert "elements are wrong" in row.detail


def test_what_the_checks_find_is_a_failure_with_its_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken(monkeypatch, "tile-to-threads", spoiled("kernel", "guard dropped"))
    row = check(case("x + 1"), target="sm_90a", stages=THREADS, dump=str(tmp_path / "repro"))
    assert (row.verdict, row.first_bad_stage) == ("fail", "kernel"), (SEED, row)
    found = re.search(r"kernel: kernel\.cu:(\d+): out of bounds", row.detail)
    assert found, row.detail
    text = (tmp_path / "repro" / "kernel.cu").read_text().splitlines()
    assert "x[" in text[int(found[1]) - 1]


@pytest.mark.parametrize(
    ("expr", "dtype"),
    [
        ("x.clone()", "f32"), ("x.clone()", "bf16"), ("x.clone()", "i8"), ("x.clone()", "bool"), ("x.clone()", "i64"),
        ("torch.tanh(x)", "f32"), ("torch.tanh(x)", "bf16"), ("x + 1", "f32"), ("x + 1", "i8"), ("F.relu(x)", "f32"),
        ("x.logical_not()", "bool"), ("x > 0", "f32"), ("x.t().contiguous()", "f32"),
    ],
)  # fmt: skip
def test_loops_that_run_past_the_end_of_buffers_are_found(
    monkeypatch: pytest.MonkeyPatch, expr: str, dtype: str
) -> None:
    """Although all elements are right, and what is written behind them comes from behind the input."""
    broken(monkeypatch, "render", lambda text: re.sub(r"(?<= < 256)(?=;)", " + 64", text))
    row = check(case(expr, dtype, shape=(1, 256)), stages=["cpp"])
    assert row.verdict == "fail" and "memory was written 0 bytes behind" in row.detail, (SEED, row)


def test_only_the_stages_asked_for_run() -> None:
    assert list(verdicts(check(case("x.exp()"), stages=["tensor", "cpp"]))) == ["tensor", "cpp"]


def test_what_cannot_be_compiled_is_unsupported_by_name() -> None:
    row = check(case("torch.linalg.svd(x).S"))
    assert row.verdict == "unsupported" and "svd" in row.detail


def test_a_function_that_fails_is_a_failure_of_its_own() -> None:
    row = check(case("x.reshape(7, 7)"))
    assert (row.verdict, row.first_bad_stage) == ("fail", None)
    assert "'[7, 7]' is invalid" in row.detail and "Traceback" not in row.detail


def test_a_function_without_a_tensor_to_check_is_a_failure() -> None:
    row = check(case("x.shape[0]"))
    assert row.verdict == "fail" and "gives no tensor: there is nothing to check" in row.detail


def numbered(name: str) -> str:
    """A pass as failures name it that no step of a schedule comes before."""
    return f"{name}#{[p.name for p in compiler.passes_for(compiler.target('cpu'))].index(name) + 1}"


def guilty_pass(row: CaseResult) -> str:
    """The pass that a failure names, without its number."""
    return str(row.first_bad_pass).partition("#")[0]


def broken(monkeypatch: pytest.MonkeyPatch, name: str, spoil: Callable[[Any], Any]) -> None:
    """Let a pass spoil its result."""

    def spoiling(run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda program, context: spoil(run(program, context))

    passes = [dataclasses.replace(p, run=spoiling(p.run)) if p.name == name else p for p in compiler.PIPELINE]
    monkeypatch.setattr(sys.modules["compiler.pipeline"], "PIPELINE", tuple(passes))


def spoiled(stage: str, kind: str) -> Callable[[Any], Any]:
    """A mutant of that kind in place of a program."""

    def spoil(program: Any) -> Any:
        return next(m for what, m in compiler.mutants(stage, program, random.Random(1), 999) if what.startswith(kind))

    return spoil


@pytest.mark.parametrize(
    ("name", "stage", "kind"),
    [
        ("decompose", "tensor", "reduction changed"),
        ("fuse", "tensor", "last term dropped"),
        ("tensor-to-loop", "loop", "accumulation dropped"),
        ("schedule", "tile", "sub instead of add"),
        ("tile-to-kernel", "kernel", "assignment dropped"),
        ("render", "cpp", "sub instead of add"),
    ],
)
def test_a_miscompile_is_named_by_stage_and_pass(
    monkeypatch: pytest.MonkeyPatch, name: str, stage: str, kind: str
) -> None:
    broken(monkeypatch, name, spoiled(stage, kind))
    row = check(case("(x + 1).sum(-1)"))
    assert row.verdict == "fail", (SEED, row)
    assert (row.first_bad_stage, guilty_pass(row)) == (stage, name), (SEED, row)
    before = compiler.STAGES[: compiler.STAGES.index(stage)]
    assert all(verdicts(row)[earlier] == "pass" for earlier in before)


def test_equations_that_read_outside_of_a_tensor_are_a_failure_of_their_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    ir = compiler.IRS["tensor"]

    def spoil(program: Any) -> Any:
        text = ir.show(program)
        assert "x[i, j]" in text, text
        return ir.parse(text.replace("x[i, j]", "x[i, where(j < 1, j - 1, j)]", 1))

    broken(monkeypatch, "decompose", spoil)
    row = check(case("(x + 1).sum(-1)"))
    assert (row.verdict, row.first_bad_stage, guilty_pass(row)) == ("fail", "tensor", "decompose"), (SEED, row)
    assert "out of bounds" in row.detail, row


def dynamic(expr: str, sizes: Sequence[int]) -> Case:
    """A case whose first axis varies."""
    arg = Arg("x", (sizes[0], 6), "f32", axes=("N", ""))
    points = tuple(({"N": n}, (dataclasses.replace(arg, shape=(n, 6)),)) for n in sizes)
    return case(expr, args=(arg,), dims={"N": sizes[0]}, dynamic=Dynamic({"N": (1, 99)}, points))


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_one_program_is_checked_at_every_size(target: str) -> None:
    row = check(dynamic("F.softmax(x, 0)", (5, 1, 33)), target=target, stages=THREADS + compiler.STAGES)
    assert row.verdict == "pass" and len(row.stages) == 6, (SEED, row)
    assert (row.stages[-1].seconds or 0.0) > 0


def test_a_program_that_is_right_at_one_size_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fixed(program: Any) -> Any:
        text = (
            compiler.IRS["loop"].show(program).replace("range(s0)", "range(5)").replace("parallel(s0)", "parallel(5)")
        )
        return compiler.IRS["loop"].parse(text)

    broken(monkeypatch, "tensor-to-loop", fixed)
    row = check(dynamic("x + 1", (5, 9)))
    assert (row.verdict, row.first_bad_stage, row.first_bad_pass) == ("fail", "loop", numbered("tensor-to-loop"))
    assert row.detail.startswith("at N = 9: ")


def test_a_pass_that_raises_is_a_failed_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(program: Any) -> Any:
        raise ValueError("no such luck")

    broken(monkeypatch, "schedule", fail)
    row = check(case("x.exp()"))
    assert (row.verdict, row.first_bad_stage, row.first_bad_pass) == ("fail", "tile", numbered("schedule"))
    assert verdicts(row) == {"torch": "pass", "tensor": "pass", "loop": "pass", "tile": "fail"}
    assert "pass schedule raised ValueError: no such luck" in row.detail


def test_a_failure_is_kept_and_runs_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        broken(patched, "fuse", spoiled("tensor", "last term dropped"))
        row = check(case("x.sum(-1)"), dump=str(tmp_path / "repro"))
    assert row.repro == str(tmp_path / "repro")
    kept = {path.name for path in (tmp_path / "repro").iterdir()}
    assert kept == {"run.py", "inputs.pt", "case.json", "failure.txt", "kernel.cpp"} | {f"{s}.ir" for s in compiler.IRS}
    runpy.run_path(str(tmp_path / "repro" / "run.py"))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(compiler.STAGES)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_the_files_of_a_lost_case_are_those_of_a_failed_one(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its script runs the texts beside it, edited or not."""
    lost = {"verdict": "crash", "first_bad_stage": "cpp", "first_bad_pass": None, "detail": "it died of SIGSEGV"}
    row = check(case("x * 2 + 1"), target=target, dump=str(tmp_path / "repro"), lost=lost)
    assert row.repro == str(tmp_path / "repro") and not row.stages
    last = compiler.stages(compiler.target(target))[-1]
    text = tmp_path / "repro" / {"cpp": "kernel.cpp", "cuda": "kernel.cu"}[last]
    kept = {path.name for path in (tmp_path / "repro").iterdir()}
    assert kept == {"run.py", "inputs.pt", "case.json", "failure.txt", text.name} | {f"{s}.ir" for s in compiler.IRS}
    assert "loses its process in stage cpp (crash)." in (tmp_path / "repro" / "run.py").read_text()

    def differences(start: str) -> dict[str, float]:
        """What the script says of each stage."""
        script = str(tmp_path / "repro" / "run.py")
        monkeypatch.setattr(sys, "argv", [script, "--from-dump", start])
        runpy.run_path(script, run_name="__main__")
        return {line.split()[0]: float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()}

    for start, edited in (("tile", tmp_path / "repro" / "tile.ir"), (last, text)):
        stages = compiler.stages(compiler.target(target))
        found = differences(start)
        assert found.keys() == set(stages[stages.index(start) :])
        assert all(far < 1e-5 for far in found.values())
        edited.write_text(edited.read_text().replace("2.0", "3.0"))
        assert all(far > 0.01 for far in differences(start).values())


def test_another_backend_has_a_final_stage_only() -> None:
    row = check(case("x.exp()"), backend="eager")
    assert (row.verdict, verdicts(row)) == ("pass", {"cpp": "pass"}), row
    assert check(case("x.exp()"), backend="none such").verdict == "fail"


class Reporting:
    """A sanitizer's watch with something to say."""

    tool = "racecheck"

    def __init__(self, *said: str) -> None:
        self.said = said

    def findings(self) -> tuple[str, ...]:
        return self.said


def watched(monkeypatch: pytest.MonkeyPatch, *said: str) -> CaseResult:
    monkeypatch.setattr(sanitizer, "watch", lambda tool, log: Reporting(*said))
    options = {"target": "sm_90a", "stages": ("cuda",), "sanitizer": {"tool": "racecheck", "log": "nowhere"}}
    return check(case("F.softmax(x, -1)"), **options)


def test_what_a_sanitizer_reports_fails_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch).verdict == "pass"
    row = watched(monkeypatch, "kernel.cu:31: Error: Race reported between Write access and Read access")
    assert (row.verdict, row.first_bad_stage) == ("fail", "cuda") and "kernel.cu:31: Error: Race" in row.detail


def test_what_a_sanitizer_reports_is_told_with_the_error_that_came_of_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fault(*_: Any, **__: Any) -> Any:
        raise compiler.CompilerError("the GPU found an illegal address")

    monkeypatch.setattr(compiler, "execute_guarded", fault)
    row = watched(monkeypatch, "kernel.cu:31: Invalid __global__ read of size 4 bytes")
    assert row.verdict == "fail" and "Invalid __global__ read" in row.detail and "illegal address" in row.detail
    assert "Invalid __global__ read" in capfd.readouterr().err, "said before the process may be lost"
