"""Strategies: none names a candidate twice, all go through everything, and what learns beats chance."""

from __future__ import annotations

import math
from random import Random

import pytest

from compiler.schedule import search, steps
from compiler.schedule.search import Candidate
from compiler.tests.meaning import fresh_seed

SIDE, KINDS = 6, 3


def landscape(seed: int) -> tuple[list[Candidate], list[float]]:
    """Times that are a product of what each decision costs; estimates know little of them; some candidates fail."""
    rng = Random(seed)
    costs = [[rng.uniform(1, 2) for _ in range(SIDE)] for _ in range(KINDS)]
    places = [(a, b, c) for a in range(SIDE) for b in range(SIDE) for c in range(SIDE)]
    times = [math.prod(costs[k][v] for k, v in enumerate(p)) for p in places]
    guesses = [t * rng.uniform(0.5, 2) for t in times]
    order = sorted(range(len(places)), key=lambda n: guesses[n])
    some = [Candidate(guesses[n], tuple(map(str, places[n]))) for n in order]
    return some, [math.inf if rng.random() < 0.1 else times[n] for n in order]


def found(name: str, seed: int, trials: int) -> float:
    some, times = landscape(seed)
    seen: dict[int, float] = {0: times[0]}
    rng = Random(seed)
    while len(seen) < trials:
        named = search.STRATEGIES[name](some, seen, min(4, trials - len(seen)), rng)
        assert named
        assert not seen.keys() & set(named)
        assert len(set(named)) == len(named)
        seen |= {n: times[n] for n in named}
    return min(times) / min(seen.values())


@pytest.mark.parametrize("name", search.STRATEGIES)
def test_a_strategy_goes_through_everything_once(name: str) -> None:
    seed = fresh_seed()
    assert found(name, seed, SIDE**KINDS) == 1
    some, times = landscape(seed)
    assert search.STRATEGIES[name](some, dict(enumerate(times)), 4, Random(seed)) == []


def test_what_learns_is_nearer_the_best_than_chance() -> None:
    seeds = range(20)
    mean = {name: sum(found(name, s, 24) for s in seeds) / len(seeds) for name in search.STRATEGIES}
    assert min(mean["model"], mean["local"], mean["tree"]) > mean["random"], mean


def test_decisions_are_the_arguments_that_differ() -> None:
    texts = ['bind("i", blocks)\nbind("j", vector, width=8, unroll=1)\n', 'bind("i", blocks)\nbind("j", serial)\n']
    one, other = search.candidates([1.0, 2.0], [steps.parse(t) for t in texts])
    assert len(one.decisions) == len(other.decisions)
    assert all(a != b for a, b in zip(one.decisions, other.decisions, strict=True))
    assert one.decisions
