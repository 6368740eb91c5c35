"""`--mlcomp-replay REV`: a run with one item, which fails if the compiler emits other texts than that of REV."""

import os
from pathlib import Path

import pytest

from conformance.history import revisions, texts
from conformance.run import settings
from conformance.run.sections import Question, Unanswered, pytest_terminal_summary
from conformance.shapes.files import own_suite, shape_files

SHAPE_FILES: pytest.StashKey[tuple[Path, ...]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, remember the named or default shape files, and make pytest collect none."""
    config.stash[settings.KEY] = settings.read(config)
    here = config.invocation_params.dir
    paths = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else own_suite(here)
    config.stash[SHAPE_FILES] = tuple(shape_files(here / str(path).partition("::")[0] for path in paths))
    config.args = []
    try:
        revisions.find(revisions.repository(here), str(config.getoption("mlcomp_replay")))
    except revisions.RevisionError as error:
        raise pytest.UsageError(f"--mlcomp-replay: {error}") from None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the item."""
    items[:] = [Replay.from_parent(session, name=f"mlcomp-replay[{session.config.getoption('mlcomp_replay')}]")]


class Replay(Question):
    """The comparison of the texts of all cases at two revisions; it fails with the differences."""

    expected = (Unanswered, revisions.RevisionError)

    def runtest(self) -> None:
        """Lower with both compilers concurrently, and compare the texts."""
        config, options = self.config, self.config.stash[settings.KEY]
        repo = revisions.repository(config.invocation_params.dir)
        name = str(config.getoption("mlcomp_replay"))
        request = revisions.TextRequest(config.stash[SHAPE_FILES], options.targets, options.tier)
        compared = [revisions.find(repo, name), revisions.find(repo, revisions.NOW)]
        before, after = revisions.records(compared, request, len(os.sched_getaffinity(0)))
        shared = before.digests.keys() & after.digests.keys()
        different = sum(before.digests[key] != after.digests[key] for key in shared)
        message = f"{len(shared)} texts at {name} and now, {different or 'none'} of them different"
        if different:
            raise Unanswered("\n".join((message, *texts.compare(before, after))))
        if not shared:
            raise Unanswered(f"no text was made both at {name} and now: nothing could be compared")
        self.add_report_section("call", "mlcomp", message)


__all__ = ["pytest_collection_modifyitems", "pytest_configure", "pytest_terminal_summary"]
