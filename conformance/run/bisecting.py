"""A run with `--mlcomp-bisect CASE`: one item, which says what of which commit made the case wrong or slow.

A case that is a benchmark is asked for its speed, another for its values. The good revision is that of
`--mlcomp-baseline`, else HEAD; the bad one is the working tree.
"""

import contextlib
import io

import pytest

from conformance.history import bisect
from conformance.run import settings
from conformance.run.sections import Question, Unanswered, pytest_terminal_summary


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, and let pytest collect nothing."""
    config.stash[settings.KEY] = settings.read(config)
    config.args = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the item."""
    items[:] = [Bisect.from_parent(session, name=f"mlcomp-bisect[{session.config.getoption('mlcomp_bisect')}]")]


class Bisect(Question):
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
            raise Unanswered(err.getvalue().splitlines()[-1])
        self.add_report_section("call", "mlcomp", out.getvalue().rstrip())


__all__ = ["pytest_collection_modifyitems", "pytest_configure", "pytest_terminal_summary"]
