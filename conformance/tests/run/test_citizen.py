"""The suite among pytest's own features: what failed last, what parts of a run may overwrite, what is left behind."""

import contextlib
import fcntl
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from conformance import rows
from conformance.isolation import lock, scratch
from conformance.report import environment, tables
from conformance.run import progress
from conformance.tests.pretence import PERF, ROOT, case, mlcomp, report, shape_file

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("option", "ran"),
    [
        ("--lf", {"failed": 1, "deselected": 3}),
        ("--ff", {"failed": 1, "passed": 3}),
        ("--sw", {"failed": 1, "deselected": 2}),
    ],
)
def test_what_failed_last_is_found_again(box: pytest.Pytester, option: str, ran: dict[str, int]) -> None:
    shape_file(box, case("first"), case("second"), case("wrong"), case("last"))
    first = mlcomp(box, "mine.toml", *(["--sw"] if option == "--sw" else []))
    first.assert_outcomes(failed=1, passed=2 if option == "--sw" else 3)
    again = mlcomp(box, "mine.toml", option, "-v")
    again.assert_outcomes(**ran)
    order = [line for line in again.outlines if line.startswith("mine.toml::")]
    assert order[0].startswith("mine.toml::wrong[N4.f32.contig.normal-cpu] FAILED")


def test_the_license_is_there_and_named() -> None:
    assert "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])


PARTS = [
    ("mine.toml",),
    ("-k", "fine"),
    ("-m", "mlcomp_check"),
    ("--deselect", "mine.toml::fine[N4.f32.contig.normal-cpu]"),
    ("--mlcomp-stages", "torch"),
    ("--lf",),
]


@pytest.mark.parametrize("words", PARTS, ids=" ".join)
def test_a_part_of_the_suite_leaves_the_reports_of_the_whole_alone(
    box: pytest.Pytester, words: tuple[str, ...]
) -> None:
    shape_file(box, case("fine"))
    shape_file(box, case("wrong"), name="other.toml")
    reports = box.path / "reports"
    mlcomp(box, bare=True).assert_outcomes(passed=1, failed=1)
    (device,) = (path.name for path in reports.iterdir())
    before = {path: path.read_text() for path in (reports / device).iterdir() if path.is_file()}
    assert len(before) == 6 and not device.startswith(".")
    mlcomp(box, *words, bare=True)
    assert {path: path.read_text() for path in before} == before
    assert {path.name for path in reports.iterdir()} == {device, ".last"}
    assert (reports / ".last" / ".gitignore").read_text() == "*\n" and (reports / ".last" / "run.json").exists()
    repro = f"reports/{device}/repro"
    assert repro not in (reports / ".last" / "run.json").read_text()


def test_a_run_that_stopped_early_leaves_the_reports_of_the_whole_alone(box: pytest.Pytester) -> None:
    shape_file(box, case("wrong"), case("fine"))
    stopped = mlcomp(box, "-x", bare=True)
    stopped.assert_outcomes(failed=1)
    assert not (box.path / "reports").exists() and "left as they were" in stopped.stdout.str()


def test_a_run_without_arguments_takes_the_shape_files_of_its_folder(box: pytest.Pytester) -> None:
    shape_file(box, case("fine"))
    shape_file(box, case("last"), name="shapes/other.toml")
    (box.path / "settings.toml").write_text("[tool]\nformat = 'none'\n")
    mlcomp(box, bare=True).assert_outcomes(passed=2)
    mlcomp(box, "mine.toml", bare=True, workers=2).assert_outcomes(passed=1)


def test_a_case_of_another_torch_is_left_out_by_name(box: pytest.Pytester) -> None:
    shape_file(box, case("fine", 'torch = ">=2"'), case("later", f'torch = ">=99"\n{PERF}'))
    done = mlcomp(box, "mine.toml", "--mlcomp-bench", "quick")
    done.assert_outcomes(passed=1, skipped=2)  # a check and a benchmark
    for size in (4, 64):
        done.stdout.fnmatch_lines([f"not run: later[[]N{size}.f32.contig.normal[]] needs torch >=99, here is *"])


