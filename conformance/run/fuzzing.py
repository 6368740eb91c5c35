"""The hooks of `--mlcomp-fuzz`: random programs as pytest items, and the page of findings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance import rows
from conformance.fuzz import asked
from conformance.report import environment, replies, tables, writer
from conformance.run.items import RUNNER, Failed, Item
from conformance.run.sections import FilelessItem
from conformance.run.settings import Settings

PROPERTY = "mlcomp-fuzz"  # the user property that carries rows to the controller
VERDICTS = ("pass", "fail", "unsupported", "torch")
FINDINGS = "fuzz.jsonl"  # appended to at each finding, so that an interrupted run keeps them


class Programs(Item, FilelessItem):
    """The item of a batch of random programs on one target, each checked by a call of the child."""

    kind = "fuzz"

    def __init__(self, *, numbers: range, seconds: float | None, target: str, folder: Path, **options: Any) -> None:
        super().__init__(**options)
        self.numbers, self.seconds, self.target, self.folder = numbers, seconds, target, folder

    def runtest(self) -> None:
        """Check all programs, or as many as there is time for; fail with all findings, or with -x with the first."""
        runner, start = self.config.stash[RUNNER], time.monotonic()
        bad = []
        for index in self.numbers:
            if self.seconds is not None and time.monotonic() - start > self.seconds:
                break
            row = runner.fuzz(index, self.target)
            self.user_properties.append((PROPERTY, rows.dumps(row)))
            if row.verdict == "fail":
                bad.append(row)
                self.folder.mkdir(parents=True, exist_ok=True)
                with (self.folder / FINDINGS).open("a", encoding="utf-8") as file:
                    file.write(rows.dumps(row) + "\n")
                if self.config.getoption("maxfail") == 1:
                    break
        if bad:
            raise Failed("\n\n".join(map(finding, bad)))


class Fuzzing:
    """The plugin that adds the items, collects their rows and writes the page."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config, self.settings = config, settings
        self.rows: list[rows.Fuzz] = []
        self.folder = settings.reports(environment.device(settings.targets, settings.variant))
        self.note = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Remove the findings of an earlier run."""
        if not hasattr(self.config, "workerinput"):
            (self.folder / FINDINGS).unlink(missing_ok=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the items before `-k` and `-m` select."""
        targets, workers = self.settings.targets, getattr(self.config, "workerinput", {}).get("workercount", 1)
        for target in targets:
            for name, numbers, seconds in self.settings.fuzz.shares(workers, len(targets)):
                options = {"numbers": numbers, "seconds": seconds, "target": target, "folder": self.folder}
                items.append(Programs.from_parent(session, name=f"mlcomp-fuzz[{name}-{target}]", **options))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the rows of an item."""
        if report.when == "call":
            received = [rows.loads(str(value)) for key, value in report.user_properties if key == PROPERTY]
            self.rows += [row for row in received if isinstance(row, rows.Fuzz)]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the page of the findings."""
        if hasattr(self.config, "workerinput"):
            return
        self.rows += self._interrupted()
        if not self.rows:
            return
        self.rows.sort(key=lambda row: (row.target, row.index))
        try:
            writer.write(self.folder, {"fuzz.md": page(self.rows, self.settings.seed), **self.settings.ignore_file})
            shown = replies.shown_path(self.folder, self.config.invocation_params.dir)
            self.note = f"mlcomp: findings are in {shown}/fuzz.md"
        except writer.ReportError as error:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self.note = f"mlcomp: {error}"

    def _interrupted(self) -> list[rows.Fuzz]:
        """Return the findings of items that were interrupted."""
        path, known = self.folder / FINDINGS, {(row.target, row.index) for row in self.rows}
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []  # drop an incomplete line
        recorded = [row for row in map(rows.loads, lines) if isinstance(row, rows.Fuzz)]
        return [row for row in recorded if (row.target, row.index) not in known]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the counts, the size of the corpus, and where the page is."""
        if self.rows:
            terminalreporter.section("random programs")
            terminalreporter.write_line(counts(self.rows))
            if (folder := self.settings.fuzz.corpus) is not None and (folder / asked.REACHED_FILE).is_file():
                programs, places = (
                    len([*folder.glob("*.json")]),
                    len((folder / asked.REACHED_FILE).read_text().splitlines()),
                )
                terminalreporter.write_line(f"the corpus has {programs} programs, which reach {places} places of rules")
            terminalreporter.write_line(self.note, bold=True)


def finding(row: rows.Fuzz) -> str:
    """Return the message of a finding: the program, what is wrong, the bad stage, and the command that repeats it."""
    culprit = ", ".join(filter(None, (row.first_bad_stage, row.first_bad_pass)))
    parts = [
        f"program {row.seed}.{row.index} on {row.target}: {row.kind}: {row.detail}",
        f"  {row.line}",
        f"  # {row.arguments}",
        f"first bad stage: {culprit or 'none found'}{': ' if row.why else ''}{row.why}",
        f"again: {row.command}",
    ]
    parts += [f"reduced: {row.reduced}"] if row.reduced else []
    return "\n".join([*parts, f"files: {row.repro}"] if row.repro else parts)


def counts(programs: Sequence[rows.Fuzz]) -> str:
    """Return the number of programs per verdict, in one line.

    >>> counts([rows.Fuzz(index=0, seed=7), rows.Fuzz(index=1, seed=7, verdict="torch")])
    '2 random programs: 1 pass, 1 differ or fail in PyTorch itself'
    """
    verdicts = Counter(row.verdict for row in programs)
    words = {"torch": "differ or fail in PyTorch itself"}
    parts = [f"{verdicts[verdict]} {words.get(verdict, verdict)}" for verdict in VERDICTS if verdicts[verdict]]
    kinds = Counter(f"{row.kind} in {row.first_bad_stage}" for row in programs if row.verdict == "fail")
    kinds_text = f" ({', '.join(f'{n} {kind}' for kind, n in kinds.most_common())})" if kinds else ""
    return f"{len(programs)} random programs: {', '.join(parts)}{kinds_text}"


def page(programs: Sequence[rows.Fuzz], seed: int) -> str:
    """Return the page as Markdown: the findings, and the counts of unsupported ops."""
    lines = ["# Random programs", f"{counts(programs)}; seed {seed}."]
    lines += [f"```\n{finding(row)}\n```" for row in programs if row.verdict == "fail"]
    refused: dict[str, list[int]] = {}  # the numbers of the programs, by the reason
    for row in programs:
        if row.verdict == "unsupported":
            refused.setdefault(row.detail.splitlines()[0], []).append(row.index)
    by_count = sorted(refused.items(), key=lambda item: -len(item[1]))
    listed = [[len(indices), min(indices), reason] for reason, indices in by_count]
    lines += ["## Refused by name", tables.table(listed, ["programs", "first", "what"])] if refused else []
    return "\n\n".join(lines) + "\n"
