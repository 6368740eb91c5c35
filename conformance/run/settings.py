"""Read the command line into one value of settings; invalid options are usage errors that name valid ones."""

import difflib
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import compiler
from conformance.fuzz import asked
from conformance.fuzz.asked import FuzzRequest
from conformance.judge import sanitizer
from conformance.report import environment
from conformance.shapes.cases import KINDS, RIVALS, STAGES, kind_of, stages_of
from conformance.shapes.files import find_shapes, own_suite

EACH = "cpu:each"
TARGETS = (*compiler.TARGETS, EACH)
# Words of --mlcomp-fail-on; budget and unsupported are accepted, but fail in any case.
FAIL_ON = ("cliff", "slower", "coverage", "budget", "unsupported")
PARTIAL_FOLDER = ".last"  # folder of reports on a part of the suite, in place of the device's
# Options of pytest and its plugins that select items.
SELECTING = (
    "keyword", "markexpr", "deselect", "lf", "stepwise", "ignore", "ignore_glob", "benchmark_only", "benchmark_skip",
)  # fmt: skip
# Options that only shape files have use for.
OF_SHAPE_FILES = (
    "stages", "tier", "bench", "redraw", "vs", "fail-on", "save-baseline", "baseline", "min-effect", "record",
    "backend", "entry", "gate", "sanitizer",
)  # fmt: skip
# loadscope and similar modes hang forever after a worker dies, and put all cases of a file on one worker.
DISTRIBUTIONS = ("no", "load", "worksteal")
FUNCTIONS = {
    "check": "conformance.judge.ladder:check",
    "ahead": "conformance.judge.ladder:lower_ahead",
    "bench": "conformance.bench.benchmark:run",
    "fitness": "conformance.bench.benchmark:fitness",
    "selftest": "conformance.judge.selftest:run",
    "gate": "conformance.judge.gate:run",
    "fuzz": "conformance.fuzz.check:fuzz",
    "eager": "conformance.fuzz.check:eager",
    "opinfo": "conformance.opinfo.check:check",
    "opinfo_entries": "conformance.opinfo.entries:list_entries",
    "onnx": "conformance.onnx.check:check",
    "onnx_entries": "conformance.onnx.check:list_tests",
    "reduce": "conformance.fuzz.reduce:reduce",
    "explain_unknown": "conformance.judge.systems:explain_unknown",
}
MIN_EFFECT, SAMPLES = 0.03, 4  # defaults of --mlcomp-min-effect and --mlcomp-samples
KEY: pytest.StashKey["Settings"] = pytest.StashKey()


@dataclass(frozen=True)
class Settings:
    """The settings of a run."""

    targets: tuple[str, ...]
    stages: tuple[str, ...]
    tier: str
    seed: int
    bench: str
    vs: tuple[str, ...] | None
    fail_on: tuple[str, ...]
    timeout: float | None
    report: Path
    part: bool  # only a part of the suite runs, without --mlcomp-report
    backend: str | None
    selftest: bool
    gate: bool
    sanitizers: tuple[str, ...]
    fuzz: FuzzRequest  # which random programs to run
    databases: dict[str, str]  # opinfo and onnx, if requested -> check or update
    ops: str  # regular expression that selects entries of databases
    samples: int  # most samples of each OpInfo entry; 0 for all
    baseline: str | None  # the baseline to race against
    save_baseline: str | None  # name under which to store this run's kernels
    min_effect: float
    selects: bool  # some items of a run without arguments are left out
    runner: str | None
    record: bool = False  # append a line to the history
    redraw: int | None = None  # random sizes per case that are timed instead of its own
    shard: tuple[int, int] | None = None  # shard I of N

    def reports(self, device: str) -> Path:
        """Return the folder of this run's reports; the device's folder is only for runs of the whole suite."""
        if self.shard:
            return self.report / "shards" / "{}-of-{}".format(*self.shard)
        return self.report / (PARTIAL_FOLDER if self.part else device)

    @property
    def ignore_file(self) -> Mapping[str, str]:
        """The file that makes git ignore the reports of this run, by name, if these are temporary."""
        return {".gitignore": "*\n"} if self.part or self.shard is not None else {}

    def history(self, device: str) -> Path:
        """Return the history file of a device."""
        return self.report / "history" / f"{device}.jsonl"

    def baselines(self, device: str) -> Path:
        """Return the folder of a device's baselines."""
        return self.report / "baseline" / device

    @property
    def foreign_backends(self) -> tuple[str, ...]:
        """Names of backends that only torch can validate."""
        return tuple(name for name in (self.backend, *(self.vs or ())) if name is not None and name not in RIVALS)

    @property
    def variant(self) -> str | None:
        """Name of the separate report folder of runs with another backend or with sanitizers; else None."""
        return self.backend or ("sanitizers" if self.sanitizers else None)

    @property
    def architectures(self) -> tuple[str, ...]:
        """The GPU architectures among the targets, for the gate; if there are none, it uses its default."""
        return tuple(target for target in self.targets if target.startswith("sm_"))

    def function(self, kind: str) -> str:
        """Return the child's function for a kind of work, as `module:function`."""
        return f"{self.runner}:{kind}" if self.runner else FUNCTIONS[kind]


