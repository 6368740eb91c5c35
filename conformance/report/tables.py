"""Rows in; text out, as Markdown or for the terminal: tables of cases and benchmarks, and why an item failed."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tabulate import tabulate

from conformance.report.rows import BAD, CHECK_VERDICTS, Row, item_name
from conformance.report.writer import Run, geomean, measured

SHOWN = 20  # rows of a table in the terminal; the files have them all
LOST = 0.95  # a speedup below this is a loss
REMARK = 100
SEVERITY = ("crash", "timeout", "fail", "unsupported", "xfail", "pass")
CASE_HEADERS = ("case", "verdict", "first bad stage", "pass", "err/tol", "what")
BENCH_HEADERS = (
    "case", "ours us", "eager us", "compile us", "speedup", "interval", "verdict", "of roofline", "wall us",
    "wall us of PyTorch", "build s", "remark",
)  # fmt: skip
GROUP_HEADERS = (
    "kernels", "measured", "faster", "slower", "geomean", "worst", f"below {LOST}", "over eager", "worst over eager",
)  # fmt: skip
RESOURCE_HEADERS = (
    "compiled for", "kernels", "disassembled", "most registers", "most shared bytes", "most local bytes",
    "most spilled bytes", "with complaints",
)  # fmt: skip
STAGE_HEADERS = ("stage", "verdict", "err/tol", "executor", "seconds")


def failure(row: Row) -> str:
    """Why an item failed: its stages, the first bad one, what was wrong, and how to see it again."""
    stages = row.get("stages", ())
    parts = [f"{item_name(row)}: {row['verdict']}"]
    if stages:
        parts.append(table([[stage[key] for key in STAGE_KEYS] for stage in stages], STAGE_HEADERS, "simple"))
    parts += [f"{label}: {row[key]}" for key, label in FIRST_BAD.items() if row.get(key)]
    messages = [f"{stage['stage']}: {stage['message']}" for stage in stages if _is_bad(stage) and stage["message"]]
    parts += dict.fromkeys(text for text in (row["detail"].strip(), *messages) if text)
    if row.get("first_loss"):
        parts.append(f"tried twice; the first time, in a process that had run other cases, {row['first_loss']}")
    parts += [f"{label}: {row[key]}" for key, label in (("command", "again"), ("repro", "files")) if row.get(key)]
    return "\n".join(parts)


STAGE_KEYS = ("stage", "verdict", "err_over_tol", "executor", "seconds")
FIRST_BAD = {"first_bad_stage": "first bad stage", "first_bad_pass": "first bad pass"}


def terminal(run: Run) -> str:
    """The digest: what did not pass and what is slow, worst first, a limited number of rows."""
    parts = []
    if run.cases:
        parts.append(counts(run.cases))
        parts.append(case_table(run.cases, "simple", SHOWN))
        parts.append(fallbacks(run.cases, SHOWN))
    if run.benches:
        parts.append(f"speedup, min(eager, torch.compile) / ours:\n{group_table(run.benches, 'family', 'simple')}")
        parts.append(f"slowest first:\n{bench_table(run.benches, 'simple', SHOWN)}")
        parts += [f"cliffs:\n{text}"] if (text := cliff_table(run.benches, "simple")) else []
        parts += [f"UNFIT TO JUDGE SPEED: {run.unfit}"] if run.unfit else []
    if run.gates:
        parts.append(resource_table(run.gates, "simple"))
    if run.selftest is not None:
        parts.append(selftest(run.selftest))
    return "\n\n".join(part for part in parts if part)


def selftest(row: Row, style: str = "simple") -> str:
    """The self-test in words, and what was planted but not caught as a table."""
    share = f" ({row['caught'] / row['planted']:.1%})" if row["planted"] else ""
    text = f"self-test: {row['caught']} of {row['planted']} planted miscompiles caught{share}, "
    text += f"{row['false_alarms']} false alarms"
    missed = [planted for planted in row["rows"] if not planted.get("caught")]
    if not missed:
        return text
    return f"{text}\n\nnot caught:\n\n{table([list(planted.values()) for planted in missed], list(missed[0]), style)}"


def resource_table(gates: Iterable[Row], style: str = "github") -> str:
    """What the kernels of each architecture take at most, and how many of them complaints are about."""
    body = []
    for arch, found in grouped([kernel for row in gates for kernel in row["kernels"]], "arch").items():
        most = [max(kernel[key] for kernel in found) for key in ("registers", "shared", "stack", "spilled")]
        seen = sum(bool(kernel["opcodes"]) for kernel in found)
        body.append([arch, len(found), seen, *most, sum(bool(kernel["complaints"]) for kernel in found)])
    return table(body, RESOURCE_HEADERS, style)


def case_table(cases: Iterable[Row], style: str = "github", limit: int | None = None) -> str:
    """What did not pass, worst first; nothing where everything did."""
    bad = [row for row in cases if row["verdict"] in BAD]
    bad.sort(key=lambda row: (SEVERITY.index(row["verdict"]), -(worst_error(row["stages"]) or 0.0), item_name(row)))
    return _limited(bad, _case_line, CASE_HEADERS, style, limit)


def fallbacks(cases: Iterable[Row], limit: int | None = None) -> str:
    """Kernels whose schedules no pass could carry out, so that plainer ones were taken: a line for each finding."""
    found = [f"{item_name(row)}: {_remark(text)}" for row in cases for text in row.get("fallbacks", ())]
    if not found:
        return ""
    more = [f"… and {len(found) - limit} more"] if limit is not None and len(found) > limit else []
    return "\n".join([f"{len(found)} schedules were given up for plainer ones:", *found[:limit], *more])


def bench_table(benches: Iterable[Row], style: str = "github", limit: int | None = None) -> str:
    """Benchmarks, those without a speedup first, then the slowest; columns that nothing stands in are left out."""
    ordered = sorted(benches, key=lambda row: (row["speedup"] or 0.0, item_name(row)))
    lines = {id(row): _bench_line(row) for row in ordered}
    kept = [k for k, _ in enumerate(BENCH_HEADERS) if any(line[k] not in (None, "") for line in lines.values())]
    headers = [BENCH_HEADERS[k] for k in kept]
    return _limited(ordered, lambda row: [lines[id(row)][k] for k in kept], headers, style, limit)


def cliff_table(benches: Iterable[Row], style: str = "github") -> str:
    """The benchmarks that are slow beyond any tuning, each with what is slow of it."""
    body = [[item_name({**row, "kind": "check"}), text] for row in benches for text in row.get("cliffs", ())]
    return table(body, ("case", "cliff"), style)


def group_table(benches: Sequence[Row], key: str, style: str = "github") -> str:
    """The geometric mean of each family or suite, and of all."""
    groups = grouped(benches, key)
    body = [_group_line(name, rows) for name, rows in groups.items()]
    return table(body + ([_group_line("all", benches)] if len(groups) > 1 else []), (key, *GROUP_HEADERS), style)


def lost(benches: Iterable[Row]) -> list[Row]:
    """The benchmarks that PyTorch wins, and those without a result."""
    return [row for row in benches if not row["speedup"] or row["speedup"] < LOST]


def table(body: Sequence[Sequence[Any]], headers: Sequence[str], style: str = "github") -> str:
    """A table: numbers are shortened and stand to the right, text is never mistaken for a number."""
    if not body:
        return ""
    escape = style == "github"
    shown = [[_shown(cell, escape) for cell in row] for row in body]
    align = ["left" if any(isinstance(row[at], str) for row in body) else "right" for at in range(len(headers))]
    return str(tabulate(shown, headers, tablefmt=style, disable_numparse=True, colalign=align))


def counts(rows: Sequence[Row]) -> str:
    """How many rows have which verdict.

    >>> counts([{"verdict": "pass"}, {"verdict": "fail"}, {"verdict": "pass"}])
    '3 cases: 2 pass, 1 fail'
    """
    counted = Counter(row["verdict"] for row in rows)
    named = [f"{counted[verdict]} {verdict}" for verdict in CHECK_VERDICTS if counted[verdict]]
    return f"{len(rows)} cases: {', '.join(named)}"


def grouped(rows: Iterable[Row], key: str) -> dict[str, list[Row]]:
    """The rows by one of their fields, in its order."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row[key]].append(row)
    return dict(sorted(found.items(), key=lambda item: _by_number(item[0])))


