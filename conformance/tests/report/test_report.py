"""Rows by hand: what becomes of them in verdicts, files, pages and tables."""

import dataclasses
import doctest
import errno
import importlib
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conformance import rows
from conformance.isolation.executor import Reply, Status
from conformance.report import environment, html, pages, replies, tables, writer
from conformance.rows import (
    Alarm,
    Bench,
    Budget,
    Check,
    Fitness,
    Fuzz,
    Gate,
    Kernel,
    PlantedMutant,
    SelfTest,
    Speedup,
    Stage,
)
from conformance.run import progress, regressions
from conformance.shapes.cases import Case, Xfail

ALARM = Alarm(target="cpu", stage=None, case="a[f32]", message="no")
ENV: environment.Environment = {
    "python": "3.11.2", "torch": "2.13.0", "device": "amd-epyc", "cpu": "AMD EPYC", "gpu": None,
    "toolchain": "g++ 12.2", "commit": "abc+changes",
}  # fmt: skip


def check(op: str, verdict: str = "pass", dtype: str = "f32", error: float | None = 0.5, **more: Any) -> Check:
    stage = Stage(
        stage="loop", verdict=verdict, err_over_tol=error, executor="c++", seconds=0.5, message="a|b"
    )  # fmt: skip
    known: dict[str, Any] = {
        "id": f"{op}[N4.{dtype}.contig.normal]", "file": "shapes/mine.toml", "suite": "mine", "op": op,
        "target": "cpu", "dtype": dtype, "verdict": verdict, "stages": (stage,), "command": f"pytest --mlcomp {op}",
    }  # fmt: skip
    return Check(**known | more)


def bench(op: str, speedup: float | None, suite: str = "mine", verdict: str = "SAME", **more: Any) -> Bench:
    known: dict[str, Any] = {
        "id": f"{op}[N4.f32]", "file": f"shapes/{suite}.toml", "suite": suite, "family": suite, "op": op,
        "target": "cpu", "dtype": "f32", "verdict": verdict, "ours_us": 10.0, "eager_us": 20.0, "speedup": speedup,
        "over": {"eager": Speedup(speedup=2.0, ci=(2.0, 2.0))},
        "samples": {"ours": (1e-5, 1.1e-5, 1.2e-5), "eager": (2e-5,)},
    }  # fmt: skip
    return Bench(**known | more)


def planted(caught: int, missed: int) -> tuple[PlantedMutant, ...]:
    return tuple(
        PlantedMutant(target="cpu", stage="loop", case="a[f32]", mutation="flip", caught=n < caught, how="")
        for n in range(caught + missed)
    )


def run(cases: tuple[Check, ...] = (), benches: tuple[Bench, ...] = (), selftest: SelfTest | None = None) -> writer.Run:
    return writer.Run(ENV, cases, benches, selftest, 12.5, "smoke", 7)


def case(*xfail: Xfail) -> Case:
    return Case(
        id="relu[N4.f32.contig.normal]", file="mine.toml", line=3, suite="mine", op="relu", expr="F.relu(x)", args=(),
        dims={}, params={}, consts={}, dtype="f32", layout="contig", distribution="normal", targets=("cpu",),
        tier="smoke", xfail=xfail,
    )  # fmt: skip


def test_what_json_cannot_say_becomes_null() -> None:
    value = {"verdict": "fail", "stages": [{"stage": "loop", "verdict": "fail", "err_over_tol": float("inf")}]}
    known = replies.describe(case(), "cpu", "mine.toml")
    row = replies.check(known, Reply(Status.DONE, value | {"detail": ""}))
    assert row.stages[0].err_over_tol is None
    assert json.loads(json.dumps(writer.run_json(run((row,))), allow_nan=False))["cases"][0]["verdict"] == "fail"


@pytest.mark.parametrize(
    ("reply", "verdict", "stage", "words"),
    [
        (Reply(Status.CRASH, None, "its process died of SIGSEGV", at="tile"), "crash", "tile", "in stage tile"),
        (Reply(Status.TIMEOUT, None, "no answer within 1 s"), "timeout", None, "timeout: no answer"),
        (Reply(Status.RAISED, None, "ValueError: no", "Traceback"), "fail", None, "ValueError: no"),
        (Reply(Status.DONE, {"verdict": "splendid"}), "fail", None, "no verdict out of pass, fail"),
        (Reply(Status.DONE, [1]), "fail", None, "no verdict"),
        (Reply(Status.DONE, {"verdict": "pass", "colour": 1}), "fail", None, "the runner returned no row"),
    ],
)
def test_a_lost_call_is_a_row_too(reply: Reply, verdict: str, stage: str | None, words: str) -> None:
    known = replies.describe(case(), "cpu", "mine.toml")
    row = replies.check(known, reply)
    assert (row.verdict, row.first_bad_stage) == (verdict, stage)
    assert words in row.detail
    assert replies.bench(known, "mine", reply).verdict == verdict
    assert words.split(" out of")[0] in tables.failure(row)


