"""A run with `--mlcomp-instructions`: the checks of every instruction's row become items, in place of other tests."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler

SEED = int(np.random.SeedSequence().generate_state(1)[0])  # of all inputs of this process


def pytest_ignore_collect(collection_path: Path) -> bool:
    """Nothing else is collected."""
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the items before `-k` selects."""
    items[:] = [InstructionItem.from_parent(session, name=c.name, check=c) for c in compiler.instruction_checks()]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say aloud what was not run for want of a GPU or a tool."""
    why: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        why[reason] = why.get(reason, 0) + 1
    for reason, count in why.items():
        terminalreporter.section("instructions not run", sep="!", red=True)
        terminalreporter.write_line(f"{count} checks: {reason.removeprefix('Skipped: ')}")


class InstructionItem(pytest.Item):
    """One check of one row."""

    def __init__(self, *, check: Any, **kw: Any) -> None:
        super().__init__(**kw)
        self.check = check

    def runtest(self) -> None:
        """Run it; skip it where this machine has no means for it."""
        try:
            self.check.run(SEED)
        except compiler.NotRun as missing:
            pytest.skip(str(missing))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """What a person needs: the difference and the seed."""
        return f"{excinfo.typename}: {excinfo.value}\nseed {SEED}"

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Nothing beside the name, in which pytest would take a dot for a class's."""
        return self.config.rootpath, None, ""
