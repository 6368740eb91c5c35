"""The plugin from outside: options, collection, lost cases, reports, benchmarks, with a runner that only pretends."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

import compiler
from conformance.judge import sanitizer
from conformance.plugin import OPTIONS
from conformance.report import environment
from conformance.run import settings
from conformance.shapes import files
from conformance.shapes.cases import TIERS
from conformance.tests.pretence import FAKE, PERF, ROOT, case, in_process, mlcomp, report, shape_file, verdicts

pytest_plugins = ["pytester"]


def test_the_gate_compiles_each_file_for_gpus(box: pytest.Pytester) -> None:
    shape_file(box, case("fine"))
    shape_file(box, case("spills"), name="other.toml")
    shape_file(box, case("cpus", 'targets = ["cpu"]'), name="third.toml")
    run = mlcomp(box, "--mlcomp-gate", "-m", "mlcomp_gate", ".")
    run.assert_outcomes(passed=1, failed=1, deselected=3)
    assert "spills[N4.f32.contig.normal] for sm_90a: spills" in run.stdout.str()
    rows = {row["file"]: row for row in report(box)["gate"]}
    assert rows["mine.toml"]["verdict"] == "pass" and rows["other.toml"]["verdict"] == "fail"
    assert rows["mine.toml"]["kernels"][0]["registers"] == 30
    page = report(box, "summary.md")
    assert "## Resources" in page and "### Complaints" in page and "| sm_90a" in page


def test_every_kind_of_cpu_that_this_machine_can_be(box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "cpus", lambda: ("cpu:baseline", "cpu:avx2"))
    shape_file(box, case("fine", dims="dims.N = 4"))
    mlcomp(box, "--mlcomp-target", "cpu:each,cpu", ".").assert_outcomes(passed=3)
    assert {row["target"] for row in report(box)["cases"]} == {"cpu:baseline", "cpu:avx2", "cpu"}


@pytest.mark.parametrize(
    ("target", "stages", "problem"),
    [
        ("mlir", "torch,mlir", "--mlcomp-target: no tool for mlir"),
        ("cpu,mlir:tosa", "torch,mlir", "--mlcomp-target: no tool for mlir:tosa"),
        ("triton", "triton", "--mlcomp-target: no tool for triton"),
        ("mlir", "torch,tensor", ""),
    ],
)
def test_a_target_that_this_machine_cannot_run_is_a_usage_error(
    box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, target: str, stages: str, problem: str
) -> None:
    def missing(name: str) -> str:
        return f"no tool for {name}" if name != "cpu" else ""

    monkeypatch.setattr(compiler, "missing_requirement", missing, raising=False)
    shape_file(box, case("fine"))
    run = mlcomp(box, "--mlcomp-target", target, "--mlcomp-stages", stages, ".")
    assert (run.ret == pytest.ExitCode.USAGE_ERROR) == bool(problem)
    assert problem in run.stderr.str()
    assert mlcomp(box, "--mlcomp-target", target, ".", "--collect-only").ret == pytest.ExitCode.OK


def test_each_target_has_its_items_and_stages(box: pytest.Pytester) -> None:
    shape_file(box, case("fine", dims="dims.N = 4"), case("here", 'targets = ["cpu"]', dims="dims.N = 4"))
    mlcomp(box, "--mlcomp-target", "cpu,sm_80", ".").assert_outcomes(passed=3)
    rows = {(row["id"].partition("[")[0], row["target"]) for row in report(box)["cases"]}
    assert rows == {("fine", "cpu"), ("fine", "sm_80"), ("here", "cpu")}
    assert {path.name.rpartition("-")[2] for path in box.path.glob("reports/*")} <= {"emulated", "h200"}
    table = report(box, "summary.md")
    assert "| sm_80" in table and table.index("| cpu ") < table.index("| sm_80 ")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--mlcomp-target", "cuda", "--mlcomp-stages", "cpp"), "unknown 'cpp'"),
        (("--mlcomp-target", "cpu", "--mlcomp-stages", "cuda"), "unknown 'cuda'"),
        (("--mlcomp-target", "cuda:tma"), "unknown 'cuda:tma'"),
        (("--mlcomp-target", "sm_99"), "did you mean 'sm_89'?"),
        (("--mlcomp-target", "cpu:avx3"), "unknown 'cpu:avx3'; use cpu, cuda, cpu:baseline, cpu:avx2, cpu:avx512, sm"),
        (("--mlcomp-target", "mlir:tose"), "did you mean 'mlir:tosa'?"),
    ],
)
def test_targets_and_their_stages_are_known_words(box: pytest.Pytester, words: tuple[str, ...], hint: str) -> None:
    shape_file(box, case("fine"))
    run = mlcomp(box, *words)
    assert run.ret == pytest.ExitCode.USAGE_ERROR and hint in run.stderr.str()


def test_sizes_that_are_timed_are_checked_on_a_gpu_alone(box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    shape_file(box, case("fine", "perf = { dims = [{ N = 64 }], checked = { around = { N = [0, 1] } } }", "dims.N = 4"))
    words = ("mine.toml", "--mlcomp-tier", "nightly", "--mlcomp-target", "cpu,cuda")
    monkeypatch.setattr(environment, "gpu_model", lambda: None)
    mlcomp(box, *words).assert_outcomes(passed=4)
    monkeypatch.setattr(environment, "gpu_model", lambda: "NVIDIA H200")
    mlcomp(box, *words).assert_outcomes(passed=6)
    rows = json.loads((box.path / "reports" / "h200" / "run.json").read_text())["cases"]
    stages = {row["id"][:8]: [stage["stage"] for stage in row["stages"]] for row in rows}
    assert (stages["fine[N64"], len(stages["fine[N4."])) == (["torch", "cpp", "cuda"], 7)


def test_a_sanitizer_runs_under_every_case(box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sanitizer is a script that starts what follows its options."""
    script = box.path / "compute-sanitizer"
    script.write_text('#!/bin/sh\necho "$@" >> tools.txt\nuntil [ -x "$1" ]; do shift; done\n"$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(environment, "gpu_model", lambda: "NVIDIA H200")
    monkeypatch.setattr(sanitizer, "installed", lambda: str(script))
    shape_file(box, case("fine", "tier = 'smoke'"))
    run = mlcomp(box, "mine.toml", "--mlcomp-target", "cuda", "--mlcomp-sanitizer", "memcheck,racecheck")
    run.assert_outcomes(passed=2)
    said = (box.path / "tools.txt").read_text()
    assert "--tool memcheck" in said and "--tool racecheck" in said
    assert [[stage["stage"] for stage in row["stages"]] for row in report(box)["cases"]] == [["cuda", "cuda"]] * 2


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("memcheck",), "it checks GPU code; add --mlcomp-target cuda"),
        (("memcheck", "--mlcomp-target", "cuda"), "there is no GPU"),
        (("memcheck", "--mlcomp-target", "cuda", "--mlcomp-stages", "cuda"), "remove --mlcomp-backend"),
        (("racechek", "--mlcomp-target", "cuda"), "did you mean 'racecheck'?"),
    ],
)
def test_a_sanitizer_needs_a_gpu_and_nothing_else(
    box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], hint: str
) -> None:
    monkeypatch.setattr(environment, "gpu_model", lambda: None)
    shape_file(box, case("fine"))
    run = mlcomp(box, "mine.toml", "--mlcomp-sanitizer", *words)
    assert run.ret == pytest.ExitCode.USAGE_ERROR and hint in run.stderr.str()