@pytest.mark.parametrize(
    ("xfail", "verdict", "stage", "outcome"),
    [
        (Xfail("cpu", "loop", "known"), "fail", "loop", "xfail"),
        (Xfail("cpu", None, "known"), "unsupported", None, "xfail"),
        (Xfail("cpu", "loop", "known"), "fail", "tile", "fail"),
        (Xfail("cpu", "loop", "known"), "unsupported", None, "unsupported"),
        (Xfail("cpu", None, "known"), "fail", None, "fail"),
        (Xfail("cpu", "loop", "known"), "fail", None, "fail"),
        (Xfail("cpu", None, "known"), "crash", None, "crash"),
        (Xfail("cpu", None, "known"), "pass", None, "fail"),
        (Xfail("cpu", None, "known", strict=False), "pass", None, "pass"),
        (Xfail("cuda", None, "known"), "fail", "loop", "fail"),
    ],
)
def test_an_expected_failure_is_that_failure(xfail: Xfail, verdict: str, stage: str | None, outcome: str) -> None:
    row = check("relu", verdict, first_bad_stage=stage)
    assert replies.expect(row, case(xfail)).verdict == outcome


@pytest.mark.parametrize(("invalid", "outcome"), [(False, "xfail"), (True, "fail")])
def test_a_benchmark_that_pytorch_does_not_run_is_not_expected_to_fail(invalid: bool, outcome: str) -> None:
    row = bench("relu", None, verdict="fail", invalid_case=invalid)
    assert replies.expect(row, case(Xfail("cpu", None, "known"))).verdict == outcome


def test_an_item_that_took_its_worker_along_is_known_by_its_id() -> None:
    row = replies.lost_item(
        "shapes/ops/x.toml::max_pool2d[B2-k_3.bf16.contig.normal-cpu-bench]", "worker 'gw0' crashed"
    )
    assert isinstance(row, Bench) and row.id == "max_pool2d[B2-k_3.bf16.contig.normal]"
    assert (row.op, row.dtype, row.target, row.suite, row.verdict) == ("max_pool2d", "bf16", "cpu", "x", "crash")


@pytest.mark.parametrize(
    ("made", "verdict", "words"),
    [
        (SelfTest(rows=planted(95, 5)), "pass", ""),
        (SelfTest(rows=planted(94, 6)), "fail", "94 of 100"),
        (SelfTest(rows=planted(99, 1), alarms=(ALARM,)), "fail", "1 sound cases refused"),
        (SelfTest(), "fail", "nothing was planted"),
        (None, "fail", "did not finish: its process died"),
    ],
)
def test_the_selftest_has_a_bar(made: SelfTest | None, verdict: str, words: str) -> None:
    died = Reply(Status.CRASH, None, "its process died of SIGSEGV")
    row = replies.selftest(died if made is None else Reply(Status.DONE, rows.to_json(made)))
    assert row.verdict == verdict
    assert words in row.detail


def test_tables_show_the_worst_first_and_not_too_many() -> None:
    found = [check(f"op{i}", "fail", error=float(i)) for i in range(30)]
    found += [check("crashed", "crash"), check("fine")]
    lines = tables.terminal(run(tuple(found))).splitlines()
    assert lines[0] == "32 cases: 1 pass, 30 fail, 1 crash"
    assert [line.split("[")[0] for line in lines[4:7]] == ["crashed", "op29", "op28"]
    assert lines[-1] == "… and 11 more"
    assert "fine[" not in "".join(lines)
    whole = pages.summary(run(tuple(found)))
    assert "op0[" in whole
    assert "a\\|b" in whole


def test_speed_by_suite_and_row() -> None:
    benches = (
        bench("a", 2.0, verdict="FASTER"),
        bench("b", 0.5, verdict="SLOWER"),
        bench("c", 8.0, "other"),
        bench("d", None, "other", "crash"),
    )
    page = pages.speedup(run(benches=benches))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "|" in line]
    figures = ["2", "2", "1", "1", "1.00", "0.500", "1", "2.00", "2.00"]
    assert ["mine", *figures] in lines and ["mine f32", *figures] in lines, "family; suite and type"
    assert ["other", "2", "1", "0", "0", "8.00", "8.00", "1", "2.00", "2.00"] in lines
    assert ["all", "4", "3", "1", "1", "2.00", "0.500", "2", "2.00", "2.00"] in lines
    order = [line[0].split("[")[0] for line in lines if "-cpu" in line[0]]
    assert order == ["d", "b", "b", "a", "d", "c"], "what is lost comes first"


