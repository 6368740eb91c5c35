"""`--mlcomp-bisect CASE`: a run with one item, the search for the commit that made the case wrong or slow.

The search is for speed if the case is a benchmark, else for wrong values. The good revision is that of
`--mlcomp-baseline`, by default HEAD; the bad one is the working tree.
"""

import contextlib
import io

import pytest

from conformance.history import bisect
from conformance.run import settings
from conformance.run.sections import Question, Unanswered, pytest_terminal_summary


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, and make pytest collect nothing."""
    config.stash[settings.KEY] = settings.read(config)
    config.args = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the item."""
    items[:] = [Bisect.from_parent(session, name=f"mlcomp-bisect[{session.config.getoption('mlcomp_bisect')}]")]


class Bisect(Question):
    """The search for the culprit of one case."""

    def runtest(self) -> None:
        """Run `mlcomp bisect`; the item fails if it has no answer."""
        config = self.config
        case, options = str(config.getoption("mlcomp_bisect")), config.stash[settings.KEY]
        kind = "--speed" if case.removesuffix("]").endswith("-bench") else "--value"
        good, seed = options.baseline or "HEAD", config.getoption("mlcomp_seed") or 0
        words = [case, "--good", good, kind, "--target", options.targets[0], "--seed", str(seed)]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = bisect.main(words)
        if status:
            raise Unanswered(err.getvalue().splitlines()[-1])
        self.add_report_section("call", "mlcomp", out.getvalue().rstrip())


__all__ = ["pytest_collection_modifyitems", "pytest_configure", "pytest_terminal_summary"]
