"""The hooks of a run with `--mlcomp-fuzz`: random programs as items of pytest, findings as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from conformance import rows
from conformance.report import environment, replies, tables, writer
from conformance.run.items import RUNNER, Alone, Failed
from conformance.run.settings import Settings

BATCH = 25  # programs of an item
PROPERTY = "mlcomp-fuzz"  # the user property that carries rows to the controller
VERDICTS = ("pass", "fail", "unsupported", "torch")


class Programs(Alone):
    """Some random programs on one target, each by itself in the child."""

    kind = "fuzz"

    def __init__(self, *, numbers: range, target: str, **known: Any) -> None:
        super().__init__(**known)
        self.numbers, self.target = numbers, target

    def runtest(self) -> None:
        """Run them all; fail with every finding."""
        runner = self.config.stash[RUNNER]
        found = [runner.fuzz(index, self.target) for index in self.numbers]
        self.user_properties += [(PROPERTY, rows.dumps(row)) for row in found]
        if bad := [row for row in found if row.verdict == "fail"]:
            raise Failed("\n\n".join(map(finding, bad)))


class Fuzzing:
    """What a process knows of the random programs of a run."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config, self.settings = config, settings
        self.rows: list[rows.Fuzz] = []
        self.note = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the items before `-k` and `-m` select."""
        numbers = self.settings.fuzz
        for target in self.settings.targets:
            for start in range(numbers.start, numbers.stop, BATCH):
                some = range(start, min(start + BATCH, numbers.stop))
                name = f"mlcomp-fuzz[{some.start}-{some.stop - 1}-{target}]"
                items.append(Programs.from_parent(session, name=name, numbers=some, target=target))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the rows of an item."""
        if report.when == "call":
            found = [rows.loads(str(value)) for key, value in report.user_properties if key == PROPERTY]
            self.rows += [row for row in found if isinstance(row, rows.Fuzz)]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the page of the findings."""
        if hasattr(self.config, "workerinput") or not self.rows:
            return
        folder = self.settings.report / environment.device(self.settings.targets, self.settings.variant)
        self.rows.sort(key=lambda row: (row.target, row.index))
        try:
            writer.write(folder, {"fuzz.md": page(self.rows, self.settings.seed)})
            shown = replies.shown_path(folder, self.config.invocation_params.dir)
            self.note = f"mlcomp: findings are in {shown}/fuzz.md"
        except writer.ReportError as error:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self.note = f"mlcomp: {error}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many there were, and what they found."""
        if self.rows:
            terminalreporter.section("random programs")
            terminalreporter.write_line(counts(self.rows))
            terminalreporter.write_line(self.note, bold=True)


def finding(row: rows.Fuzz) -> str:
    """One finding as a person reads it: the line, what is wrong with it, where, and how to see it again."""
    where = ", ".join(filter(None, (row.first_bad_stage, row.first_bad_pass)))
    parts = [
        f"program {row.seed}.{row.index} on {row.target}: {row.kind}: {row.detail}",
        f"  {row.line}",
        f"  # {row.arguments}",
        f"first bad stage: {where or 'none found'}{': ' if row.why else ''}{row.why}",
        f"again: {row.command}",
    ]
    return "\n".join([*parts, f"files: {row.repro}"] if row.repro else parts)


def counts(found: Sequence[rows.Fuzz]) -> str:
    """How many programs have which verdict.

    >>> counts([rows.Fuzz(index=0, seed=7), rows.Fuzz(index=1, seed=7, verdict="torch")])
    "2 random programs: 1 pass, 1 differ in PyTorch's aot_eager too"
    """
    counted = Counter(row.verdict for row in found)
    words = {"torch": "differ in PyTorch's aot_eager too"}
    named = [f"{counted[verdict]} {words.get(verdict, verdict)}" for verdict in VERDICTS if counted[verdict]]
    kinds = Counter(f"{row.kind} in {row.first_bad_stage}" for row in found if row.verdict == "fail")
    said = f" ({', '.join(f'{n} {kind}' for kind, n in kinds.most_common())})" if kinds else ""
    return f"{len(found)} random programs: {', '.join(named)}{said}"


def page(found: Sequence[rows.Fuzz], seed: int) -> str:
    """The findings as Markdown, and what was refused by name."""
    lines = ["# Random programs", f"{counts(found)}; seed {seed}."]
    lines += [f"```\n{finding(row)}\n```" for row in found if row.verdict == "fail"]
    refused = Counter(row.detail.splitlines()[0] for row in found if row.verdict == "unsupported")
    listed = [[n, what] for what, n in refused.most_common()]
    lines += ["## Refused by name", tables.table(listed, ["programs", "what"])] if refused else []
    return "\n\n".join(lines) + "\n"
