"""`mlcomp tune` on shape files."""

import json
from pathlib import Path

import pytest

from conformance.bench import tuning

FILE = """
format = 1
[[case]]
name = "once"
expr = "x.exp()"
args.x = { shape = ["N"] }
dims = { N = 8 }
[case.perf]
dims = [{ N = 64 }, { N = 80 }]
[[case]]
name = "again"
expr = "torch.exp(y)"
args.y = { shape = ["N"] }
dims = { N = 64 }
[case.perf]
"""


def test_limits_that_allow_no_trial_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tuning.main([str(tmp_path / "mine.toml"), "--trials", "0"])
    assert "--trials: 0 is not a number above 0" in capsys.readouterr().err


def test_each_kernel_of_the_benchmarks_is_tuned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.toml").write_text(FILE)
    assert tuning.main([str(tmp_path / "mine.toml"), "--trials", "1", "--only", "N64"]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0].startswith("exp_64_f32: ")
    assert len(said.splitlines()) == 1
    (kept,) = (tmp_path / "cache" / "tuned").glob("*.jsonl")
    assert [json.loads(line)["name"] for line in kept.read_text().splitlines()] == ["exp_64_f32"]
    with pytest.raises(SystemExit):
        tuning.main([str(tmp_path / "mine.toml"), "--only", "nothing"])
    assert "no benchmark of these files is for cpu" in capsys.readouterr().err
