"""The pytest hooks of `--mlcomp`: read settings, collect shape files, carry rows from workers, order items."""

from pathlib import Path
from typing import Any

import pytest

from conformance import rows
from conformance.history.baseline import BaselineError
from conformance.report import environment
from conformance.run import shards
from conformance.run.databases import SOURCES, Database
from conformance.run.fuzzing import Fuzzing
from conformance.run.items import ITEMS, ROW_ATTRIBUTE, RUNNER, Bench, Fitness, SelfTest, ShapeFile
from conformance.run.progress import on_terminal
from conformance.run.results import Results
from conformance.run.runner import Runner
from conformance.run.settings import KEY, check_report_folder, read
from conformance.shapes.files import OTHER_TOOLS_FILES, own_suite, shape_files

ORDER = {
    "mlcomp_selftest": 1,
    "mlcomp_fitness": 2,
    "mlcomp_bench": 3,
}  # everything else comes first; benchmarks need the machine exclusively


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, choose the default shape files if no path is given, and register the plugins."""
    settings = config.stash[KEY] = read(config)
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = (
            []
            if settings.fuzz or settings.databases
            else [str(path) for path in own_suite(config.invocation_params.dir)]
        )
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    here = config.invocation_params.dir
    shapes = shape_files(here / arg.partition("::")[0] for arg in config.args)
    config.stash[RUNNER] = Runner(settings, here, workers, shapes)
    for source in SOURCES:
        if source.word in settings.databases:
            config.pluginmanager.register(Database(config, settings, source), f"mlcomp-{source.word}")
    if settings.fuzz:
        config.pluginmanager.register(Fuzzing(config, settings), "mlcomp-fuzzing")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(config, settings), "mlcomp-results")
        progress = on_terminal()
        if progress is not None and not config.option.collectonly:
            config.pluginmanager.register(progress, "mlcomp-progress")
            progress.watch()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the child."""
    if RUNNER in config.stash:
        config.stash[RUNNER].close()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Raise UsageError before collection for missing tools, an invalid report folder, baseline or backend."""
    runner = session.config.stash[RUNNER]
    if hasattr(session.config, "workerinput"):
        return
    builds = runner.settings.backend is None and not session.config.option.collectonly
    if builds and (tool := environment.missing_tool()):
        raise pytest.UsageError(
            f"kernels are built with g++ and ld, and {tool} was not found: install it (Debian: apt-get install g++)"
        )
    if builds and (problem := environment.missing_for(runner.settings.targets, runner.settings.stages)):
        raise pytest.UsageError(f"--mlcomp-target: {problem}")
    if not session.config.option.collectonly:
        settings = runner.settings
        check_report_folder(settings.reports(environment.device(settings.targets, settings.variant)))
        try:
            _ = runner.baseline  # if it is a revision, it is lowered here, only once
        except BaselineError as error:
            raise pytest.UsageError(f"--mlcomp-baseline: {error}") from None
    if not runner.settings.foreign_backends:
        return
    if complaint := runner.explain_unknown():
        runner.close()
        raise pytest.UsageError(f"--mlcomp-backend, --mlcomp-vs: {complaint}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the decisions of the controller to an xdist worker: the seed, and whether only a part of the suite runs."""
    settings = node.config.stash[KEY]
    node.workerinput |= {"mlcomp_seed": settings.seed, "mlcomp_part": settings.part}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the digest of all items of a shard from an xdist worker, as only workers collect items."""
    if items := getattr(node, "workeroutput", {}).get("mlcomp_items"):
        node.config.stash[ITEMS] = items


def pytest_report_header(config: pytest.Config) -> str:
    """Return the header line: targets, stages, tier, benchmarks and seed."""
    settings = config.stash[KEY]
    benches = "off" if settings.bench == "off" else settings.bench
    subject = f"backend {settings.backend}" if settings.backend else f"stages {','.join(settings.stages)}"
    return (
        f"mlcomp: targets {','.join(settings.targets)}, {subject}, tier {settings.tier}, benchmarks {benches}, "
        f"seed {settings.seed}"
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ShapeFile | None:
    """Collect every TOML file that is not another tool's as a shape file."""
    if file_path.suffix != ".toml" or file_path.name in OTHER_TOOLS_FILES or file_path.name.startswith("."):
        return None
    shape_file: ShapeFile = ShapeFile.from_parent(parent, path=file_path)
    return shape_file


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Attach the item's row to its report, also in xdist workers; not as a property, which JUnit files would show."""
    report = yield
    if call.when == "call" and (row := getattr(item, "row", None)) is not None:
        setattr(report, ROW_ATTRIBUTE, rows.dumps(row))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> Any:
    """Add the self-test before `-k` and `-m` select; afterwards cut the shard and sort benchmarks to the end."""
    if session.config.stash[KEY].selftest:
        items.append(SelfTest.from_parent(session, name="mlcomp-selftest"))
    result = yield
    _keep_shard(session.config, items)
    if any(isinstance(item, Bench) and item.get_closest_marker("skip") is None for item in items):
        items.append(Fitness.from_parent(session, name="mlcomp-fitness"))
    items.sort(key=lambda item: max((ORDER.get(mark.name, 0) for mark in item.iter_markers()), default=0))
    return result


def _keep_shard(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the items of other shards."""
    settings = config.stash[KEY]
    if settings.shard is None:
        return
    part, parts = settings.shard
    names = [item.nodeid for item in items]
    config.stash[ITEMS] = shards.digest(names)
    if hasattr(config, "workeroutput"):
        config.workeroutput["mlcomp_items"] = config.stash[ITEMS]
    shard_of = shards.cut(names, parts, shards.durations(settings.report))
    config.hook.pytest_deselected(items=[item for item, shard in zip(items, shard_of, strict=True) if shard != part])
    items[:] = [item for item, shard in zip(items, shard_of, strict=True) if shard == part]
