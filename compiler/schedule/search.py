"""Search strategies: from the candidates and their measured times, choose which candidates to measure next.

A strategy keeps no state between calls, so a search resumes from any record of measurements.
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
    """A schedule's estimated cost, and its value for each decision in which the candidates differ."""

    cost: float
    decisions: Decisions


Seen = Mapping[int, float]  # time over the heuristic schedule's, by number of the candidate; infinite if it failed
# (candidates, measurements so far, how many to choose, source of randomness) -> numbers of unmeasured candidates
Strategy = Callable[[Sequence[Candidate], Seen, int, Random], list[int]]


def candidates(costs: Sequence[float], schedules: Sequence[Schedule]) -> list[Candidate]:
    """Candidates whose decisions are those arguments of steps that differ between the schedules."""
    tables = [_arguments(s) for s in schedules]
    names = list(dict.fromkeys(name for table in tables for name in table))
    differing = [name for name in names if len({table.get(name) for table in tables}) > 1]
    return [
        Candidate(cost, tuple(table.get(name, "") for name in differing))
        for cost, table in zip(costs, tables, strict=True)
    ]


def _arguments(schedule: Schedule) -> dict[tuple[str, int, str], str]:
    """The text of each argument, by step class, number of earlier steps of that class, and argument name."""
    texts: dict[tuple[str, int, str], str] = {}
    counts: dict[str, int] = defaultdict(int)
    for step in schedule.steps:
        kind = type(step).__name__
        for name in type(step).fields:
            texts[kind, counts[kind], name] = repr(getattr(step, name))
        counts[kind] += 1
    return texts


def at_random(pool: Sequence[Candidate], seen: Seen, count: int, rng: Random) -> list[int]:
    """Uniformly random: the control that other strategies are compared with."""
    unmeasured = _unmeasured(pool, seen)
    return rng.sample(unmeasured, min(count, len(unmeasured)))


def top(pool: Sequence[Candidate], seen: Seen, count: int, _: Random) -> list[int]:
    """The cheapest by estimate."""
    return _unmeasured(pool, seen)[:count]


def local(pool: Sequence[Candidate], seen: Seen, count: int, rng: Random) -> list[int]:
    """Local search: every other choice is an unmeasured candidate that is closest to one of the three best (ties: by
    estimate); the others are the cheapest by estimate."""
    unmeasured = _unmeasured(pool, seen)
    best = [n for n in sorted(seen, key=lambda n: seen[n]) if seen[n] < math.inf][:3]
    if not best:
        return unmeasured[:count]

    def distance(n: int) -> tuple[int, int]:
        return min(_distance(pool[n].decisions, pool[b].decisions) for b in best), n

    by_distance = sorted(unmeasured, key=distance)
    return _pick_in_turn(by_distance if turn % 2 else unmeasured for turn in range(len(seen), len(seen) + count))


def _pick_in_turn(turns: Iterable[list[int]]) -> list[int]:
    """One number per turn: the first in that turn's list that no earlier turn chose."""
    chosen: list[int] = []
    for source in turns:
        chosen += [n for n in source if n not in chosen][:1]
    return chosen


def model(pool: Sequence[Candidate], seen: Seen, count: int, rng: Random) -> list[int]:
    """Ridge regression of the logarithm of time on the logarithm of the estimate and the decisions, refitted at each
    call. Every fourth choice is by estimate alone, so that a wrong model does not decide everything."""
    unmeasured = _unmeasured(pool, seen)
    known = [n for n in seen if seen[n] < math.inf]
    if len(known) < _FEWEST:
        return unmeasured[:count]
    features = _features(pool)
    predicted = _predict(features, known, np.log([seen[n] for n in known]))
    ranked = sorted(unmeasured, key=lambda n: (predicted[n], n))
    return _pick_in_turn(ranked if turn % 4 else unmeasured for turn in range(len(seen), len(seen) + count))


