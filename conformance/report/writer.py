"""The results of a run as `run.json` and `benchmark.json`, and writing report files atomically."""

import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self, TypeVar

import compiler
from conformance import rows
from conformance.report.environment import Environment
from conformance.rows import BENCH_VERDICTS, OURS, Bench, Check, Gate, SelfTest

T = TypeVar("T", Check, Bench)

SCHEMA = 1


class ReportError(Exception):
    """A report could not be written; the message says what, why and what to do."""


@dataclass(frozen=True)
class Run:
    """The results of a run."""

    env: Environment
    cases: tuple[Check, ...]
    benches: tuple[Bench, ...]
    selftest: SelfTest | None
    seconds: float
    tier: str
    seed: int
    unfit: str = ""  # why the machine could not judge speed
    gates: tuple[Gate, ...] = ()  # cases compiled for GPUs, by file
    when: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))

    @classmethod
    def from_rows(cls, found: Iterable[rows.Row], **facts: Any) -> Self:
        """Make a run from rows, sorted, since workers finish in any order and reports must not depend on it."""
        ordered = sorted(found, key=lambda row: [getattr(row, key, "") for key in ("file", "id", "target")])
        return cls(
            cases=_with_ambiguity([row for row in ordered if isinstance(row, Check)]),
            benches=_with_ambiguity([row for row in ordered if isinstance(row, Bench)]),
            gates=tuple(row for row in ordered if isinstance(row, Gate)),
            selftest=next((row for row in ordered if isinstance(row, SelfTest)), None),
            **facts,
        )

    @property
    def all_rows(self) -> tuple[rows.Row, ...]:
        """All rows of the run."""
        return (*self.cases, *self.benches, *self.gates, *((self.selftest,) if self.selftest else ()))


def _with_ambiguity(ran: Sequence[T]) -> tuple[T, ...]:
    """Return the rows with `is_ambiguous` set where rows of several files have one name."""
    ambiguous = rows.ambiguous((rows.name(row), row.file) for row in ran)
    return tuple(replace(row, is_ambiguous=rows.name(row) in ambiguous) for row in ran)


def measured(benches: Iterable[Bench]) -> list[Bench]:
    """Return the benchmarks that have a speedup."""
    return [row for row in benches if row.verdict in BENCH_VERDICTS and row.speedup]


def geomean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean; None for no ratios.

    >>> geomean([0.5, 2.0]), geomean([])
    (1.0, None)
    """
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None


def run_json(run: Run) -> dict[str, Any]:
    """Return the contents of `run.json`."""
    return {
        "schema": SCHEMA,
        "env": run.env,
        "cases": rows.reported(run.cases),
        "benches": rows.reported(run.benches),
        "gate": rows.reported(run.gates),
        "selftest": rows.reported(run.selftest),
        "seconds": run.seconds,
    }


def benchmark_json(run: Run) -> dict[str, Any]:
    """Return the benchmarks in pytest-benchmark's format, so that its tools can compare and plot them."""
    try:
        writer = version("pytest-benchmark")
    except PackageNotFoundError:
        writer = "5.0.0"
    commit, _, changed = (run.env["commit"] or "").partition("+")
    return {
        "machine_info": machine_info(run.env),
        "commit_info": {"id": commit or None, "dirty": bool(changed)},
        "benchmarks": [
            benchmark_entry(row) | {"stats": _statistics(row.samples.get(OURS) or [(row.ours_us or 0.0) * 1e-6])}
            for row in measured(run.benches)
        ],
        "datetime": run.when.isoformat(),
        "version": writer,
    }


def machine_info(env: Environment) -> dict[str, Any]:
    """Return the facts that must be equal for two runs' benchmarks to be comparable."""
    facts = {key: env[key] for key in ("device", "cpu", "gpu", "toolchain")}
    return facts | {"python_version": env["python"], "torch_version": env["torch"]}


def benchmark_entry(row: Bench) -> dict[str, Any]:
    """Return a benchmark's entry in pytest-benchmark's format, without statistics."""
    name = rows.name(row)
    others = {rival: data for rival, data in row.samples.items() if rival != OURS}
    return {
        "group": row.suite,
        "name": name,
        "fullname": f"{row.file}::{name}",
        "params": row.params,
        "param": row.id,
        "extra_info": {**rows.to_json(row, Bench.EXTRA), "samples": rows.to_json(others)},
        "options": {"timer": row.clock or "perf_counter_ns", "warmup": True},
    }


def write(folder: Path, documents: Mapping[str, str]) -> None:
    """Write all files or none: all are written to a temporary folder before the first is renamed to its place."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with compiler.own_folder(folder) as temporary:
            for name, text in documents.items():
                with (temporary / name).open("w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                (temporary / name).chmod(0o644)
            for name in documents:
                os.replace(temporary / name, folder / name)
    except OSError as error:
        raise ReportError(
            f"cannot write reports to {folder}: {error.strerror}. What stood there is unchanged; "
            "make room or permission, or choose another place with --mlcomp-report DIR"
        ) from None


def append(path: str | None, text: str) -> None:
    """Append the text to a file such as the summary of a CI job, if there is a path."""
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise ReportError(f"cannot add the summary to {path}: {error.strerror}") from None


def _statistics(data: Sequence[float]) -> dict[str, Any]:
    low, middle, high = statistics.quantiles([*data, *data[: 2 - len(data)]], method="inclusive")
    spread, mean = high - low, statistics.fmean(data)
    deviation = statistics.stdev(data) if len(data) > 1 else 0.0
    inside = [value for value in data if low - 1.5 * spread <= value <= high + 1.5 * spread]
    deviating = sum(abs(value - mean) > deviation for value in data)
    outside = len(data) - len(inside)
    return {
        "min": min(data), "max": max(data), "mean": mean, "stddev": deviation, "rounds": len(data), "median": middle,
        "iqr": spread, "q1": low, "q3": high, "iqr_outliers": outside, "stddev_outliers": deviating,
        "outliers": f"{deviating};{outside}", "ld15iqr": min(inside), "hd15iqr": max(inside),
        "ops": len(data) / math.fsum(data) if math.fsum(data) else 0.0, "total": math.fsum(data),
        "data": list(data), "iterations": 1,
    }  # fmt: skip
