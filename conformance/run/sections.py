"""Items by themselves whose answer is a section of their report, printed at the end of the run."""

from pathlib import Path

import pytest

SECTION = "Captured mlcomp call"  # what pytest calls the section that an item adds


class Unanswered(Exception):
    """The answer is bad, or there is none, and why."""


class Alone(pytest.Item):
    """An item that belongs to no file."""

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The name says it all."""
        return self.config.rootpath, None, self.name


class Question(Alone):
    """An item that adds its answer as a section or fails with why not."""

    expected: tuple[type[Exception], ...] = (Unanswered,)  # whose text says all

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        known = isinstance(excinfo.value, self.expected)
        return str(excinfo.value) if known else str(super().repr_failure(excinfo))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the answers of the items that passed."""
    for report in terminalreporter.stats.get("passed", ()):
        for title, said in report.sections:
            if title == SECTION:
                terminalreporter.write_line(said)
