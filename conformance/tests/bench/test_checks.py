"""What checks of data cost, as the command says it."""

import doctest
from pathlib import Path

import pytest

from conformance.bench import checks
from conformance.bench.duel import Ratio
from conformance.shapes.files import benches, load

FILE = """
format = 1
[[case]]
name = "taken"
expr = "x.take(i)"
args.x = { shape = [9] }
args.i = { shape = [33], dtype = "i64", inputs = { kind = "index", below = 9 } }
perf = {}
[[case]]
name = "nothing.checked"
expr = "x * 2"
args.x = { shape = [9] }
perf = {}
"""


def test_docstring_examples() -> None:
    assert not doctest.testmod(checks).failed


def test_a_line_says_what_the_checks_of_a_benchmark_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text(FILE)
    words = [str(tmp_path / "mine.toml"), "--target", "cpu:baseline", "--seconds", "0.05", "--bar", "50"]
    assert checks.main(words) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "within cpu:baseline taken[f32.contig.normal], " in line


def test_what_is_surely_over_the_bar_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(FILE)
    monkeypatch.setattr(checks, "cost", lambda *_: Ratio(1.2, 1.1, 1.3, 20, 0.99))
    assert checks.main([str(tmp_path / "mine.toml"), "--target", "cpu"]) == 1
    assert capsys.readouterr().out.startswith("1.200 [1.100, 1.300] over   cpu        taken")


def test_its_own_families_are_benchmarks() -> None:
    assert len(benches(load(checks.FAMILIES), "nightly")) > 30
