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
from compiler.execution.tuning.tune import without_hints
from compiler.ir import loop_text
from compiler.schedule import space, steps
from compiler.schedule.space.members import Price

FOLDS = 4  # folds of the cross-validation over kernels
MAX_ITERATIONS = 8  # Gauss-Newton iterations
MAX_CANDIDATES, FASTEST = 40, 12  # candidates of a kernel that are fitted to, and the number of fastest among them
CLOCK = 1755e6  # Hz, of the GPU whose costs are known
HUBER_LIMIT = 0.15  # residual from which the Huber loss is linear
COMMON_SHARE = 0.4  # share of a kernel's mean residual that counts
PENALTY = 0.2  # penalty for moving the logarithm of a cost by 1, in units of the loss of a kernel with residuals of 0.1
MAX_MOVE = 1.2  # most that the logarithm of a cost may move
MIN_RESOLUTION = 0.01  # least resolution of log times: pairs that differ by less are not compared
SHARES = ("reached", "reached.split", "sync.reached")  # costs that are fractions, at most 1
EXPONENT = "close"  # costs whose names end so are exponents, at least 1
Costs = Mapping[str, float]


@dataclass(frozen=True)
class Recorded:
    """A kernel with its candidates: logarithms of their times and of their recorded estimates in `costs`, and functions
    in `prices` that estimate each for given costs of the target, or none. `resolution` is the resolution of the times.
    Times are in clock cycles if `absolute`, else relative to the first candidate's."""

    name: str
    family: str
    target: str
    times: np.ndarray
    resolution: float
    costs: np.ndarray
    absolute: bool
    prices: tuple[Price, ...] = ()


def recorded(table: Table) -> Recorded:
    """The successful candidates of a table, only those with prices if these are at least half of them.

    On a GPU, where nothing else runs, times are absolute. On a CPU they are ratios within a race, because its
    contestants share whatever disturbs it.
    """
    succeeded = [table.trials[n] for n in sorted(table.trials) if not table.trials[n].failed]
    prices_by_text = _prices(table, {table.head.schedules[t.number] for t in succeeded})
    priced = [t for t in succeeded if table.head.schedules[t.number] in prices_by_text]
    has_prices = 2 * len(priced) >= len(succeeded)
    succeeded = priced if has_prices else succeeded
    prices = tuple(prices_by_text[table.head.schedules[t.number]] for t in priced) if has_prices else ()
    seconds, ratios = (np.log([getattr(t, name) for t in succeeded]) for name in ("seconds", "ratio"))
    machine = table.head.target
    absolute = not machine.startswith("cpu")
    times = seconds + np.log(CLOCK) if absolute else ratios
    spans = [t.high / t.low for t in succeeded if 0 < t.low <= t.high < np.inf]
    # If no intervals are recorded, the resolution is the spread of the first candidate's time between races.
    spreads = np.log(spans) if spans else 2 * np.abs(ratios - seconds - np.median(ratios - seconds))
    resolution = max(float(np.median(spreads)), MIN_RESOLUTION)
    costs = np.log([table.head.costs[t.number] for t in succeeded])
    return Recorded(table.head.name, table.head.family, machine, times, resolution, costs, absolute, prices)


def _prices(table: Table, wanted: set[str]) -> dict[str, Price]:
    """The prices of those wanted candidates that today's schedule space still has, if it has prices."""
    try:
        program, target = loop_text.parse(table.head.program), named.target(table.head.target)
    except ValueError:
        return {}
    if len(program.kernels) != 1:
        return {}
    prices: dict[str, Price] = {}
    (kernel,), private = program.kernels, [t.name for t in program.temps]
    # First schedules as planners make them, then as they are stored: those are slower to make, and some names differ.
    for members in (space.space(kernel, private, target), without_hints(program, target)):
        for p in itertools.takewhile(lambda p: p.price is not None, members):
            text = steps.show(p.schedule)
            if text in wanted and p.price is not None:
                prices.setdefault(text, p.price)
            if len(prices) == len(wanted):
                return prices
    return prices


def ranks(r: Recorded, estimates: np.ndarray) -> tuple[float, float]:
    """How well estimates rank times: Spearman's correlation over all candidates, and Goodman and Kruskal's gamma over
    the pairs whose times differ by more than their resolution."""
    a, b = _ranks(estimates), _ranks(r.times)
    rho = float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else 0.0
    first, second = np.triu_indices(len(r.times), 1)
    differences = r.times[first] - r.times[second]
    is_resolved = np.abs(differences) > r.resolution
    signs = np.sign(estimates[first] - estimates[second])[is_resolved] * np.sign(differences[is_resolved])
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


