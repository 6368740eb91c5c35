"""Baselines: what is stored comes back whole, and can be read side by side; what a run makes of their races."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import rows
from conformance.history import baseline, revisions
from conformance.history.baseline import Baseline, BaselineError
from conformance.rows import BaselineComparison, Bench, Check

HEADERS = {"cpu": "// file a.h\nint a;\n"}
FACTS: dict[str, Any] = {"env": {}, "tier": "smoke"}
NOTHING = revisions.TextRequest((), ("cpu",))


def bench(case: str = "add[N4.f32]", **more: Any) -> Bench:
    known = dict(
        id=case, file="shapes/x.toml", suite="x", op="add", target="cpu", dtype="f32", family="x", verdict="SAME",
        source="// add, for cpu\n// def f():\nint b;\n", samples={"ours": (1e-6, 1.23456e-6), "eager": (2e-6,) * 2},
        ours_us=1.0, against=BaselineComparison(identity="d1"),
    )  # fmt: skip
    return Bench(**{**known, **more})


def check(case: str, verdict: str) -> Check:
    return Check(id=case, file="x.toml", suite="x", op="add", target="cpu", dtype="f32", verdict=verdict)


def stored(folder: Path, *benches: Bench, cases: tuple[Check, ...] = ()) -> Baseline:
    baseline.save(folder / "main", cases, benches, FACTS, HEADERS)
    return baseline.find("main", folder, folder, NOTHING)


def test_what_is_stored_comes_back(tmp_path: Path) -> None:
    row = bench()
    found = stored(tmp_path, row)
    again = found.stored(row)
    assert again is not None and (again.text, again.headers) == (row.source, {"a.h": "int a;\n"})
    assert found.stored(bench("other[N4.f32]")) is None
    assert found.entry(row) == json.loads((tmp_path / "main/kernels/x.add_N4.f32-cpu.json").read_text())
    assert found.entry(row)["samples_us"] == [1.0, 1.235]  # type: ignore[index]


def test_storing_a_part_keeps_the_rest_and_drops_unused_headers(tmp_path: Path) -> None:
    one, two = bench(), bench("mul[N4.f32]")
    stored(tmp_path, one, two, cases=(check("a", "pass"), check("b", "fail")))
    baseline.save(tmp_path / "main", (check("b", "pass"),), (one, two), FACTS, {"cpu": "// file a.h\nint c;\n"})
    found = baseline.find("main", tmp_path, tmp_path, NOTHING)
    assert found.entry(two) is not None and found.verdicts() == {"x.toml::a-cpu": "pass", "x.toml::b-cpu": "pass"}
    assert len(list((tmp_path / "main/headers").iterdir())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["main"]


def test_a_run_killed_while_storing_leaves_a_whole_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path, bench())
    left = 0

    def killed(a: Path, b: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        Path(a).rename(b)

    monkeypatch.setattr("conformance.history.baseline.os.replace", killed)
    for moment in (1, 2):
        left = moment
        with pytest.raises(KeyboardInterrupt):
            baseline.save(tmp_path / "main", (), (bench("mul[N4.f32]"),), FACTS, HEADERS)
        found = baseline.find("main", tmp_path, tmp_path, NOTHING)
        assert found.stored(bench()) is not None and found.stored(bench("mul[N4.f32]")) is None
        assert [path.name for path in tmp_path.iterdir()] == ["main"]


def test_what_a_run_was_killed_while_removing_is_in_nobodys_way(tmp_path: Path) -> None:
    stored(tmp_path, bench())
    for left in (".main.before/kernels", "mlcomp-made/main"):
        (tmp_path / left).mkdir(parents=True)
    (tmp_path / "mlcomp-made/.lock").touch()
    assert baseline.save(tmp_path / "main", (), (bench("mul[N4.f32]"),), FACTS, HEADERS) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["main"]


def test_what_is_no_baseline_is_refused_with_those_that_are(tmp_path: Path) -> None:
    stored(tmp_path, bench())
    with pytest.raises(BaselineError, match=r"nothing-here is no baseline .*; there are main, no folder of one, and: "):
        baseline.find("nothing-here", tmp_path, tmp_path, NOTHING)


def test_drift_of_others_is_told_from_ours(tmp_path: Path) -> None:
    found = stored(tmp_path, bench())  # eager took 1.6 times as long as ours did
    over = {"eager": rows.Speedup(speedup=3.24)}
    same = bench(over=over, against=BaselineComparison(why="equal code"))
    assert baseline.drift(same, found.entry(same)) == {"eager": pytest.approx(2.0, abs=0.02)}
    other = replace(same, against=BaselineComparison(verdict="SLOWER"))
    assert baseline.drift(other, found.entry(other)) == {}
