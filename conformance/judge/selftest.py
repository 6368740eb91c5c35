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
from conformance.judge.ladder import Ladder, StageResult
from conformance.judge.oracle import Verdict
from conformance.judge.subject import Truth
from conformance.shapes import files
from conformance.shapes.cases import Case

PLANTED = 2  # mutants in each stage of each case
DRAWN = 8  # mutants drawn for each one planted, as many do not change the results on the case's data
# The largest relative tolerance of an element; a row with larger ones would catch too little.
SHARP_TOLERANCE = {"f32": 2.0**-12, "bf16": 2.0**-5}
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
DULL_DISTRIBUTIONS = frozenset({"zeros", "ones", "specials", "extremes", "denormal", "huge"})


@dataclass(frozen=True)
class Unmutated:
    """A correct case, and the results of each of its stages."""

    truth: Truth
    ladder: Ladder
    results: Mapping[str, StageResult]


def run(options: Mapping[str, Any]) -> rows.SelfTest:
    """Run the self-test; `options` has targets and seed."""
    rng = random.Random(options["seed"])
    planted: list[rows.PlantedMutant] = []
    alarms: list[rows.Alarm] = []
    with ladder.threads(1), torch.no_grad():  # a forked process must not use threads
        for target in options["targets"]:
            for candidates in sample(rng):
                unmutated, false_alarms = _first_sharp_row(candidates, {**options, "target": target})
                alarms += false_alarms
                if unmutated is not None:
                    planted += [row for stage in unmutated.results for row in plant(unmutated, stage, rng)]
    return rows.SelfTest(rows=tuple(planted), alarms=tuple(alarms))


def sample(rng: random.Random) -> Iterator[list[Case]]:
    """Yield for each case of SAMPLE its usable rows, in random order."""
    folder = files.find_shapes() / "ops"
    for file, name, dtype in SAMPLE:
        expanded = files.expand(files.load(folder / f"{file}.toml"), "full")
        candidates = [c for c in expanded if c.id.startswith(f"{name}[") and c.dtype == dtype and _is_usable(c)]
        if not candidates:
            raise ValueError(f"shapes/ops/{file}.toml has no row of {name} in {dtype} that the self-test can use")
        rng.shuffle(candidates)
        yield candidates


def _is_usable(case: Case) -> bool:
    sizes = [torch.Size(arg.shape).numel() for arg in case.args]
    return case.distribution not in DULL_DISTRIBUTIONS and all(0 < n <= LARGEST for n in sizes) and max(sizes) > 1


def _first_sharp_row(candidates: list[Case], options: Mapping[str, Any]) -> tuple[Unmutated | None, list[rows.Alarm]]:
    """Return the first row with tight tolerances, and all false alarms of the rows tried."""
    alarms: list[rows.Alarm] = []
    for case in candidates:
        unmutated, false_alarms = _run_unmutated(case, options)
        alarms += false_alarms
        if unmutated is not None and not unmutated.truth.loose_share(SHARP_TOLERANCE.get(case.dtype, 0.0)):
            return unmutated, alarms
    return None, [*alarms, _alarm(candidates[0], options, None, "no row of this case is sharp enough")]


def _alarm(case: Case, options: Mapping[str, Any], stage: str | None, message: str) -> rows.Alarm:
    return rows.Alarm(target=options["target"], stage=stage, case=case.id, message=message)


def _run_unmutated(case: Case, options: Mapping[str, Any]) -> tuple[Unmutated | None, list[rows.Alarm]]:
    """Run the unmutated case; each stage that is refused is a false alarm."""
    results: dict[str, StageResult] = {}
    try:
        prepared = subject.prepare(case, options["seed"])
        lowered = ladder.climb(prepared.program, compiler.target(options["target"]))
        if lowered.error is not None:
            raise lowered.error
        truth = Truth(prepared, lowered.equations, compiler.accuracy(lowered.lowering))
    except Exception as error:  # a correct case that cannot even be compiled
        return None, [_alarm(case, options, None, f"{type(error).__name__}: {error}")]
    alarms = []
    for stage in compiler.stages(lowered.lowering.target):
        try:
            results[stage] = ladder.run(truth, lowered.lowering, stage, _patience(lowered.lowering, stage))
            verdict = ladder.verdict_on(truth, lowered.lowering, stage, results[stage])
        except Exception as error:
            verdict = Verdict(False, float("inf"), (), f"{type(error).__name__}: {error}")
        if not verdict.ok:
            results.pop(stage, None)
            alarms.append(_alarm(case, options, stage, verdict.message))
    return Unmutated(truth, lowered, results), alarms


def _patience(lowering: compiler.Lowering, stage: str) -> float:
    return PATIENCE if ladder.is_native(lowering.target, stage) else 0.0


def plant(unmutated: Unmutated, stage: str, rng: random.Random) -> Iterator[rows.PlantedMutant]:
    """Yield up to PLANTED mutants of one stage that compute something else, each with the result of the check."""
    program = unmutated.ladder.lowering.stages[stage]
    remaining = PLANTED
    for mutation, mutant in compiler.mutants(stage, program, rng, DRAWN * PLANTED):
        verdict = _verdict(unmutated, stage, mutant)
        if verdict is None:
            continue
        outcome = f"error over tolerance {verdict.err_over_tol:.3g}" if verdict.ok else verdict.message
        yield rows.PlantedMutant(
            target=unmutated.ladder.lowering.target.name, stage=stage, case=unmutated.truth.subject.case.id,
            mutation=mutation, caught=not verdict.ok, how=outcome,
        )  # fmt: skip
        remaining -= 1
        if not remaining:
            return


def _verdict(unmutated: Unmutated, stage: str, mutant: Any) -> Verdict | None:
    """Check a mutant; None if it does not count: bitwise equal results, or refused by the toolchain or by PyTorch."""
    lowering = unmutated.ladder.with_stage(stage, mutant)
    try:
        result = ladder.run(unmutated.truth, lowering, stage, _patience(lowering, stage))
    except compiler.ToolchainError:  # does not count: no pass renders text that the toolchain refuses
        return None
    except Exception as error:
        # An error of PyTorch's argument checks says nothing about our checks.
        caught = Verdict(False, float("inf"), (), f"{type(error).__name__}: {error}")
        return None if stage == "torch" else caught
    if not result.complaints and same(result, unmutated.results[stage]):
        return None
    return ladder.verdict_on(unmutated.truth, lowering, stage, result)


def same(a: StageResult, b: StageResult) -> bool:
    """Return whether two results are bitwise equal, except for payloads of NaN."""
    pairs = list(zip(a.outputs, b.outputs, strict=False))
    same_types = len(a.outputs) == len(b.outputs) and all(x.dtype == y.dtype and x.shape == y.shape for x, y in pairs)
    return same_types and all(oracle.exact(x, y).ok and torch.equal(x.signbit(), y.signbit()) for x, y in pairs)
