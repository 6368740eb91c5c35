"""Items that belong to no file, and items whose answer is a report section that is printed at the end of the run."""

from pathlib import Path

import pytest

SECTION = "Captured mlcomp call"  # pytest's title of the section that an item adds


class Unanswered(Exception):
    """There is no answer, or it is a failure; the message says why."""


class FilelessItem(pytest.Item):
    """An item that belongs to no file."""

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return only the name."""
        return self.config.rootpath, None, self.name


class Question(FilelessItem):
    """An item that adds its answer as a section, or fails."""

    expected: tuple[type[Exception], ...] = (Unanswered,)  # shown without a traceback

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        known = isinstance(excinfo.value, self.expected)
        return str(excinfo.value) if known else str(super().repr_failure(excinfo))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the answers of the items that passed."""
    for report in terminalreporter.stats.get("passed", ()):
        for title, answer in report.sections:
            if title == SECTION:
                terminalreporter.write_line(answer)
