"""Strategies of a search: the candidates and what was measured of them in, those to measure next out.

A strategy keeps nothing between calls, so that a search goes on from whatever was recorded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from compiler.schedule.steps import Schedule

Decisions = tuple[str, ...]


@dataclass(frozen=True)
class Candidate:
    """A schedule's estimated cost, and what it says on each decision that candidates differ in."""

    cost: float
    decisions: Decisions


Seen = Mapping[int, float]  # time over the heuristic's by the number of the candidate; infinite if it failed
# (candidates, what is known of them, how many to name, source of randomness) -> numbers of candidates not yet known
Strategy = Callable[[Sequence[Candidate], Seen, int, Random], list[int]]


def candidates(costs: Sequence[float], schedules: Sequence[Schedule]) -> list[Candidate]:
    """Candidates by the arguments of their steps, as far as they differ."""
    tables = [_arguments(s) for s in schedules]
    names = list(dict.fromkeys(name for table in tables for name in table))
    differing = [name for name in names if len({table.get(name) for table in tables}) > 1]
    return [
        Candidate(cost, tuple(table.get(name, "") for name in differing))
        for cost, table in zip(costs, tables, strict=True)
    ]


def _arguments(schedule: Schedule) -> dict[tuple[str, int, str], str]:
    """Each argument of each step, by the step's class, how many of that were before it, and the argument's name."""
    made: dict[tuple[str, int, str], str] = {}
    counts: dict[str, int] = defaultdict(int)
    for step in schedule.steps:
        kind = type(step).__name__
        for name in type(step).fields:
            made[kind, counts[kind], name] = repr(getattr(step, name))
        counts[kind] += 1
    return made


def at_random(some: Sequence[Candidate], seen: Seen, count: int, rng: Random) -> list[int]:
    """The control."""
    left = _left(some, seen)
    return rng.sample(left, min(count, len(left)))


def top(some: Sequence[Candidate], seen: Seen, count: int, _: Random) -> list[int]:
    """By the estimates alone."""
    return _left(some, seen)[:count]


def local(some: Sequence[Candidate], seen: Seen, count: int, rng: Random) -> list[int]:
    """Neighbours of the best: half of what was not tried is as near to one of the three best as can be, by estimate
    where several are; the other half goes by the estimates alone."""
    left = _left(some, seen)
    best = [n for n in sorted(seen, key=lambda n: seen[n]) if seen[n] < math.inf][:3]
    if not best:
        return left[:count]

    def far(n: int) -> tuple[int, int]:
        return min(_distance(some[n].decisions, some[b].decisions) for b in best), n

    near = sorted(left, key=far)
    return _picked(near if turn % 2 else left for turn in range(len(seen), len(seen) + count))


def _picked(turns: Iterable[list[int]]) -> list[int]:
    """From the list of each turn the first that no turn before it has picked."""
    chosen: list[int] = []
    for source in turns:
        chosen += [n for n in source if n not in chosen][:1]
    return chosen


def model(some: Sequence[Candidate], seen: Seen, count: int, rng: Random) -> list[int]:
    """A ridge regression of the logarithm of time on that of the estimate and on what was decided, refitted each time;
    every fourth choice is by the estimates alone, so that a model that errs does not stay alone."""
    left = _left(some, seen)
    known = [n for n in seen if seen[n] < math.inf]
    if len(known) < _FEWEST:
        return left[:count]
    features = _features(some)
    predicted = _predicted(features, known, np.log([seen[n] for n in known]))
    ranked = sorted(left, key=lambda n: (predicted[n], n))
    return _picked(ranked if turn % 4 else left for turn in range(len(seen), len(seen) + count))


_FEWEST = 4  # times that a regression takes
_RIDGE = 1.0


def _features(some: Sequence[Candidate]) -> np.ndarray:
    """The logarithm of the estimate, and an indicator for each thing that may be decided."""
    columns = [np.log([max(c.cost, 1e-9) for c in some])[:, None]]
    for values in zip(*(c.decisions for c in some), strict=True):
        kinds = sorted(set(values))
        columns.append(np.array([[v == k for k in kinds] for v in values], dtype=float))
    made = np.concatenate(columns, axis=1)
    return np.asarray(made - made.mean(axis=0))


def _predicted(features: np.ndarray, known: Sequence[int], times: np.ndarray) -> np.ndarray:
    x, mean = features[list(known)], times.mean()
    weights = x.T @ np.linalg.solve(x @ x.T + _RIDGE * np.eye(len(known)), times - mean)
    return np.asarray(features @ weights + mean)


@dataclass
class _Node:
    """Candidates that agree on the first decisions, and what was seen of them."""

    members: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


def tree(some: Sequence[Candidate], seen: Seen, count: int, _: Random) -> list[int]:
    """Single-player Monte Carlo tree search: decision by decision down to a candidate, by the mean and the best reward
    below and the uncertainty of both; where nothing is known, by the estimates."""
    nodes: dict[tuple[int, Decisions], _Node] = defaultdict(_Node)
    depth = len(some[0].decisions) if some else 0
    supposed = dict(seen)
    chosen: list[int] = []

    def path(n: int) -> list[tuple[int, Decisions]]:
        return [(d, some[n].decisions[:d]) for d in range(depth + 1)]

    left = set(_left(some, seen))
    for n in sorted(left):
        for at in path(n):
            nodes[at].members.append(n)
    for n, time in supposed.items():
        for at in path(n):
            nodes[at].rewards.append(1 / time if time > 0 else 0.0)
    while left and len(chosen) < count:
        place: tuple[int, Decisions] = (0, ())
        for d in range(depth):
            below = dict.fromkeys((d + 1, some[n].decisions[: d + 1]) for n in nodes[place].members if n in left)
            visits = len(nodes[place].rewards)
            place = max(below, key=lambda child: _promise(nodes[child], visits))
        pick = next(n for n in nodes[place].members if n in left)
        left.discard(pick)
        chosen.append(pick)
        for step in path(pick):  # until it is known what it takes, as if it were no better than what was seen there
            mean = sum(nodes[step].rewards) / len(nodes[step].rewards) if nodes[step].rewards else 0.0
            nodes[step].rewards.append(mean)
    return chosen


_EXPLORE, _BEST = 0.3, 0.5


def _promise(node: _Node, visits: int) -> float:
    """An upper confidence bound; one that nobody has been to comes after those that were good, by its estimate."""
    if not node.rewards:
        return 1.0 + _EXPLORE * math.sqrt(math.log(visits + 1)) - 1e-6 * node.members[0]
    count = len(node.rewards)
    mean = sum(node.rewards) / count
    spread = sum((r - mean) ** 2 for r in node.rewards) / count
    bound = _EXPLORE * math.sqrt(math.log(visits + 1) / count)
    return (1 - _BEST) * mean + _BEST * max(node.rewards) + bound + math.sqrt(spread / count)


def _left(some: Sequence[Candidate], seen: Seen) -> list[int]:
    return [n for n in range(len(some)) if n not in seen]


def _distance(a: Decisions, b: Decisions) -> int:
    return sum(x != y for x, y in zip(a, b, strict=True))


STRATEGIES: Mapping[str, Strategy] = {
    "random": at_random, "top": top, "local": local, "model": model, "tree": tree,
}  # fmt: skip
DEFAULT = "model"