def test_times_of_a_gpu_are_called_so_and_stand_beside_those_of_a_call() -> None:
    plain = pages.speedup(run(benches=(bench("a", 2.0, clock="thread_time_ns"),)))
    assert "on one thread" in plain and "CUDA graph" not in plain and "wall" not in plain
    walls = {"ours": 11.0, "eager": 19.0, "compile": 17.0}
    row = bench("a", 2.0, clock="device", wall_us=walls)
    page = pages.speedup(run(benches=(row, bench("b", None, verdict="crash"))))
    assert "CUDA graph" in page and "on one thread" not in page
    header, _, lost, line = (
        [cell.strip() for cell in text.strip("|").split("|")] for text in page.split("## mine")[1].splitlines() if text
    )
    shown = dict(zip(header, line, strict=True))
    assert (shown["wall us"], shown["wall us of PyTorch"], lost[0][0]) == ("11.0", "17.0", "b")
    assert writer.run_json(run(benches=(row,)))["benches"][0]["wall_us"] == walls


def test_coverage_counts_ops_by_dtype() -> None:
    found = (check("add"), check("add", "fail"), check("add", dtype="i32"), check("mul", "xfail"))
    page = pages.coverage(run(found))
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")
    ]
    assert cells[0] == ["op", "f32", "i32", "all"]
    assert cells[2:] == [["add", "1, 1 fail", "1", "2, 1 fail"], ["mul", "1 xfail", "", "1 xfail"]]


def test_the_largest_errors_are_shown_with_an_exponent() -> None:
    page = pages.summary(run((check("relu", "fail", error=1.234e46),)))
    assert "1.23e+46" in page and not re.search(r"\d{20}", page)


def test_schedules_that_were_given_up_are_findings_in_the_summary() -> None:
    made = run((check("matmul", fallbacks=("matmul: ScheduleError: pack(x): no factor",)), check("relu", fallbacks=())))
    line = "matmul[N4.f32.contig.normal-cpu]: matmul: ScheduleError: pack(x): no factor"
    for text in (tables.terminal(made), pages.summary(made)):
        assert "1 schedules were given up for plainer ones:" in text and line in text
    assert "given up" not in tables.terminal(run((check("relu"),)))


def test_the_summary_says_what_was_lost_once_or_expected() -> None:
    found = (
        check("relu", first_loss="its process died of SIGSEGV"),
        check("erf", "xfail", reason="no such thing yet", first_bad_stage="tile"),
    )
    page = pages.summary(run(found, selftest=SelfTest(rows=planted(1, 1))))
    for words in (
        "### Lost once",
        "its process died of SIGSEGV",
        "no such thing yet",
        "1 of 2 planted",
        "flip",
        "seed 7",
    ):
        assert words in page, words


def gate() -> Gate:
    kernel = Kernel(
        case="a[f32]", name="a", arch="sm_80", registers=30, stack=0, spilled=0, shared=256, disassembled=True,
        complaints=("spills",),
    )  # fmt: skip
    return Gate(file="shapes/mine.toml", verdict="fail", detail="spills", cases=1, kernels=(kernel,), seconds=1.5)


def test_tables_have_the_file_of_a_name_that_two_files_have() -> None:
    files = ("mine.toml", "yours.toml")
    failed = [dataclasses.replace(check("same", "fail"), file=file) for file in files]
    timed = [dataclasses.replace(bench("same", 2.0), file=file) for file in files]
    compiled = [dataclasses.replace(gate(), file=file) for file in files]
    facts = {"env": ENV, "seconds": 12.5, "tier": "smoke", "seed": 7}
    found: list[rows.Row] = [*failed, check("other", "fail"), *timed, bench("other", 2.0), *compiled]
    made = writer.Run.from_rows(found, **facts)
    for text in (pages.summary(made), pages.speedup(made), tables.terminal(made), regressions.page(made, "main", [])):
        named = [word for word in text.split() if "same[" in word or "other[" in word]
        assert {word.partition("same[")[0] for word in named if "same[" in word} == {f"{file}::" for file in files}
        assert all(word.startswith("other[") for word in named if "other[" in word)
    assert all(f"{file}::a[f32]" in pages.summary(made) for file in files)
    assert [html._case(row, None)["name"].partition("same")[0] for row in made.cases[::2]] == [f"{f}::" for f in files]
    assert "::" not in pages.speedup(writer.Run.from_rows([failed[0], timed[1], bench("other", 2.0)], **facts))


