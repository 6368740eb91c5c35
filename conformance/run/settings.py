"""The command line in; what it asks for as one value out, or a usage error that names the words it could have used."""

import difflib
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import compiler
from conformance.fuzz import asked
from conformance.fuzz.asked import Asked
from conformance.judge import sanitizer
from conformance.report import environment
from conformance.shapes.cases import KINDS, STAGES, kind_of, stages_of
from conformance.shapes.files import find_shapes, own_suite

TARGETS = tuple(name for name in compiler.TARGETS if not name.startswith("cpu:"))
EACH = "cpu:each"
# What may fail an item beyond a wrong result; what is unsupported and a budget that is missed always do.
FAIL_ON = ("cliff", "slower", "coverage", "budget", "unsupported")
RIVALS = ("eager", "compile", "max-autotune")
LAST = ".last"  # the folder of reports on a part of the suite, which is no device's
# Options of pytest and its plugins that choose among the items.
SELECTING = (
    "keyword", "markexpr", "deselect", "lf", "stepwise", "ignore", "ignore_glob", "benchmark_only", "benchmark_skip",
)  # fmt: skip
# loadscope and its kin hang for ever after a worker dies, and put the cases of one file on one worker.
DISTRIBUTIONS = ("no", "load", "worksteal")
FUNCTIONS = {
    "check": "conformance.judge.ladder:check",
    "ahead": "conformance.judge.ladder:ahead",
    "bench": "conformance.bench.benchmark:run",
    "fitness": "conformance.bench.benchmark:fitness",
    "selftest": "conformance.judge.selftest:run",
    "gate": "conformance.judge.gate:run",
    "fuzz": "conformance.fuzz.check:fuzz",
    "opinfo": "conformance.opinfo.check:check",
    "opinfo_entries": "conformance.opinfo.entries:listed",
    "onnx": "conformance.onnx.check:check",
    "onnx_entries": "conformance.onnx.check:listed",
    "reduce": "conformance.fuzz.reduce:reduce",
    "explain_unknown": "conformance.judge.systems:explain_unknown",
}
KEY: pytest.StashKey["Settings"] = pytest.StashKey()


@dataclass(frozen=True)
class Settings:
    """One run's settings."""

    targets: tuple[str, ...]
    stages: tuple[str, ...]
    tier: str
    seed: int
    bench: str
    vs: tuple[str, ...] | None
    fail_on: tuple[str, ...]
    timeout: float | None
    report: Path
    part: bool  # of the suite is run, and nobody said where its reports go
    backend: str | None
    selftest: bool
    gate: bool
    sanitizers: tuple[str, ...]
    fuzz: Asked  # which random programs to run
    databases: dict[str, str]  # of other people's cases, and what becomes of the list of those passing: check or update
    ops: str  # which entries, as a regular expression
    samples: int  # of each entry, at most; 0 for all
    baseline: str | None  # what to race against
    save_baseline: str | None  # what to store this run's kernels as
    min_effect: float
    selects: bool  # leaves out some of what a run without arguments has
    runner: str | None
    record: bool = False  # add a line to the history
    shard: tuple[int, int] | None = None  # which of how many parts is run

    def reports(self, device: str) -> Path:
        """The folder of this run's reports: what a device's says is said of the whole suite."""
        if self.shard:
            return self.report / "shards" / "{}-of-{}".format(*self.shard)
        return self.report / (LAST if self.part else device)

    @property
    def passing(self) -> bool:
        """Whether the report is not one to keep."""
        return self.part or self.shard is not None

    def history(self, device: str) -> Path:
        """The file with a line for each recorded run on a device."""
        return self.report / "history" / f"{device}.jsonl"

    def baselines(self, device: str) -> Path:
        """The folder of the baselines of a device."""
        return self.report / "baseline" / device

    @property
    def foreign(self) -> tuple[str, ...]:
        """Names of systems that only torch can know."""
        return tuple(name for name in (self.backend, *(self.vs or ())) if name is not None and name not in RIVALS)

    @property
    def variant(self) -> str | None:
        """What sets this run's results apart from those of our own code as it is."""
        return self.backend or ("sanitizers" if self.sanitizers else None)

    @property
    def architectures(self) -> tuple[str, ...]:
        """The GPUs named as targets, for which the gate is to compile; none named, it knows which."""
        return tuple(target for target in self.targets if target.startswith("sm_"))

    def function(self, kind: str) -> str:
        """The function that does a kind of work in the child, as `module:function`."""
        return f"{self.runner}:{kind}" if self.runner else FUNCTIONS[kind]


