"""The duel on a clock that the test turns: no timing of this machine decides anything here."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.bench import duel
from conformance.bench.duel import Protocol, Ratio, Samples, Verdict


class FakeClock:
    """A clock that moves only when a fake contestant runs."""

    def __init__(self, seed: int, noise: float = 0.0) -> None:
        self.now = 0
        self.noise = noise
        self.random = np.random.default_rng(seed)
        self.log: list[str] = []

    def __call__(self) -> int:
        return self.now

    def contestant(self, name: str, nanoseconds: float) -> Callable[[], None]:
        def call() -> None:
            self.log.append(name)
            self.now += int(nanoseconds * float(np.exp(self.random.normal(0, self.noise))))

        return call


@pytest.fixture
def seed() -> int:
    value = secrets.randbits(32)
    print(f"seed {value}")
    return value


def paired(seed: int, effect: float, rounds: int, noise: float = 0.02, looks: int = 1) -> Samples:
    """Rounds that share a slow drift; the second side is `effect` slower and both carry their own noise."""
    random = np.random.default_rng(seed)
    drift = np.exp(np.cumsum(random.normal(0, 0.05, rounds)))
    sides: NDArray[np.float64] = 1e-5 * drift[:, None] * np.exp(random.normal(0, noise, (rounds, 2)))
    sides[:, 1] *= 1 + effect
    return Samples(("a", "b"), sides, (100, 100), looks)


def test_every_round_times_every_contestant_in_a_random_order(seed: int) -> None:
    clock = FakeClock(seed)
    calls = {name: clock.contestant(name, 2_000_000) for name in "xyz"}
    samples = duel.race(calls, clock, np.random.default_rng(seed), Protocol(looks=(20,), budget_ns=10**9))
    assert samples.rounds == 20 and samples.repeats == (1, 1, 1), f"seed {seed}"
    rounds = np.array(clock.log[-60:]).reshape(20, 3)
    assert all(sorted(row) == list("xyz") for row in rounds), f"seed {seed}"
    assert len({tuple(row) for row in rounds}) > 1, f"seed {seed}: the order never changed"
    assert np.allclose(samples.seconds, 2e-3)


def test_a_short_call_is_repeated_until_a_sample_is_long_enough(seed: int) -> None:
    clock = FakeClock(seed)
    calls = {"short": clock.contestant("short", 700), "long": clock.contestant("long", 90_000)}
    samples = duel.race(calls, clock, np.random.default_rng(seed), Protocol(looks=(20,)))
    per_sample = np.array(samples.repeats) * [700, 90_000]
    assert (per_sample >= 1_000_000).all() and (per_sample < 1_200_000).all(), (seed, samples.repeats)
    assert samples.median("short") == pytest.approx(700e-9)


def test_the_quickest_burst_of_a_sample_counts(seed: int) -> None:
    clock = FakeClock(seed)
    quick, slow = clock.contestant("x", 10_000), clock.contestant("x", 90_000)
    disturbed = np.random.default_rng(seed)
    calls = {"x": lambda: (slow if disturbed.random() < 0.005 else quick)()}
    samples = duel.race(calls, clock, np.random.default_rng(seed), Protocol(looks=(20,)))
    assert np.median(samples.seconds) == pytest.approx(1e-5), (seed, samples.seconds)
    whole = duel.race(calls, clock, np.random.default_rng(seed), Protocol(looks=(20,), bursts=1))
    assert whole.seconds.mean() > samples.seconds.mean(), seed


def test_a_clock_that_stands_still_ends_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duel, "REPEATS_CAP", 64)
    samples = duel.race({"x": lambda: None}, lambda: 0, np.random.default_rng(0), Protocol(looks=(20,)))
    assert samples.repeats == (64,) and (samples.seconds > 0).all()


@pytest.mark.parametrize(
    ("round_ms", "looks"),
    [(1, (20, 60, 180)), (4, (20, 60, 100)), (6, (20, 60)), (8, (20, 50)), (16, (20,)), (40, (10,)), (900, (8,))],
)
def test_looks_are_planned_from_the_budget(round_ms: int, looks: tuple[int, ...]) -> None:
    assert duel.plan(Protocol(), round_ms * 1_000_000) == looks


def test_a_race_stops_at_the_look_that_decides(seed: int) -> None:
    clock = FakeClock(seed)
    calls = {name: clock.contestant(name, 1_000_000) for name in "ab"}
    seen: list[int] = []

    def decided(samples: Samples) -> bool:
        seen.append(samples.rounds)
        return samples.rounds >= 60

    samples = duel.race(calls, clock, np.random.default_rng(seed), Protocol(budget_ns=10**10), decided)
    assert seen == [20, 60] and samples.rounds == 60 and samples.looks == 3


def test_a_true_effect_is_seen_through_drift_and_noise(seed: int) -> None:
    slower = duel.ratio(paired(seed, 0.10, 60), "a", "b")
    assert duel.verdict(slower, 0.02) is Verdict.SLOWER, (seed, slower)
    faster = duel.ratio(paired(seed, 0.10, 60), "b", "a")
    assert duel.verdict(faster, 0.02) is Verdict.FASTER, (seed, faster)
    assert faster.median == pytest.approx(1 / slower.median)


def test_equal_code_is_the_same(seed: int) -> None:
    measured = duel.ratio(paired(seed, 0.0, 180), "a", "b")
    assert duel.verdict(measured, 0.02) is Verdict.SAME, (seed, measured)


def test_equal_code_raises_no_alarm(seed: int) -> None:
    """The promise of the method: intervals at 99 % over three looks exclude equality in far fewer than 5 % of races."""
    verdicts = [
        duel.verdict(duel.ratio(paired(seed + i, 0.0, rounds, looks=3), "a", "b"), 0.0)
        for i in range(40)
        for rounds in (20, 60)
    ]
    alarms = sum(v in (Verdict.FASTER, Verdict.SLOWER) for v in verdicts)
    assert alarms <= 4, f"{alarms} false alarms in {len(verdicts)} races, seed {seed}"


def test_one_disturbed_round_moves_nothing(seed: int) -> None:
    calm = paired(seed, 0.0, 60)
    disturbed = calm.seconds.copy()
    disturbed[seed % 60, 0] *= 50
    moved = duel.ratio(Samples(calm.names, disturbed, calm.repeats), "a", "b")
    assert duel.verdict(moved, 0.05) is Verdict.SAME, (seed, moved)


def test_more_looks_need_more_confidence(seed: int) -> None:
    once, thrice = (duel.ratio(paired(seed, 0.0, 60, looks=looks), "a", "b") for looks in (1, 3))
    assert thrice.low <= once.low and thrice.high >= once.high
    assert once.confidence == pytest.approx(thrice.confidence) == pytest.approx(0.99)


def test_too_few_rounds_admit_their_confidence(seed: int) -> None:
    samples = paired(seed, 0.0, 5)
    measured = duel.ratio(samples, "a", "b")
    ratios = samples.times_of("a") / samples.times_of("b")
    assert measured.confidence == pytest.approx(1 - 2 * 0.5**5)
    assert (measured.low, measured.high) == pytest.approx((ratios.min(), ratios.max()))


def test_the_interval_is_a_function_of_the_samples(seed: int) -> None:
    samples = paired(seed, 0.03, 60)
    assert duel.ratio(samples, "a", "b") == duel.ratio(samples, "a", "b")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.06, 1.10, Verdict.FASTER),
        (0.80, 0.90, Verdict.SLOWER),
        (0.98, 1.04, Verdict.SAME),
        (0.98, 1.30, Verdict.AMBIGUOUS),
        (1.03, 1.30, Verdict.AMBIGUOUS),
        (0.70, 0.97, Verdict.AMBIGUOUS),
    ],
)
def test_a_verdict_needs_the_whole_interval(low: float, high: float, expected: Verdict) -> None:
    assert duel.verdict(Ratio((low * high) ** 0.5, low, high, 20, 0.99), 0.05) is expected


def test_the_fastest_is_judged_by_paired_rounds() -> None:
    seconds = np.array([[1.0, 0.9, 2.0], [5.0, 4.5, 2.0], [9.0, 8.1, 20.0]])
    samples = Samples(("ours", "eager", "compile"), seconds, (1, 1, 1))
    assert duel.fastest(samples, ("ours", "eager", "compile")) == "eager"


def test_a_quiet_machine_is_fit_and_a_noisy_one_is_not(seed: int) -> None:
    for noise, fit in ((0.0, True), (0.5, False)):
        clock = FakeClock(seed, noise)
        kernels = {"k": clock.contestant("k", 1_100_000)}
        found = duel.aa_check(kernels, clock, np.random.default_rng(seed), 0.02, Protocol(budget_ns=10**9))
        assert found.fit is fit, (seed, found)
        assert found.message.startswith("fit" if fit else "unfit: k against itself")
