"""What an item has to say beside its verdict: a section of its report, printed at the end of the run."""

import pytest


def write_sections(terminalreporter: pytest.TerminalReporter, named: str) -> None:
    """Print the sections of that name of the items that passed."""
    for report in terminalreporter.stats.get("passed", ()):
        for title, said in report.sections:
            if title == named:
                terminalreporter.write_line(said)
