"""Fits the cost parameters of targets to recorded times, and reports the error of estimates before and after.

The fit is a damped Gauss-Newton iteration in the logarithms of the costs. Residuals are of the logarithm of time, with
the Huber loss (Huber 1964) against outliers. The mean residual of a kernel counts less than the deviations from it,
since a search compares candidates of one kernel. Each kernel has the same weight.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from compiler.execution import named
from compiler.execution.tuning import replay
from compiler.execution.tuning.tables import Table
from compiler.execution.tuning.tune import plain
from compiler.ir import loop_text
from compiler.schedule import space, steps
from compiler.schedule.space.members import Price

FOLDS = 4  # folds of the cross-validation over kernels
MOST_TURNS = 8  # Gauss-Newton iterations
MOST_EACH, FASTEST = 40, 12  # candidates of a kernel that are fitted to, and the number of fastest among them
CLOCK = 1755e6  # Hz, of the GPU whose costs are known
FAR = 0.15  # residual from which the Huber loss is linear
COMMON = 0.4  # share of a kernel's mean residual that counts
KEPT = 0.2  # penalty for moving the logarithm of a cost by 1, in units of the loss of a kernel with residuals of 0.1
FARTHEST = 1.2  # most that the logarithm of a cost may move
LEAST_APART = 0.01  # least resolution of log times: pairs that differ by less are not compared
SHARES = ("reached", "reached.split", "sync.reached")  # costs that are fractions, at most 1
EXPONENT = "close"  # costs whose names end so are exponents, at least 1
Costs = Mapping[str, float]


@dataclass(frozen=True)
class Recorded:
    """A kernel with its candidates: logarithms of their times and of their recorded estimates in `costs`, and functions
    in `prices` that estimate each for given costs of the target, or none. `within` is the resolution of the times.
    Times are in clock cycles if `whole`, else relative to the first candidate's."""

    name: str
    family: str
    target: str
    times: np.ndarray
    within: float
    costs: np.ndarray
    whole: bool
    prices: tuple[Price, ...] = ()


def recorded(table: Table) -> Recorded:
    """The successful candidates of a table, only those with prices if these are at least half of them.

    On a GPU, where nothing else runs, times are absolute. On a CPU they are ratios within a race, because its
    contestants share whatever disturbs it.
    """
    good = [table.trials[n] for n in sorted(table.trials) if not table.trials[n].failed]
    found = _prices(table, {table.head.schedules[t.number] for t in good})
    priced = [t for t in good if table.head.schedules[t.number] in found]
    enough = 2 * len(priced) >= len(good)
    good = priced if enough else good
    prices = tuple(found[table.head.schedules[t.number]] for t in priced) if enough else ()
    seconds, ratios = (np.log([getattr(t, name) for t in good]) for name in ("seconds", "ratio"))
    machine = table.head.target
    whole = not machine.startswith("cpu")
    times = seconds + np.log(CLOCK) if whole else ratios
    known = [t.high / t.low for t in good if 0 < t.low <= t.high < np.inf]
    # If no intervals are recorded, the resolution is the spread of the first candidate's time between races.
    apart = np.log(known) if known else 2 * np.abs(ratios - seconds - np.median(ratios - seconds))
    within = max(float(np.median(apart)), LEAST_APART)
    costs = np.log([table.head.costs[t.number] for t in good])
    return Recorded(table.head.name, table.head.family, machine, times, within, costs, whole, prices)


def _prices(table: Table, wanted: set[str]) -> dict[str, Price]:
    """The prices of those wanted candidates that today's schedule space still has, if it has prices."""
    try:
        program, target = loop_text.parse(table.head.program), named.target(table.head.target)
    except ValueError:
        return {}
    if len(program.kernels) != 1:
        return {}
    found: dict[str, Price] = {}
    (kernel,), private = program.kernels, [t.name for t in program.temps]
    # First schedules as planners make them, then as they are stored: those are slower to make, and some names differ.
    for made in (space.space(kernel, private, target), plain(program, target)):
        for p in itertools.takewhile(lambda p: p.price is not None, made):
            text = steps.show(p.schedule)
            if text in wanted and p.price is not None:
                found.setdefault(text, p.price)
            if len(found) == len(wanted):
                return found
    return found


