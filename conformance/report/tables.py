"""Tables of rows as text, in Markdown or for the terminal, and messages of failed items."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from tabulate import tabulate

from conformance import rows
from conformance.report.writer import Run, geomean, measured
from conformance.rows import BAD, CHECK_VERDICTS, Bench, Check, Columns, Gate, Stage, worst_error

T = TypeVar("T")

SHOWN = 20  # most rows of a table in the terminal; the files have all
LARGE = 1e6  # from here on, numbers have three digits and an exponent
LOSS_THRESHOLD = 0.95  # a speedup below this is a loss
SEVERITY = ("crash", "timeout", "fail", "unsupported", "xfail", "pass")
GROUP_HEADERS = (
    "kernels", "measured", "faster", "slower", "geomean", "worst", f"below {LOSS_THRESHOLD}", "over eager",
    "worst over eager",
)  # fmt: skip
RESOURCE_HEADERS = (
    "compiled for", "kernels", "disassembled", "most registers", "most shared bytes", "most local bytes",
    "most spilled bytes", "with complaints",
)  # fmt: skip
FAMILY: Callable[[Bench], str] = attrgetter("family")


def failure(row: Check | Bench) -> str:
    """Return the message of a failed item: its stages, the first bad one, what is wrong, and how to repeat it."""
    parts, messages, files = [f"{rows.name(row)}: {row.verdict}"], [], ""
    if isinstance(row, Check):
        parts.append(columns(row.stages, Stage.COLUMNS, "simple"))
        parts.append(f"first bad stage: {row.first_bad_stage}" if row.first_bad_stage else "")
        parts.append(f"first bad pass: {row.first_bad_pass}" if row.first_bad_pass else "")
        messages = [f"{stage.stage}: {stage.message}" for stage in row.stages if stage.verdict in BAD and stage.message]
        files = row.repro
    parts += dict.fromkeys((row.detail.strip(), *messages))
    if row.first_loss:
        parts.append(f"tried twice; the first time, in a process that had run other cases, {row.first_loss}")
    parts += [f"again: {row.command}" if row.command else "", f"files: {files}" if files else ""]
    return "\n".join(filter(None, parts))


def terminal(run: Run) -> str:
    """Return the summary for the terminal: failures and slow benchmarks, worst first, at most SHOWN rows each."""
    parts = []
    if run.cases:
        parts.append(counts(run.cases))
        parts.append(case_table(run.cases, "simple", SHOWN))
        parts.append(fallbacks(run.cases, SHOWN))
    if run.benches:
        parts.append(f"speedup, min(eager, torch.compile) / ours:\n{family_table(run.benches, 'simple')}")
        parts.append(f"slowest first:\n{bench_table(run.benches, 'simple', SHOWN)}")
        parts += [f"cliffs:\n{text}"] if (text := cliff_table(run.benches, "simple")) else []
        parts += [f"UNFIT TO JUDGE SPEED: {run.unfit}"] if run.unfit else []
    if run.gates:
        parts.append(resource_table(run.gates, "simple"))
    if run.selftest is not None:
        parts.append(selftest(run.selftest))
    return "\n\n".join(part for part in parts if part)


def selftest(row: rows.SelfTest, style: str = "simple") -> str:
    """Return the counts of the self-test and of each net, and a table of the miscompiles that were not caught."""
    share = f" ({row.caught / row.planted:.1%})" if row.planted else ""
    text = f"self-test: {row.caught} of {row.planted} planted miscompiles caught{share}, "
    text += f"{row.false_alarms} false alarms"
    text += "".join(f"\ncaught by {net}: {count}" for net, count in row.nets.items())
    missed = columns([mutant for mutant in row.rows if not mutant.caught], rows.PlantedMutant.COLUMNS, style)
    return f"{text}\n\nnot caught:\n\n{missed}" if missed else text


def resource_table(gates: Iterable[Gate], style: str = "github") -> str:
    """Return per architecture the maxima of the kernels' resources and the number of kernels with complaints."""
    body = []
    kernels = [kernel for row in gates for kernel in row.kernels]
    for arch, arch_kernels in group_by(kernels, attrgetter("arch")).items():
        maxima = [
            max(getattr(kernel, key) for kernel in arch_kernels) for key in ("registers", "shared", "stack", "spilled")
        ]
        disassembled = sum(kernel.disassembled for kernel in arch_kernels)
        body.append(
            [arch, len(arch_kernels), disassembled, *maxima, sum(bool(kernel.complaints) for kernel in arch_kernels)]
        )
    return table(body, RESOURCE_HEADERS, style)


def case_table(cases: Iterable[Check], style: str = "github", limit: int | None = None) -> str:
    """Return a table of the failed cases, worst first; "" if there are none."""
    bad = [row for row in cases if row.verdict in BAD]
    bad.sort(key=lambda row: (SEVERITY.index(row.verdict), -(worst_error(row.stages) or 0.0), rows.name(row)))
    return columns(bad, Check.COLUMNS, style, limit)


