"""The self-test: it counts what the checks catch, tells of checks that catch nothing, and of checks that refuse all."""

import random
from typing import Any

import pytest

import compiler
from conformance.judge import ladder, selftest
from conformance.judge.oracle import Verdict
from conformance.rows import PlantedMutant, SelfTest

SEED = random.SystemRandom().randrange(2**31)
OPTIONS = {"targets": ["cpu"], "seed": SEED}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "SAMPLE", (("index", "gather", "f32"), ("scan", "cumsum", "i64")))
    monkeypatch.setattr(selftest, "PLANTED", 1)


def test_miscompiles_in_every_stage_are_caught() -> None:
    made = selftest.run(OPTIONS)
    assert made.planted >= 10 and made.caught == made.planted, (SEED, made)
    assert made.false_alarms == 0, (SEED, made.alarms)
    assert {row.stage for row in made.rows} == set(compiler.STAGES)
    assert sum(made.nets.values()) == made.caught and "another" not in made.nets, (SEED, made)
    assert all(row.target == "cpu" and row.case and row.mutation and row.how for row in made.rows)


def test_a_check_without_teeth_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def approve(*_: Any) -> Verdict:
        return Verdict(True, 0.0)

    monkeypatch.setattr(ladder, "verdict_on", approve)
    made = selftest.run(OPTIONS)
    assert made.caught < made.planted, (SEED, made)  # what executors refuse by themselves is still caught


def test_a_check_that_refuses_what_is_sound_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Verdict:
        return Verdict(False, 2.0, (), "no")

    monkeypatch.setattr(ladder, "verdict_on", refuse)
    made = selftest.run(OPTIONS)
    assert made.false_alarms >= 12 and made.planted == 0, (SEED, made)


@pytest.mark.parametrize(
    ("how", "net"),
    [
        ("memory was written 0 bytes behind y", "guard zones"),
        ("input x was changed, 4 bytes into it", "guard zones"),
        ("InterpretError: f: t[0] reads an element of t before it is written", "elements not written"),
        ("InterpretError: function f: loads elements 1 to 8 of x, which has 8", "accesses out of bounds"),
        ("kernel.cu:31: race between threads", "check mode of the emulator"),
        ("3 runs on the same inputs gave different results", "repeated runs"),
        ("output 0: element [0] is 1, expected 2 within 0.1; 1 of 5 elements are wrong, in f64", "algebra in f64"),
        ("element [0] is 1, expected 2 within 0.1; 1 of 5 elements are wrong", "values"),
        ("it died of SIGSEGV", "lost process"),
        ("something else", "another"),
    ],
)
def test_a_message_tells_its_net(how: str, net: str) -> None:
    row = PlantedMutant(target="cpu", stage="loop", case="a[f32]", mutation="flip", caught=True, how=how)
    assert row.net == net and SelfTest(rows=(row, row)).nets == {net: 2}
