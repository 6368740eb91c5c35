"""`mlcomp tune` on shape files."""

import json
from pathlib import Path

import pytest

from compiler import cli
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


@pytest.mark.parametrize(
    ("option", "number"), [("--trials", "0"), ("--trials", "-3"), ("--budget", "0"), ("--budget", "nan")]
)
@pytest.mark.parametrize("program", [["mine.toml"], ["-c", "torch.exp(torch.randn(4))"]])
def test_limits_that_allow_no_trial_are_refused(
    program: list[str], option: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", *program, option, number]) == 2
    assert f"{option}: {number} is not a number above 0" in capsys.readouterr().err


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
