"""The hooks of a run with `--mlcomp-opinfo`: entries of PyTorch's database as items of pytest, verdicts as a page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from conformance import rows
from conformance.opinfo import ratchet
from conformance.report import environment, replies, tables, writer
from conformance.run.items import RUNNER, Alone, Failed
from conformance.run.settings import Settings
from conformance.shapes.cases import kind_of

PROPERTY = "mlcomp-opinfo"  # the user property that carries rows to the controller
VERDICTS = ("pass", "unsupported", "torch", "wrong", "error", "crash", "timeout")
LISTED = 60  # missing ops


class Entry(Alone):
    """An entry as one element type, in the child."""

    kind = "opinfo"

    def __init__(self, *, entry: tuple[str, str], target: str, passed: bool, **known: Any) -> None:
        super().__init__(**known)
        self.entry, self.target, self.passed = entry, target, passed

    def runtest(self) -> None:
        """Run its samples; fail with what is wrong, and where one that has passed before is refused now."""
        row = self.config.stash[RUNNER].opinfo(*self.entry, self.target)
        self.user_properties.append((PROPERTY, rows.dumps(row)))
        if row.verdict == "none":
            pytest.skip(row.detail)
        if row.verdict in ("unsupported", "torch") and not self.passed:
            pytest.xfail(row.detail)
        if row.verdict != "pass":
            before = " (has passed before)" if self.passed else ""
            raise Failed(f"{row.name} as {row.dtype}: {row.verdict}{before}: {row.detail}\nagain: {row.command}")


class Database:
    """What a process knows of the entries of a run."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config, self.settings = config, settings
        self.rows: list[rows.OpInfo] = []
        self.note = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the items before `-k` and `-m` select."""
        wanted = re.compile(self.settings.ops)
        chosen = [e for e in self.config.stash[RUNNER].opinfo_entries() if wanted.search(":".join(e))]
        for target in self.settings.targets:
            passed = ratchet.known(kind_of(target))
            for entry in chosen:
                known = {"entry": entry, "target": target, "passed": entry in passed}
                items.append(Entry.from_parent(session, name=f"mlcomp-opinfo[{'.'.join(entry)}-{target}]", **known))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the row of an item."""
        if report.when == "call":
            found = [rows.loads(str(value)) for key, value in report.user_properties if key == PROPERTY]
            self.rows += [row for row in found if isinstance(row, rows.OpInfo)]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the page, and the list of what has passed if that is asked for."""
        if hasattr(self.config, "workerinput") or not self.rows:
            return
        folder = self.settings.reports(environment.device(self.settings.targets, self.settings.variant))
        self.rows.sort(key=lambda row: (row.target, row.name, row.dtype))
        try:
            writer.write(folder, {"opinfo.md": page(self.rows)})
            shown = replies.shown_path(folder, self.config.invocation_params.dir)
            self.note = f"mlcomp: the report is {shown}/opinfo.md"
            if self.settings.opinfo == "update":
                _update(self.rows)
        except writer.ReportError as error:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self.note = f"mlcomp: {error}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what became of them."""
        if self.rows:
            terminalreporter.section("entries of op_db")
            terminalreporter.write_line(table(self.rows))
            terminalreporter.write_line(self.note, bold=True)


def _update(found: Sequence[rows.OpInfo]) -> None:
    """Add what passes to the lists; what was not run, or fails, stays there."""
    for kind in {kind_of(row.target) for row in found}:
        passes = {(row.name, row.dtype) for row in found if row.verdict == "pass" and kind_of(row.target) == kind}
        ratchet.path(kind).write_text(ratchet.show(ratchet.known(kind) | passes), encoding="utf-8")


def table(found: Sequence[rows.OpInfo]) -> str:
    """How many entries have which verdict, by target and type, of those that eager runs."""
    lines = []
    for target, dtype in sorted({(row.target, row.dtype) for row in found}):
        counted = Counter(row.verdict for row in found if (row.target, row.dtype) == (target, dtype))
        total = sum(counted[v] for v in VERDICTS)
        share = f"{counted['pass'] / total:.1%}" if total else "-"
        lines.append([target, dtype, total, share, *(counted[v] for v in VERDICTS)])
    return tables.table(lines, ["target", "type", "entries", "passing", *VERDICTS])


def page(found: Sequence[rows.OpInfo]) -> str:
    """The verdicts as Markdown: counts, the ops that are missing, and what did not pass."""
    parts = [
        "# PyTorch's op_db",
        "Entries whose samples eager runs, compiled with nothing left to eager.",
        table(found),
    ]
    alone: Counter[str] = Counter()
    among: Counter[str] = Counter()
    for row in found:
        among.update(row.missing)
        alone.update(row.missing if len(row.missing) == 1 else ())
    ranked = sorted(among, key=lambda op: (-alone[op], -among[op], op))[:LISTED]
    listed = [[op, alone[op], among[op]] for op in ranked]
    if listed:
        parts += ["## Missing ops", tables.table(listed, ["op", "entries that it alone keeps", "entries"])]
    bad = [row for row in found if row.verdict not in ("pass", "none")]
    bad.sort(key=lambda row: -VERDICTS.index(row.verdict))
    told = [[row.name, row.dtype, row.target, row.verdict, rows.remark(row.detail)] for row in bad]
    if told:
        parts += ["## Not passing", tables.table(told, ["entry", "type", "target", "verdict", "why"])]
    return "\n\n".join(parts) + "\n"
