"""Evaluate the races of a run against stored kernels: final verdicts, the page `regressions.md`, and failures."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import compiler
from conformance.bench import duel, emitted
from conformance.bench.duel import Verdict
from conformance.history import baseline
from conformance.history.baseline import Baseline
from conformance.report import tables
from conformance.report.writer import Run
from conformance.rows import Bench
from conformance.run.settings import Settings
from conformance.shapes.cases import kind_of


def with_drift(benches: Sequence[Bench], stored: Baseline, unfit: str) -> tuple[Bench, ...]:
    """Add the drift of rivals to the rows; if the machine was unfit, all races become AMBIGUOUS."""
    rows = []
    for row in benches:
        against = replace(row.against, drift=baseline.drift(row, stored.entry(row)))
        if unfit and against.chance is not None:
            against = replace(against, verdict=str(Verdict.AMBIGUOUS), why="on an unfit machine", chance=None)
        rows.append(replace(row, against=against))
    return tuple(rows)


def correct_verdicts(benches: Sequence[Bench]) -> tuple[Bench, ...]:
    """Correct for multiple tests: SLOWER becomes AMBIGUOUS if it is not significant among all races.

    Of many intervals with 99 % confidence some miss the true value by chance. The correction (Benjamini-Hochberg)
    limits the share of chance findings among the verdicts SLOWER to 1 %.
    """
    raced = [n for n, row in enumerate(benches) if row.against.chance is not None]
    significant = duel.discoveries([benches[n].against.chance or 0.0 for n in raced])
    significant_rows = {raced[k] for k in significant}
    too_few = "too few rounds among so many benchmarks"
    return tuple(
        replace(row, against=replace(row.against, verdict=str(Verdict.AMBIGUOUS), why=too_few))
        if row.against.verdict == Verdict.SLOWER and n not in significant_rows
        else row
        for n, row in enumerate(benches)
    )


def lost_cases(run: Run, stored: Baseline, is_whole_run: bool) -> list[str]:
    """Return the cases that passed in the baseline and do not pass now; of a whole run also those not run."""
    verdicts = {baseline.case_name(row): row.verdict for row in run.cases}
    passed = [case for case, verdict in stored.verdicts().items() if verdict == "pass"]
    return [
        case for case in passed if (verdicts.get(case, "pass") != "pass") or (is_whole_run and case not in verdicts)
    ]


def page(run: Run, stored: str, lost: Sequence[str]) -> str:
    """Return `regressions.md`: SLOWER and unbuilt kernels first."""
    order = [*Verdict, "unbuilt", ""]
    order.sort(key=lambda verdict: verdict not in (Verdict.SLOWER, "unbuilt"))
    ordered = sorted(run.benches, key=lambda row: (order.index(row.against.verdict), row.against.speedup or 1.0))
    lines = [
        f"# {run.env['device']} against {stored}",
        counts(run, stored),
        "Speedup is the time of the stored kernel over ours, both built and raced in this run, with the interval that "
        "holds it with 99 % confidence. *Would see* is the least slowdown that the rounds could have shown.",
        tables.columns(ordered, Bench.BASELINE_COLUMNS),
    ]
    lines += ["## Passed, and do not now", "\n".join(f"- {case}" for case in lost)] if lost else []
    return "\n\n".join(filter(None, lines)) + "\n"


def counts(run: Run, stored: str) -> str:
    """Return the number of kernels per verdict and the smallest slowdown detectable in all of them, in one line."""
    verdicts = Counter(row.against.verdict or "new" for row in run.benches)
    equal = sum(row.against.why == "equal code" for row in run.benches)
    words = [
        f"{n} {verdict}{f' ({equal} of equal code)' if verdict == 'SAME' else ''}" for verdict, n in verdicts.items()
    ]
    smallest = max((row.against.least for row in run.benches if row.against.least), default=None)
    visible = f"; slowdowns from {smallest:.1%} on would show in all" if smallest else ""
    return f"against {stored}: {', '.join(words) or 'no benchmark'}{visible}"


def failures(run: Run, fail_on: Sequence[str], lost: Sequence[str]) -> list[str]:
    """Return the failures of the run by --mlcomp-fail-on slower and coverage."""
    slower = [row for row in run.benches if row.against.verdict == Verdict.SLOWER]
    message = (
        [f"slower than the baseline: {tables.columns(slower, Bench.BASELINE_COLUMNS, 'simple')}"] if slower else []
    )
    slower_message = message if "slower" in fail_on else []
    return [*slower_message, *(f"passed in the baseline: {case}" for case in lost if "coverage" in fail_on)]


def save(run: Run, settings: Settings) -> str:
    """Store the kernels of a run as a baseline; returns a message."""
    assert settings.save_baseline is not None
    folder = settings.baselines(str(run.env["device"])) / settings.save_baseline
    headers = {
        kind_of(target): emitted.pack_headers(compiler.headers(compiler.target(target))) for target in settings.targets
    }
    facts = {"env": run.env, "tier": run.tier, "seed": run.seed}
    count = baseline.save(folder, run.cases, run.benches, facts, headers)
    return f"mlcomp: {count} kernels are stored in {folder}"