def worst_error(stages: Iterable[Row]) -> float | None:
    """The largest error over its tolerance."""
    return max((stage["err_over_tol"] for stage in stages if stage["err_over_tol"] is not None), default=None)


def _limited(
    rows: Sequence[Row], line: Callable[[Row], list[Any]], headers: Sequence[str], style: str, limit: int | None
) -> str:
    text = table([line(row) for row in rows[:limit]], headers, style)
    return text + (f"\n… and {len(rows) - limit} more" if limit is not None and len(rows) > limit else "")


def _case_line(row: Row) -> list[Any]:
    bad = next((stage for stage in row["stages"] if _is_bad(stage)), None)
    what = (bad["message"] if bad else "") or row["detail"]
    error = bad["err_over_tol"] if bad else None
    return [item_name(row), row["verdict"], row["first_bad_stage"], row["first_bad_pass"], error, _remark(what)]


def _bench_line(row: Row) -> list[Any]:
    interval = "{:.2f} … {:.2f}".format(*row["ci"]) if row["ci"] else None
    share = f"{row['roofline']:.0%}" if row["roofline"] else None
    name = item_name({**row, "kind": "check"})
    micros = [row[key] for key in ("ours_us", "eager_us", "compile_us")]
    verdict = [row["speedup"], interval, row["verdict"], share]
    return [name, *micros, *verdict, *_walls(row), row.get("compile_seconds"), _remark(row["detail"])]


