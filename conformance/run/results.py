"""Collect the rows of all workers; write the report files, print the tables, and pass records to pytest-benchmark."""

import functools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance import rows
from conformance.history import journal
from conformance.history.baseline import BaselineError
from conformance.history.journal import HistoryError
from conformance.report import environment, html, pages, replies, tables, writer
from conformance.run import regressions, shards
from conformance.run.items import ITEMS, ROW_ATTRIBUTE, RUNNER
from conformance.run.settings import Settings

COMPLETE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


class Results:
    """The plugin of the controller, or of the only process, that collects rows and writes reports."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config, self.settings = config, settings
        self.rows: list[rows.Row] = []
        self.started = time.monotonic()
        self.run: writer.Run | None = None
        self.notes: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the row of an item, or make one for an item whose worker was lost."""
        if report.when == "call":
            self.rows += [rows.loads(text)] if (text := getattr(report, ROW_ATTRIBUTE, None)) else []
        elif str(report.when) == "???" and ".toml::" in report.nodeid:
            self.rows.append(replies.lost_item(report.nodeid, str(report.longrepr)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        """Finish before pytest-benchmark's hook, also a wrapper, stores and compares its records, including ours."""
        self._finish(session, exitstatus)
        yield

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the reports if the run was not interrupted; else leave the existing ones unchanged."""
        if not self.rows:
            return
        self.run = self._summary()
        stored = self.config.stash[RUNNER].baseline
        if stored is not None:
            self.run = replace(self.run, benches=regressions.with_drift(self.run.benches, stored, self.run.unfit))
        uncorrected, self.run = self.run, replace(self.run, benches=regressions.correct_verdicts(self.run.benches))
        for row in self.run.benches:
            if row.verdict in rows.BENCH_VERDICTS:
                add_to_pytest_benchmark(self.config, row)
        self.notes += _uninstalled(self.run.benches)
        folder = self.settings.reports(str(self.run.env["device"]))
        is_stopped = bool(session.shouldfail or session.shouldstop) and not self.settings.part
        if exitstatus not in COMPLETE or is_stopped:
            self.notes.append(f"mlcomp: the run was interrupted; the reports in {folder} are left as they were")
            return
        documents, comparison, lost = pages.documents(self.run), "", list[str]()
        documents |= self.settings.ignore_file
        if stored is not None:
            comparison = regressions.counts(self.run, stored.name)
            lost = regressions.lost_cases(self.run, stored, not self.settings.selects)
            documents["regressions.md"] = regressions.page(self.run, stored.name, lost)
            self.notes.append(f"mlcomp: {comparison}")
            if failures := regressions.failures(self.run, self.settings.fail_on, lost):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
                self.notes += failures
        if self.settings.shard:
            documents[shards.ROWS] = shards.dump(uncorrected, self._head(exitstatus, lost))
        try:
            history = self.settings.history(str(self.run.env["device"]))
            if self.settings.record and not self.settings.shard:
                journal.append(history, journal.entry_line(self.run))
            documents[html.NAME] = html.page(self.run, comparison, lost, journal.figures(history))
            writer.write(folder, documents)
            writer.append(os.environ.get("GITHUB_STEP_SUMMARY"), pages.summary(self.run))
            if self.settings.save_baseline:
                self.notes.append(regressions.save(self.run, self.settings))
        except (writer.ReportError, BaselineError, HistoryError) as error:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self.notes.append(f"mlcomp: {error}")
        else:
            self.notes.append(f"mlcomp: reports are in {replies.shown_path(folder, self.config.invocation_params.dir)}")

    @pytest.hookimpl(wrapper=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
        """Print the tables after other plugins' output, also if pytest-benchmark raises on a regression here."""
        try:
            yield
        finally:
            if self.run is not None:
                terminalreporter.section("mlcomp")
                terminalreporter.write_line(tables.terminal(self.run))
            for name in _of_another_torch(terminalreporter):
                terminalreporter.write_line(f"not run: {name}")
            for note in self.notes:
                terminalreporter.write_line(note, bold=True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_generate_machine_info(self) -> dict[str, Any]:
        """Return the machine's facts that pytest-benchmark compares, the same as in `benchmark.json`."""
        return writer.machine_info(self.env)

    @functools.cached_property
    def env(self) -> environment.Environment:
        return environment.collect(self.settings.targets, self.settings.variant)

    def _head(self, status: int, lost: Sequence[str]) -> shards.Head:
        """Return the facts about this shard that `mlcomp merge` needs."""
        assert self.settings.shard is not None
        items, against = self.config.stash.get(ITEMS, ""), self.settings.baseline or ""
        return shards.Head(
            *self.settings.shard, items, status, self.settings.fail_on, against, tuple(lost), self.settings.record
        )

    def _summary(self) -> writer.Run:
        unfit = "; ".join(row.message for row in self.rows if isinstance(row, rows.Fitness) and not row.fit)
        seconds = round(time.monotonic() - self.started, 2)
        run = writer.Run.from_rows(
            self.rows, env=self.env, seconds=seconds, tier=self.settings.tier, seed=self.settings.seed, unfit=unfit
        )
        return replace(run, benches=tuple(map(replies.as_ambiguous, run.benches))) if unfit else run


def add_to_pytest_benchmark(config: pytest.Config, row: rows.Bench) -> None:
    """Add a benchmark to pytest-benchmark's session, so that it stores, shows and compares it like its own.

    Under xdist, pytest-benchmark disables its fixture but not its session. The attribute is private, hence the pin of
    its major version in pyproject.
    """
    session: Any = getattr(config, "_benchmarksession", None)
    if session is None or not row.samples.get(rows.OURS):
        return
    record_type: Any = sys.modules["pytest_benchmark.stats"].Metadata  # loaded, since there is a session
    description = writer.benchmark_entry(row)
    fullname = f"{'/'.join(Path(row.file).parts[-2:])}::{rows.name(row)}"  # independent of where the files are
    fixture = SimpleNamespace(**{**description, "fullname": fullname}, cprofile_stats=None, has_error=False)
    record = record_type(fixture, iterations=1, options=description["options"])
    for seconds in row.samples[rows.OURS]:
        record.stats.update(seconds)
    session.benchmarks.append(record)


def _of_another_torch(reporter: pytest.TerminalReporter) -> list[str]:
    """Return the reasons of cases skipped for another torch version, which pytest itself folds or hides."""
    reasons = (r.longrepr[2] for r in reporter.stats.get("skipped", ()) if isinstance(r.longrepr, tuple))
    return sorted({reason.removeprefix("Skipped: ") for reason in reasons if " needs torch " in reason})


def _uninstalled(benches: Sequence[rows.Bench]) -> list[str]:
    """Return a warning that names the rivals of benchmarks that are not installed; none if all are."""
    names = sorted({name for row in benches for name, why in row.skipped.items() if why == rows.NOT_INSTALLED})
    return [f"warning: {', '.join(names)} of `perf.vs`: {rows.NOT_INSTALLED}, so not timed against"] if names else []