def read(config: pytest.Config) -> Settings:
    """Read the settings of this process; an xdist worker takes the seed of its controller."""

    def option(name: str) -> Any:
        return config.getoption(f"mlcomp_{name}")

    _check_distribution(str(config.getoption("dist", "no")))
    seed = getattr(config, "workerinput", {}).get("mlcomp_seed", option("seed"))
    timeout = option("timeout")
    if timeout is not None and not timeout > 0:
        raise pytest.UsageError(f"--mlcomp-timeout: {timeout:g} is not a number of seconds above 0")
    fuzz = _parse_fuzz(
        [option(f"fuzz{word}") for word in ("", "_only", "_what", "_corpus")], config.invocation_params.dir
    )
    databases = {word: str(option(word)) for word in ("opinfo", "onnx") if option(word) is not None}
    if (fuzz or databases) and config.args_source is not pytest.Config.ArgsSource.ARGS:
        _refuse_options_of_shape_files(option)
    report_option = option("report")
    backend, stages, timed = (
        _parse_backend(option("backend"), option("entry")),
        option("stages"),
        option("bench") != "off",
    )
    shard = _parse_shard(option("shard"))
    selects = stages is not None or bool(fuzz or shard or option("ops") or option("redraw")) or _selects_items(config)
    part = report_option is None and selects
    if backend and stages:
        raise pytest.UsageError("--mlcomp-stages: a torch.compile backend has only a final stage; remove the option")
    targets = _parse_targets(option("target"))
    if timed and environment.emulates(targets):
        raise pytest.UsageError("--mlcomp-bench: there is no GPU to time; remove the option or the cuda targets")
    excludes_sanitizers = stages is not None or timed or backend
    sanitizers = _parse_sanitizers(option("sanitizer"), targets, excludes_sanitizers, not config.option.collectonly)
    all_stages = tuple(stage for stage in STAGES if any(stage in stages_of(target) for target in targets))
    if sanitizers:
        all_stages = (KINDS["cuda"],)
    return Settings(
        targets=targets,
        stages=all_stages if stages is None else _parse_words("stages", stages, all_stages),
        seed=secrets.randbelow(2**31) if seed is None else int(seed),
        vs=_parse_vs(option("vs"), timed),
        fail_on=_parse_fail_on(option("fail_on"), timed, option("baseline") is not None),
        timeout=timeout,
        report=_report_folder(config, report_option),
        part=bool(getattr(config, "workerinput", {}).get("mlcomp_part", part)),
        sanitizers=sanitizers,
        backend=backend,
        fuzz=fuzz,
        databases=databases,
        ops=_parse_ops(option("ops"), bool(databases)),
        samples=_parse_samples(option("samples"), bool(databases)),
        save_baseline=_parse_name(option("save_baseline"), timed),
        min_effect=_parse_min_effect(option("min_effect"), timed and option("baseline") is not None),
        selects=selects,
        shard=shard,
        redraw=_parse_redraw(option("redraw"), timed),
        **{name: option(name) for name in ("tier", "bench", "selftest", "gate", "baseline", "runner", "record")},
    )


