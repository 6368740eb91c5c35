"""Check a case: lower it, run every stage with its executor, and compare the results with the reference.

It runs in the child process, which generated code may crash. All other errors become failed stages.
"""

from __future__ import annotations

import copy
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import compiler
from conformance import rows
from conformance.judge import foreign, oracle, repro, sanitizer, subject, systems
from conformance.judge.oracle import Verdict
from conformance.judge.sanitizer import Watch
from conformance.judge.subject import Subject, Tensors, Truth
from conformance.rows import CaseResult, Stage
from conformance.shapes import cases, inputs
from conformance.shapes.cases import Case
from conformance.shapes.toml_values import CaseError, one_line

Tell = Callable[[str], None]

RUNS = 3  # executions of a text on the same buffers
INVALID = str(compiler.InvalidData())  # the complaint of a guarded execution about invalid data
EXECUTORS = {
    "torch": "PyTorch", "tensor": "NumPy, f64 and f32", "loop": "plain C++ loops", "tile": "NumPy, by tiles",
    "kernel": "Python, checked", "cpp": f"native, {RUNS} runs, guarded",
    "mlir": f"MLIR's own lowering, {RUNS} runs, guarded",
    "triton": f"Triton on a GPU, or its interpreter, {RUNS} runs, guarded",
}  # fmt: skip
EXECUTORS_OF_CUDA = EXECUTORS | {
    "kernel": "emulated, every access checked", "cuda": f"emulated, {RUNS} orders, guarded",
}  # fmt: skip
ON_GPU = f"GPU as {{}}, {RUNS} runs, guarded"
ON_GPU_WATCHED = "GPU as {}, under {}"
LOST_STATUS = 70  # exit status of a process that has lost its GPU


@dataclass(frozen=True)
class StageResult:
    """The results of a stage, and complaints about its execution, such as writes out of bounds."""

    outputs: Tensors
    complaints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ladder:
    """The lowering of a case: the stages reached, every pass application, and the error that ended it early, if any."""

    lowering: compiler.Lowering
    applications: tuple[compiler.Application, ...]
    error: Exception | None = None

    @property
    def equations(self) -> Any:
        """The Tensor IR program made directly from Torch IR, with the roundings between kernels; None if there is
        none."""
        first = next((a.after for a in self.applications if a.stage == "tensor"), None)
        return None if first is None else compiler.own_equations(self.lowering, first)

    @property
    def next_pass(self) -> Any:
        """The pass that failed: the one after the last application, or that one's pass if it was a step.

        A position, not a set of applied passes, because some are applied again after a schedule is given up.
        """
        passes = compiler.passes_for(self.lowering.target)
        if not self.applications:
            return passes[0]
        last = self.applications[-1]
        position = [p.name for p in passes].index(last.part_of or last.name)
        return passes[position if last.part_of else position + 1]

    @property
    def next_number(self) -> int:
        """The number of the application that failed; a pass has the number before those of its steps."""
        if not self.applications:
            return 1
        last = self.applications[-1]
        steps = [a.number for a in self.applications if last.part_of and a.part_of == last.part_of]
        return steps[0] - 1 if steps else max(a.number for a in self.applications) + 1

    def with_stage(self, stage: str, program: Any) -> compiler.Lowering:
        """Return the lowering with `program` in place of that stage."""
        return replace(self.lowering, stages={**self.lowering.stages, stage: program})


def check(case_json: Mapping[str, Any], options: Mapping[str, Any], tell: Tell = lambda stage: None) -> CaseResult:
    """Check one case and return its row. With the option `lost`, the row of a lost process, only write its files."""
    case = cases.from_json(case_json)
    with threads(options.get("threads", 1)), torch.no_grad():
        try:
            lowered_ahead = _lowered_ahead.pop(_key_of(case_json, options), None)
            prepared = lowered_ahead[0] if lowered_ahead else subject.prepare(case, options["seed"])
            backend = options.get("backend") or (systems.OURS if case.entry == "compile" else "")
            if backend:
                return _judge_backend(prepared, {**options, "backend": backend})
            ladder = lowered_ahead[1] if lowered_ahead else climb(prepared.program, compiler.target(options["target"]))
        except Exception as problem:  # of the case's module or program, or of the capture
            return unjudged(case, options["seed"], problem, "capture")
        if isinstance(ladder.error, compiler.Unsupported):
            return unjudged(case, options["seed"], ladder.error)
        if lost := options.get("lost"):
            return _with_dump(prepared, ladder, options, rows.from_json(CaseResult, lost))
        judge_function = judge_refusal if case.raises is not None else judge if case.dynamic is None else judge_all
        row = judge_function(prepared, ladder, options, tell)
        return replace(row, texts=repro.texts(ladder.lowering)) if options.get("texts") else row