def test_silent_without_the_option(box: pytest.Pytester) -> None:
    shape_file(box, case("fine"))
    box.makepyfile(test_theirs="def test_theirs(): pass")
    result = box.runpytest_subprocess("-p", "conformance.plugin")
    result.assert_outcomes(passed=1)
    said = [line for line in result.outlines if "mlcomp" in line and not line.startswith("plugins: ")]
    assert said == [], "pytest's own list of plugins names it where it is installed"
    program = (
        "import sys, conformance.plugin; print(sorted({'torch', 'numpy', 'compiler', 'tabulate'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True).strip() == "[]"


def test_an_option_without_the_flag_is_refused(box: pytest.Pytester) -> None:
    result = box.runpytest_subprocess("-p", "conformance.plugin", "--mlcomp-bench", "full")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--mlcomp-bench does nothing without --mlcomp*"])


def test_ids_and_selection(box: pytest.Pytester) -> None:
    path = shape_file(box, case("fine", 'dtypes = ["f32", "bf16"]'), case("other"))
    result = mlcomp(box, path.name, "--collect-only", "-q", "--mlcomp-tier", "full", "-k", "bf16")
    names = [line for line in result.outlines if "::" in line]
    assert names == ["mine.toml::fine[N4.bf16.contig.normal-cpu]", "mine.toml::fine[N5.bf16.contig.normal-cpu]"]
    # A named item is found whatever its tier.
    named = mlcomp(box, names[1])
    named.assert_outcomes(passed=1)
    assert [row["dtype"] for row in report(box)["cases"]] == ["bf16"]


def test_a_new_row_adds_exactly_its_ids(box: pytest.Pytester) -> None:
    def collected() -> set[str]:
        result = mlcomp(box, "mine.toml", "--collect-only", "-q", "--mlcomp-tier", "full", "--mlcomp-bench", "quick")
        return {line for line in result.outlines if "::" in line}

    shape_file(box, case("fine"))
    before = collected()
    shape_file(box, case("fine", PERF, dims="dims.N = [4, 5, 6]"))
    assert {name.partition("::")[2] for name in collected() - before} == {
        "fine[N6.f32.contig.normal-cpu]",
        "fine[N64.f32.contig.normal-cpu-bench]",
        "mlcomp-fitness",
    }
    assert before <= collected()


BAD = [case(op, "timeout = 0.5") for op in ("falls", "hangs", "leaves", "raises", "odd", "wrong", "refused")]
EXPECTED = {
    "falls": "crash", "hangs": "timeout", "leaves": "crash", "raises": "fail", "odd": "fail", "wrong": "fail",
    "refused": "unsupported", "fine": "pass", "last": "pass",
}  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_case_costs_one_item(box: pytest.Pytester, workers: int) -> None:
    shape_file(box, case("fine"), *BAD, case("last"))
    result = mlcomp(box, "mine.toml", "--mlcomp-seed", "7", workers=workers)
    result.assert_outcomes(passed=2, failed=7)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert {name.partition("[")[0]: verdict for name, verdict in verdicts(box).items()} == EXPECTED
    text = result.stdout.str()
    for words in (
        "crash in stage loop: its process died of SIGSEGV",
        "timeout in stage kernel: no answer within 0.5 s",
        "its process exited with status 7",
        "ValueError: no such size",
        "aten.fancy(x, 3) is not supported",
        "first bad stage: tile",
        "first bad pass: tile:fuse#3",
        "again: pytest --mlcomp 'mine.toml::wrong[N4.f32.contig.normal-cpu]' --mlcomp-seed 7",
        "FAILED mine.toml::wrong[N4.f32.contig.normal-cpu] ",
    ):
        assert words in text, words
    (lost,) = box.path.glob("reports/*/repro/falls*/lost.txt")
    assert "SIGSEGV" in lost.read_text()
    assert json.loads(lost.with_name("case.json").read_text())["op"] == "falls"
    bad = {row["op"]: row["first_bad_stage"] for row in report(box)["cases"]}
    assert (bad["falls"], bad["hangs"], bad["wrong"], bad["fine"]) == ("loop", "kernel", "tile", None)


def test_an_item_that_takes_its_worker_along_is_in_the_report(box: pytest.Pytester) -> None:
    shape_file(box, case("fine"), case("fatal"), case("last"))
    box.makeconftest("import os\ndef pytest_runtest_setup(item):\n    if 'fatal' in item.name: os._exit(1)")
    mlcomp(box, "mine.toml", workers=2).assert_outcomes(passed=2, failed=1)
    assert {name.partition("[")[0]: verdict for name, verdict in verdicts(box).items()} == {
        "fine": "pass", "fatal": "crash", "last": "pass",
    }  # fmt: skip


def test_expected_failures_are_strict(box: pytest.Pytester) -> None:
    def xfail(stage: str) -> str:
        return f'xfail."cpu.*" = {{ stage = "{stage}", reason = "known" }}'

    shape_file(box, case("expected", xfail("tile")), case("fine", xfail("tile")), case("wrong", xfail("loop")))
    result = mlcomp(box, "mine.toml")
    result.assert_outcomes(xfailed=1, failed=2)
    result.stdout.fnmatch_lines(["*expected to fail (known), but it passes*", "*but not like this*"])
    assert sorted(verdicts(box).values()) == ["fail", "fail", "xfail"]
    mlcomp(box, "mine.toml", "--runxfail").assert_outcomes(passed=1, failed=2)


def test_the_run_as_json(box: pytest.Pytester) -> None:
    shape_file(box, case("fine", PERF))
    mlcomp(box, "mine.toml", "--mlcomp-bench", "quick")
    run = report(box)
    assert list(run) == ["schema", "env", "cases", "benches", "gate", "selftest", "seconds"]
    assert run["schema"] == 1
    assert run["selftest"] is None and run["gate"] == []
    assert set(run["env"]) == {"python", "torch", "device", "cpu", "gpu", "toolchain", "commit"}
    (row,), (bench,) = run["cases"], run["benches"]
    keys = {"id", "file", "op", "target", "dtype", "verdict", "first_bad_stage", "first_bad_pass", "stages"}
    assert set(row) == keys | {"seconds"}
    assert [stage["stage"] for stage in row["stages"]] == ["torch", "tensor", "loop", "tile", "kernel", "cpp"]
    assert set(row["stages"][0]) == {"stage", "verdict", "err_over_tol", "executor", "seconds"}
    promised = {
        "id": "fine[N64.f32.contig.normal]", "suite": "mine", "op": "fine", "target": "cpu", "dtype": "f32",
        "ours_us": 10.0, "eager_us": 20.0, "compile_us": None, "speedup": 2.0, "ci": [1.9, 2.1], "verdict": "FASTER",
        "roofline": 0.5,
    }  # fmt: skip
    assert {key: bench[key] for key in promised} == promised
    assert bench["clock"] == "thread_time_ns" and "wall_us" in bench
    folder = next((box.path / "reports").iterdir())
    assert sorted(path.name for path in folder.iterdir()) == [
        "benchmark.json", "coverage.md", "index.html", "run.json", "speedup.md", "summary.md",
    ]  # fmt: skip
    assert "2.00" in report(box, "speedup.md")


def test_workers_change_nothing_but_the_order(box: pytest.Pytester) -> None:
    shape_file(box, *(case(f"fine{i}", PERF) for i in range(4)), case("wrong"))

    def run(workers: int | None) -> tuple[list[Any], ...]:
        mlcomp(box, "mine.toml", "--mlcomp-bench", "quick", "--mlcomp-tier", "full", workers=workers)
        found = report(box)
        return tuple([{**row, "seconds": 0} for row in found[kind]] for kind in ("cases", "benches"))

    assert run(None) == run(2)
    spans = [list(map(float, line.split())) for line in (box.path / "bench.log").read_text().splitlines()]
    edges = [moment for span in sorted(spans) for moment in span]
    assert edges == sorted(edges), "timed sections overlap"


@pytest.mark.parametrize("workers", [0, 2])
def test_benchmarks_stand_in_pytest_benchmarks_own_files(
    box: pytest.Pytester, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape_file(box, case("fine", PERF), case("falls", PERF))
    words = ("mine.toml", "--mlcomp-bench", "quick", "-k", "bench")
    result = mlcomp(box, *words, "--benchmark-json", "out.json", "--benchmark-save", "base", workers=workers)
    result.assert_outcomes(passed=2, failed=1)
    theirs, ours = json.loads((box.path / "out.json").read_text()), report(box, "benchmark.json")
    for written in (theirs, ours):
        (record,) = written["benchmarks"]
        assert record["fullname"] == "mine.toml::fine[N64.f32.contig.normal-cpu-bench]"
        assert record["stats"]["rounds"] == len(record["stats"]["data"]) == 20
        assert record["extra_info"]["speedup"] == 2.0
    (mine,), (their,) = ours["benchmarks"], theirs["benchmarks"]
    assert set(mine) == set(their)
    # They have their own idea of a quartile.
    shared = set(mine["stats"]) - {"q1", "q3", "iqr"}
    assert all(mine["stats"][key] == pytest.approx(their["stats"][key]) for key in shared - {"outliers"})
    monkeypatch.setenv("SLOW", "2")
    compared = ("--benchmark-compare", "--benchmark-compare-fail", "median:30%")
    slower = mlcomp(
        box, *words, "--deselect", "mine.toml::falls[N64.f32.contig.normal-cpu-bench]", *compared, workers=workers
    )
    assert slower.ret != 0
    slower.stdout.fnmatch_lines(["*= mlcomp =*"])
    assert "Performance has regressed" in slower.stdout.str() + slower.stderr.str()


def test_a_cliff_is_named_and_fails_a_run_that_asks(box: pytest.Pytester) -> None:
    shape_file(box, case("steep", PERF), case("fine", PERF))
    words = ("mine.toml", "--mlcomp-bench", "quick", "-k", "bench")
    named = mlcomp(box, *words)
    named.assert_outcomes(passed=3)
    named.stdout.fnmatch_lines(["cliffs:", "steep*0.1 of the speed of eager, below 0.5*"])
    assert "### Cliffs" in report(box, "summary.md")
    assert [bool(row["cliffs"]) for row in report(box)["benches"]] == [False, True]
    failed = mlcomp(box, *words, "--mlcomp-fail-on", "cliff")
    failed.assert_outcomes(passed=2, failed=1)
    assert "cliff: 0.1 of the speed of eager" in failed.stdout.str()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            ("clif", "--mlcomp-bench", "quick"),
            "--mlcomp-fail-on: unknown 'clif'; use cliff, slower, coverage, budget, unsupported; did you mean 'cliff'?",
        ),
        (("cliff",), "add --mlcomp-bench quick"),
    ],
)
def test_what_is_to_fail_a_run_is_known_and_can_be_found(
    box: pytest.Pytester, words: tuple[str, ...], hint: str
) -> None:
    shape_file(box, case("fine"))
    run = mlcomp(box, "mine.toml", "--mlcomp-fail-on", *words)
    assert run.ret == pytest.ExitCode.USAGE_ERROR and hint in run.stderr.str()