def read(config: pytest.Config) -> Settings:
    """The settings of this process; a worker takes the seed that its controller chose."""

    def option(name: str) -> Any:
        return config.getoption(f"mlcomp_{name}")

    _check_distribution(str(config.getoption("dist", "no")))
    seed = getattr(config, "workerinput", {}).get("mlcomp_seed", option("seed"))
    timeout = option("timeout")
    if timeout is not None and not timeout > 0:
        raise pytest.UsageError(f"--mlcomp-timeout: {timeout:g} is not a number of seconds above 0")
    named = option("report")
    backend, vs, stages = _backend(option("backend"), option("entry")), option("vs"), option("stages")
    fuzz = _fuzz([option(f"fuzz{word}") for word in ("", "_only", "_what", "_corpus")], config.invocation_params.dir)
    shard = _shard(option("shard"))
    selects = stages is not None or bool(fuzz or shard or option("ops")) or _selects(config)
    part = named is None and selects
    if backend and stages:
        raise pytest.UsageError("--mlcomp-stages: a torch.compile backend has only a final stage; remove the option")
    targets = _targets(option("target"))
    if option("bench") != "off" and environment.emulates(targets):
        raise pytest.UsageError("--mlcomp-bench: there is no GPU to time; remove the option or the cuda targets")
    other = stages is not None or option("bench") != "off" or backend
    sanitizers = _sanitizers(option("sanitizer"), targets, other, not config.option.collectonly)
    every = tuple(stage for stage in STAGES if any(stage in stages_of(target) for target in targets))
    if sanitizers:
        every = (KINDS["cuda"],)
    return Settings(
        targets=targets,
        stages=every if stages is None else _words("stages", stages, every),
        seed=secrets.randbelow(2**31) if seed is None else int(seed),
        vs=None if vs is None else _words("vs", vs, None),
        fail_on=_fail_on(option("fail_on"), option("bench") != "off", option("baseline") is not None),
        timeout=timeout,
        report=_report(config, named),
        part=bool(getattr(config, "workerinput", {}).get("mlcomp_part", part)),
        sanitizers=sanitizers,
        backend=backend,
        fuzz=fuzz,
        databases={word: str(option(word)) for word in ("opinfo", "onnx") if option(word) is not None},
        ops=_expression(str(option("ops") or "")),
        samples=option("samples"),
        save_baseline=_name(option("save_baseline"), option("bench") != "off"),
        min_effect=_share(option("min_effect")),
        selects=selects,
        shard=shard,
        **{name: option(name) for name in ("tier", "bench", "selftest", "gate", "baseline", "runner", "record")},
    )


def _report(config: pytest.Config, named: object) -> Path:
    """The folder of the reports."""
    here = config.invocation_params.dir
    # Without a configuration file, pytest's root is wherever the arguments lead to, be that site-packages.
    report = (config.rootpath if config.inipath else here) / "reports" if named is None else here / str(named)
    if report.exists() and not report.is_dir():
        raise pytest.UsageError(f"--mlcomp-report: {report} is a file; name a folder")
    return report


def _selects(config: pytest.Config) -> bool:
    """Whether the command line leaves out some of what a run without arguments has."""
    if any(getattr(config.option, name, None) for name in SELECTING):
        return True
    here = config.invocation_params.dir
    suite = {path.resolve() for path in own_suite(here)}
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return not suite <= {(here / arg).resolve() for arg in config.args}
    return any(path != find_shapes() and path.is_relative_to(find_shapes()) for path in suite)


def _expression(text: str) -> str:
    """A regular expression, checked."""
    try:
        re.compile(text)
    except re.error as problem:
        raise pytest.UsageError(f"--mlcomp-ops: {text} is not a regular expression: {problem}") from None
    return text


def _name(asked: object, timed: bool) -> str | None:
    """The name of a baseline to store."""
    if asked is None:
        return None
    if not re.fullmatch(r"\w[\w.+-]*", str(asked)) or str(asked).endswith(".toml"):
        raise pytest.UsageError(
            f"--mlcomp-save-baseline: {asked} is not a valid name; write --mlcomp-save-baseline=NAME"
        )
    if not timed:
        raise pytest.UsageError("--mlcomp-save-baseline: only benchmarks can be stored; add --mlcomp-bench quick")
    return str(asked)


