"""Runs on several machines: parts that are cut alike, joined to one report with the verdict of the whole."""

from __future__ import annotations

import doctest
import json

import pytest

from conformance.run import merge, shards
from conformance.tests.pretence import FAKE, PERF, case, mlcomp, report, shape_file

pytest_plugins = ["pytester"]


def test_docstring_examples() -> None:
    assert doctest.testmod(shards).failed == 0


def test_parts_take_about_as_long() -> None:
    known = {f"x.toml::k{n}": float(n) for n in range(40)}
    names = [f"there/x.toml::k{n}" for n in range(44)]
    where = shards.cut(names, 3, known)
    seconds = [sum(n for n in range(40) if where[n] == part) for part in (1, 2, 3)]
    assert max(seconds) - min(seconds) < 45 and shards.cut(names, 3, known) == where


@pytest.mark.parametrize("workers", [0, 2])
def test_parts_make_the_whole(
    box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    shape_file(box, case("fine", PERF), case("other", PERF), case("wrong"))
    words = ("mine.toml", "--mlcomp-bench", "quick", "--mlcomp-record", "--mlcomp-seed", "1")
    whole = mlcomp(box, *words, "--mlcomp-save-baseline")
    assert whole.ret == 1
    wanted = report(box)
    monkeypatch.setenv("SLOW", "1.4")
    for part in ("1/2", "2/2"):
        raced = ("--mlcomp-baseline", "main", "--mlcomp-fail-on", "slower,coverage")
        mlcomp(box, *words, *raced, "--mlcomp-shard", part, workers=workers)
    folders = sorted(box.path.glob("reports/shards/*"))
    assert [folder.name for folder in folders] == ["1-of-2", "2-of-2"]
    assert merge.main([*map(str, folders), "--report", str(box.path / "joined")]) == 1
    said = capsys.readouterr().out
    assert "against main: 2 SLOWER" in said and "slower than the baseline" in said
    (folder,) = (box.path / "joined").glob("*/summary.md")
    joined = json.loads((folder.parent / "run.json").read_text())
    for kind in ("cases", "benches"):
        assert [row["id"] for row in joined[kind]] == [row["id"] for row in wanted[kind]]
    assert {row["verdict"] for row in joined["cases"]} == {"pass", "fail"}
    assert len(next((box.path / "joined/history").glob("*.jsonl")).read_text().splitlines()) == 1
    assert len(next((box.path / "reports/history").glob("*.jsonl")).read_text().splitlines()) == 1


def test_parts_that_make_no_whole_are_refused(box: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    shape_file(box, case("fine", PERF), case("other"))
    mlcomp(box, "mine.toml", "--mlcomp-shard", "1/2")
    one = box.path / "reports/shards/1-of-2"
    assert merge.main([str(one)]) == 2
    assert "each of its 2 parts once; here are 1/2" in capsys.readouterr().err
    mlcomp(box, "mine.toml", "--mlcomp-shard", "2/2", "--mlcomp-bench", "quick")
    assert merge.main([str(one), str(box.path / "reports/shards/2-of-2")]) == 2
    assert "cut from different cases" in capsys.readouterr().err
    assert merge.main([str(box.path)]) == 2
    assert "has no part of a run" in capsys.readouterr().err
    refused = mlcomp(box, "mine.toml", "--mlcomp-shard", "3/2")
    refused.stderr.fnmatch_lines(["*3/2 is not of the form I/N*"])


def test_workers_in_folders_of_their_own_run_the_suite(box: pytest.Pytester) -> None:
    """As on other hosts: xdist copies the shape files and starts a Python there."""
    shape_file(box, case("fine"), case("other"), case("wrong"), name="suite/mine.toml")
    places = [box.mkdir(f"host{n}") for n in (1, 2)]
    for name, text in (("fake.py", FAKE), ("conftest.py", "")):  # by which pytest finds it there
        (box.path / "suite" / name).write_text(text)
    words = [word for place in places for word in ("--tx", f"popen//chdir={place}")]
    suite = str(box.path / "suite")
    result = mlcomp(box, "-d", *words, "--rsyncdir", suite, suite, workers=None)
    result.assert_outcomes(passed=2, failed=1)
    assert [row["op"] for row in report(box)["cases"] if row["verdict"] == "fail"] == ["wrong"]
    assert all((place / "suite/mine.toml").exists() for place in places)
