"""The pytest items of a shape file: a check per case and target, a benchmark per benchmark case and target."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance import rows
from conformance.report import environment, replies, tables
from conformance.run.runner import Runner
from conformance.run.sections import FilelessItem
from conformance.shapes.cases import BenchCase, Case, runs_on
from conformance.shapes.files import ShapeFileError, benches, expand, load
from conformance.shapes.redraw import redrawn

ROW_ATTRIBUTE = "mlcomp_row"  # attribute of a report that carries the row to the controller
RUNNER: pytest.StashKey[Runner] = pytest.StashKey()
LOOK_AHEAD = 64  # number of following items among which cases to build together are looked for
ITEMS: pytest.StashKey[str] = pytest.StashKey()  # digest of all items, of which this run is a shard


class Failed(Exception):
    """An item failed; its message is shown without a traceback."""


class ShapeFile(pytest.File):
    """A shape file, read and expanded when pytest collects it."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the items of the file; an invalid file is a collection error that names the line."""
        runner = self.config.stash[RUNNER]
        settings = runner.settings
        try:
            tier = "nightly" if self._named_by_id() else settings.tier
            file = load(self.path, tier)
            # Rows are small so that every stage can be executed; a backend's results are also checked on larger rows.
            enlarged = settings.backend is not None and tier != "smoke"
            selected: list[Case] = list(expand(file, tier, enlarged=enlarged))
            # Other backends may handle invalid data differently.
            selected = [case for case in selected if case.raises is None or settings.backend is None]
            if settings.bench != "off":
                selected += benches(redrawn(file, settings.redraw, settings.seed), tier)
        except ShapeFileError as error:
            raise self.CollectError(str(error)) from None
        if not self.config.option.collectonly:
            runner.start()
        for case in selected:
            kind = Bench if isinstance(case, BenchCase) else Check
            yield from (kind.make(self, case, target) for target in settings.targets if _runs(case, target))
        untimed = () if settings.bench != "off" else benches(file, tier)
        compiled = tuple(case for case in (*selected, *untimed) if _is_gated(case)) if settings.gate else ()
        if compiled:
            gate: Gate = Gate.from_parent(self, name=replies.GATE, cases=compiled)
            yield gate

    def _named_by_id(self) -> bool:
        """Return whether the command line names an item of this file, which may be of any tier."""
        paths = (path for path, separator, _ in (arg.partition("::") for arg in self.config.args) if separator)
        return any((self.config.invocation_params.dir / path).resolve() == self.path.resolve() for path in paths)


def _runs(case: Case, target: str) -> bool:
    """Return whether the case runs on this target; large cases are not emulated."""
    return runs_on(case, target) and not (case.large and environment.emulates((target,)))


def _is_gated(case: Case) -> bool:
    return runs_on(case, "cuda") and not environment.needs_another_torch(case.torch)


class Item(pytest.Item):
    """Base class of our items: a marker, the row for the controller, failures without traceback."""

    kind = ""
    row: rows.Row | None = None

    def __init__(self, *, name: str, parent: pytest.Collector, **options: Any) -> None:
        # As one string, which pytest splits in the same way as the ids in its cache; `--lf` compares the parts.
        super().__init__(name=name, parent=parent, nodeid=f"{parent.nodeid}::{name}", **options)
        self.add_marker(f"mlcomp_{self.kind}")

    def record(self, row: rows.Row) -> None:
        """Keep the row for the controller, and add its short fields as properties for reports such as JUnit's."""
        self.row = row
        self.user_properties += replies.properties(row)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the message of our own failures without a traceback."""
        return str(excinfo.value) if isinstance(excinfo.value, Failed) else super().repr_failure(excinfo, style)


class Check(Item):
    """The item of one case on one target, which runs every stage in the child."""

    kind = "check"

    def __init__(self, *, case: Case, target: str, **options: Any) -> None:
        super().__init__(**options)
        self.case, self.target = case, target
        if reason := environment.needs_another_torch(case.torch):
            self.add_marker(pytest.mark.skip(reason=f"{case.id} {reason}"))

    @classmethod
    def make(cls, parent: ShapeFile, case: Case, target: str) -> "Check":
        """Make the item with the name of its row."""
        name = rows.name(replies.describe(case, target, ""), bench=cls.kind == "bench")
        item: Check = cls.from_parent(parent, name=name, case=case, target=target)
        return item

    def runtest(self) -> None:
        """Run in the child, record the row, and fail by its verdict."""
        runner = self.config.stash[RUNNER]
        row = runner.run(self.case, self.target, self.path, self._following_cases)
        row = row if self.config.option.runxfail else replies.expect(row, self.case)
        self.record(row)
        if row.verdict == "xfail":
            pytest.xfail(row.reason)
        is_too_slow = isinstance(row, rows.Bench) and (
            row.missed or ("cliff" in runner.settings.fail_on and row.cliffs)
        )
        if row.verdict in rows.BAD or is_too_slow:
            raise Failed(tables.failure(row))

    def _following_cases(self) -> list[Case]:
        """Return the next cases on the same target."""
        items = self.session.items
        following = (item for item in items[items.index(self) + 1 :][:LOOK_AHEAD] if type(item) is Check)
        return [item.case for item in following if item.target == self.target and not item.get_closest_marker("skip")]

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the line of the case in its file."""
        return self.path, self.case.line - 1, self.name


class Bench(Check):
    """The item of one benchmark on one target, which holds the machine lock while it is timed."""

    kind = "bench"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not hasattr(self.config, "workerinput"):
            self.fixturenames = ["benchmark"]  # by which --benchmark-only and --benchmark-skip recognise benchmarks


class Gate(Item):
    """The item that compiles the cases of one file for GPUs without running them."""

    kind = "gate"

    def __init__(self, *, cases: tuple[Case, ...], **options: Any) -> None:
        super().__init__(**options)
        self.cases = cases

    def runtest(self) -> None:
        """Compile in the child, record the row, and fail on any complaint."""
        row = self.config.stash[RUNNER].gate(self.cases, self.path)
        self.record(row)
        if row.verdict != "pass":
            raise Failed(row.detail)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the file without a line."""
        return self.path, None, self.name


class Fitness(Item, FilelessItem):
    """The item that races identical kernels, to determine whether the following benchmarks are meaningful."""

    kind = "fitness"

    def runtest(self) -> None:
        """Run in the child and record the row; an unfit machine is not a failure, but reports on speed mention it."""
        self.record(self.config.stash[RUNNER].fitness())


class SelfTest(Item, FilelessItem):
    """The item that plants miscompiles in every stage and runs the checks on them."""

    kind = "selftest"

    def runtest(self) -> None:
        """Run in the child, record the row, and fail on a false alarm or too many misses."""
        row = self.config.stash[RUNNER].selftest()
        self.record(row)
        self.add_report_section("call", "mlcomp", tables.selftest(row))
        if row.verdict != "pass":
            raise Failed(f"{row.detail}\n{tables.selftest(row)}".strip())
