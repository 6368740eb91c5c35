"""Stored kernels: equal code is not measured, other code is built with its own headers, wrong code does not race."""

from __future__ import annotations

import doctest
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import compiler
from conformance.bench import benchmark, duel, emitted, stored
from conformance.bench.benchmark import Settings, Subject
from conformance.bench.emitted import StoredKernel
from conformance.judge import device, oracle, systems
from conformance.judge.systems import BuiltFunction
from conformance.rows import BASELINE, OURS, BaselineComparison, RaceResult

HEADERS = {"m/a.h": '#pragma once\n#include "b.h"\nint a;\n', "m/b.h": "#pragma once\nint b;\n", "c.h": "int c;\n"}
INPUTS = (torch.randn(8, 64),)


def ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> BuiltFunction:
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path))
    return systems.build(systems.OURS, lambda x: (x * 1.5).sum(-1), INPUTS, "cpu")


def headers() -> dict[str, str]:
    return compiler.headers(compiler.target("cpu"))


def test_docstring_examples() -> None:
    assert not any(doctest.testmod(module).failed for module in (emitted, duel, stored))


def test_headers_are_put_in_once_where_they_are_included() -> None:
    text = '#include "m/a.h"\n#include "m/b.h"\n#include <math.h>\nint main;\n'
    assert emitted.included_headers(text, HEADERS) == ["m/a.h", "m/b.h"]
    lines = [line for line in emitted.self_contained(text, HEADERS).splitlines() if line]
    assert lines == ["int b;", "int a;", "#include <math.h>", "int main;"]


def test_code_is_the_same_if_its_headers_are() -> None:
    text = '#include "m/a.h"\nint main;\n'
    same = emitted.identity(text, HEADERS)
    assert emitted.identity("// by hand\n" + text, HEADERS | {"c.h": "int d;"}) == same
    assert emitted.identity(text, HEADERS | {"m/b.h": "int d;"}) != same


def test_equal_code_is_the_same_without_a_race(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = ours(monkeypatch, tmp_path)
    kept = StoredKernel("main", f"{made.call.source}// more\n", headers())  # type: ignore[attr-defined]
    found, again = stored.contestant(kept, made, INPUTS)
    assert (found.verdict, found.why, again) == ("SAME", "equal code", None)
    assert stored.contestant(None, made, INPUTS)[0].identity == found.identity


def test_other_code_is_built_with_its_own_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = ours(monkeypatch, tmp_path)
    text = made.call.source  # type: ignore[attr-defined]
    older = {name: f"{header}\nstruct mlc_older{n} {{}};\n" for n, (name, header) in enumerate(headers().items())}
    found, again = stored.contestant(StoredKernel("main", text, older), made, INPUTS)
    assert again is not None and found.verdict == ""
    assert "mlc_older" in again.call.source  # type: ignore[attr-defined]
    torch.testing.assert_close(again.call(*INPUTS), made.call(*INPUTS))
    lost, nothing = stored.contestant(
        StoredKernel("main", text.replace("f32[8, 64]", "f32[8, 65]"), older), made, INPUTS
    )
    assert nothing is None and lost.verdict == "unbuilt" and "other buffers" in lost.why


def test_a_stored_kernel_races_with_ours_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = ours(monkeypatch, tmp_path)
    source = made.call.source  # type: ignore[attr-defined]

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 1.5).sum(-1)

    def build(name: str, *_: object) -> BuiltFunction:
        return made if name == systems.OURS else BuiltFunction(name, function)

    def race(text: str) -> RaceResult:
        subject = Subject(function, INPUTS, lambda: function(INPUTS[0].double()))
        chosen = Settings(stored=StoredKernel("main", text, headers()))
        return benchmark.measure(subject, ["eager"], chosen, nullcontext, oracle.quick_compare, build)

    row = race(source.replace("for (long", "for (; false;) {}\nfor (long", 1))
    assert row.against.verdict in [*duel.Verdict] and row.against.rounds >= stored.FEWEST_ROUNDS
    assert set(row.samples) == {OURS, "eager"} and set(row.over) == {"eager"}
    wrong = race(source.replace("1.5f", "1.25f"))
    assert wrong.against.verdict == "unbuilt" and "wrong" in wrong.against.why and not wrong.against.rounds