def _refuse_options_of_shape_files(option: Callable[[str], Any]) -> None:
    """Raise UsageError for an option that does nothing in a run without shape files."""
    for name in OF_SHAPE_FILES:
        if option(name.replace("-", "_")) not in (None, False, "smoke", "off", "export"):  # the defaults
            raise pytest.UsageError(
                f"--mlcomp-{name}: it does nothing in a run without shape files; name some, or remove the option"
            )


def _report_folder(config: pytest.Config, option: object) -> Path:
    """Return the folder of the reports."""
    here = config.invocation_params.dir
    # Without a configuration file, pytest derives its root from the arguments, which may be in site-packages.
    report = (config.rootpath if config.inipath else here) / "reports" if option is None else here / str(option)
    if os.path.isfile(report):
        raise pytest.UsageError(f"--mlcomp-report: {report} is a file; name a folder")
    return report


def check_report_folder(folder: Path) -> None:
    """Raise UsageError if no folder can be made where the reports will be written: at the end, the run would be lost.

    It makes and removes one in the nearest folder that exists; options of xdist are read differently if DIR exists.
    """
    try:
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryDirectory(dir=nearest):
            pass
    except OSError as error:
        raise pytest.UsageError(
            f"--mlcomp-report: no reports can be written to {folder}: {error.strerror}; name another folder"
        ) from None


def _selects_items(config: pytest.Config) -> bool:
    """Return whether the command line leaves out some items of a run without arguments."""
    if any(getattr(config.option, name, None) for name in SELECTING):
        return True
    here = config.invocation_params.dir
    suite = {path.resolve() for path in own_suite(here)}
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return not suite <= {(here / arg).resolve() for arg in config.args}
    return any(path != find_shapes() and path.is_relative_to(find_shapes()) for path in suite)


def _parse_ops(text: str | None, has_databases: bool) -> str:
    """Return the regular expression, which matches anything by default; raises UsageError."""
    if text is None:
        return ""
    try:
        re.compile(text)
    except re.error as problem:
        raise pytest.UsageError(f"--mlcomp-ops: {text} is not a regular expression: {problem}") from None
    if not has_databases:
        raise pytest.UsageError("--mlcomp-ops: no database of ops is asked for; add --mlcomp-opinfo or --mlcomp-onnx")
    return text


def _parse_samples(count: int | None, has_databases: bool) -> int:
    """Return the number of samples of each OpInfo entry; raises UsageError."""
    if count is None:
        return SAMPLES
    if count < 0:
        raise pytest.UsageError(f"--mlcomp-samples: {count} is not a number of samples; 0 stands for all")
    if not has_databases:
        raise pytest.UsageError("--mlcomp-samples: no samples are asked for; add --mlcomp-opinfo")
    return count


def _parse_vs(text: str | None, timed: bool) -> tuple[str, ...] | None:
    if text is None:
        return None
    words = _parse_words("vs", text, None)
    if not timed:
        raise pytest.UsageError("--mlcomp-vs: only benchmarks are timed; add --mlcomp-bench quick")
    return words


def _parse_min_effect(text: str | None, compared: bool) -> float:
    """Return the smallest slowdown to detect, which only a race against a baseline needs; raises UsageError."""
    if text is None:
        return MIN_EFFECT
    share = _parse_share(text)
    if not compared:
        raise pytest.UsageError("--mlcomp-min-effect: add --mlcomp-bench quick and --mlcomp-baseline NAME")
    return share


def _parse_name(option: object, timed: bool) -> str | None:
    """Return the name of the baseline to store, or None; raises UsageError."""
    if option is None:
        return None
    if not re.fullmatch(r"\w[\w.+-]*", str(option)) or str(option).endswith(".toml"):
        raise pytest.UsageError(
            f"--mlcomp-save-baseline: {option} is not a valid name; write --mlcomp-save-baseline=NAME"
        )
    if not timed:
        raise pytest.UsageError("--mlcomp-save-baseline: only benchmarks can be stored; add --mlcomp-bench quick")
    return str(option)