_lowered_ahead: dict[str, tuple[Subject, Ladder]] = {}  # lowered by `lower_ahead`, not yet used by `check`


def lower_ahead(upcoming: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
    """Lower the cases that will be checked next, and build their texts if the target's tools build several at once.

    An error in one of them is ignored here and reported when it is checked.
    """
    _lowered_ahead.clear()
    with threads(options.get("threads", 1)), torch.no_grad():
        for case_json in upcoming:
            with suppress(Exception):
                prepared = subject.prepare(cases.from_json(case_json), options["seed"])
                _lowered_ahead[_key_of(case_json, options)] = (
                    prepared,
                    climb(prepared.program, compiler.target(options["target"])),
                )
        compiler.build_together([ladder.lowering for _, ladder in _lowered_ahead.values()])


def _key_of(case_json: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    return json.dumps((case_json, options["seed"], options["target"]), sort_keys=True, default=str)


def unjudged(case: Case, seed: int, problem: Exception, culprit: str | None = None) -> CaseResult:
    """Return the row of a case that cannot be judged; its shape file is to blame if PyTorch cannot run it."""
    fault: Exception | None = problem if isinstance(problem, CaseError) else None
    if fault is None and case.expr:  # a case given as a graph has no expression
        fault = inputs.fault(case, seed)
    if fault is not None:
        return CaseResult(detail=str(fault))
    if isinstance(problem, compiler.Unsupported):
        return CaseResult(verdict="unsupported", detail=str(problem))
    is_own_error = isinstance(problem, compiler.CompilerError)  # its message suffices without a traceback
    trace = "" if is_own_error else "\n" + "".join(traceback.format_exception(problem, limit=-4))
    detail = (str(problem) if is_own_error else one_line(problem)) + trace
    return CaseResult(first_bad_stage="torch", first_bad_pass=culprit, detail=detail)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of threads of torch and our kernels."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


def climb(program: Any, target: compiler.Target, schedules: Mapping[str, Any] | None = None) -> Ladder:
    """Lower a program as far as possible; an error ends it and is stored in the result."""
    applications: list[compiler.Application] = []
    try:
        lowering = compiler.lower(program, target, schedules, trace=applications.append)
        return Ladder(lowering, tuple(applications))
    except Exception as error:  # an error of a pass is a failure of the stage that it should have made
        stages = {"torch": program} | {a.stage: a.after for a in applications}
        return Ladder(compiler.Lowering(stages, target, {}), tuple(applications), error)


def judge_all(prepared: Subject, ladder: Ladder, options: Mapping[str, Any], tell: Tell) -> CaseResult:
    """Judge a case with dynamic sizes, lowered once, at each of its sizes; stages have the worst error of all sizes."""
    judged, points = [], list(subject.points(prepared, options["seed"]))
    for point in points:
        row = judge(point, ladder, options, tell)
        if row.verdict != "pass":
            return replace(row, detail=f"at {subject.sizes_text(point)}: {row.detail}")
        judged.append(row)
    # Under a sanitizer, the same code has already run at the same sizes.
    complaint = "" if options.get("sanitizer") else judge_compiled_calls(prepared, points, ladder)
    if complaint:
        last = cases.stages_of(options["target"])[-1]
        return replace(judged[-1], verdict="fail", first_bad_stage=last, detail=complaint)
    return replace(
        judged[0],
        stages=tuple(map(_worst_stage, zip(*(row.stages for row in judged), strict=True))),
        detail="\n".join(dict.fromkeys(row.detail for row in judged if row.detail)),
    )


def judge_compiled_calls(prepared: Subject, points: Sequence[Subject], ladder: Ladder) -> str:
    """Compile the function once and call it at all sizes; returns what is wrong, or ""."""
    target = ladder.lowering.target
    shapes = subject.dynamic_shapes(prepared.case)
    compiled = compiler.compile(prepared.function, prepared.arguments, target, dynamic_shapes=shapes)
    for point in (*points, points[0]):
        arguments = [x.cuda() for x in point.arguments] if compiler.on_gpu(target) else point.arguments
        verdict = Truth(point, ladder.equations, compiler.accuracy(ladder.lowering)).judge(
            [x.cpu() for x in point.leaves(compiled(*arguments))]
        )
        if not verdict.ok:
            return f"the function that was compiled once, called at {subject.sizes_text(point)}: {verdict.message}"
    return ""


def _worst_stage(stages: Sequence[Stage]) -> Stage:
    """Return the row with the largest error among those of a stage at several sizes, with the sum of their times."""
    worst = max(stages, key=lambda row: -1.0 if row.err_over_tol is None else row.err_over_tol)
    return replace(worst, seconds=round(sum(row.seconds or 0.0 for row in stages), 4))


def judge(prepared: Subject, ladder: Ladder, options: Mapping[str, Any], tell: Tell) -> CaseResult:
    """Run the requested stages and return the row, with the first bad stage and the pass that caused it."""
    watch = sanitizer.watch(**options["sanitizer"]) if options.get("sanitizer") else None
    # Not on the GPU under a sanitizer, which would watch PyTorch's kernels as well.
    try:
        truth = _reference_and_bounds(
            prepared, ladder, on_gpu=watch is None and compiler.on_gpu(ladder.lowering.target)
        )
    except Exception as problem:  # the case's own function, a lowering or the reference fails: nothing can be judged
        return replace(unjudged(prepared.case, options.get("seed", 0), problem), fallbacks=_fallbacks(ladder))
    stages = _judge_stages(ladder, options, tell, watch, lambda stage: assess(truth, ladder.lowering, stage, watch))
    row = _case_row(ladder, stages, _remarks(prepared, truth, stages))
    if row.first_bad_stage is None:
        return row
    row = row if watch else replace(row, first_bad_pass=blamed_application(truth, ladder, row.first_bad_stage))
    return _with_dump(prepared, ladder, options, row) if options.get("dump") else row


def _remarks(prepared: Subject, truth: Truth, stages: Sequence[Stage]) -> list[str]:
    """Return remarks on eager's error and on loose bounds; if a stage has failed, there may be no bounds at all."""
    remarks = []
    try:
        eager, undecided = truth.judge_within(prepared.eager, truth.eager_bounds).err_over_tol, truth.loose_share(1.0)
    except Exception as problem:
        if all(row.verdict == "pass" for row in stages):
            raise
        return [f"there are no bounds: {type(problem).__name__}: {problem}"]
    if eager > 1:
        remarks.append(f"eager itself is {eager:.3g} times its own bound from the reference")
    if undecided > 0:
        remarks.append(f"rounding may change {undecided:.1%} of the elements to anything of their size")
    return remarks


def _fallbacks(ladder: Ladder) -> tuple[str, ...]:
    return tuple(f"{fallback.kernel}: {fallback.reason}" for fallback in ladder.lowering.fallbacks)


def _judge_stages(
    ladder: Ladder, options: Mapping[str, Any], tell: Tell, watch: Watch | None, verdict: Callable[[str], Verdict]
) -> tuple[Stage, ...]:
    """Judge the requested stages that were reached; the last row is that of the stage whose pass failed, if any."""
    target, judged = ladder.lowering.target, []
    all_stages = compiler.stages(target)
    for stage in [s for s in all_stages if s in ladder.lowering.stages and s in options.get("stages", all_stages)]:
        tell(stage)
        start = time.perf_counter()
        judged.append(oracle.row(stage, verdict(stage), executor(target, stage, watch), start))
    if ladder.error is None:
        return tuple(judged)
    unreached = _unreached_stage(ladder)
    return (*(row for row in judged if row.stage != unreached.stage), unreached)


def _case_row(ladder: Ladder, stages: tuple[Stage, ...], remarks: Sequence[str] = ()) -> CaseResult:
    """Return the row of a case from its stages."""
    fallbacks = _fallbacks(ladder)
    first_bad = next((row for row in stages if row.verdict != "pass"), None)
    if first_bad is None:
        return CaseResult(verdict="pass", stages=stages, detail="\n".join(remarks), fallbacks=fallbacks)
    detail = "\n".join((*remarks, f"{first_bad.stage}: {first_bad.message}"))
    return CaseResult(first_bad_stage=first_bad.stage, stages=stages, detail=detail, fallbacks=fallbacks)


def _with_dump(prepared: Subject, ladder: Ladder, options: Mapping[str, Any], row: CaseResult) -> CaseResult:
    return replace(row, repro=repro.dump(Path(options["dump"]), prepared, ladder.lowering, row))


def judge_refusal(prepared: Subject, ladder: Ladder, options: Mapping[str, Any], tell: Tell) -> CaseResult:
    """Check a case that eager refuses: every stage and the compiled function must raise the same exception."""
    expected = str(prepared.case.raises)
    watch = sanitizer.watch(**options["sanitizer"]) if options.get("sanitizer") else None
    complaint = _exception_complaint(expected, lambda: prepared.function(*prepared.arguments))
    if complaint:
        return CaseResult(detail=str(CaseError(prepared.case, "raises", f"PyTorch itself {complaint}")))

    def verdict(stage: str) -> Verdict:
        message = _refusal_complaint(prepared, ladder.lowering, stage, expected, watch)
        return Verdict(not message, math.nan, (), message)  # no value is compared

    return _case_row(ladder, _judge_stages(ladder, options, tell, watch, verdict))


def _refusal_complaint(
    prepared: Subject, lowering: compiler.Lowering, stage: str, expected: str, watch: Watch | None
) -> str:
    """Return how a stage fails to raise the exception `expected`; "" if it raises it.

    A text runs on guarded buffers, then as a compiled function.
    """
    if not is_native(lowering.target, stage):
        return _exception_complaint(expected, lambda: compiler.execute(lowering, stage, prepared.tensors))
    runs = 1 if stage == "kernel" or watch else RUNS
    outcome = compiler.execute_guarded(lowering, prepared.tensors, runs, stage=stage, apart=watch is not None)
    complaints = [c for c in outcome.complaints if c != INVALID] + list(watch.findings() if watch else ())
    if complaints or INVALID not in outcome.complaints:
        return "\n".join(complaints) or f"found nothing wrong with the data, and should raise {expected}"
    if stage == "kernel" or watch:
        return ""
    target, function, arguments = lowering.target, prepared.function, prepared.arguments
    if compiler.on_gpu(target):
        function = copy.deepcopy(function).cuda() if isinstance(function, torch.nn.Module) else function
        arguments = tuple(x.cuda() for x in arguments)
    compiled = compiler.compile(function, arguments, target, check_indices="sync")
    return _exception_complaint(expected, lambda: compiled(*arguments))


def _exception_complaint(expected: str, call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        actual = type(error).__name__
        return "" if actual == expected else f"raises {actual} ({error}), and should raise {expected}"
    return f"raises nothing, and should raise {expected}"


def _reference_and_bounds(prepared: Subject, ladder: Ladder, on_gpu: bool) -> Truth:
    """Return the reference and the bounds; raises the lowering's error if there are no equations."""
    if ladder.equations is None:
        raise ladder.error or ValueError("torch-to-tensor gave nothing")
    return Truth(prepared, ladder.equations, compiler.accuracy(ladder.lowering), on_gpu)


def _unreached_stage(ladder: Ladder) -> Stage:
    """Return the row of the stage whose pass failed."""
    culprit = ladder.next_pass
    message = f"pass {culprit.name} raised {type(ladder.error).__name__}: {ladder.error}"
    return Stage(stage=culprit.result, seconds=0.0, message=message)


def assess(truth: Truth, lowering: compiler.Lowering, stage: str, watch: Watch | None = None) -> Verdict:
    """Run one stage and judge it; an error is a failure with its message."""
    try:
        result = run(truth, lowering, stage) if watch is None else run_watched(truth, lowering, stage, watch)
        return verdict_on(truth, lowering, stage, result)
    except Exception as error:  # executors check their programs and raise
        if getattr(error, "lost", False):
            _exit_lost(error)
        return Verdict(False, float("inf"), (), f"{type(error).__name__}: {error}")


def executor(target: compiler.Target, stage: str, watch: Watch | None = None) -> str:
    """Return the name of the executor of a stage."""
    if target.kind != "cuda":
        return EXECUTORS[stage]
    arch = compiler.architecture(target) if stage == "cuda" else None
    if arch is None:
        return EXECUTORS_OF_CUDA[stage]
    return ON_GPU_WATCHED.format(arch, watch.tool) if watch else ON_GPU.format(arch)


def _exit_lost(error: Exception) -> None:
    """End this process, which has lost its GPU, so that the next case gets a new one; this also ends a hung kernel."""
    print(error, file=sys.stderr, flush=True)
    os._exit(LOST_STATUS)


def run(truth: Truth, lowering: compiler.Lowering, stage: str, patience: float = 0.0) -> StageResult:
    """Run a stage; a text runs RUNS times on guarded buffers.

    If `patience` is not 0, native code runs in a child process with this time limit in seconds.
    """
    tensors = truth.subject.tensors
    if not is_native(lowering.target, stage):
        return StageResult(compiler.execute(lowering, stage, tensors))
    runs = 1 if stage == "kernel" else RUNS  # the emulator's checks do not depend on the order of threads
    outcome = compiler.execute_guarded(lowering, tensors, runs, patience, stage=stage)
    complaints = list(outcome.complaints)
    if not outcome.same and truth.tolerance.deterministic:
        complaints.append(f"{RUNS} runs on the same inputs gave different results")
    return StageResult(outcome.outputs, tuple(complaints))


def run_watched(truth: Truth, lowering: compiler.Lowering, stage: str, watch: Watch) -> StageResult:
    """Run a stage once on the GPU under the sanitizer of this process; its findings become complaints."""
    try:
        outcome = compiler.execute_guarded(lowering, truth.subject.tensors, runs=1, stage=stage, apart=True)
    except compiler.CompilerError as error:
        # The sanitizer's report says more than the resulting error, and must be printed before this process ends.
        report = "\n".join((*watch.findings(), str(error)))
        print(report, file=sys.stderr, flush=True)
        raise compiler.CompilerError(report) from error
    return StageResult(outcome.outputs, (*outcome.complaints, *watch.findings()))


def is_native(target: compiler.Target, stage: str) -> bool:
    """Return whether a stage runs as native code, which may crash or hang."""
    return stage in ("cpp", "cuda", "mlir", "triton") or (stage == "kernel" and target.kind == "cuda")


def verdict_on(truth: Truth, lowering: compiler.Lowering, stage: str, result: StageResult) -> Verdict:
    """Judge the results and complaints of a stage."""
    if result.complaints:
        return Verdict(False, float("inf"), (), "\n".join(result.complaints))
    if stage == "torch":
        # The same kernels run on the same numbers: only decompositions made during capture may differ from eager.
        equals_eager = all(oracle.exact(a, b).ok for a, b in zip(result.outputs, truth.subject.eager, strict=True))
        eager_verdict = (
            Verdict(True, 0.0) if equals_eager else truth.judge_within(result.outputs, truth.bounds_around_eager)
        )
        # Gradient kernels are decomposed into other formulas, whose roundings may be smaller than eager's.
        return (
            eager_verdict
            if eager_verdict.ok or not truth.is_faithful
            else truth.judge_within(result.outputs, truth.eager_bounds)
        )
    verdict = truth.judge(result.outputs)
    if verdict.ok and stage == "tensor":
        algebra_verdict = truth.judge_algebra(lowering.stages["tensor"])
        return algebra_verdict if not algebra_verdict.ok else verdict
    return verdict


def blamed_application(truth: Truth, ladder: Ladder, stage: str) -> str | None:
    """Return the first pass application, as name#number, whose result is wrong when run as this stage; or None."""
    if stage == "torch":
        return "capture"
    for application in ladder.applications:
        if application.stage == stage and not assess(truth, ladder.with_stage(stage, application.after), stage).ok:
            return f"{application.name}#{application.number}"
    if ladder.error is not None:
        return f"{ladder.next_pass.name}#{ladder.next_number}"
    return None


def _judge_backend(prepared: Subject, options: Mapping[str, Any]) -> CaseResult:
    """Check a case through a torch.compile backend; only its results are judged."""
    stage = foreign.judge(prepared, options["backend"], options["target"], options["seed"])
    if stage.verdict == "pass":
        return CaseResult(verdict="pass", stages=(stage,))
    return CaseResult(first_bad_stage=stage.stage, stages=(stage,), detail=stage.message)