def test_run_json_keeps_its_keys() -> None:
    made = dataclasses.replace(run((check("relu"),), (bench("a", 2.0),), SelfTest()), gates=(gate(),))
    document = json.loads(json.dumps(writer.run_json(made), allow_nan=False))
    (row,), (timed,), (compiled,) = document["cases"], document["benches"], document["gate"]
    said = "id file op target dtype verdict first_bad_stage first_bad_pass stages seconds"
    assert " ".join(row) == said and " ".join(row["stages"][0]) == "stage verdict err_over_tol executor seconds"
    assert " ".join(timed) == (
        "id suite op target dtype ours_us eager_us compile_us speedup ci verdict roofline family clock wall_us best "
        "attention kernels compile_seconds digest detail cliffs against file seconds"
    )
    assert " ".join(compiled) == "file verdict cases seconds kernels"
    assert " ".join(compiled["kernels"][0]) == "case name arch registers stack spilled shared mix complaints"
    assert document["selftest"] == {"planted": 0, "caught": 0, "false_alarms": 0}


@pytest.mark.parametrize(
    "row",
    [
        check("relu", "fail", error=None, fallbacks=("a: b",), params={"dim": [0, 1]}),
        bench("a", 2.0, ci=(1.5, 2.5), budget=(Budget(name="min_speedup", limit=1.5, verdict="met"),), cached=("x",)),
        gate(),
        SelfTest(rows=planted(1, 1), alarms=(ALARM,)),
        Fitness(fit=True, message="fit"),
        Fuzz(index=3, seed=7, kind="value"),
    ],
    ids=lambda row: type(row).__name__,
)
def test_a_row_travels_between_processes(row: rows.Row) -> None:
    assert rows.loads(rows.dumps(row)) == row


def test_benchmark_json_is_what_pytest_benchmark_reads() -> None:
    document = writer.benchmark_json(run(benches=(bench("a", 2.0), bench("lost", None, verdict="crash"))))
    (record,) = document["benchmarks"]
    assert document["commit_info"] == {"id": "abc", "dirty": True}
    assert record["stats"]["median"] == 1.1e-5
    assert record["stats"]["data"] == [1e-5, 1.1e-5, 1.2e-5]
    assert record["extra_info"]["samples"] == {"eager": [2e-5]}
    assert writer.benchmark_json(run(benches=(bench("a", 2.0, samples={}),)))["benchmarks"][0]["stats"]["rounds"] == 1


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
def test_a_full_disk_or_ctrl_c_leaves_what_stood_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    writer.write(tmp_path / "device", {"a.md": "old a", "b.md": "old b"})
    calls: list[int] = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise error

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((writer.ReportError, KeyboardInterrupt)) as caught:
        writer.write(tmp_path / "device", {"a.md": "new a", "b.md": "new b"})
    assert {path.name: path.read_text() for path in (tmp_path / "device").iterdir()} == {
        "a.md": "old a",
        "b.md": "old b",
    }
    if isinstance(error, OSError):
        assert "No space left on device" in str(caught.value)
        assert "--mlcomp-report DIR" in str(caught.value)
    monkeypatch.undo()
    writer.write(tmp_path / "device", {"a.md": "new a"})
    assert (tmp_path / "device" / "a.md").read_text() == "new a"


def test_a_summary_that_cannot_be_added_says_so(tmp_path: Path) -> None:
    writer.append(None, "text")
    writer.append(str(tmp_path / "step.md"), "text")
    assert (tmp_path / "step.md").read_text() == "text\n"
    with pytest.raises(writer.ReportError, match="Is a directory"):
        writer.append(str(tmp_path), "text")


@pytest.mark.parametrize(
    ("model", "slug"),
    [
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "intel-xeon-platinum-8375c"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "amd-ryzen-9-7950x"),
        ("AMD Ryzen 7 5800H with Radeon Graphics", "amd-ryzen-7-5800h"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("../..", "unknown"),
    ],
)
def test_a_device_is_a_folder(model: str, slug: str) -> None:
    assert environment.slug(model) == slug


def test_the_environment_is_whole_and_another_backend_has_its_own_folder() -> None:
    found = environment.collect(("cpu",))
    assert set(found) == set(ENV)
    assert environment.device(("cpu",), "aot_eager") == f"{found['device']}-aot-eager"


def test_the_progress_line_comes_late_and_leaves() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    line = progress.Progress(console, own_line=False, quiet_seconds=0.0)
    line.tick()
    assert not line.shown
    line.total = 5
    line.pytest_runtest_logstart("mine.toml::relu[N4-cpu]")
    line.tick()
    assert line.shown
    assert line.text().plain == "0 of 5 done: relu[N4-cpu] 0 s"
    line.pytest_runtest_logfinish("mine.toml::relu[N4-cpu]")
    assert not line.shown
    line.pytest_runtest_logstart("mine.toml::erf[N4-cpu]")
    line.end()
    line.tick()
    assert not line.shown
    patient = progress.Progress(console, own_line=False)
    patient.pytest_runtest_logstart("mine.toml::erf[N4-cpu]")
    patient.tick()
    assert not patient.shown


@pytest.mark.parametrize("name", ["report.writer", "report.replies", "report.tables", "rows"])
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"conformance.{name}")).failed == 0