def fallbacks(cases: Iterable[Check], limit: int | None = None) -> str:
    """Return a line for each kernel whose schedule could not be applied, so that a simpler one was used."""
    lines = [f"{rows.shown_name(row)}: {rows.remark(text)}" for row in cases for text in row.fallbacks]
    if not lines:
        return ""
    more = [f"… and {len(lines) - limit} more"] if limit is not None and len(lines) > limit else []
    return "\n".join([f"{len(lines)} schedules were given up for plainer ones:", *lines[:limit], *more])


def bench_table(benches: Iterable[Bench], style: str = "github", limit: int | None = None) -> str:
    """Return a table of benchmarks: those without a speedup first, then the slowest."""
    ordered = sorted(benches, key=lambda row: (row.speedup or 0.0, rows.name(row)))
    return columns(ordered, Bench.COLUMNS, style, limit)


def cliff_table(benches: Iterable[Bench], style: str = "github") -> str:
    """Return a table of the cliffs."""
    body = [[rows.shown_name(row, bench=False), text] for row in benches for text in row.cliffs]
    return table(body, ("case", "cliff"), style)


def family_table(benches: Sequence[Bench], style: str = "github") -> str:
    """Return the geometric means of each family and of all benchmarks."""
    return group_table(benches, "family", FAMILY, style)


def group_table(benches: Sequence[Bench], header: str, key: Callable[[Bench], str], style: str = "github") -> str:
    """Return the geometric means of each group, and of all benchmarks if there are several groups."""
    groups = group_by(benches, key)
    body = [_group_line(name, group) for name, group in groups.items()]
    return table(body + ([_group_line("all", benches)] if len(groups) > 1 else []), (header, *GROUP_HEADERS), style)


def losses(benches: Iterable[Bench]) -> list[Bench]:
    """Return the benchmarks with a speedup below LOSS_THRESHOLD, and those without a result."""
    return [row for row in benches if not row.speedup or row.speedup < LOSS_THRESHOLD]


def columns(entries: Sequence[object], definitions: Columns, style: str = "github", limit: int | None = None) -> str:
    """Return a table of rows, at most `limit`; empty columns are left out."""
    cells = {header: [rows.cell(definition, row) for row in entries] for header, definition in definitions.items()}
    filled = {header: column[:limit] for header, column in cells.items() if any(x not in (None, "") for x in column)}
    text = table(list(zip(*filled.values(), strict=True)), list(filled), style)
    return text + (f"\n… and {len(entries) - limit} more" if limit is not None and len(entries) > limit else "")


def table(body: Sequence[Sequence[Any]], headers: Sequence[str], style: str = "github") -> str:
    """Return a table: numbers are rounded and right-aligned; text is not parsed as numbers."""
    if not body:
        return ""
    escape = style == "github"
    cells = [[_cell_text(cell, escape) for cell in row] for row in body]
    align = ["left" if any(isinstance(row[column], str) for row in body) else "right" for column in range(len(headers))]
    return str(tabulate(cells, headers, tablefmt=style, disable_numparse=True, colalign=align))


def counts(cases: Sequence[Check]) -> str:
    """Return the number of cases per verdict, in one line."""
    verdicts = Counter(row.verdict for row in cases)
    parts = [f"{verdicts[verdict]} {verdict}" for verdict in CHECK_VERDICTS if verdicts[verdict]]
    return f"{len(cases)} cases: {', '.join(parts)}"


def group_by(entries: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """Group rows by a key, sorted by it."""
    groups: dict[str, list[T]] = defaultdict(list)
    for row in entries:
        groups[key(row)].append(row)
    return dict(sorted(groups.items(), key=lambda item: _by_number(item[0])))


def _group_line(name: str, group: Sequence[Bench]) -> list[Any]:
    timed = measured(group)
    ratios = [row.speedup for row in timed if row.speedup]
    over_eager = [row.over[rows.EAGER].speedup for row in timed]
    wins = [sum(row.verdict == verdict for row in timed) for verdict in ("FASTER", "SLOWER")]
    worst = min(ratios, default=None)
    figures = [*wins, geomean(ratios), worst, len(losses(group)), geomean(over_eager), min(over_eager, default=None)]
    return [name, len(group), len(timed), *figures]


def _by_number(name: str) -> list[str | int]:
    """Return a sort key that compares numbers within names by value.

    >>> sorted(["s128", "s32", "row", "s"], key=_by_number)
    ['row', 's', 's32', 's128']
    """
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _cell_text(cell: object, escape: bool) -> str:
    """Return the text of a cell; numbers have three digits or are whole, but the largest, such as 1.23e+46.

    >>> [_cell_text(number, False) for number in (0.5, 99.0, 123.4, 123456.7, 1e6, -1.234e46)]
    ['0.500', '99.0', '123', '123457', '1e+06', '-1.23e+46']
    """
    match cell:
        case None:
            return ""
        case float():
            size = abs(cell)
            return f"{cell:#.3g}".rstrip(".") if size < 100 else f"{cell:.0f}" if size < LARGE else f"{cell:.3g}"
        case str() if escape:
            return cell.replace("|", "\\|").replace("\n", " ")
        case _:
            return str(cell)
