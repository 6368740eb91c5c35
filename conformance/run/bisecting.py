"""A run with `--mlcomp-bisect CASE`: one item, which says what of which commit made the case wrong or slow.

A case that is a benchmark is asked for its speed, another for its values. The good revision is that of
`--mlcomp-baseline`, else HEAD; the bad one is the working tree.
"""

import contextlib
import io
from pathlib import Path

import pytest

from conformance.history import bisect
from conformance.run import settings
from conformance.run.sections import write_sections

SECTION = "Captured mlcomp call"  # what pytest calls the section that an item adds


class Inconclusive(Exception):
    """There is no answer, and why."""


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, and let pytest collect nothing."""
    config.stash[settings.KEY] = settings.read(config)
    config.args = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the item."""
    items[:] = [Bisect.from_parent(session, name=f"mlcomp-bisect[{session.config.getoption('mlcomp_bisect')}]")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say the answer."""
    write_sections(terminalreporter, SECTION)


class Bisect(pytest.Item):
    """The search for one case."""

    def runtest(self) -> None:
        """What `mlcomp bisect` does; without an answer the item fails."""
        config = self.config
        case, chosen = str(config.getoption("mlcomp_bisect")), config.stash[settings.KEY]
        kind = "--speed" if case.removesuffix("]").endswith("-bench") else "--value"
        good, seed = chosen.baseline or "HEAD", config.getoption("mlcomp_seed") or 0
        words = [case, "--good", good, kind, "--target", chosen.targets[0], "--seed", str(seed)]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = bisect.main(words)
        if status:
            raise Inconclusive(err.getvalue().splitlines()[-1])
        self.add_report_section("call", "mlcomp", out.getvalue().rstrip())

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        """Why there is no answer."""
        known = isinstance(excinfo.value, Inconclusive)
        return str(excinfo.value) if known else str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, None, str]:
        """The name says it all."""
        return self.config.rootpath, None, self.name