_FEWEST = 4  # measured times that the regression needs
_RIDGE = 1.0


def _features(pool: Sequence[Candidate]) -> np.ndarray:
    """Centred features: the logarithm of the estimate, and an indicator for each value of each decision."""
    columns = [np.log([max(c.cost, 1e-9) for c in pool])[:, None]]
    for values in zip(*(c.decisions for c in pool), strict=True):
        kinds = sorted(set(values))
        columns.append(np.array([[v == k for k in kinds] for v in values], dtype=float))
    features = np.concatenate(columns, axis=1)
    return np.asarray(features - features.mean(axis=0))


def _predict(features: np.ndarray, known: Sequence[int], times: np.ndarray) -> np.ndarray:
    x, mean = features[list(known)], times.mean()
    weights = x.T @ np.linalg.solve(x @ x.T + _RIDGE * np.eye(len(known)), times - mean)
    return np.asarray(features @ weights + mean)


@dataclass
class _Node:
    """The candidates that agree on the first decisions, and the rewards measured among them."""

    members: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


def tree(pool: Sequence[Candidate], seen: Seen, count: int, _: Random) -> list[int]:
    """Single-player Monte Carlo tree search: descend decision by decision by an upper confidence bound on the mean and
    the best reward below a node. Nodes without measurements are ordered by estimate."""
    nodes: dict[tuple[int, Decisions], _Node] = defaultdict(_Node)
    depth = len(pool[0].decisions) if pool else 0
    supposed = dict(seen)
    chosen: list[int] = []

    def path(n: int) -> list[tuple[int, Decisions]]:
        return [(d, pool[n].decisions[:d]) for d in range(depth + 1)]

    unmeasured = set(_unmeasured(pool, seen))
    for n in sorted(unmeasured):
        for at in path(n):
            nodes[at].members.append(n)
    for n, time in supposed.items():
        for at in path(n):
            nodes[at].rewards.append(1 / time if time > 0 else 0.0)
    while unmeasured and len(chosen) < count:
        place: tuple[int, Decisions] = (0, ())
        for d in range(depth):
            below = dict.fromkeys((d + 1, pool[n].decisions[: d + 1]) for n in nodes[place].members if n in unmeasured)
            visits = len(nodes[place].rewards)
            place = max(below, key=lambda child: _confidence_bound(nodes[child], visits))
        pick = next(n for n in nodes[place].members if n in unmeasured)
        unmeasured.discard(pick)
        chosen.append(pick)
        for step in path(pick):  # pending candidates count as average, so that one batch spreads out
            mean = sum(nodes[step].rewards) / len(nodes[step].rewards) if nodes[step].rewards else 0.0
            nodes[step].rewards.append(mean)
    return chosen


_EXPLORE, _BEST = 0.3, 0.5


def _confidence_bound(node: _Node, visits: int) -> float:
    """Upper confidence bound of a node; a node without measurements has a little over 1 (ties: by estimate)."""
    if not node.rewards:
        return 1.0 + _EXPLORE * math.sqrt(math.log(visits + 1)) - 1e-6 * node.members[0]
    count = len(node.rewards)
    mean = sum(node.rewards) / count
    spread = sum((r - mean) ** 2 for r in node.rewards) / count
    bound = _EXPLORE * math.sqrt(math.log(visits + 1) / count)
    return (1 - _BEST) * mean + _BEST * max(node.rewards) + bound + math.sqrt(spread / count)


def _unmeasured(pool: Sequence[Candidate], seen: Seen) -> list[int]:
    return [n for n in range(len(pool)) if n not in seen]


def _distance(a: Decisions, b: Decisions) -> int:
    return sum(x != y for x, y in zip(a, b, strict=True))


STRATEGIES: Mapping[str, Strategy] = {
    "random": at_random, "top": top, "local": local, "model": model, "tree": tree,
}  # fmt: skip
DEFAULT = "model"