def _parse_redraw(count: int | None, timed: bool) -> int | None:
    if count is not None and (count < 1 or not timed):
        why = "only benchmarks have sizes to draw; add --mlcomp-bench quick" if count > 0 else "draw 1 size at least"
        raise pytest.UsageError(f"--mlcomp-redraw: {why}")
    return count


def _parse_backend(option: str | None, entry: str) -> str | None:
    """Return the torch.compile backend to check; None to check the compiler's stages."""
    if entry != "compile":
        return option
    if option not in (None, "mlcomp"):
        raise pytest.UsageError("--mlcomp-entry compile cannot be combined with --mlcomp-backend")
    return "mlcomp"


def _parse_fuzz(words: list[Any], here: Path) -> FuzzRequest:
    try:
        return asked.read_options(*words, here=here)
    except ValueError as problem:
        raise pytest.UsageError(str(problem)) from None


def _parse_shard(option: object) -> tuple[int, int] | None:
    """Parse I/N.

    >>> _parse_shard("2/3")
    (2, 3)
    """
    if option is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", str(option))
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise pytest.UsageError(f"--mlcomp-shard: {option} is not of the form I/N, such as 1/3, 2/3 or 3/3")
    return int(match[1]), int(match[2])


def _parse_share(text: str) -> float:
    """Parse a fraction between 0 and 1, which may be a percentage.

    >>> _parse_share("3%"), _parse_share("0.05")
    (0.03, 0.05)
    """
    try:
        fraction = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        fraction = -1.0
    if not 0 < fraction < 1:
        raise pytest.UsageError(f"--mlcomp-min-effect: {text} is not a fraction between 0 and 1, such as 3%")
    return fraction


def _parse_fail_on(option: object, timed: bool, compared: bool) -> tuple[str, ...]:
    """Parse --mlcomp-fail-on, and check that the other options make its words meaningful."""
    words = () if option is None else _parse_words("fail-on", str(option), FAIL_ON)
    if "cliff" in words and not timed:
        raise pytest.UsageError("--mlcomp-fail-on cliff: only benchmarks can be cliffs; add --mlcomp-bench quick")
    if "slower" in words and not (timed and compared):
        raise pytest.UsageError("--mlcomp-fail-on slower: add --mlcomp-bench quick and --mlcomp-baseline NAME")
    if "coverage" in words and not compared:
        raise pytest.UsageError("--mlcomp-fail-on coverage: add --mlcomp-baseline NAME to compare with")
    return words


def _parse_sanitizers(option: object, targets: tuple[str, ...], is_excluded: object, runs: bool) -> tuple[str, ...]:
    """Parse --mlcomp-sanitizer; raises UsageError unless the run checks GPU code on a GPU."""
    if option is None:
        return ()
    tools = _parse_words("sanitizer", str(option), tuple(sanitizer.TOOLS))
    if is_excluded:
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


def _parse_targets(text: str) -> tuple[str, ...]:
    """Parse --mlcomp-target; `cpu:each` becomes all instruction sets of this machine."""
    words = _parse_words("target", text, TARGETS)
    return tuple(dict.fromkeys(t for word in words for t in (compiler.cpus() if word == EACH else (word,))))


def _parse_words(option_name: str, text: str, known: Collection[str] | None) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise pytest.UsageError(f"--mlcomp-{option_name}: empty; use {', '.join(known or RIVALS)}")
    for word in words:
        if known is not None and word not in known:
            nearest = difflib.get_close_matches(word, known, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise pytest.UsageError(f"--mlcomp-{option_name}: unknown {word!r}; use {', '.join(known)}{hint}")
    return words


def _check_distribution(name: str) -> None:
    if name not in DISTRIBUTIONS:
        raise pytest.UsageError(
            f"--dist {name} cannot be combined with --mlcomp: it hangs when a worker is lost, and runs all cases of a "
            "file on one worker. Use --dist load or --dist worksteal; benchmarks take turns by themselves."
        )
