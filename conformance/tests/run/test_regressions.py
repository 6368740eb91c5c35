"""Runs against a baseline: what is surely slower fails where it is asked for, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.tests.pretence import PERF, case, mlcomp, report, shape_file

pytest_plugins = ["pytester"]
AGAINST = ("--mlcomp-bench", "quick", "--mlcomp-baseline", "main", "--mlcomp-fail-on", "slower,coverage")


def stored(box: pytest.Pytester) -> Path:
    shape_file(box, case("fine", PERF), case("other", PERF))
    result = mlcomp(box, "mine.toml", "--mlcomp-bench", "quick", "--mlcomp-save-baseline")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["mlcomp: 2 kernels are stored in *"])
    (path,) = box.path.glob("reports/baseline/*/main")
    return path


def test_equal_code_passes_and_slower_code_fails(box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored(box)
    before = {path: path.read_text() for path in folder.rglob("*.json")}
    same = mlcomp(box, "mine.toml", *AGAINST)
    assert same.ret == 0
    same.stdout.fnmatch_lines(["mlcomp: against main: 2 SAME (2 of equal code)"])
    monkeypatch.setenv("SLOW", "1.4")
    slow = mlcomp(box, "mine.toml", *AGAINST)
    assert slow.ret == 1
    slow.stdout.fnmatch_lines(["mlcomp: against main: 2 SLOWER; slowdowns from 5.0% on would show in all"])
    assert "fine[" in report(box, "regressions.md") and "| SLOWER" in report(box, "regressions.md")
    assert report(box)["benches"][0]["against"]["verdict"] == "SLOWER"
    asked = [word for word in AGAINST if word not in ("--mlcomp-fail-on", "slower,coverage")]
    told = mlcomp(box, "mine.toml", *asked, "--mlcomp-vs", "eager")
    assert "slower than the baseline" not in told.stdout.str()
    assert {path: path.read_text() for path in folder.rglob("*.json")} == before


# The real runner, with the loops of some kernels as they are written; what the machine is fit for is not the question.
PLANTED = """
import os
from compiler import Schedule
from compiler.schedule import heuristic
from conformance.bench.benchmark import run as bench

def fitness(options):
    return {"fit": True, "message": ""}

def choose(kernel, *others, right=heuristic.choose):
    return Schedule() if os.environ["PLANTED"] in kernel.name else right(kernel, *others)

heuristic.choose = choose
"""
RACED = {"worse": "x.amax(-1)", "better": "x.amin(-1)", "twin": "torch.exp(x)"}


def test_a_kernel_that_is_really_slower_is_found(box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real kernels: one that is slower now, one that was slower then, and one whose text alone differs."""
    perf = "perf = { dims = [{ N = 8192 }] }"
    shape_file(box, *(case(name, perf).replace('"x + 1"', f'"{expr}"') for name, expr in RACED.items()))
    box.makepyfile(planted=PLANTED)
    words = ("mine.toml", "--mlcomp-runner", "planted", "--mlcomp-bench", "quick", "--mlcomp-vs", "eager")
    timed = ("-m", "mlcomp_bench")
    for planted in ("amin", "amax"):
        monkeypatch.setenv("PLANTED", planted)
        monkeypatch.setenv("MLCOMP_CACHE", str(box.path / planted))
        against = [word for word in AGAINST if planted == "amax"] or ["--mlcomp-save-baseline"]
        result = mlcomp(box, *words, *timed, *against)
        result.assert_outcomes(passed=4)
        for text in box.path.glob("reports/baseline/*/main/kernels/*twin*.cpp"):
            text.write_text(text.read_text() + "\nstruct mlcomp_twin;\n")
    found = {row["op"]: row["against"] for row in report(box)["benches"]}
    assert found["worse"]["verdict"] == "SLOWER" and found["worse"]["speedup"] < 0.7, found
    assert found["better"]["verdict"] == "FASTER" and found["better"]["speedup"] > 1.4, found
    assert found["twin"]["verdict"] in ("SAME", "AMBIGUOUS") and found["twin"]["rounds"], found
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["mlcomp: against main: *1 SLOWER*", "slower than the baseline: *", "worse*SLOWER*"])
    assert report(box, "regressions.md").index("| worse") < report(box, "regressions.md").index("| better")


@pytest.mark.parametrize("excuse", [{"NOISY": "1"}, {"CHANCE": "0.2"}])
def test_what_may_be_chance_fails_nothing(
    box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, excuse: dict[str, str]
) -> None:
    stored(box)
    for name, value in {**excuse, "SLOW": "1.1"}.items():
        monkeypatch.setenv(name, value)
    result = mlcomp(box, "mine.toml", *AGAINST)
    result.stdout.fnmatch_lines(["mlcomp: against main: 2 AMBIGUOUS*"])
    assert "slower than the baseline" not in result.stdout.str()


def test_a_case_that_passed_and_does_not_now_is_named(box: pytest.Pytester) -> None:
    folder = stored(box)
    known = json.loads((folder / "baseline.json").read_text())
    (name, *_), others = known["cases"], {"mine.toml::gone[N4.f32.contig.normal-cpu]": "pass"}
    (folder / "baseline.json").write_text(json.dumps(known | {"cases": {**known["cases"], name: "fail", **others}}))
    result = mlcomp(box, "mine.toml", *AGAINST, "-k", "fine")
    assert result.ret == 0  # a part of the suite: what is missing was not asked for
    whole = mlcomp(box, *AGAINST)
    assert whole.ret == 1
    whole.stdout.fnmatch_lines(["passed in the baseline: mine.toml::gone*"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--mlcomp-save-baseline=a/b", "--mlcomp-bench", "quick"), "*a/b is not a valid name*"),
        (("--mlcomp-save-baseline",), "*add --mlcomp-bench quick*"),
        (("--mlcomp-fail-on", "slower"), "*add --mlcomp-bench quick and --mlcomp-baseline NAME*"),
        (("--mlcomp-fail-on", "coverage"), "*add --mlcomp-baseline NAME to compare with*"),
        (("--mlcomp-min-effect", "3"), "*3 is not a fraction between 0 and 1*"),
        (("--mlcomp-min-effect", "3%"), "*--mlcomp-min-effect: add --mlcomp-bench quick and --mlcomp-baseline NAME*"),
        (("--mlcomp-min-effect", "3%", "--mlcomp-bench", "quick"), "*--mlcomp-min-effect: add *"),
        (("--mlcomp-baseline", "never"), "*never is no baseline in *"),
    ],
)
def test_options_that_make_no_sense_are_refused(box: pytest.Pytester, words: tuple[str, ...], says: str) -> None:
    shape_file(box, case("fine", PERF))
    result = mlcomp(box, "mine.toml", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([says])
