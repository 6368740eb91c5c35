"""Items by themselves whose answer is a section of their report, printed at the end of the run."""

from pathlib import Path

import pytest

SECTION = "Captured mlcomp call"  # what pytest calls the section that an item adds


class Unanswered(Exception):
    """The answer is bad, or there is none, and why."""


class Question(pytest.Item):
    """An item of no file, which adds its answer as a section or fails with why not."""

    expected: tuple[type[Exception], ...] = (Unanswered,)  # whose text says all

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        known = isinstance(excinfo.value, self.expected)
        return str(excinfo.value) if known else str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, None, str]:
        """The name says it all."""
        return self.config.rootpath, None, self.name


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the answers of the items that passed."""
    for report in terminalreporter.stats.get("passed", ()):
        for title, said in report.sections:
            if title == SECTION:
                terminalreporter.write_line(said)