def ranks(r: Recorded, estimates: np.ndarray) -> tuple[float, float]:
    """How well estimates rank times: Spearman's correlation over all candidates, and Goodman and Kruskal's gamma over
    the pairs whose times differ by more than their resolution."""
    a, b = _ranks(estimates), _ranks(r.times)
    rho = float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else 0.0
    first, second = np.triu_indices(len(r.times), 1)
    apart = r.times[first] - r.times[second]
    told = np.abs(apart) > r.within
    signs = np.sign(estimates[first] - estimates[second])[told] * np.sign(apart[told])
    return rho, float(signs.mean()) if len(signs) else float("nan")


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks, with ties given their mean rank."""
    return np.array([((values < x).sum() + (values <= x).sum() - 1) / 2 for x in values])


def estimates(r: Recorded, costs: Costs | None = None) -> np.ndarray:
    """The logarithms of a kernel's estimates, with `costs` replacing the target's; as recorded if it has no prices."""
    if not r.prices:
        return r.costs
    target = named.target(r.target)
    if costs is not None:
        target = target.replace(costs=tuple((dict(target.costs) | dict(costs)).items()))
    return np.log([price(target) for price in r.prices])


def fitted(some: Sequence[Recorded], names: Sequence[str]) -> dict[str, float]:
    """Fit the costs `names` to the times of kernels of one target; returns their values."""
    some = [_thinned(r) for r in some]
    base = dict(named.target(some[0].target).costs)
    start = np.log([base[n] for n in names])
    top = np.minimum(start + FARTHEST, [0.0 if n in SHARES else np.inf for n in names])
    bottom = np.maximum(start - FARTHEST, [0.0 if n.endswith(EXPONENT) else -np.inf for n in names])
    times, kernel = (
        np.concatenate([r.times for r in some]),
        np.repeat(np.arange(len(some)), [len(r.times) for r in some]),
    )
    count = np.bincount(kernel)
    weight = (10 / np.sqrt(count))[kernel]
    common = COMMON if all(r.whole for r in some) else 0.0

    def residuals(x: np.ndarray) -> np.ndarray:
        costs = dict(zip(names, np.exp(x), strict=True))
        off = np.concatenate([estimates(r, costs) for r in some]) - times
        return np.asarray(off - (1 - common) * (np.bincount(kernel, off) / count)[kernel])

    def loss(x: np.ndarray, off: np.ndarray) -> float:
        far = np.abs(off)
        each = np.where(far < FAR, off**2 / 2, FAR * (far - FAR / 2))
        return float((weight**2 * each).sum() + KEPT / 2 * ((x - start) ** 2).sum())

    x, damping = start.copy(), 1e-2
    off = residuals(x)
    least = loss(x, off)
    for turn in range(MOST_TURNS):
        near = 0.05 if turn % 2 else 0.15  # estimates are piecewise smooth: wide central differences smooth the kinks
        slopes = np.stack([(residuals(x + near * e) - residuals(x - near * e)) / (2 * near) for e in np.eye(len(x))])
        share = weight**2 * np.minimum(1, FAR / np.maximum(np.abs(off), 1e-9))
        curve = (slopes * share) @ slopes.T + KEPT * np.eye(len(x))
        down = slopes @ (share * off) + KEPT * (x - start)
        before = least
        for _ in range(6):
            step = np.clip(np.linalg.solve(curve + damping * np.diag(np.diag(curve)), -down), -0.5, 0.5)
            there = np.clip(x + step, bottom, np.maximum(bottom, top))
            reached = residuals(there)
            if (found := loss(there, reached)) < least:
                x, off, least, damping = there, reached, found, damping / 4
                break
            damping *= 3
        if before - least < 1e-3 * before:
            break
    return {n: float(f"{v:.3g}") for n, v in zip(names, np.exp(x), strict=True)}


def _thinned(r: Recorded) -> Recorded:
    """The FASTEST candidates, and others at even ranks of time, MOST_EACH in all; unchanged without prices."""
    order = np.argsort(r.times)
    if len(order) <= MOST_EACH or not r.prices:
        return r
    rest = order[FASTEST:][np.linspace(0, len(order) - FASTEST - 1, MOST_EACH - FASTEST).round().astype(int)]
    chosen = np.sort(np.concatenate([order[:FASTEST], rest]))
    return replace(r, times=r.times[chosen], costs=r.costs[chosen], prices=tuple(r.prices[n] for n in chosen))


def moving(some: Sequence[Recorded]) -> list[str]:
    """The names of the costs that some estimate depends on."""
    costs = named.target(some[0].target).costs
    at = [estimates(r) for r in some]
    return [n for n, v in costs if any((estimates(r, {n: 1.1 * v}) != e).any() for r, e in zip(some, at, strict=True))]


def report(paths: Sequence[Path]) -> str:
    """Report the error and rank quality of estimates by family: as they are, fitted, and on held-out kernels; then the
    fitted costs."""
    tables = [t for t in replay.read(paths) if sum(not x.failed for x in t.trials.values()) > 2]
    kernels = [recorded(t) for t in tables]
    rows = [
        "| family | kernels | estimates | error | rank correlation, mean | least | of pairs that differ for sure |",
        "|---|---|---|---|---|---|---|",
    ]
    said: list[str] = []
    by_target: dict[str, list[Recorded]] = defaultdict(list)
    for r in kernels:
        by_target[r.target].append(r)
    for target, some in sorted(by_target.items()):
        known = [r for r in some if r.prices]
        names = moving(known) if known else []
        whole = fitted(known, names) if names else {}
        held_out = unseen(known, names)
        for family in sorted({r.family for r in some}):
            every = [r for r in some if r.family == family]
            rows.append(_row(f"{target} {family}", "now", every, [estimates(r) for r in every]))
            if any(r.prices for r in every):
                rows.append(_row("", "fitted", every, [estimates(r, whole) for r in every]))
                rows.append(_row("", "held out", every, [estimates(r, held_out.get(r.name)) for r in every]))
        then = dict(named.target(target).costs) if names else {}
        said += [f"{target} {name}: {then[name]:g} -> {value:g}" for name, value in whole.items()]
    return "\n".join([*rows, "", *said]).rstrip() + "\n"


def unseen(known: Sequence[Recorded], names: Sequence[str]) -> dict[str, Costs]:
    """Cross-validation: for each kernel, by name, the costs fitted to the kernels of the other folds."""
    made: dict[str, Costs] = {}
    for out in (known[n::FOLDS] for n in range(FOLDS)):
        rest = [r for r in known if all(r is not x for x in out)]
        if rest and names:
            made |= dict.fromkeys([r.name for r in out], fitted(rest, names))
    return made


def _row(family: str, what: str, some: Sequence[Recorded], made: Sequence[np.ndarray]) -> str:
    errors = [float((e - r.times).std()) for e, r in zip(made, some, strict=True)]
    rho, gamma = zip(*(ranks(r, e) for r, e in zip(some, made, strict=True)), strict=True)
    sure = [g for g in gamma if g == g]
    count = str(len(some)) if family else ""
    return (
        f"| {family} | {count} | {what} | {np.mean(errors):.2f} | {np.mean(rho):.2f} | {min(rho):.2f} "
        f"| {np.mean(sure) if sure else float('nan'):.2f} |"
    )
