"""Bisecting a throwaway history: the commit that planted a fault is found, equal code is judged once."""

import ast
import json
import random
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

import compiler
from conformance.history import bisect, culprit, texts, trial
from conformance.judge import subject
from conformance.shapes import cases
from conformance.tests.history import past, planted
from conformance.tests.pretence import case, mlcomp, shape_file

pytest_plugins = ["pytester"]

CASE = "mine.toml::add[N4096.f32.contig.normal]"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return past.repository(tmp_path_factory.mktemp("history"), [past.COMMENT])


def test_the_commit_that_made_it_wrong_is_found(tmp_path: Path) -> None:
    past.repository(tmp_path, [past.COMMENT, past.WRONG])
    found = past.run(tmp_path, "conformance.history.bisect", CASE, "--good", "c0", "--bad", "HEAD", "--value")
    assert found.returncode == 0, found.stderr
    said = found.stdout
    assert re.search(r"is wrong since\n  \w+ change 2\n", said)
    assert "first bad stage cpp, by render#" in said and "1.25f" in said and "again: mlcomp bisect" in said
    (state,) = (tmp_path / "reports/.last/bisect").glob("value-add*.json")
    assert sorted(verdict for verdict, _ in json.loads(state.read_text())["judged"].values()) == ["bad", "good"]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ((CASE, "--good", "c0", "--target", "gpu"), "target 'gpu'"),
        ((CASE, "--good", "c0", "--target", "gpu", "--speed"), "target 'gpu'"),
        ((CASE, "--good", "nosuch"), "no revision 'nosuch'"),
        ((CASE, "--good", "c0", "--bad", "nosuch"), "no revision 'nosuch'"),
        ((CASE, "--good", "c1", "--bad", "c0"), "c0 does not come after c1"),
        (("mine.toml::other", "--good", "c0"), "mine.toml has no case 'other'"),
        (("mine.toml", "--good", "c0"), "'mine.toml' names no case: write FILE::CASE"),
        (("none.toml::add", "--good", "c0"), "none.toml:1: cannot be read"),
    ],
)
def test_invalid_usage_is_told_in_a_line(
    words: tuple[str, ...], wrong: str, history: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(history)
    monkeypatch.setenv("MLCOMP_CACHE", str(history / "cache"))
    assert bisect.main(words) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("mlcomp: ") and said.err.count("\n") == 1
    assert wrong in said.err and "inconclusive" not in said.err
    if "--bad" not in words:  # that is not read by --check, for which `git bisect run` takes 2 as a verdict
        assert bisect.main([*words, "--check"]) == 125


def test_texts_are_judged_by_their_results_and_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path))
    (tmp_path / "mine.toml").write_text(past.SHAPES)
    found = texts.cases_by_id([tmp_path / "mine.toml"], ["total[N4096.f32.contig.normal]"])[0]
    program, target = subject.prepare(found, 0).program, compiler.target("cpu")
    fast = compiler.lower(program, target)
    slow = compiler.lower(program, target, dict.fromkeys(fast.schedules, compiler.Schedule()))
    held = compiler.headers(target)
    good, bad = ({"text": lowering.stages["cpp"], "headers": held} for lowering in (fast, slow))
    wrong = {**good, "text": good["text"].replace("&x[r]", "&x[r + 1 - 1 * (r > 8)]", 1)}
    assert wrong != good
    known = (cases.to_json(found), "cpu")
    assert [trial.value(*known, text, 0) for text in (good, bad)] == ["", ""]
    assert "expected" in trial.value(*known, wrong, 0) or "off" in trial.value(*known, wrong, 0)
    median, low, high = trial.speed(*known, good, bad, 0, 1.03, 0.99, nullcontext)
    assert low > 1.03 and low <= median <= high


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ("gb", (0, 1, [])),
        ("ggggbbbb", (3, 4, [])),
        ("g?b", (0, 2, [1])),
        ("gg??bb", (1, 4, [2, 3])),
        ("g" * 63 + "b", (62, 63, [])),
    ],
)
def test_the_search_leaves_out_what_cannot_be_judged(verdicts: str, expected: tuple[int, int, list[int]]) -> None:
    asked: list[str] = []

    def judge(name: str) -> str:
        asked.append(name)
        return {"g": bisect.GOOD, "b": bisect.BAD, "?": bisect.SKIP}[verdicts[int(name)]]

    assert bisect.bisect_commits([str(n) for n in range(len(verdicts))], judge, asked.append) == expected
    assert len(asked) <= 14  # with a line said of each


