"""The hooks of `--mlcomp-opinfo` and `--mlcomp-onnx`: cases of external databases as pytest items, and their page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from conformance import rows
from conformance.opinfo import ratchet
from conformance.report import environment, replies, tables, writer
from conformance.run.items import RUNNER, Failed, Item
from conformance.run.sections import FilelessItem
from conformance.run.settings import Settings
from conformance.shapes.cases import kind_of

PROPERTY = "mlcomp-database"  # the user property that carries rows to the controller
VERDICTS = ("pass", "unsupported", "torch", "wrong", "error", "crash", "timeout")
MOST_LISTED = 60  # most missing ops in the page
ALL = "(all)"


@dataclass(frozen=True)
class Source:
    """A database; `word` is the name of the option, of the child's function and of the page."""

    word: str
    title: str
    description: str


SOURCES = (
    Source("opinfo", "PyTorch's op_db", "Entries whose samples eager runs, compiled with nothing left to eager."),
    Source(
        "onnx", "ONNX's node tests", "Those that onnx's reference evaluator passes, compiled, within their tolerances."
    ),
)


class Entry(Item, FilelessItem):
    """The item of an entry in one dtype."""

    def __init__(self, *, kind: str, entry: tuple[str, str], target: str, passed: bool, **options: Any) -> None:
        self.kind = kind
        super().__init__(**options)
        self.entry, self.target, self.passed = entry, target, passed

    def runtest(self) -> None:
        """Run its samples in the child; fail if they are wrong, or unsupported although they have passed before."""
        row = self.config.stash[RUNNER].entry(self.kind, *self.entry, self.target)
        self.user_properties.append((PROPERTY, rows.dumps(row)))
        if row.verdict == "none":
            pytest.skip(row.detail)
        if row.verdict in ("unsupported", "torch") and not self.passed:
            pytest.xfail(row.detail)
        if row.verdict != "pass":
            note = " (has passed before)" if self.passed else ""
            raise Failed(f"{row.name} as {row.dtype}: {row.verdict}{note}: {row.detail}\nagain: {row.command}")


class Database:
    """The plugin that adds the items of a database, collects their rows and writes the page."""

    def __init__(self, config: pytest.Config, settings: Settings, source: Source) -> None:
        self.config, self.settings, self.source = config, settings, source
        self.rows: list[rows.OpInfo] = []
        self.note = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the items before `-k` and `-m` select."""
        pattern, word = re.compile(self.settings.ops), self.source.word
        entries = [e for e in self.config.stash[RUNNER].entries(word) if pattern.search(":".join(e))]
        for target in self.settings.targets:
            passed = ratchet.passed_before(word, kind_of(target))
            for entry in entries:
                options = {"kind": word, "entry": entry, "target": target, "passed": entry in passed}
                items.append(Entry.from_parent(session, name=f"mlcomp-{word}[{'.'.join(entry)}-{target}]", **options))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the row of an item."""
        if report.when == "call":
            received = [rows.loads(str(value)) for key, value in report.user_properties if key == PROPERTY]
            self.rows += [row for row in received if isinstance(row, rows.OpInfo) and row.source == self.source.word]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the page, and with =update the list of what has passed."""
        if hasattr(self.config, "workerinput") or not self.rows:
            return
        folder = self.settings.reports(environment.device(self.settings.targets, self.settings.variant))
        self.rows.sort(key=lambda row: (row.target, row.name, row.dtype))
        try:
            writer.write(folder, {f"{self.source.word}.md": page(self.source, self.rows), **self.settings.ignore_file})
            shown = replies.shown_path(folder, self.config.invocation_params.dir)
            self.note = f"mlcomp: the report is {shown}/{self.source.word}.md"
            if self.settings.databases[self.source.word] == "update":
                _update(self.source.word, self.rows)
        except writer.ReportError as error:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self.note = f"mlcomp: {error}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the counts and where the page is."""
        if self.rows:
            terminalreporter.section(self.source.title)
            terminalreporter.write_line(table(self.rows))
            terminalreporter.write_line(self.note, bold=True)


def _update(word: str, entries: Sequence[rows.OpInfo]) -> None:
    """Add the entries that pass to the lists; entries that fail or were not run are not removed."""
    for kind in {kind_of(row.target) for row in entries}:
        passes = {(row.name, row.dtype) for row in entries if row.verdict == "pass" and kind_of(row.target) == kind}
        ratchet.path(word, kind).write_text(ratchet.show(ratchet.passed_before(word, kind) | passes), encoding="utf-8")


def table(entries: Sequence[rows.OpInfo]) -> str:
    """Return the numbers of entries per verdict, by target and dtype, of those that eager runs."""
    lines = []
    for target, dtype in sorted({(row.target, kind) for row in entries for kind in (row.dtype, ALL)}):
        counts = Counter(row.verdict for row in entries if row.target == target and dtype in (row.dtype, ALL))
        total = sum(counts[v] for v in VERDICTS)
        share = f"{counts['pass'] / total:.1%}" if total else "-"
        lines.append([target, dtype, total, share, *(counts[v] for v in VERDICTS)])
    return tables.table(lines, ["target", "type", "entries", "passing", *VERDICTS])


def page(source: Source, entries: Sequence[rows.OpInfo]) -> str:
    """Return the page as Markdown: counts, missing ops, and the entries that did not pass."""
    parts = [f"# {source.title}", source.description, table(entries)]
    alone_count: Counter[str] = Counter()
    total_count: Counter[str] = Counter()
    for row in entries:
        total_count.update(row.missing)
        alone_count.update(row.missing if len(row.missing) == 1 else ())
    ranked = sorted(total_count, key=lambda op: (-alone_count[op], -total_count[op], op))[:MOST_LISTED]
    missing_rows = [[op, alone_count[op], total_count[op]] for op in ranked]
    if missing_rows:
        parts += ["## Missing ops", tables.table(missing_rows, ["op", "entries that it alone keeps", "entries"])]
    bad = [row for row in entries if row.verdict not in ("pass", "none")]
    bad.sort(key=lambda row: -VERDICTS.index(row.verdict))
    bad_rows = [[row.name, row.dtype, row.target, row.verdict, rows.remark(row.detail)] for row in bad]
    if bad_rows:
        parts += ["## Not passing", tables.table(bad_rows, ["entry", "type", "target", "verdict", "why"])]
    return "\n\n".join(parts) + "\n"