def _backend(named: str | None, entry: str) -> str | None:
    """The torch.compile backend that is checked; None for the compiler's own stages."""
    if entry != "compile":
        return named
    if named not in (None, "mlcomp"):
        raise pytest.UsageError("--mlcomp-entry compile cannot be combined with --mlcomp-backend")
    return "mlcomp"


def _fuzz(words: list[Any], here: Path) -> Asked:
    try:
        return asked.read(*words, here=here)
    except ValueError as problem:
        raise pytest.UsageError(str(problem)) from None


def _shard(asked: object) -> tuple[int, int] | None:
    """Which part of how many.

    >>> _shard("2/3")
    (2, 3)
    """
    if asked is None:
        return None
    found = re.fullmatch(r"(\d+)/(\d+)", str(asked))
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"--mlcomp-shard: {asked} is not of the form I/N, such as 1/3, 2/3 or 3/3")
    return int(found[1]), int(found[2])


def _share(text: str) -> float:
    """A share as a number.

    >>> _share("3%"), _share("0.05")
    (0.03, 0.05)
    """
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = -1.0
    if not 0 < found < 1:
        raise pytest.UsageError(f"--mlcomp-min-effect: {text} is not a fraction between 0 and 1, such as 3%")
    return found


def _fail_on(asked: object, timed: bool, compared: bool) -> tuple[str, ...]:
    """What is to fail beyond a wrong result."""
    words = () if asked is None else _words("fail-on", str(asked), FAIL_ON)
    if "cliff" in words and not timed:
        raise pytest.UsageError("--mlcomp-fail-on cliff: only benchmarks can be cliffs; add --mlcomp-bench quick")
    if "slower" in words and not (timed and compared):
        raise pytest.UsageError("--mlcomp-fail-on slower: add --mlcomp-bench quick and --mlcomp-baseline NAME")
    if "coverage" in words and not compared:
        raise pytest.UsageError("--mlcomp-fail-on coverage: add --mlcomp-baseline NAME to compare with")
    return words


def _sanitizers(asked: object, targets: tuple[str, ...], otherwise: object, runs: bool) -> tuple[str, ...]:
    """The tools asked for, which look at GPU code on a GPU and at nothing else."""
    if asked is None:
        return ()
    tools = _words("sanitizer", str(asked), tuple(sanitizer.TOOLS))
    if otherwise:
        raise pytest.UsageError(
            "--mlcomp-sanitizer: it checks the `cuda` stage of mlcomp's own kernels; "
            "remove --mlcomp-backend, --mlcomp-stages and --mlcomp-bench"
        )
    if not all(kind_of(target) == "cuda" for target in targets):
        raise pytest.UsageError("--mlcomp-sanitizer: it checks GPU code; add --mlcomp-target cuda")
    if not runs:
        return tools
    if environment.emulates(targets):
        raise pytest.UsageError(
            "--mlcomp-sanitizer: there is no GPU; without one, use the checks of the `kernel` stage"
        )
    if sanitizer.installed() is None:
        raise pytest.UsageError("--mlcomp-sanitizer: compute-sanitizer is not on PATH; the CUDA toolkit has it")
    return tools


def _targets(text: str) -> tuple[str, ...]:
    """The targets asked for, those that this machine can be in the place of `cpu:each`."""
    words = _words("target", text, TARGETS, featured=True)
    return tuple(dict.fromkeys(t for word in words for t in (compiler.cpus() if word == EACH else (word,))))


def _words(option: str, text: str, known: Collection[str] | None, featured: bool = False) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise pytest.UsageError(f"--mlcomp-{option}: empty; use {', '.join(known or RIVALS)}")
    for word in words:
        name, _, feature = word.partition(":")
        good = known is None or name in known
        if not good or (feature and not (featured and kind_of(name) == "cpu" and re.fullmatch(r"[\w.+\-]+", feature))):
            nearest = difflib.get_close_matches(name, known or RIVALS, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise pytest.UsageError(f"--mlcomp-{option}: unknown {word!r}; use {', '.join(known or RIVALS)}{hint}")
    return words


def _check_distribution(name: str) -> None:
    if name not in DISTRIBUTIONS:
        raise pytest.UsageError(
            f"--dist {name} cannot be combined with --mlcomp: it hangs when a worker is lost, and runs all cases of a "
            "file on one worker. Use --dist load or --dist worksteal; benchmarks take turns by themselves."
        )
