"""The self-test: plant random miscompiles in every stage and count how many the checks of `ladder.py` catch.

A mutant counts if, on the case's data, its results differ from the correct stage's in any bit. Places are drawn
uniformly over the elements of a program, so the share caught estimates the probability that a random miscompile is
caught.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import compiler
from conformance import rows
from conformance.judge import ladder, oracle, subject
from conformance.judge.ladder import Ladder, Made
from conformance.judge.oracle import Verdict
from conformance.judge.subject import Truth
from conformance.shapes import files
from conformance.shapes.cases import Case

PLANTED = 2  # mutants in each stage of each case
DRAWN = 8  # mutants drawn for each one planted, as many do not change the results on the case's data
# The largest relative tolerance of an element; a row with larger ones would catch too little.
SHARP = {"f32": 2.0**-12, "bf16": 2.0**-5}
PATIENCE = 10.0  # time limit in seconds of a mutant's native code, in a child process
LARGEST = 20_000  # most elements of an argument
# The cases used: shape file, name, dtype. The run's seed decides which of their rows.
SAMPLE = (
    ("softmax", "softmax", "f32"), ("norm", "layer_norm", "f32"), ("norm", "rms_norm", "bf16"),
    ("matmul", "linear.epilogue", "f32"), ("matmul", "addmm", "f32"), ("matmul", "matmul.int", "i32"),
    ("conv", "conv2d", "f32"), ("activation", "gelu", "f32"), ("scan", "cumsum", "f32"), ("scan", "cumsum", "i64"),
    ("index", "gather", "f32"), ("index", "scatter_add", "f32"), ("index", "embedding", "bf16"),
    ("reduce", "argmax", "f32"), ("reduce", "var.unbiased", "f32"), ("pad", "pad", "f32"), ("join", "cat", "f32"),
    ("attention", "scaled_dot_product_attention", "f32"), ("select", "where", "f32"),
)  # fmt: skip
# Distributions of data that hide many miscompiles by their nature.
DULL = frozenset({"zeros", "ones", "specials", "extremes", "denormal", "huge"})


@dataclass(frozen=True)
class Sound:
    """A correct case, and the results of each of its stages."""

    truth: Truth
    ladder: Ladder
    made: Mapping[str, Made]


def run(options: Mapping[str, Any]) -> rows.SelfTest:
    """Run the self-test; `options` has targets and seed."""
    rng = random.Random(options["seed"])
    planted: list[rows.Planted] = []
    alarms: list[rows.Alarm] = []
    with ladder.threads(1), torch.no_grad():  # a forked process must not use threads
        for target in options["targets"]:
            for fitting in sample(rng):
                sound, wrong = _sharp(fitting, {**options, "target": target})
                alarms += wrong
                if sound is not None:
                    planted += [row for stage in sound.made for row in plant(sound, stage, rng)]
    return rows.SelfTest(rows=tuple(planted), alarms=tuple(alarms))


def sample(rng: random.Random) -> Iterator[list[Case]]:
    """Yield for each case of SAMPLE its usable rows, in random order."""
    folder = files.find_shapes() / "ops"
    for file, name, dtype in SAMPLE:
        every = files.expand(files.load(folder / f"{file}.toml"), "full")
        fitting = [c for c in every if c.id.startswith(f"{name}[") and c.dtype == dtype and _telling(c)]
        if not fitting:
            raise ValueError(f"shapes/ops/{file}.toml has no row of {name} in {dtype} that the self-test can use")
        rng.shuffle(fitting)
        yield fitting


def _telling(case: Case) -> bool:
    sizes = [torch.Size(arg.shape).numel() for arg in case.args]
    return case.distribution not in DULL and all(0 < n <= LARGEST for n in sizes) and max(sizes) > 1


def _sharp(fitting: list[Case], options: Mapping[str, Any]) -> tuple[Sound | None, list[rows.Alarm]]:
    """Return the first row with tight tolerances, and all false alarms of the rows tried."""
    alarms: list[rows.Alarm] = []
    for case in fitting:
        sound, wrong = _sound(case, options)
        alarms += wrong
        if sound is not None and not sound.truth.share(SHARP.get(case.dtype, 0.0)):
            return sound, alarms
    return None, [*alarms, _alarm(fitting[0], options, None, "no row of this case is sharp enough")]


def _alarm(case: Case, options: Mapping[str, Any], stage: str | None, message: str) -> rows.Alarm:
    return rows.Alarm(target=options["target"], stage=stage, case=case.id, message=message)


def _sound(case: Case, options: Mapping[str, Any]) -> tuple[Sound | None, list[rows.Alarm]]:
    """Run the unmutated case; each stage that is refused is a false alarm."""
    made: dict[str, Made] = {}
    try:
        whole = subject.prepare(case, options["seed"])
        climbed = ladder.climb(whole.program, compiler.target(options["target"]))
        if climbed.error is not None:
            raise climbed.error
        truth = Truth(whole, climbed.equations, compiler.accuracy(climbed.lowering))
    except Exception as error:  # a correct case that cannot even be compiled
        return None, [_alarm(case, options, None, f"{type(error).__name__}: {error}")]
    alarms = []
    for stage in compiler.stages(climbed.lowering.target):
        try:
            made[stage] = ladder.run(truth, climbed.lowering, stage, _patience(climbed.lowering, stage))
            verdict = ladder.verdict_on(truth, climbed.lowering, stage, made[stage])
        except Exception as error:
            verdict = Verdict(False, float("inf"), (), f"{type(error).__name__}: {error}")
        if not verdict.ok:
            made.pop(stage, None)
            alarms.append(_alarm(case, options, stage, verdict.message))
    return Sound(truth, climbed, made), alarms


def _patience(lowering: compiler.Lowering, stage: str) -> float:
    return PATIENCE if ladder.is_native(lowering.target, stage) else 0.0


def plant(sound: Sound, stage: str, rng: random.Random) -> Iterator[rows.Planted]:
    """Yield up to PLANTED mutants of one stage that compute something else, each with the result of the check."""
    program = sound.ladder.lowering.stages[stage]
    left = PLANTED
    for mutation, mutant in compiler.mutants(stage, program, rng, DRAWN * PLANTED):
        verdict = _verdict(sound, stage, mutant)
        if verdict is None:
            continue
        said = f"error over tolerance {verdict.err_over_tol:.3g}" if verdict.ok else verdict.message
        yield rows.Planted(
            target=sound.ladder.lowering.target.name, stage=stage, case=sound.truth.subject.case.id, mutation=mutation,
            caught=not verdict.ok, how=said,
        )  # fmt: skip
        left -= 1
        if not left:
            return


def _verdict(sound: Sound, stage: str, mutant: Any) -> Verdict | None:
    """Check a mutant; None if it does not count: bitwise equal results, or refused by the toolchain or by PyTorch."""
    lowering = sound.ladder.at(stage, mutant)
    try:
        made = ladder.run(sound.truth, lowering, stage, _patience(lowering, stage))
    except compiler.ToolchainError:  # does not count: no pass renders text that the toolchain refuses
        return None
    except Exception as error:
        # An error of PyTorch's argument checks says nothing about our checks.
        caught = Verdict(False, float("inf"), (), f"{type(error).__name__}: {error}")
        return None if stage == "torch" else caught
    if not made.complaints and same(made, sound.made[stage]):
        return None
    return ladder.verdict_on(sound.truth, lowering, stage, made)


def same(a: Made, b: Made) -> bool:
    """Return whether two results are bitwise equal, except for payloads of NaN."""
    pairs = list(zip(a.outputs, b.outputs, strict=False))
    alike = len(a.outputs) == len(b.outputs) and all(x.dtype == y.dtype and x.shape == y.shape for x, y in pairs)
    return alike and all(oracle.exact(x, y).ok and torch.equal(x.signbit(), y.signbit()) for x, y in pairs)