def left_behind(folder: Path) -> list[str]:
    """Temporary folders of the suite, and the processes that know of one, below a folder."""
    folders = [str(path) for path in folder.iterdir() if path.name.startswith(("mlcomp-", ".mlcomp-new-"))]
    marked = f"{scratch.MARK}={folder}/".encode()
    running = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            running += [str(path)] if marked in path.read_bytes() else []
    return folders + running


def wait_until(holds: Callable[[], object], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(holds())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_run_that_is_killed_leaves_nothing(box: pytest.Pytester, number: signal.Signals, workers: int) -> None:
    shape_file(box, case("litters"))
    command = [sys.executable, "-m", "pytest", "-p", "conformance.plugin", "--mlcomp", "--mlcomp-runner", "fake"]
    run = subprocess.Popen(
        [*command, "-n", str(workers), "mine.toml"], cwd=box.path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert wait_until(lambda: list(box.path.glob("littered.*"))), "no case ran"
        assert left_behind(box.path)
    finally:
        run.send_signal(number)
    assert wait_until(lambda: run.poll() is not None and not left_behind(box.path)), left_behind(box.path)


def test_a_child_that_is_lost_leaves_nothing(box: pytest.Pytester) -> None:
    shape_file(box, case("litters", "timeout = 0.5"), case("falls"), case("fine"))
    mlcomp(box, "mine.toml").assert_outcomes(passed=1, failed=2)
    assert list(box.path.glob("littered.*")) and not left_behind(box.path)


def test_folders_that_nobody_keeps_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = scratch.make()
    first.keeper.kill()
    first.close()
    stray = subprocess.Popen(["sleep", "60"], env=os.environ | first.environment)
    second = scratch.make()
    second.close()
    assert not list(tmp_path.iterdir()) and stray.wait(timeout=10) == -signal.SIGKILL


def test_a_process_that_just_becomes_another_program_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For that moment it has no environment, so nothing says whose it is."""
    folder = tmp_path / "it"
    folder.mkdir()
    stray = subprocess.Popen(["sleep", "60"], env=os.environ | {scratch.MARK: str(folder)})
    looks, right = [iter(())], scratch.marked_processes
    monkeypatch.setattr(scratch, "marked_processes", lambda folder: looks.pop() if looks else right(folder))
    scratch.clean_up(folder)
    assert stray.wait(timeout=10) == -signal.SIGKILL and not folder.exists()


def test_a_folder_that_is_written_to_while_it_is_removed_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, right = tmp_path / "it", shutil.rmtree
    folder.mkdir()
    late = ["late"]

    def rmtree(path: Path, ignore_errors: bool) -> None:
        right(path, ignore_errors)
        if late:
            path.mkdir()
            (path / late.pop()).touch()

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    scratch.clean_up(folder)
    assert not list(tmp_path.iterdir())


def test_a_size_beyond_all_memory_is_the_shape_files_fault(box: pytest.Pytester) -> None:
    shape_file(box, case("vast", PERF, dims="dims.N = 1000000000000"), case("fine"))
    run = mlcomp(box, "mine.toml")
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(["mine.toml:5: case 'vast': args: they take 3725.3 GiB, and a checking process may use*"])
    (row,) = (row for row in report(box)["cases"] if row["verdict"] == "fail")
    assert (row["first_bad_stage"], row["first_bad_pass"]) == (None, None)


@pytest.mark.parametrize("tool", ["g++", "ld"])
def test_a_missing_compiler_is_said_once_and_first(
    box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    shape_file(box, case("fine"), case("last"))
    (box.path / "bin").mkdir()
    if tool == "ld":
        (box.path / "bin" / "g++").write_text("#!/bin/sh\necho ld\n")
        (box.path / "bin" / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", str(box.path / "bin"))
    run = mlcomp(box, "mine.toml")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    assert run.stderr.str().count(f"{tool} was not found: install it (Debian: apt-get install g++)") == 1
    mlcomp(box, "mine.toml", "--collect-only").assert_outcomes()
    mlcomp(box, "mine.toml", "--mlcomp-backend", "eagerly").assert_outcomes(passed=2)


def test_a_table_tells_what_was_raised_not_that_there_was_a_traceback() -> None:
    detail = "Traceback (most recent call last):\n  File ...\nValueError: seven\n"
    known = rows.Item(id="a[f32]", file="a.toml", suite="a", op="a", target="cpu", dtype="f32")
    row = rows.Check(**vars(known), first_bad_stage="torch", detail=detail)
    assert "ValueError: seven" in tables.case_table([row]) and "Traceback" not in tables.case_table([row])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_for_reports_changes_no_ids(box: pytest.Pytester, workers: int) -> None:
    there = box.path.parent / f"{box.path.name}-reports"
    there.mkdir()
    shape_file(box, case("wrong"))
    run = mlcomp(box, "mine.toml", "--mlcomp-report", str(there), workers=workers)
    run.stdout.fnmatch_lines(["FAILED mine.toml::wrong*"])
    assert (box.path / ".pytest_cache").is_dir() and list(there.glob("*/run.json"))
    mlcomp(box, "mine.toml", "--lf", workers=workers).assert_outcomes(failed=1)


def test_nobody_is_faster_or_slower_on_an_unfit_machine(box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    shape_file(box, case("fine", PERF))
    mlcomp(box, "mine.toml", "--mlcomp-bench", "quick").stdout.fnmatch_lines(["*FASTER*"])
    monkeypatch.setenv("NOISY", "1")
    run = mlcomp(box, "mine.toml", "--mlcomp-bench", "quick", "--benchmark-json", "theirs.json")
    pages = [report(box, name) for name in ("speedup.md", "summary.md")]
    said = [run.stdout.str(), *pages, str(report(box)), str(report(box, "benchmark.json"))]
    said.append((box.path / "theirs.json").read_text())
    assert not any(word in text for text in said for word in ("FASTER", "SLOWER"))
    assert "AMBIGUOUS" in pages[0] and "on an unfit machine" in pages[0]


def test_benchmarks_of_one_machine_compare_without_a_warning(
    box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    shape_file(box, case("fine", PERF))
    words = ("mine.toml", "--mlcomp-bench", "quick", "-k", "bench")
    mlcomp(box, *words)
    (saved,) = box.path.glob("reports/*/benchmark.json")
    mlcomp(box, *words, f"--benchmark-compare={saved}")
    assert not recwarn.list
    monkeypatch.setattr(environment, "cpu_model", lambda: "Another CPU")
    mlcomp(box, *words, f"--benchmark-compare={saved}", "--mlcomp-report", "elsewhere")
    (warning,) = map(str, recwarn.list)
    assert "machine_info is different" in warning and len(warning) < 1500


def test_a_run_that_waits_says_for_whom(box: pytest.Pytester) -> None:
    shape_file(box, case("fine"))
    path = box.path / "mlcomp.lock"
    command = [sys.executable, "-m", "pytest", "-p", "conformance.plugin", "--mlcomp", "--mlcomp-runner", "fake"]
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        run = subprocess.Popen(
            [*command, "mine.toml"], cwd=box.path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert run.stderr is not None
        line = next((line for line in run.stderr if line.startswith("mlcomp: ")), "")
    run.stderr.read()
    assert run.wait(timeout=30) == 0
    assert f"waiting for process {os.getpid()}, which has this machine's lock {path}" in line


def test_a_run_does_not_complain_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert lock.waiting_message(path) == ""
    assert lock.waiting_message(tmp_path / "absent") == ""


def test_the_progress_line_estimates_the_rest_of_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    line = progress.Progress(Console(file=io.StringIO()), own_line=False)
    line.total = 100
    for number in range(10):
        line.pytest_runtest_logstart(f"mine.toml::a{number}")
        now += 6.0
        line.pytest_runtest_logfinish(f"mine.toml::a{number}")
    line.pytest_runtest_logstart("mine.toml::last")
    assert line.text().plain == "10 of 100 done, about 9 min left: last 0 s"
