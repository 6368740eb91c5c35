"""`mlcomp compare`: what changed between the reports of runs, as Markdown.

Times of two runs are not compared, as the speed of a machine differs from hour to hour. Speedups over PyTorch, measured
within each run, are shown if their intervals do not overlap, but are never a failure; use `--mlcomp-baseline` for that.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.report.writer import geomean
from conformance.rows import BAD, BENCH_VERDICTS

RUN = "run.json"
RESOURCES = ("registers", "shared", "stack", "spilled")
OPCODES = 6  # opcodes shown per kernel
COMPILE_NOISE = 1.5  # compile times that differ by a smaller factor are not listed
Rows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Run:
    """The rows of a run by the names of cases, benchmarks and compiled kernels."""

    name: str
    env: Mapping[str, Any]
    cases: Rows
    benches: Rows
    kernels: Rows


def read(name: str) -> Run:
    """Read a run from its file or the folder of its report, which may be REV:PATH of git; raises ValueError."""
    try:
        data = json.loads(_text(name))
        kernels = [kernel for gate in data.get("gate") or () for kernel in gate["kernels"]]
        return Run(
            name, data["env"],
            {f"{row['file']}::{row['id']} on {row['target']}": row for row in data["cases"]},
            {f"{row['suite']}::{row['id']} on {row['target']}": row for row in data["benches"]},
            {f"{row['case']} {row['name']} for {row['arch']}": row for row in kernels},
        )  # fmt: skip
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} is no {RUN} of a report ({type(error).__name__}: {error})") from error


def _text(name: str) -> str:
    path = Path(name)
    if path.exists() or ":" not in name:
        return (path / RUN if path.is_dir() else path).read_text(encoding="utf-8")
    blob = name if name.endswith(".json") else f"{name.rstrip('/')}/{RUN}"
    process = subprocess.run(["git", "cat-file", "blob", blob], capture_output=True, text=True, check=False)
    if process.returncode:
        raise FileNotFoundError(process.stderr.strip())
    return process.stdout


def compare(a: Run, b: Run) -> tuple[str, bool]:
    """Return the report on what changed, and whether any verdict got worse or a kernel spills more."""
    coverage, has_worse_verdicts = _coverage(a, b)
    resources, has_more_spills = _resources(a, b)
    parts = [f"# {a.name} → {b.name}", _environment(a, b), coverage, _speed(a, b), resources, _compile_time(a, b)]
    return "\n\n".join(filter(None, parts)) + "\n", has_worse_verdicts or has_more_spills


def _environment(a: Run, b: Run) -> str:
    keys = [key for key in {**a.env, **b.env} if a.env.get(key) != b.env.get(key)]
    return "\n".join(f"- {key}: {a.env.get(key)} → {b.env.get(key)}" for key in keys)


def _coverage(a: Run, b: Run) -> tuple[str, bool]:
    """Return the changed verdicts, those that got worse first, and whether any did."""
    now, then = ({key: row["verdict"] for key, row in run.cases.items()} for run in (b, a))
    changed = [key for key in then if key in now and then[key] != now[key]]
    worse = [key for key in changed if now[key] in BAD and then[key] not in BAD]
    missing = [key for key in then if key not in now and then[key] == "pass"]
    counts = [sum(verdict == "pass" for verdict in verdicts.values()) for verdicts in (then, now)]
    body = [[key, then[key], now[key], b.cases[key].get("first_bad_stage")] for key in worse]
    body += [[key, then[key], now[key], b.cases[key].get("first_bad_stage")] for key in changed if key not in worse]
    body += [[key, then[key], "not run", None] for key in missing]
    body += [[key, "not run", now[key], None] for key in now if key not in then and now[key] != "pass"]
    new = sum(key not in then for key in now)
    summary = f"{counts[0]} → {counts[1]} cases pass; {new} are new, {len(missing)} that passed are gone."
    return f"## Cases\n\n{summary}\n\n{_table(('case', 'then', 'now', 'stage'), body)}".rstrip(), bool(worse or missing)


def _speed(a: Run, b: Run) -> str:
    """Return the speedups over PyTorch whose intervals do not overlap, worst first."""
    common = [key for key in a.benches if key in b.benches]
    timed = [key for key in common if all(run.benches[key]["verdict"] in BENCH_VERDICTS for run in (a, b))]
    if not timed:
        return ""
    body = []
    for key in timed:
        then, now = a.benches[key], b.benches[key]
        (low, high), (low_now, high_now) = then["ci"], now["ci"]
        if high_now < low or high < low_now:
            equal = then.get("digest") == now.get("digest")
            ratio = now["speedup"] / then["speedup"]
            body.append([ratio, key, then["speedup"], now["speedup"], f"{ratio:.2f}", "equal code" if equal else ""])
    means = [geomean([run.benches[key]["speedup"] for key in timed]) or 0.0 for run in (a, b)]
    summary = (
        f"{len(timed)} benchmarks in both; geometric mean of the speedup over PyTorch {means[0]:.3f} → {means[1]:.3f}."
    )
    rows = [row[1:] for row in sorted(body)]
    return f"## Speed\n\n{summary}\n\n{_table(('case', 'then', 'now', 'ratio', 'why'), rows)}".rstrip()


def _resources(a: Run, b: Run) -> tuple[str, bool]:
    """Return the kernels whose resources on a GPU changed, and whether any spills more than before."""
    body, spills = [], False
    for key in (key for key in a.kernels if key in b.kernels):
        then, now = a.kernels[key], b.kernels[key]
        changed = [
            f"{resource} {then[resource]} → {now[resource]}"
            for resource in RESOURCES
            if then[resource] != now[resource]
        ]
        changed += _instructions(then.get("mix") or {}, now.get("mix") or {})
        spills |= bool(now["spilled"] > then["spilled"])
        body += [[key, ", ".join(changed)]] if changed else []
    return (f"## Resources\n\n{_table(('kernel', 'what'), body)}" if body else ""), spills


def _instructions(then: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Return the OPCODES opcodes whose counts changed most; none if either kernel was not disassembled."""
    known = sorted({*then, *now}) if then and now else []
    most_changed = sorted(known, key=lambda name: -abs(now.get(name, 0) - then.get(name, 0)))[:OPCODES]
    return [f"{name} {a} → {b}" for name in most_changed if (a := then.get(name, 0)) != (b := now.get(name, 0))]