def fitted(kernels: Sequence[Recorded], names: Sequence[str]) -> dict[str, float]:
    """Fit the costs `names` to the times of kernels of one target; returns their values."""
    kernels = [_thin(r) for r in kernels]
    base = dict(named.target(kernels[0].target).costs)
    start = np.log([base[n] for n in names])
    top = np.minimum(start + MAX_MOVE, [0.0 if n in SHARES else np.inf for n in names])
    bottom = np.maximum(start - MAX_MOVE, [0.0 if n.endswith(EXPONENT) else -np.inf for n in names])
    times, kernel = (
        np.concatenate([r.times for r in kernels]),
        np.repeat(np.arange(len(kernels)), [len(r.times) for r in kernels]),
    )
    count = np.bincount(kernel)
    weight = (10 / np.sqrt(count))[kernel]
    common = COMMON_SHARE if all(r.absolute for r in kernels) else 0.0

    def residuals(x: np.ndarray) -> np.ndarray:
        costs = dict(zip(names, np.exp(x), strict=True))
        errors = np.concatenate([estimates(r, costs) for r in kernels]) - times
        return np.asarray(errors - (1 - common) * (np.bincount(kernel, errors) / count)[kernel])

    def loss(x: np.ndarray, errors: np.ndarray) -> float:
        distance = np.abs(errors)
        each = np.where(distance < HUBER_LIMIT, errors**2 / 2, HUBER_LIMIT * (distance - HUBER_LIMIT / 2))
        return float((weight**2 * each).sum() + PENALTY / 2 * ((x - start) ** 2).sum())

    x, damping = start.copy(), 1e-2
    errors = residuals(x)
    least = loss(x, errors)
    for turn in range(MAX_ITERATIONS):
        delta = 0.05 if turn % 2 else 0.15  # estimates are piecewise smooth: wide central differences smooth the kinks
        slopes = np.stack([(residuals(x + delta * e) - residuals(x - delta * e)) / (2 * delta) for e in np.eye(len(x))])
        share = weight**2 * np.minimum(1, HUBER_LIMIT / np.maximum(np.abs(errors), 1e-9))
        curvature = (slopes * share) @ slopes.T + PENALTY * np.eye(len(x))
        gradient = slopes @ (share * errors) + PENALTY * (x - start)
        previous = least
        for _ in range(6):
            step = np.clip(np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -gradient), -0.5, 0.5)
            trial = np.clip(x + step, bottom, np.maximum(bottom, top))
            trial_errors = residuals(trial)
            if (trial_loss := loss(trial, trial_errors)) < least:
                x, errors, least, damping = trial, trial_errors, trial_loss, damping / 4
                break
            damping *= 3
        if previous - least < 1e-3 * previous:
            break
    return {n: float(f"{v:.3g}") for n, v in zip(names, np.exp(x), strict=True)}


def _thin(r: Recorded) -> Recorded:
    """The FASTEST candidates, and others at even ranks of time, MAX_CANDIDATES in all; unchanged without prices."""
    order = np.argsort(r.times)
    if len(order) <= MAX_CANDIDATES or not r.prices:
        return r
    rest = order[FASTEST:][np.linspace(0, len(order) - FASTEST - 1, MAX_CANDIDATES - FASTEST).round().astype(int)]
    chosen = np.sort(np.concatenate([order[:FASTEST], rest]))
    return replace(r, times=r.times[chosen], costs=r.costs[chosen], prices=tuple(r.prices[n] for n in chosen))


def relevant_costs(kernels: Sequence[Recorded]) -> list[str]:
    """The names of the costs that some estimate depends on."""
    costs = named.target(kernels[0].target).costs
    recorded_estimates = [estimates(r) for r in kernels]
    return [
        n
        for n, v in costs
        if any((estimates(r, {n: 1.1 * v}) != e).any() for r, e in zip(kernels, recorded_estimates, strict=True))
    ]


def report(paths: Sequence[Path]) -> str:
    """Report the error and rank quality of estimates by family: as they are, fitted, and on held-out kernels; then the
    fitted costs."""
    tables = [t for t in replay.read(paths) if sum(not x.failed for x in t.trials.values()) > 2]
    kernels = [recorded(t) for t in tables]
    rows = [
        "| family | kernels | estimates | error | rank correlation, mean | least | of pairs that differ for sure |",
        "|---|---|---|---|---|---|---|",
    ]
    cost_lines: list[str] = []
    by_target: dict[str, list[Recorded]] = defaultdict(list)
    for r in kernels:
        by_target[r.target].append(r)
    for target, of_target in sorted(by_target.items()):
        priced = [r for r in of_target if r.prices]
        names = relevant_costs(priced) if priced else []
        fitted_costs = fitted(priced, names) if names else {}
        held_out = cross_validated(priced, names)
        for family in sorted({r.family for r in of_target}):
            of_family = [r for r in of_target if r.family == family]
            rows.append(_row(f"{target} {family}", "now", of_family, [estimates(r) for r in of_family]))
            if any(r.prices for r in of_family):
                rows.append(_row("", "fitted", of_family, [estimates(r, fitted_costs) for r in of_family]))
                rows.append(_row("", "held out", of_family, [estimates(r, held_out.get(r.name)) for r in of_family]))
        current = dict(named.target(target).costs) if names else {}
        cost_lines += [f"{target} {name}: {current[name]:g} -> {value:g}" for name, value in fitted_costs.items()]
    return "\n".join([*rows, "", *cost_lines]).rstrip() + "\n"


def cross_validated(kernels: Sequence[Recorded], names: Sequence[str]) -> dict[str, Costs]:
    """Cross-validation: for each kernel, by name, the costs fitted to the kernels of the other folds."""
    costs_by_kernel: dict[str, Costs] = {}
    for held_out in (kernels[n::FOLDS] for n in range(FOLDS)):
        rest = [r for r in kernels if all(r is not x for x in held_out)]
        if rest and names:
            costs_by_kernel |= dict.fromkeys([r.name for r in held_out], fitted(rest, names))
    return costs_by_kernel


def _row(family: str, label: str, kernels: Sequence[Recorded], family_estimates: Sequence[np.ndarray]) -> str:
    errors = [float((e - r.times).std()) for e, r in zip(family_estimates, kernels, strict=True)]
    rho, gamma = zip(*(ranks(r, e) for r, e in zip(kernels, family_estimates, strict=True)), strict=True)
    gammas = [g for g in gamma if g == g]
    count = str(len(kernels)) if family else ""
    return (
        f"| {family} | {count} | {label} | {np.mean(errors):.2f} | {np.mean(rho):.2f} | {min(rho):.2f} "
        f"| {np.mean(gammas) if gammas else float('nan'):.2f} |"
    )