@pytest.mark.parametrize("guilty", [{3}, {1, 6}, {0, 4, 7}])
def test_the_least_set_of_changes_is_found(guilty: set[int]) -> None:
    good = "".join(f"step {n}\nbind {n}\n" for n in range(8))
    bad = "".join(f"other {n}\nbind {n}\n" for n in range(8))

    def slow(text: str) -> bool:
        return all(f"other {n}" in text for n in guilty)

    found = culprit.least_changes(good, bad, slow)
    assert found == tuple(line for n in sorted(guilty) for line in (f"-step {n}", f"+other {n}"))
    assert culprit.least_changes(good, bad, lambda text: None) == ()


def test_the_first_application_that_parts_is_named() -> None:
    def made(*texts: str) -> dict[str, object]:
        listed = [
            {"number": n, "name": f"step {n}", "pass": "schedule", "stage": "tile", "text": text}
            for n, text in enumerate(texts, 1)
        ]
        return {"applications": listed}

    found = culprit.first_difference(made("a", "b", "c"), made("a", "d", "e"))
    assert (found.name, found.stage) == ("schedule: step 2 (#2)", "tile")
    assert [line for line in found.difference if line[0] != "@"] == ["--- before", "+++ after", "-b", "+d"]


@pytest.mark.parametrize(("guilty", "named"), [({"b"}, ("b",)), ({"a", "c"}, ("a", "c")), (set(), ())])
def test_the_kernels_of_a_program_are_told_apart(guilty: set[str], named: tuple[str, ...]) -> None:
    def program(right: int) -> str:
        head = "static __attribute__((noinline, noclone)) void"
        return "// head\n" + "".join(f"{head} {name}(float *x) {{\n  x[0] = {right};\n}}\n" for name in "abc")

    def worse(text: str) -> bool:
        return bool(guilty) and all(f"{name}(float *x) {{\n  x[0] = 2" in text for name in guilty)

    assert culprit.least_kernels(program(1), program(2), worse) == named
    assert culprit.least_kernels(program(1), "// other head\n" + program(2), worse) == ()


@pytest.mark.parametrize(("name", "kind"), [("add[N4-cpu]", "--value"), ("add[N4-cpu-bench]", "--speed")])
def test_pytest_asks_for_a_case_by_its_item(
    box: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    asked: list[list[str]] = []

    def answers(words: list[str]) -> int:
        asked.append(words)
        print("since c2")
        return 0

    monkeypatch.setattr(bisect, "main", answers)
    shape_file(box, case("add"))
    result = mlcomp(box, "--mlcomp-bisect", f"mine.toml::{name}", "--mlcomp-baseline", "v1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["since c2"])
    assert asked == [[f"mine.toml::{name}", "--good", "v1", kind, "--target", "cpu", "--seed", "0"]]


def test_planted_regressions_have_their_places() -> None:
    every = list(planted.plants())
    assert [sum(plant.kind == kind for plant in every) for kind in ("value", "speed")] == [10, 10]
    for plant in every:
        text = (past.ROOT / "compiler" / plant.file).read_text(encoding="utf-8")
        assert text.count(plant.old) == 1, f"{plant.name}: write in planted.toml what the line of {plant.file} is now"
        ast.parse(text.replace(plant.old, plant.new))
        commits = planted.history(plant, 5, 16, random.Random(plant.name))
        assert len(commits) == 16 and commits[4] == (f"compiler/{plant.file}", plant.new, plant.old)
