"""Two reports side by side: what is worse fails, times of other hours do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.history import compare
from conformance.tests.history import past

ENV = {"torch": "2.13", "commit": "a"}


def run(folder: Path, name: str, verdict: str = "pass", ci: tuple[float, float] = (1.9, 2.1), **more: Any) -> str:
    """A report of one case, one benchmark and one compiled kernel; its place."""
    case = {"id": "add[N4.f32]", "file": "x.toml", "target": "cpu", "verdict": verdict, "first_bad_stage": None}
    bench = {"id": "add[N9.f32]", "suite": "x", "target": "cpu", "verdict": "SAME", "speedup": sum(ci) / 2}
    bench |= {"ci": list(ci), "digest": name, "compile_seconds": more.get("compile_seconds", 0.1)}
    kernel = {"case": "add", "name": "k", "arch": "sm_80", "registers": 30, "shared": 0, "stack": 0, "spilled": 0}
    kernel["mix"] = {"LDG": 2, "STG": 1}
    kernel |= more.get("kernel", {})
    cases = [case, *more.get("cases", ())]
    data = {"env": ENV | {"commit": name}, "cases": cases, "benches": [bench], "gate": [{"kernels": [kernel]}]}
    (folder / name).mkdir()
    (folder / name / "run.json").write_text(json.dumps(data))
    return str(folder / name)


def test_equal_runs_have_nothing_to_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = run(tmp_path, "a"), run(tmp_path, "b")
    assert compare.main([a, f"{b}/run.json"]) == 0
    said = capsys.readouterr().out
    assert "- commit: a → b" in said and "1 → 1 cases pass" in said and "| x.toml" not in said


@pytest.mark.parametrize(
    ("more", "status", "says"),
    [
        ({"verdict": "fail"}, 1, "| x.toml::add[N4.f32] on cpu | pass | fail |"),
        ({"kernel": {"spilled": 8, "registers": 255}}, 1, "registers 30 → 255, spilled 0 → 8"),
        ({"kernel": {"mix": {"LDG": 8, "STG": 1, "BAR": 2}}}, 0, "| LDG 2 → 8, BAR 0 → 2 |"),
        ({"ci": (1.0, 1.2)}, 0, "| x::add[N9.f32] on cpu | 2 | 1.1 | 0.55 |"),
        ({"compile_seconds": 0.4}, 0, "| x::add[N9.f32] on cpu | 0.1 | 0.4 |"),
    ],
)
def test_what_changed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Any], status: int, says: str
) -> None:
    assert compare.main([run(tmp_path, "a"), run(tmp_path, "b", **more)]) == status
    assert says in capsys.readouterr().out


def test_a_case_that_is_gone_is_worse_and_a_new_one_is_not(tmp_path: Path) -> None:
    mul = {"id": "mul[N4.f32]", "file": "x.toml", "target": "cpu", "verdict": "pass"}
    a, b = run(tmp_path, "a"), run(tmp_path, "b", cases=[mul])
    assert (compare.main([a, b]), compare.main([b, a])) == (0, 1)


def test_a_report_of_a_revision_is_named_as_git_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    past.git(tmp_path, "init", "-q")
    b = run(tmp_path, "b", verdict="fail")
    run(tmp_path, "a")
    past.commit(tmp_path, 0, "two reports")
    (tmp_path / "a/run.json").unlink()
    for name in ("c0:a", "HEAD:a/run.json"):
        assert compare.main([name, b]) == 1
        assert f"# {name} → {b}" in capsys.readouterr().out
    assert compare.main(["c0:nothing", b]) == 2
    assert "c0:nothing cannot be read: fatal: path 'nothing/run.json'" in capsys.readouterr().err


def test_what_is_no_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text("[]")
    assert compare.main([str(tmp_path), run(tmp_path, "b")]) == 2
    assert " is no run.json of a report" in capsys.readouterr().err
