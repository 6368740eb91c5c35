"""The options of the pytest plugin. The rest of the plugin, `session.py`, is loaded only with `--mlcomp`.

Every pytest run in the environment imports this module, so it imports nothing but pytest.
"""

import argparse
import contextlib
import itertools
import os

import pytest
from _pytest.config import findpaths

# `help` appears in `pytest --help` and in the table of options in conformance/README.md.
OPTIONS: dict[str, dict[str, object]] = {
    "target": {
        "metavar": "LIST",
        "default": "cpu",
        "help": "where to run, comma-separated: cpu (default) is this machine; cpu:avx512, cpu:avx2 and cpu:baseline "
        "restrict its instruction set, cpu:each runs every one of them that it supports; cuda is its GPU, or emulated "
        "sm_90a if there is none; for other GPUs see `mlcomp targets`; mlir runs the text through MLIR's tools, "
        "triton through Triton (without a GPU: its interpreter)",
    },
    "stages": {"metavar": "LIST", "help": "stages to check, comma-separated (default: all)"},
    "tier": {
        "choices": ("smoke", "full", "nightly"),
        "default": "smoke",
        "help": "how many rows of each case to run: smoke (default): one per dtype; full: every pair of values in "
        "some row; nightly: all combinations",
    },
    "seed": {"type": int, "metavar": "N", "help": "seed of all input data (default: random, printed)"},
    "bench": {
        "choices": ("off", "quick", "full"),
        "default": "off",
        "help": "also run the benchmarks, which time the compiled kernels against PyTorch (default: off)",
    },
    "redraw": {
        "type": int,
        "metavar": "N",
        "help": "time each case of the benchmarks at N random sizes around its own instead, drawn by the seed: how "
        "fast kernels are that nobody has tuned",
    },
    "vs": {
        "metavar": "LIST",
        "help": "what to time against, comma-separated: eager, compile, max-autotune or the name of a torch.compile "
        "backend (default: as the case says)",
    },
    "fail-on": {
        "metavar": "LIST",
        "help": "additional reasons to fail, comma-separated: cliff (a benchmark slower than half of eager's speed, "
        "or compiled in more than five times Inductor's time); with --mlcomp-baseline: slower (the stored kernel is "
        "significantly faster), coverage (a case that passed before does not pass now). By default these are only "
        "reported. budget and unsupported always fail",
    },
    "save-baseline": {
        "nargs": "?",
        "const": "main",
        "metavar": "NAME",
        "help": "store the emitted kernels of the benchmarks with their times as a baseline, in the folder baseline "
        "of the reports (default name: main; give another one as =NAME)",
    },
    "baseline": {
        "metavar": "NAME|DIR|REV",
        "help": "time against a baseline: a stored one, given by name or folder, or the kernels that the compiler of "
        "a git revision emits",
    },
    "min-effect": {
        "metavar": "SHARE",
        "help": "the smallest slowdown against the baseline to detect, as a fraction; a kernel is called slower if "
        "the slowdown is significantly above half of it (default: 0.03)",
    },
    "record": {
        "action": "store_true",
        "help": "append the results of this run to history/<device>.jsonl of the reports, where `mlcomp history` "
        "looks for lasting changes",
    },
    "shard": {
        "metavar": "I/N",
        "help": "run part I of N; the parts take about equally long, by the times in the run.json files of the "
        "reports; `mlcomp merge` joins their reports",
    },
    "timeout": {
        "type": float,
        "metavar": "SECONDS",
        "help": "time limit of one item (default: the case's, else 120, for a benchmark 300, for a random program 300)",
    },
    "report": {
        "metavar": "DIR",
        "help": "folder of the reports, with a subfolder per device (default: reports beside pytest's configuration "
        "file, or else in the current folder; reports/.last if only a part of the suite runs)",
    },
    "backend": {
        "metavar": "NAME",
        "help": "check this torch.compile backend instead of mlcomp; only its results are checked",
    },
    "entry": {
        "choices": ("export", "compile"),
        "default": "export",
        "help": "how mlcomp gets a program: export (default): from torch.export, checked stage by stage; compile: "
        "through torch.compile(fullgraph=True), as users call it; then only results are checked, and running any op "
        "in eager is a failure",
    },
    "selftest": {
        "action": "store_true",
        "help": "also plant known miscompiles in every stage and report how many of them the checks catch",
    },
    "gate": {
        "action": "store_true",
        "help": "also compile every case for the GPUs in --mlcomp-target, or for sm_80, sm_90a and sm_120, without "
        "running it, and inspect the machine code: no spills, no local memory, no serialised instruction, and the "
        "instructions that the source asks for; -m mlcomp_gate runs only this",
    },
    "sanitizer": {
        "metavar": "LIST",
        "help": "run every case once on the GPU under these tools of compute-sanitizer, comma-separated: memcheck, "
        "racecheck (default: none)",
    },
    "instructions": {
        "action": "store_true",
        "help": "run alone: check every GPU instruction against its definition, on the CPU, on a GPU if there is one, "
        "and in machine code",
    },
    "fuzz": {
        "metavar": "N|SECONDS",
        "help": "run alone, unless shape files are named: compile and check N random programs, 25 per item, or as "
        "many as fit into a time (120s); findings are appended to fuzz.jsonl, and fuzz.md is written at the end",
    },
    "fuzz-what": {
        "metavar": "LIST",
        "help": "what to fuzz, comma-separated. Checks: graph (torch.compile against eager and f64), relation "
        "(results on transformed inputs against those on the original inputs), export (torch.export against eager, of "
        "every third program), schedule (random legal schedules of the kernels). Variations: shape, layout, gradient "
        "(default: all but schedule)",
    },
    "fuzz-only": {
        "metavar": "INDEX|FILE",
        "help": "run a single random program: the one of this number under --mlcomp-seed, or that of a program.json",
    },
    "fuzz-corpus": {
        "metavar": "DIR",
        "help": "derive more than half of the random programs from those in this folder, and add programs that reach "
        "a compiler rule that none in it reaches; later runs continue with it",
    },
    "opinfo": {
        "nargs": "?",
        "const": "check",
        "choices": ("check", "update"),
        "help": "run alone, unless shape files are named: run the samples of PyTorch's operator database (OpInfo) "
        "through torch.compile, forward and with gradients; an entry that has passed before must pass; =update "
        "records what passes now; the report is opinfo.md",
    },
    "onnx": {
        "nargs": "?",
        "const": "check",
        "choices": ("check", "update"),
        "help": "run alone, unless shape files are named: run ONNX's node tests, generated by the package onnx, "
        "through compiler.from_onnx; a test that has passed before must pass; =update records what passes now; the "
        "report is onnx.md",
    },
    "ops": {
        "metavar": "REGEX",
        "help": "restrict --mlcomp-opinfo and --mlcomp-onnx to entries NAME:TYPE in which this matches anywhere "
        "(default: all)",
    },
    "samples": {
        "type": int,
        "metavar": "N",
        "help": "how many samples of each OpInfo entry to run, evenly spaced; 0 for all (default: 4)",
    },
    "bisect": {
        "metavar": "CASE",
        "help": "run alone: find the commit that made this case, given as FILE::CASE, wrong, or slow if it is a "
        "benchmark, between --mlcomp-baseline REV (default: HEAD) and the working tree, and in it the pass, schedule "
        "steps and kernels",
    },
    "replay": {
        "metavar": "REV",
        "help": "run alone: compare what the compiler emits for every case of the shape files with what the compiler "
        "of a git revision emits, without running anything; any difference is a failure",
    },
    # Internal: the module whose check, bench and selftest functions run in the child; the plugin's own tests use it.
    "runner": {"metavar": "MODULE", "help": argparse.SUPPRESS},
}
MARKERS = (
    "mlcomp_check: one case on one target",
    "mlcomp_bench: one benchmark on one target",
    "mlcomp_fitness: whether timings on this machine are reliable enough to judge speed",
    "mlcomp_gate: the cases of one file compiled for GPUs, not run",
    "mlcomp_selftest: whether the checks catch planted miscompiles",
    "mlcomp_fuzz: a batch of random programs on one target",
    "mlcomp_opinfo: one entry of PyTorch's operator database in one dtype",
    "mlcomp_onnx: one of ONNX's node tests",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("mlcomp", "compiler conformance and speed (mlcomp)")
    group.addoption(
        "--mlcomp",
        action="store_true",
        help="collect the shape files named on the command line, or all shape files that ship with the plugin",
    )
    for name, option in OPTIONS.items():
        group.addoption(f"--mlcomp-{name}", **option)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Load the rest of the plugin with `--mlcomp`; without it, raise UsageError for any `--mlcomp-…` option."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    for name in OPTIONS:
        value = config.getoption(f"mlcomp_{name.replace('-', '_')}")
        # Such as `--mlcomp-replay "$REV"` without REV: a run that does not do what was asked for must not be green.
        if isinstance(value, str) and not value.strip():
            raise pytest.UsageError(f"--mlcomp-{name}: the value is empty; give one, or remove the option")
    if config.getoption("mlcomp_instructions"):
        config.pluginmanager.import_plugin("conformance.run.instructions")
        return
    if config.getoption("mlcomp"):
        _redetermine_root(config)
        # Imported by name, so that only a run with --mlcomp pays for it.
        exclusive = {"mlcomp_replay": "replay", "mlcomp_bisect": "bisecting"}
        work = next((module for option, module in exclusive.items() if config.getoption(option)), "session")
        config.pluginmanager.import_plugin(f"conformance.run.{work}")
        return
    unused = [word for word in config.invocation_params.args if str(word).startswith("--mlcomp-")]
    if unused:
        raise pytest.UsageError(f"{unused[0]} does nothing without --mlcomp: add it")


def _redetermine_root(config: pytest.Config) -> None:
    """Determine pytest's root folder, to which item ids are relative, again if an option's value was taken for a path.

    pytest determines the root before it loads plugins and knows their options, so it takes the value in
    `--mlcomp-report /there` for a path to collect. The functions used here are private to pytest; with a version that
    lacks them, the first root is kept.
    """
    words = [str(word) for word in config.invocation_params.args]
    values = [value for word, value in itertools.pairwise(words) if word.startswith("--mlcomp-")]
    here = config.invocation_params.dir
    is_fixed = config.option.rootdir or config.option.inifilename
    if is_fixed or not any(os.path.exists(here / value) for value in values if not value.startswith("-")):
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
