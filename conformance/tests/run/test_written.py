"""Where the reports of a run go, and that an interrupted run leaves none."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance.tests.pretence import PERF, case, mlcomp, report, shape_file

pytest_plugins = ["pytester"]


def test_reports_stand_where_pytest_was_started(box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    shape_file(box, case("fine"), name="there/mine.toml")
    monkeypatch.chdir(box.mkdir("here"))
    mlcomp(box, "../there/mine.toml", bare=True).assert_outcomes(passed=1)
    assert list(box.path.glob("here/reports/*/run.json")) and not (box.path / "reports").exists()


def test_reports_that_cannot_be_written_fail_the_run(box: pytest.Pytester) -> None:
    shape_file(box, case("fine"))
    box.makeconftest("import pathlib\ndef pytest_collection_finish(): pathlib.Path('reports').write_text('')")
    result = mlcomp(box, "mine.toml")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*cannot write reports to */reports/*--mlcomp-report DIR*"])


# /proc takes no folder, whoever asks.
@pytest.mark.parametrize("place", ["mine.toml/reports", "/proc/self/reports", "long" * 99])
def test_a_folder_that_cannot_be_written_is_a_usage_error(box: pytest.Pytester, place: str) -> None:
    shape_file(box, case("fine"))
    result = mlcomp(box, "mine.toml", "--mlcomp-report", place)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--mlcomp-report: no reports can be written to *{place}*; name another folder"])
    assert mlcomp(box, "mine.toml", "--mlcomp-report", place, "--collect-only").ret == pytest.ExitCode.OK


def test_the_summary_goes_to_the_ci_job(box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(box.path / "step.md"))
    shape_file(box, case("fine"))
    mlcomp(box, "mine.toml")
    assert (box.path / "step.md").read_text().startswith("# mlcomp on ")


@pytest.mark.parametrize("workers", [0, 1])
def test_junit_has_stages_and_speeds_and_no_rows(box: pytest.Pytester, workers: int) -> None:
    shape_file(box, case("fine", PERF, "dims.N = [4]"), case("wrong", dims="dims.N = [4]"))
    words = ("--junitxml", "junit.xml", "--mlcomp-bench", "quick")
    mlcomp(box, "mine.toml", *words, workers=workers).assert_outcomes(passed=3, failed=1)
    found = {
        one.attrib["name"].split("[")[0] + one.attrib["name"][-7:]: {
            p.attrib["name"].removeprefix("mlcomp_"): p.attrib["value"] for p in one.iter("property")
        }
        for one in ElementTree.parse(box.path / "junit.xml").iter("testcase")
    }
    assert found["wrong" + "al-cpu]"] == {
        "verdict": "fail",
        "stage": "tile",
        "pass": "tile:fuse#3",
        "err_over_tol": "12.5",
    }
    assert found["fine" + "-bench]"]["speedup"] == "2.0" and found["fine" + "-bench]"]["interval"] == "1.9 2.1"
    assert "samples" not in (box.path / "junit.xml").read_text()


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_leaves_no_child_and_no_report(box: pytest.Pytester, workers: int) -> None:
    shape_file(box, case("hangs"))
    command = [sys.executable, "-m", "pytest", "-p", "conformance.plugin", "--mlcomp", "--mlcomp-runner", "fake"]
    run = subprocess.Popen(
        [*command, "-n", str(workers), "mine.toml"],
        cwd=box.path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 20
    while not (children := checking_processes(run.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children, "the child never started"
    time.sleep(0.3)
    os.killpg(run.pid, signal.SIGINT)
    output = run.communicate(timeout=20)[0]
    assert run.returncode == pytest.ExitCode.INTERRUPTED, output
    deadline = time.monotonic() + 5
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, children))
    assert not list(box.path.glob("reports/*/*"))


def checking_processes(ancestor: int) -> list[int]:
    """The executor's children below a process."""
    found = []
    for path in Path(f"/proc/{ancestor}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # some end while they are looked at
            for child in map(int, path.read_text().split()):
                words = Path(f"/proc/{child}/cmdline").read_text()
                found += [child] if "conformance.isolation.child" in words else checking_processes(child)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_rivals_of_other_machines_are_named_once(box: pytest.Pytester) -> None:
    timed = "perf = { dims = [{ N = 64 }, { N = 65 }], vs = ['elsewhere', 'else'] }"
    shape_file(box, case("fine", timed), case("last", timed))
    result = mlcomp(box, "mine.toml", "--mlcomp-bench", "quick", "--mlcomp-tier", "full")
    assert result.ret == pytest.ExitCode.OK
    warning = "warning: else, elsewhere of `perf.vs`: not installed on this machine, so not timed against"
    assert result.outlines.count(warning) == 1
    assert "elsewhere, else left out: not installed on this machine" in report(box, "speedup.md")
