"""`--mlcomp-instructions`: a run whose only items are the checks of every GPU instruction."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler

SEED = int(np.random.SeedSequence().generate_state(1)[0])  # seed of all inputs in this process


def pytest_ignore_collect(collection_path: Path) -> bool:
    """Collect nothing else."""
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the items before `-k` selects."""
    items[:] = [InstructionItem.from_parent(session, name=c.name, check=c) for c in compiler.instruction_checks()]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print prominently which checks were not run for lack of a GPU or a tool."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in reasons.items():
        terminalreporter.section("instructions not run", sep="!", red=True)
        terminalreporter.write_line(f"{count} checks: {reason.removeprefix('Skipped: ')}")


class InstructionItem(pytest.Item):
    """The item of one check of an instruction."""

    def __init__(self, *, check: Any, **kw: Any) -> None:
        super().__init__(**kw)
        self.check = check

    def runtest(self) -> None:
        """Run the check; skip it if this machine lacks the GPU or tool for it."""
        try:
            self.check.run(SEED)
        except compiler.NotRun as missing:
            pytest.skip(str(missing))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """Return the difference and the seed."""
        return f"{excinfo.typename}: {excinfo.value}\nseed {SEED}"

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return no name, since pytest would take a dot in it for that of a class."""
        return self.config.rootpath, None, ""