def _compile_time(a: Run, b: Run) -> str:
    """Return the compile times: their sums, and the benchmarks that differ by more than COMPILE_NOISE."""
    pairs = [
        (key, a.benches[key]["compile_seconds"], b.benches[key]["compile_seconds"])
        for key in a.benches
        if key in b.benches and a.benches[key].get("compile_seconds") and b.benches[key].get("compile_seconds")
    ]
    if not pairs:
        return ""
    total = [sum(x for _, x, _ in pairs), sum(y for _, _, y in pairs)]
    changed = [[key, x, y] for key, x, y in pairs if max(x / y, y / x) > COMPILE_NOISE]
    changed.sort(key=lambda row: row[1] / row[2])
    summary = f"{total[0]:.1f} s → {total[1]:.1f} s for {len(pairs)} benchmarks."
    return f"## Time to compile\n\n{summary}\n\n{_table(('case', 'then', 'now'), changed)}".rstrip()


def _table(headers: Sequence[str], body: Sequence[Sequence[Any]]) -> str:
    if not body:
        return ""
    cells = [["" if x is None else f"{x:.3g}" if isinstance(x, float) else str(x) for x in row] for row in body]
    lines = [f"| {' | '.join(headers)} |", "|" + "---|" * len(headers)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)])


def main(words: Sequence[str]) -> int:
    """Print the comparisons; returns 0 if nothing got worse, 1 if something did, 2 if a report cannot be read."""
    parser = argparse.ArgumentParser(prog="mlcomp compare", description="What changed between the reports of runs.")
    parser.add_argument("first", metavar="A", help="a folder of reports, or its run.json; of a revision REV:FOLDER")
    parser.add_argument("others", nargs="+", metavar="B", help="others, each compared with the first")
    options = parser.parse_args(words)
    try:
        runs = [read(name) for name in (options.first, *options.others)]
    except ValueError as error:
        print(f"mlcomp: {error}", file=sys.stderr)
        return 2
    reports = [compare(runs[0], run) for run in runs[1:]]
    print("\n".join(text for text, _ in reports), end="")
    return int(any(worse for _, worse in reports))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
