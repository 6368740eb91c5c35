"""The Markdown pages of a run: `summary.md`, `speedup.md` and `coverage.md`."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from conformance import rows
from conformance.report import tables, writer
from conformance.report.writer import Run
from conformance.rows import BAD, CHECK_VERDICTS, Bench, Check, Gate, Kernel, Stage, worst_error
from conformance.shapes.cases import DTYPES, STAGES

MOST_LISTED = 10
LEGEND = """\
Speedup is min(eager, torch.compile) / ours, with the 99 % interval of the median over paired rounds; above 1 we are
faster. {times} A verdict is given where the whole interval agrees. The share of the
roofline is the least time that this machine's measured bandwidth and arithmetic allow, over ours. Build is the time
from the function to its first result, less where the kernel cache had it."""
ON_CPU = "Times are of one call on one thread."
ON_GPU = """\
Times are the GPU's: of a call among 20 in a CUDA graph, whose launches cost the host nothing, on data that the calls
before left in the L2 if it holds them; eager has the fastest of PyTorch's attention backends. Wall is from the
beginning of one call by itself to the end of its work, launch and wait included."""


def summary(run: Run) -> str:
    """Return `summary.md`."""
    env = run.env
    tools = (env["cpu"], env["gpu"] or "no GPU", f"Python {env['python']}", f"torch {env['torch']}", env["toolchain"])
    run_facts = (f"{run.when:%Y-%m-%d %H:%M} UTC", f"tier {run.tier}", f"seed {run.seed}", f"{run.seconds:.0f} s")
    lines = [
        f"# mlcomp on {env['device']}",
        " · ".join((*run_facts, *filter(None, tools), f"commit {env['commit'] or 'unknown'}")),
    ]
    lines += _cases(run.cases) if run.cases else []
    if run.benches:
        lines += ["## Speedup over the best of PyTorch", tables.family_table(run.benches), "Every row: `speedup.md`."]
        lines += ["### Cliffs", text] if (text := tables.cliff_table(run.benches)) else []
    else:
        lines += ["## Speedup", "No benchmark ran; `--mlcomp-bench quick` runs them."]
    if run.gates:
        lines += _resources(run.gates)
    if run.selftest is not None:
        lines += ["## Self-test", tables.selftest(run.selftest, "github")]
    return _page(lines)


def speedup(run: Run) -> str:
    """Return `speedup.md`: geometric means by family and suite, losses, then every row by family, slowest first."""
    clocks = {row.clock == "device" for row in run.benches if row.clock} or {False}
    times = " ".join(text for on_gpu, text in ((False, ON_CPU), (True, ON_GPU)) if on_gpu in clocks)
    lines = [f"# Speedup on {run.env['device']}", LEGEND.format(times=times)]
    if not run.benches:
        return _page([*lines, "No benchmark has run: `pytest --mlcomp --mlcomp-bench quick`."])
    lines += [f"**This machine could not judge speed during this run:** {run.unfit}"] if run.unfit else []
    lines += ["## By family", tables.family_table(run.benches), "## By suite and type", _by_type(run.benches)]
    if losses := tables.losses(run.benches):
        lines += [f"## Lost: below {tables.LOSS_THRESHOLD}, or without a result", tables.bench_table(losses)]
    for family, family_rows in tables.group_by(run.benches, tables.FAMILY).items():
        lines += [f"## {family}", tables.bench_table(family_rows)]
    return _page(lines)


def coverage(run: Run) -> str:
    """Return `coverage.md`: the numbers of cases per op and dtype, by verdict."""
    by_op = tables.group_by(run.cases, attrgetter("op"))
    dtypes = [dtype for dtype in DTYPES if any(row.dtype == dtype for row in run.cases)]
    body = [
        [op, *(_cell([row for row in op_rows if row.dtype == dtype]) for dtype in dtypes), _cell(op_rows)]
        for op, op_rows in by_op.items()
    ]
    head = f"{len(by_op)} ops at tier {run.tier}; {tables.counts(run.cases)}."
    return _page([f"# Coverage on {run.env['device']}", head, tables.table(body, ["op", *dtypes, "all"])])


def _cases(cases: Sequence[Check]) -> list[str]:
    suites = [
        [suite, len(suite_rows), *_by_verdict(suite_rows)]
        for suite, suite_rows in tables.group_by(cases, attrgetter("suite")).items()
    ]
    lines = ["## Cases", tables.counts(cases), tables.table(suites, ["suite", "cases", *CHECK_VERDICTS])]
    if bad := [row for row in cases if row.verdict in BAD]:
        commands = "\n".join(row.command for row in bad if row.command)
        lines += ["### Not passing", tables.case_table(bad), f"```\n{commands}\n```"]
    if fallbacks := tables.fallbacks(cases):
        lines += ["### Schedules given up", f"```\n{fallbacks}\n```"]
    if expected := [row for row in cases if row.verdict == "xfail"]:
        body = [[rows.shown_name(row), row.first_bad_stage, row.reason] for row in expected]
        lines += ["### Expected to fail", tables.table(body, ["case", "stage", "reason"])]
    if retried := [row for row in cases if row.first_loss and row.verdict not in BAD]:
        explanation = "Lost in a process that had run other cases, passed alone: a case before them may corrupt memory."
        body = [[rows.shown_name(row), row.first_loss] for row in retried]
        lines += ["### Lost once", explanation, tables.table(body, ["case", "the first time"])]
    return [*lines, "### Stages", _stages(cases), "### Closest to the bound", _closest(cases)]


def _by_type(benches: Sequence[Bench]) -> str:
    """Return the table of suites by dtype, since hardware treats dtypes differently."""
    return tables.group_table(benches, "suite and type", lambda row: f"{row.suite} {row.dtype}")


def _resources(gates: Sequence[Gate]) -> list[str]:
    """Return the section on resources: maxima, the kernels with the most registers, and all complaints."""
    ambiguous = rows.ambiguous((kernel.case, row.file) for row in gates for kernel in row.kernels)
    kernels = [
        replace(kernel, case=f"{row.file}::{kernel.case}") if kernel.case in ambiguous else kernel
        for row in gates
        for kernel in row.kernels
    ]
    hungriest = sorted(kernels, key=lambda kernel: -kernel.registers)[:MOST_LISTED]
    lines = ["## Resources", tables.resource_table(gates), tables.columns(hungriest, Kernel.COLUMNS)]
    wrong = [line for row in gates if row.verdict != "pass" for line in row.detail.splitlines()]
    return [*lines, *(["### Complaints", "```\n" + "\n".join(wrong) + "\n```"] if wrong else [])]


def _stages(cases: Sequence[Check]) -> str:
    by_stage: dict[tuple[str, str, str], list[Stage]] = defaultdict(list)
    for row in cases:
        for stage in row.stages:
            by_stage[row.target, stage.stage, stage.executor or ""].append(stage)
    body = [
        [*key, *_stage_figures(stages)] for key, stages in sorted(by_stage.items(), key=lambda item: _order(item[0]))
    ]
    return tables.table(body, ["target", "stage", "executor", "run", "pass", "worst err/tol", "seconds"])


def _order(key: tuple[str, str, str]) -> tuple[str, int]:
    return key[0], STAGES.index(key[1])


def _stage_figures(stages: Sequence[Stage]) -> list[Any]:
    passed = sum(stage.verdict == "pass" for stage in stages)
    return [len(stages), passed, worst_error(stages), sum(stage.seconds or 0.0 for stage in stages)]


def _closest(cases: Sequence[Check]) -> str:
    errors = [(worst_error(row.stages) or 0.0, rows.shown_name(row)) for row in cases if row.verdict == "pass"]
    return tables.table(
        [[name, error] for error, name in sorted(errors, reverse=True)[:MOST_LISTED]], ["case", "err/tol"]
    )


def _by_verdict(cases: Sequence[Check]) -> list[int]:
    verdicts = Counter(row.verdict for row in cases)
    return [verdicts[verdict] for verdict in CHECK_VERDICTS]


def _cell(cases: Sequence[Check]) -> str:
    """Return the number of passing cases and of each other verdict."""
    verdicts = Counter(row.verdict for row in cases)
    others = [f"{verdicts[verdict]} {verdict}" for verdict in tables.SEVERITY[:-1] if verdicts[verdict]]
    passing = [str(verdicts["pass"])] if verdicts["pass"] else []
    return ", ".join(passing + others)


def _page(lines: Sequence[str]) -> str:
    return "\n\n".join(line for line in lines if line) + "\n"


PAGES: Mapping[str, Callable[[Run], str]] = {"summary.md": summary, "speedup.md": speedup, "coverage.md": coverage}


def documents(run: Run) -> dict[str, str]:
    """Return all files of a report, so that none of an earlier run remains."""
    return {
        "run.json": json.dumps(writer.run_json(run), indent=1, allow_nan=False) + "\n",
        **{name: page(run) for name, page in PAGES.items()},
        "benchmark.json": json.dumps(writer.benchmark_json(run), indent=1, allow_nan=False) + "\n",
    }
