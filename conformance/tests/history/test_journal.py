"""The history of a device: lines that are whole or not there, and what changed for good in between."""

import doctest
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from conformance.history import changes, journal
from conformance.history.journal import HistoryError


def line(n: int, speeds: Sequence[float], **more: object) -> str:
    benches = {f"x::k{k}-cpu": {"over": {"eager": speed}, "us": 1.0, "code": "d"} for k, speed in enumerate(speeds, 1)}
    env = {"torch": "2.11", "commit": f"c{n}"}
    return json.dumps({"when": f"2026-01-{n:02}T00:00", "env": env, "cases": {"pass": 1}, "benches": benches, **more})


def test_lines_are_added_and_read_in_the_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "there/x.jsonl"
    for n in (2, 1, 3):
        journal.append(path, line(n, [1.0]))
    assert [entry.env["commit"] for entry in journal.read(path)] == ["c1", "c2", "c3"]


def test_half_a_line_is_none_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    journal.append(path, line(1, [1.0]))
    with path.open("a") as file:
        file.write(line(2, [1.0])[:-20])
    assert len(journal.read(path)) == 1
    journal.append(path, line(3, [1.0]))
    assert [entry.env["commit"] for entry in journal.read(path)] == ["c1", "c3"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<<<<<<< HEAD", "x.jsonl:2: a merge left a conflict; keep the lines of both sides"),
        ('{"when": 1', "x.jsonl:2: no run .JSONDecodeError"),
        ("[]", "x.jsonl:2: no run .TypeError"),
    ],
)
def test_what_is_no_run_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join((line(1, [1.0]), text, line(2, [1.0]), "")))
    with pytest.raises(HistoryError, match=says):
        journal.read(path)


def drifting(change: Callable[[int], float], runs: int = 40) -> list[float]:
    noise = np.random.default_rng(7).normal(0, 0.02, runs)
    return [float(2 * np.exp(noise[n]) * change(n)) for n in range(runs)]


@pytest.mark.parametrize(
    ("change", "least", "most"),
    [
        (lambda n: 0.95 if n >= 25 else 1.0, -0.08, -0.03),  # at once
        (lambda n: 0.996**n, -0.12, -0.05),  # 0.4 % a run, which no gate sees
    ],
)
def test_what_changed_for_good_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[int], float], least: float, most: float
) -> None:
    path = tmp_path / "x.jsonl"
    still, moved = drifting(lambda n: 1.0), drifting(change)
    path.write_text("".join(line(n + 1, pair) + "\n" for n, pair in enumerate(zip(still[::-1], moved, strict=True))))
    found = changes.changes(journal.read(path))
    mine = [one for one in found if "k2" in one.name]
    assert mine and {one.name for one in found} <= {"x::k2-cpu", changes.OVERALL} and mine[0].has_equal_code
    assert least < mine[0].ratio - 1 < most
    assert changes.main([str(path)]) == 0 and "equal code" in capsys.readouterr().out


def test_series_without_a_change_have_none() -> None:
    rng = np.random.default_rng(5)
    chances = [changes.split(rng.standard_t(2, 30), rng)[1] for _ in range(40)]
    assert sum(chance < 0.01 for chance in chances) <= 3 and 0.2 < float(np.median(chances)) < 0.8
    assert doctest.testmod(changes).failed == 0