def test_works_without_its_neighbours(box: pytest.Pytester) -> None:
    shape_file(box, case("fine", PERF))
    result = mlcomp(box, "mine.toml", "--mlcomp-bench", "quick", "-p", "no:benchmark", "-p", "no:xdist", workers=None)
    result.assert_outcomes(passed=3)
    assert len(report(box, "benchmark.json")["benchmarks"]) == 1


def test_the_options_of_pytest_benchmark_select_ours(box: pytest.Pytester) -> None:
    shape_file(box, case("fine", PERF))
    words = ("mine.toml", "--mlcomp-bench", "quick")
    mlcomp(box, *words, "--benchmark-only").assert_outcomes(passed=2, skipped=1)
    mlcomp(box, *words, "--benchmark-skip").assert_outcomes(passed=1, skipped=1)


def test_a_missed_budget_and_an_unfit_machine_are_said(box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOW", "2")
    monkeypatch.setenv("NOISY", "1")
    shape_file(box, case("fine", PERF))
    result = mlcomp(box, "mine.toml", "--mlcomp-bench", "quick", "-k", "bench or fitness")
    result.assert_outcomes(passed=1, failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*budget min_speedup = 1.5 missed*", "UNFIT TO JUDGE SPEED: equal kernels differ*"])
    page = report(box, "speedup.md")
    assert "could not judge speed" in page
    assert "compile left out: no compiler" in page


def test_cases_go_through_torch_compile_without_the_fallback(box: pytest.Pytester) -> None:
    shape_file(box, case("fine"))
    refused = mlcomp(box, "mine.toml", "--mlcomp-backend", "eagerly", "--mlcomp-entry", "compile")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "--mlcomp-entry compile cannot be combined" in refused.stderr.str()
    mlcomp(box, "mine.toml", "--mlcomp-entry", "compile").assert_outcomes(passed=1)
    (folder,) = (box.path / "reports").iterdir()
    assert folder.name.endswith("-mlcomp")


def test_another_backend_is_checked_for_and_reported_apart(box: pytest.Pytester) -> None:
    shape_file(box, case("fine"))
    refused = mlcomp(box, "mine.toml", "--mlcomp-backend", "nonsense")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "there is no system 'nonsense'" in refused.stderr.str()
    mlcomp(box, "mine.toml", "--mlcomp-backend", "eagerly").assert_outcomes(passed=1)
    (folder,) = (box.path / "reports").iterdir()
    assert folder.name.endswith("-eagerly")


def test_tables_of_one_run_never_stand_beside_older_ones(box: pytest.Pytester) -> None:
    shape_file(box, case("fine", PERF))
    mlcomp(box, "mine.toml", "--mlcomp-bench", "quick")
    assert "FASTER" in report(box, "speedup.md")
    mlcomp(box, "mine.toml")
    assert "No benchmark has run" in report(box, "speedup.md")
    assert report(box, "benchmark.json")["benchmarks"] == []


def test_the_selftest_is_run_printed_and_recorded(box: pytest.Pytester) -> None:
    shape_file(box, case("fine"))
    result = mlcomp(box, "mine.toml", "--mlcomp-selftest")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*5 of 6 planted miscompiles caught*"])
    assert report(box)["selftest"] == {"planted": 6, "caught": 5, "false_alarms": 0}
    mlcomp(box, "mine.toml", "--mlcomp-selftest", "-k", "selftest").assert_outcomes(failed=1, deselected=1)


def test_a_malformed_file_names_its_line(box: pytest.Pytester) -> None:
    shape_file(box, case("fine", "dtype = ['f32']"))
    result = mlcomp(box, "mine.toml")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*mine.toml:7: *dtype*"])
    assert not list(box.path.glob("reports/*/*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mlcomp-target", "gpu"], "--mlcomp-target: unknown 'gpu'; use cpu"),
        (["--mlcomp-stages", "torch,tyle"], "use torch, tensor, loop, tile, kernel, cpp; did you mean 'tile'?"),
        (["--mlcomp-tier", "some"], "invalid choice: 'some'"),
        (["--mlcomp-bench", "on"], "invalid choice: 'on'"),
        (["--mlcomp-timeout", "0"], "--mlcomp-timeout: 0 is not a number of seconds above 0"),
        (["--mlcomp-report", "mine.toml"], "is a file; name a folder"),
        (["--mlcomp-vs", ","], "--mlcomp-vs: empty; use eager, compile, max-autotune"),
        (["--mlcomp-vs", "eager"], "--mlcomp-vs: only benchmarks are timed; add --mlcomp-bench quick"),
        (["--mlcomp-ops", "add"], "--mlcomp-ops: no database of ops is asked for; add --mlcomp-opinfo or"),
        (["--mlcomp-samples", "2"], "--mlcomp-samples: no samples are asked for; add --mlcomp-opinfo"),
        (["--mlcomp-opinfo=check", "--mlcomp-samples", "-1"], "--mlcomp-samples: -1 is not a number of samples; 0 st"),
        (["-n", "2", "--dist", "loadgroup"], "--dist loadgroup cannot be combined with --mlcomp"),
        (["-n", "2", "--dist", "loadscope"], "Use --dist load or --dist worksteal"),
    ],
)
def test_wrong_words_are_usage_errors(box: pytest.Pytester, words: list[str], message: str) -> None:
    shape_file(box, case("fine"))
    result = in_process(box, "-p", "conformance.plugin", "--mlcomp", "mine.toml", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str() + result.stdout.str()


VALUED = [name for name, option in OPTIONS.items() if option.get("action") != "store_true"]


@pytest.mark.parametrize("name", VALUED)
def test_an_empty_value_is_a_usage_error(box: pytest.Pytester, name: str) -> None:
    shape_file(box, case("fine"))
    result = in_process(box, "-p", "conformance.plugin", "--mlcomp", "mine.toml", f"--mlcomp-{name}=")
    said = result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--mlcomp-{name}: the value is empty" in said or f"--mlcomp-{name}: invalid" in said


def test_no_path_means_the_shapes_that_come_along(box: pytest.Pytester) -> None:
    result = mlcomp(box, "--collect-only", "-q", workers=None)
    names = {match[1] for line in result.outlines if (match := re.search(r"([\w.+\-]+\.toml)::", line))}
    assert names <= {path.name for path in files.find_shapes().rglob("*.toml")}
    assert bool(names) == any(files.find_shapes().rglob("*.toml"))


def test_cases_that_cannot_be_built_together_are_judged_alone(
    box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "missing_requirement", lambda name: "", raising=False)
    shape_file(box, case("fine"), case("raises"))
    mlcomp(box, "--mlcomp-target", "mlir", ".").assert_outcomes(passed=1, failed=1)


def test_words_of_the_options_are_those_of_the_suite() -> None:
    assert OPTIONS["tier"]["choices"] == TIERS
    assert set(re.findall(r"^def (\w+)", FAKE, re.MULTILINE)) == set(settings.FUNCTIONS)