def _walls(row: Row) -> tuple[float | None, float | None]:
    """Microseconds of one call by itself and the wait for its end: ours, and the best of the others."""
    walls = row.get("wall_us") or {}
    return walls.get("ours"), min((micros for name, micros in walls.items() if name != "ours"), default=None)


def _group_line(name: str, rows: Sequence[Row]) -> list[Any]:
    timed = measured(rows)
    ratios = [row["speedup"] for row in timed]
    over_eager = [row["over"]["eager"]["speedup"] for row in timed]
    wins = [sum(row["verdict"] == verdict for row in timed) for verdict in ("FASTER", "SLOWER")]
    worst = min(ratios, default=None)
    figures = [*wins, geomean(ratios), worst, len(lost(rows)), geomean(over_eager), min(over_eager, default=None)]
    return [name, len(rows), len(timed), *figures]


def _by_number(name: str) -> list[str | int]:
    """A sort key: numbers in a name by their value.

    >>> sorted(["s128", "s32", "row", "s"], key=_by_number)
    ['row', 's', 's32', 's128']
    """
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _remark(text: str) -> str:
    """The line of a message that says most: the first, of a traceback the last."""
    lines = text.strip().splitlines() or [""]
    return lines[-1 if lines[0].startswith("Traceback") else 0][:REMARK]


def _is_bad(stage: Row) -> bool:
    return stage["verdict"] in BAD


def _shown(cell: object, escape: bool) -> str:
    match cell:
        case None:
            return ""
        case float():
            return f"{cell:#.3g}".rstrip(".") if abs(cell) < 100 else f"{cell:.0f}"
        case str() if escape:
            return cell.replace("|", "\\|").replace("\n", " ")
        case _:
            return str(cell)
