"""The pytest plugin's options: without `--mlcomp` nothing else of this package is loaded; with it, `session.py` is.

Every pytest run of an environment imports this module, so it imports nothing but pytest.
"""

import argparse
import contextlib
import itertools
import os

import pytest
from _pytest.config import findpaths

# `help` is what `pytest --help` and the table of options in conformance/README.md say.
OPTIONS: dict[str, dict[str, object]] = {
    "target": {
        "metavar": "LIST",
        "default": "cpu",
        "help": "where to run, comma-separated: cpu, the default, is this machine; cpu:avx512, cpu:avx2 and "
        "cpu:baseline are less of it, cpu:each all of these that it can run; cuda is its GPU, or sm_90a emulated where "
        "there is none; other GPUs go by the names that `mlcomp targets` lists; mlir is what MLIR makes of its text, "
        "triton what Triton does (without a GPU its interpreter)",
    },
    "stages": {"metavar": "LIST", "help": "stages to check, comma-separated (default: all)"},
    "tier": {
        "choices": ("smoke", "full", "nightly"),
        "default": "smoke",
        "help": "how many rows of each case: one for each dtype (smoke, the default), every pair of values (full), or "
        "all combinations (nightly)",
    },
    "seed": {"type": int, "metavar": "N", "help": "seed of all input data (default: a fresh one, printed)"},
    "bench": {
        "choices": ("off", "quick", "full"),
        "default": "off",
        "help": "race the compiled kernels against PyTorch (default: off)",
    },
    "vs": {
        "metavar": "LIST",
        "help": "whom to race, comma-separated: eager, compile, max-autotune or a torch.compile backend "
        "(default: what the case says)",
    },
    "fail-on": {
        "metavar": "LIST",
        "help": "what else fails, comma-separated: cliff, which is a benchmark of less than half of eager's speed or "
        "compiled in more than five times Inductor's time; of a run with a baseline, slower, which is a benchmark "
        "whose stored kernel is surely faster, and coverage, which is a case that passed and does not now "
        "(default: such are only named); budget and unsupported, which fail in any case",
    },
    "save-baseline": {
        "nargs": "?",
        "const": "main",
        "metavar": "NAME",
        "help": "store the emitted kernels of the benchmarks, with their times, in the folder baseline of the reports "
        "(default name: main; write =NAME)",
    },
    "baseline": {
        "metavar": "NAME|DIR|REV",
        "help": "build the kernels of this baseline, or those that the compiler of this git revision emits, and race "
        "them against those of now",
    },
    "min-effect": {
        "metavar": "SHARE",
        "default": "0.03",
        "help": "the slowdown beside a stored kernel that is to be found; by less than half of it nothing is called "
        "slower (default: 0.03)",
    },
    "record": {
        "action": "store_true",
        "help": "add this run, as a line, to history/<device>.jsonl of the reports, in which `mlcomp history` finds "
        "what changed for good",
    },
    "shard": {
        "metavar": "I/N",
        "help": "run part I of N, which take about as long by the times in the run.json of all reports; `mlcomp merge` "
        "joins what they report",
    },
    "timeout": {
        "type": float,
        "metavar": "SECONDS",
        "help": "time limit of one item (default: the case's, else 120, for a benchmark 300)",
    },
    "report": {
        "metavar": "DIR",
        "help": "where the reports go, in a folder for each device (default: reports, beside pytest's settings or else "
        "here; of a part of the suite: reports/.last)",
    },
    "backend": {
        "metavar": "NAME",
        "help": "check this torch.compile backend instead of our compiler, by its results alone",
    },
    "entry": {
        "choices": ("export", "compile"),
        "default": "export",
        "help": "check our compiler stage by stage on what torch.export captures (the default), or as users have it, "
        "by the results of torch.compile(fullgraph=True), where it is an error to leave anything to eager",
    },
    "selftest": {
        "action": "store_true",
        "help": "also plant known miscompiles in every stage and report how many the checks catch",
    },
    "gate": {
        "action": "store_true",
        "help": "also compile every case for the GPUs that --mlcomp-target names, or for sm_80, sm_90a and sm_120, "
        "without running it, and look at what its kernels take: no spills, no local memory, no serialised "
        "instruction, the instructions that the code calls; alone with -m mlcomp_gate",
    },
    "sanitizer": {
        "metavar": "LIST",
        "help": "run the code of every case once on the GPU under these tools of compute-sanitizer, comma-separated: "
        "memcheck, racecheck (default: none)",
    },
    "instructions": {
        "action": "store_true",
        "help": "by itself: check every GPU instruction against its row's meaning, on the CPU, on a GPU if there is "
        "one, and by its machine code",
    },
    "fuzz": {
        "metavar": "N|SECONDS",
        "help": "by itself, unless shape files are named: run so many random programs, 25 to an item, or as many as "
        "there is time for (120s); findings go to fuzz.jsonl as they are found, at the end to fuzz.md",
    },
    "fuzz-what": {
        "metavar": "LIST",
        "help": "what is checked of random programs: graph, through torch.compile against eager and f64, relation, "
        "through it on other data, whose results follow from those of the first, and schedule, random legal schedules "
        "of their kernels; and what varies in them: shape, layout, gradient (default: all but schedule)",
    },
    "fuzz-only": {
        "metavar": "INDEX|FILE",
        "help": "of the random programs of --mlcomp-seed, run this one alone, or that of a file program.json",
    },
    "fuzz-corpus": {
        "metavar": "DIR",
        "help": "make more than half of the random programs of those in this folder, and add what reaches rules of the "
        "compiler that none there has reached; a later run goes on with it",
    },
    "opinfo": {
        "nargs": "?",
        "const": "check",
        "choices": ("check", "update"),
        "help": "by itself, unless shape files are named: run the samples of PyTorch's own database of operators "
        "through torch.compile, forward and with gradients; what has passed before must pass; =update writes down what "
        "passes now; the report is opinfo.md",
    },
    "onnx": {
        "nargs": "?",
        "const": "check",
        "choices": ("check", "update"),
        "help": "by itself, unless shape files are named: run ONNX's own tests of nodes, which the package onnx "
        "generates, through compiler.from_onnx; what has passed before must pass; =update writes down what passes now; "
        "the report is onnx.md",
    },
    "ops": {
        "metavar": "REGEX",
        "help": "of those databases the entries that this matches, anywhere in NAME:TYPE (default: all)",
    },
    "samples": {
        "type": int,
        "metavar": "N",
        "default": 4,
        "help": "of each entry of PyTorch's database so many samples, from all along; 0 for all (default: 4)",
    },
    "bisect": {
        "metavar": "CASE",
        "help": "by itself: find the commit since which this case, named as FILE::CASE, is wrong, or slow if it is a "
        "benchmark, from --mlcomp-baseline REV (default: HEAD) to the working tree, with its pass, steps and kernels",
    },
    "replay": {
        "metavar": "REV",
        "help": "by itself: compare what the compiler emits for every case of the shape files with what that of a git "
        "revision does, without running any; fails with what differs",
    },
    # Internal: the module whose check, bench and selftest functions run in the child; the plugin's own tests use it.
    "runner": {"metavar": "MODULE", "help": argparse.SUPPRESS},
}
MARKERS = (
    "mlcomp_check: one case on one target",
    "mlcomp_bench: one benchmark on one target",
    "mlcomp_fitness: whether this machine can judge speed",
    "mlcomp_gate: the cases of one file compiled for GPUs, without running",
    "mlcomp_selftest: planted miscompiles against the checks",
    "mlcomp_fuzz: some random programs on one target",
    "mlcomp_opinfo: an entry of PyTorch's database of operators, as one element type",
    "mlcomp_onnx: one of ONNX's own tests of nodes",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("mlcomp", "compiler conformance and speed (mlcomp)")
    group.addoption(
        "--mlcomp",
        action="store_true",
        help="collect shape files: those named on the command line, or all that come along",
    )
    for name, option in OPTIONS.items():
        group.addoption(f"--mlcomp-{name}", **option)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Bring in the rest of the plugin, or refuse options that would do nothing without it."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if config.getoption("mlcomp_instructions"):
        config.pluginmanager.import_plugin("conformance.run.instructions")
        return
    if config.getoption("mlcomp"):
        _root_again(config)
        # By name, not by an import statement: only a run with --mlcomp pays for it.
        alone = {"mlcomp_replay": "replay", "mlcomp_bisect": "bisecting"}
        work = next((module for option, module in alone.items() if config.getoption(option)), "session")
        config.pluginmanager.import_plugin(f"conformance.run.{work}")
        return
    stray = [word for word in config.invocation_params.args if str(word).startswith("--mlcomp-")]
    if stray:
        raise pytest.UsageError(f"{stray[0]} does nothing without --mlcomp: add it")


def _root_again(config: pytest.Config) -> None:
    """Look for pytest's root again, by which ids begin, where the first search took an option's value for a path.

    It looks before it loads plugins and knows their options: `--mlcomp-report /there` was a place to collect from.
    What is asked here is private to pytest, so a version that has it otherwise keeps the root that it found.
    """
    words = [str(word) for word in config.invocation_params.args]
    values = [value for word, value in itertools.pairwise(words) if word.startswith("--mlcomp-")]
    here = config.invocation_params.dir
    chosen = config.option.rootdir or config.option.inifilename
    if chosen or not any(os.path.exists(here / value) for value in values if not value.startswith("-")):
        return
    with contextlib.suppress(AttributeError, TypeError):
        root, inipath, settings, _ = findpaths.determine_setup(
            inifile=None,
            override_ini=config.option.override_ini,
            args=config.option.file_or_dir,
            rootdir_cmd_arg=None,
            invocation_dir=here,
        )
        if root != config.rootpath:
            name = "_inicfg" if "_inicfg" in vars(config) else "inicfg"
            vars(config).update({"_rootpath": root, "_inipath": inipath, name: settings})
            config._inicache.clear()