def test_slower_by_more_than_matters() -> None:
    rng = np.random.default_rng(3)
    noise = np.exp(rng.normal(0, 0.01, (20, 2)))
    slow = duel.Samples((OURS, BASELINE), noise * [1.1e-6, 1.0e-6], (1, 1), 3)
    found = stored.judge(slow, BaselineComparison(), 0.03)
    assert found.verdict == "SLOWER" and found.chance is not None and found.chance < 1e-4
    assert found.least is not None and 0.015 < found.least < 0.05
    equal = stored.judge(duel.Samples((OURS, BASELINE), noise * 1e-6, (1, 1), 3), BaselineComparison(), 0.03)
    assert equal.verdict == "SAME" and equal.chance is not None and equal.chance > 0.9


def test_the_longest_race_is_judged() -> None:
    rng = np.random.default_rng(3)
    noise = np.exp(rng.normal(0, 0.03, (stored.LOOKS[-1], 2))) * [1.03e-6, 1.0e-6]
    found = stored.judge(duel.Samples((OURS, BASELINE), noise, (1, 1), len(stored.LOOKS)), BaselineComparison(), 0.03)
    assert found.verdict == "SLOWER" and found.chance is not None and found.chance < stored.MOST_P_VALUE
    assert found.least is not None and found.least < 0.025


def test_a_verdict_holds_for_two_builds() -> None:
    def row(verdict: str, speedup: float, chance: float) -> BaselineComparison:
        return BaselineComparison(verdict=verdict, speedup=speedup, chance=chance, rounds=20)

    slower = row("SLOWER", 0.8, 1e-6)
    assert stored.confirm(slower, row("SLOWER", 0.9, 1e-7)) == row("SLOWER", 0.9, 1e-6)
    assert stored.confirm(row("FASTER", 1.2, 1.0), row("FASTER", 1.3, 1.0)).speedup == 1.2
    lucky = stored.confirm(slower, row("SAME", 1.001, 0.9))
    assert (lucky.verdict, lucky.speedup, lucky.chance) == ("AMBIGUOUS", 0.8, 0.9)
    assert lucky.why == "of two builds of each kernel one is SAME, 1.001x"


@pytest.mark.parametrize("both", [True, False])
def test_a_second_build_of_both_kernels_confirms(both: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What differs in one pair of builds only is no finding, and what differs in both is."""
    made = ours(monkeypatch, tmp_path)
    built: list[compiler.Executable] = []

    def build_again(call: compiler.Executable, original: Any = stored.build_again) -> compiler.Executable:
        built.append(original(call))
        return built[-1]

    def race(calls: dict[str, object], *_: object) -> duel.Samples:
        seconds = [1.5e-6 if name == OURS and (both or not built) else 1e-6 for name in calls]
        return duel.Samples(tuple(calls), np.array([seconds] * 20), (1, 1))

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 1.5).sum(-1)

    def build(name: str, *_: object) -> BuiltFunction:
        return made if name == systems.OURS else BuiltFunction(name, function)

    monkeypatch.setattr(stored, "build_again", build_again)
    monkeypatch.setattr(stored, "race", race)
    subject = Subject(function, INPUTS, lambda: function(INPUTS[0].double()))
    older = StoredKernel("main", f"{made.call.source}\nstruct older;\n", headers())  # type: ignore[attr-defined]
    row = benchmark.measure(
        subject, ["eager"], Settings(stored=older), nullcontext, oracle.quick_compare, build
    ).against
    assert row.verdict == ("SLOWER" if both else "AMBIGUOUS"), row
    assert len(built) == 2 and all(call.source.endswith("struct mlcomp_again;\n") for call in built)
    for call in built:
        torch.testing.assert_close(call(*INPUTS), made.call(*INPUTS))


def test_operands_take_turns() -> None:
    seen: list[tuple[str, int]] = []
    calls = stored.with_alternating_operands(
        {name: lambda x, n=name: seen.append((n, x.data_ptr())) for name in "ab"}, INPUTS
    )
    for name in "aabbbaabbaba":
        calls[name]()
    places = [place for _, place in seen]
    assert [name for name, _ in seen] == list("aabbbaabbaba")
    # Whoever calls, what was used longest ago is next: what another has just put into the cache favours neither.
    assert len({*places[:3]}) == stored.SETS == 3 and places == places[:3] * 4
    assert device.COPIES % stored.SETS == device.WARM_UPS % stored.SETS == 0
