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
from conformance.rows import Judged, Stage
from conformance.shapes import cases, inputs
from conformance.shapes.cases import Case
from conformance.shapes.toml_values import CaseError, briefly

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
WATCHED = "GPU as {}, under {}"
LOST = 70  # exit status of a process that has lost its GPU


@dataclass(frozen=True)
class Made:
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
        every = compiler.passes_for(self.lowering.target)
        if not self.applications:
            return every[0]
        last = self.applications[-1]
        done = [p.name for p in every].index(last.part_of or last.name)
        return every[done if last.part_of else done + 1]

    @property
    def next_number(self) -> int:
        """The number of the application that failed; a pass has the number before those of its steps."""
        if not self.applications:
            return 1
        last = self.applications[-1]
        steps = [a.number for a in self.applications if last.part_of and a.part_of == last.part_of]
        return steps[0] - 1 if steps else max(a.number for a in self.applications) + 1

    def at(self, stage: str, program: Any) -> compiler.Lowering:
        """Return the lowering with `program` in place of that stage."""
        return replace(self.lowering, stages={**self.lowering.stages, stage: program})


def check(case_json: Mapping[str, Any], options: Mapping[str, Any], tell: Tell = lambda stage: None) -> Judged:
    """Check one case and return its row. With the option `lost`, the row of a lost process, only write its files."""
    case = cases.from_json(case_json)
    with threads(options.get("threads", 1)), torch.no_grad():
        try:
            ready = _ready.pop(_key(case_json, options), None)
            made = ready[0] if ready else subject.prepare(case, options["seed"])
            backend = options.get("backend") or (systems.OURS if case.entry == "compile" else "")
            if backend:
                return _foreign(made, {**options, "backend": backend})
            ladder = ready[1] if ready else climb(made.program, compiler.target(options["target"]))
        except compiler.Unsupported as refusal:
            return Judged(verdict="unsupported", detail=str(refusal))
        except Exception as problem:  # of the case's module or program, or of the capture
            return unjudged(case, options["seed"], problem, "capture")
        if isinstance(ladder.error, compiler.Unsupported):
            return Judged(verdict="unsupported", detail=str(ladder.error))
        if lost := options.get("lost"):
            return _dumped(made, ladder, options, rows.from_json(Judged, lost))
        how = refused if case.raises is not None else judge if case.dynamic is None else judge_all
        row = how(made, ladder, options, tell)
        return replace(row, texts=repro.texts(ladder.lowering)) if options.get("texts") else row


_ready: dict[str, tuple[Subject, Ladder]] = {}  # lowered by `ahead`, not yet used by `check`


def ahead(found: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
    """Lower the cases that will be checked next, and build their texts if the target's tools build several at once.

    An error in one of them is ignored here and reported when it is checked.
    """
    _ready.clear()
    with threads(options.get("threads", 1)), torch.no_grad():
        for case_json in found:
            with suppress(Exception):
                made = subject.prepare(cases.from_json(case_json), options["seed"])
                _ready[_key(case_json, options)] = made, climb(made.program, compiler.target(options["target"]))
        compiler.build_together([ladder.lowering for _, ladder in _ready.values()])


def _key(case_json: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    return json.dumps((case_json, options["seed"], options["target"]), sort_keys=True, default=str)


def unjudged(case: Case, seed: int, problem: Exception, culprit: str | None = None) -> Judged:
    """Return the row of a case that cannot be judged; its shape file is to blame if PyTorch cannot run it either."""
    fault: Exception | None = problem if isinstance(problem, CaseError) else None
    if fault is None and case.expr:  # a case given as a graph has no expression
        fault = inputs.fault(case, seed)
    if fault is not None:
        return Judged(detail=str(fault))
    plain = isinstance(problem, compiler.CompilerError)  # its message suffices without a traceback
    said = "" if plain else "\n" + "".join(traceback.format_exception(problem, limit=-4))
    detail = (str(problem) if plain else briefly(problem)) + said
    return Judged(first_bad_stage="torch", first_bad_pass=culprit, detail=detail)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of threads of torch and our kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def climb(program: Any, target: compiler.Target, schedules: Mapping[str, Any] | None = None) -> Ladder:
    """Lower a program as far as possible; an error ends it and is stored in the result."""
    applications: list[compiler.Application] = []
    try:
        lowering = compiler.lower(program, target, schedules, trace=applications.append)
        return Ladder(lowering, tuple(applications))
    except Exception as error:  # an error of a pass is a failure of the stage that it should have made
        stages = {"torch": program} | {a.stage: a.after for a in applications}
        return Ladder(compiler.Lowering(stages, target, {}), tuple(applications), error)


def judge_all(made: Subject, ladder: Ladder, options: Mapping[str, Any], tell: Tell) -> Judged:
    """Judge a case with dynamic sizes, lowered once, at each of its sizes; stages have the worst error of all sizes."""
    found, points = [], list(subject.points(made, options["seed"]))
    for at in points:
        row = judge(at, ladder, options, tell)
        if row.verdict != "pass":
            return replace(row, detail=f"at {subject.sizes(at)}: {row.detail}")
        found.append(row)
    # Under a sanitizer, the same code has already run at the same sizes.
    wrong = "" if options.get("sanitizer") else called(made, points, ladder)
    if wrong:
        last = cases.stages_of(options["target"])[-1]
        return replace(found[-1], verdict="fail", first_bad_stage=last, detail=wrong)
    return replace(
        found[0],
        stages=tuple(map(_worst, zip(*(row.stages for row in found), strict=True))),
        detail="\n".join(dict.fromkeys(row.detail for row in found if row.detail)),
    )


def called(made: Subject, points: Sequence[Subject], ladder: Ladder) -> str:
    """Compile the function once and call it at all sizes; returns what is wrong, or ""."""
    target = ladder.lowering.target
    shapes = subject.dynamic_shapes(made.case)
    compiled = compiler.compile(made.function, made.arguments, target, dynamic_shapes=shapes)
    for at in (*points, points[0]):
        arguments = [x.cuda() for x in at.arguments] if compiler.on_gpu(target) else at.arguments
        found = Truth(at, ladder.equations, compiler.accuracy(ladder.lowering)).judge(
            [x.cpu() for x in at.leaves(compiled(*arguments))]
        )
        if not found.ok:
            return f"the function that was compiled once, called at {subject.sizes(at)}: {found.message}"
    return ""


def _worst(stages: Sequence[Stage]) -> Stage:
    """Return the row with the largest error among those of a stage at several sizes, with the sum of their times."""
    kept = max(stages, key=lambda row: -1.0 if row.err_over_tol is None else row.err_over_tol)
    return replace(kept, seconds=round(sum(row.seconds or 0.0 for row in stages), 4))


def judge(made: Subject, ladder: Ladder, options: Mapping[str, Any], tell: Tell) -> Judged:
    """Run the requested stages and return the row, with the first bad stage and the pass that caused it."""
    watch = sanitizer.watch(**options["sanitizer"]) if options.get("sanitizer") else None
    # Not on the GPU under a sanitizer, which would watch PyTorch's kernels as well.
    try:
        truth = _truth(made, ladder, on_gpu=watch is None and compiler.on_gpu(ladder.lowering.target))
    except Exception as problem:  # the case's own function, a lowering or the reference fails: nothing can be judged
        return replace(unjudged(made.case, options.get("seed", 0), problem), fallbacks=_fallbacks(ladder))
    stages = _each(ladder, options, tell, watch, lambda stage: assess(truth, ladder.lowering, stage, watch))
    row = _judged(ladder, stages, _remarks(made, truth, stages))
    if row.first_bad_stage is None:
        return row
    row = row if watch else replace(row, first_bad_pass=guilty(truth, ladder, row.first_bad_stage))
    return _dumped(made, ladder, options, row) if options.get("dump") else row


def _remarks(made: Subject, truth: Truth, stages: Sequence[Stage]) -> list[str]:
    """Return remarks on eager's error and on loose bounds; if a stage has failed, there may be no bounds at all."""
    remarks = []
    try:
        eager, undecided = truth.within(made.eager, truth.eagers).err_over_tol, truth.share(1.0)
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
    return tuple(f"{given_up.kernel}: {given_up.reason}" for given_up in ladder.lowering.fallbacks)


def _each(
    ladder: Ladder, options: Mapping[str, Any], tell: Tell, watch: Watch | None, verdict: Callable[[str], Verdict]
) -> tuple[Stage, ...]:
    """Judge the requested stages that were reached; the last row is that of the stage whose pass failed, if any."""
    target, found = ladder.lowering.target, []
    every = compiler.stages(target)
    for stage in [s for s in every if s in ladder.lowering.stages and s in options.get("stages", every)]:
        tell(stage)
        start = time.perf_counter()
        found.append(oracle.row(stage, verdict(stage), executor(target, stage, watch), start))
    if ladder.error is None:
        return tuple(found)
    lost = _unreached(ladder)
    return (*(row for row in found if row.stage != lost.stage), lost)


def _judged(ladder: Ladder, stages: tuple[Stage, ...], remarks: Sequence[str] = ()) -> Judged:
    """Return the row of a case from its stages."""
    given_up = _fallbacks(ladder)
    bad = next((row for row in stages if row.verdict != "pass"), None)
    if bad is None:
        return Judged(verdict="pass", stages=stages, detail="\n".join(remarks), fallbacks=given_up)
    detail = "\n".join((*remarks, f"{bad.stage}: {bad.message}"))
    return Judged(first_bad_stage=bad.stage, stages=stages, detail=detail, fallbacks=given_up)


def _dumped(made: Subject, ladder: Ladder, options: Mapping[str, Any], row: Judged) -> Judged:
    return replace(row, repro=repro.dump(Path(options["dump"]), made, ladder.lowering, row))


def refused(made: Subject, ladder: Ladder, options: Mapping[str, Any], tell: Tell) -> Judged:
    """Check a case that eager refuses: every stage and the compiled function must raise the same exception."""
    wanted = str(made.case.raises)
    watch = sanitizer.watch(**options["sanitizer"]) if options.get("sanitizer") else None
    wrong = _not_raised(wanted, lambda: made.function(*made.arguments))
    if wrong:
        return Judged(first_bad_stage="torch", detail=f"eager itself {wrong}")

    def verdict(stage: str) -> Verdict:
        said = _not_refused(made, ladder.lowering, stage, wanted, watch)
        return Verdict(not said, math.nan, (), said)  # no value is compared

    return _judged(ladder, _each(ladder, options, tell, watch, verdict))


def _not_refused(made: Subject, lowering: compiler.Lowering, stage: str, wanted: str, watch: Watch | None) -> str:
    """Return how a stage fails to raise the exception `wanted`; "" if it raises it.

    A text runs on guarded buffers, then as a compiled function.
    """
    if not is_native(lowering.target, stage):
        return _not_raised(wanted, lambda: compiler.execute(lowering, stage, made.tensors))
    runs = 1 if stage == "kernel" or watch else RUNS
    outcome = compiler.execute_guarded(lowering, made.tensors, runs, stage=stage, apart=watch is not None)
    said = [c for c in outcome.complaints if c != INVALID] + list(watch.findings() if watch else ())
    if said or INVALID not in outcome.complaints:
        return "\n".join(said) or f"found nothing wrong with the data, and should raise {wanted}"
    if stage == "kernel" or watch:
        return ""
    target, function, arguments = lowering.target, made.function, made.arguments
    if compiler.on_gpu(target):
        function = copy.deepcopy(function).cuda() if isinstance(function, torch.nn.Module) else function
        arguments = tuple(x.cuda() for x in arguments)
    compiled = compiler.compile(function, arguments, target, check_indices="sync")
    return _not_raised(wanted, lambda: compiled(*arguments))


def _not_raised(wanted: str, call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        got = type(error).__name__
        return "" if got == wanted else f"raises {got} ({error}), and should raise {wanted}"
    return f"raises nothing, and should raise {wanted}"


def _truth(made: Subject, ladder: Ladder, on_gpu: bool) -> Truth:
    """Return the reference and the bounds; raises the lowering's error if there are no equations."""
    if ladder.equations is None:
        raise ladder.error or ValueError("torch-to-tensor gave nothing")
    return Truth(made, ladder.equations, compiler.accuracy(ladder.lowering), on_gpu)


def _unreached(ladder: Ladder) -> Stage:
    """Return the row of the stage whose pass failed."""
    culprit = ladder.next_pass
    message = f"pass {culprit.name} raised {type(ladder.error).__name__}: {ladder.error}"
    return Stage(stage=culprit.result, seconds=0.0, message=message)


def assess(truth: Truth, lowering: compiler.Lowering, stage: str, watch: Watch | None = None) -> Verdict:
    """Run one stage and judge it; an error is a failure with its message."""
    try:
        made = run(truth, lowering, stage) if watch is None else run_watched(truth, lowering, stage, watch)
        return verdict_on(truth, lowering, stage, made)
    except Exception as error:  # executors check their programs and raise
        if getattr(error, "lost", False):
            _leave(error)
        return Verdict(False, float("inf"), (), f"{type(error).__name__}: {error}")


def executor(target: compiler.Target, stage: str, watch: Watch | None = None) -> str:
    """Return the name of the executor of a stage."""
    if target.kind != "cuda":
        return EXECUTORS[stage]
    arch = compiler.architecture(target) if stage == "cuda" else None
    if arch is None:
        return EXECUTORS_OF_CUDA[stage]
    return WATCHED.format(arch, watch.tool) if watch else ON_GPU.format(arch)


def _leave(error: Exception) -> None:
    """End this process, which has lost its GPU, so that the next case gets a new one; this also ends a hung kernel."""
    print(error, file=sys.stderr, flush=True)
    os._exit(LOST)


def run(truth: Truth, lowering: compiler.Lowering, stage: str, patience: float = 0.0) -> Made:
    """Run a stage; a text runs RUNS times on guarded buffers.

    If `patience` is not 0, native code runs in a child process with this time limit in seconds.
    """
    tensors = truth.subject.tensors
    if not is_native(lowering.target, stage):
        return Made(compiler.execute(lowering, stage, tensors))
    runs = 1 if stage == "kernel" else RUNS  # the emulator's checks do not depend on the order of threads
    outcome = compiler.execute_guarded(lowering, tensors, runs, patience, stage=stage)
    complaints = list(outcome.complaints)
    if not outcome.same and truth.tolerance.deterministic:
        complaints.append(f"{RUNS} runs on the same inputs gave different results")
    return Made(outcome.outputs, tuple(complaints))


def run_watched(truth: Truth, lowering: compiler.Lowering, stage: str, watch: Watch) -> Made:
    """Run a stage once on the GPU under the sanitizer of this process; its findings become complaints."""
    try:
        outcome = compiler.execute_guarded(lowering, truth.subject.tensors, runs=1, stage=stage, apart=True)
    except compiler.CompilerError as error:
        # The sanitizer's report says more than the resulting error, and must be printed before this process ends.
        said = "\n".join((*watch.findings(), str(error)))
        print(said, file=sys.stderr, flush=True)
        raise compiler.CompilerError(said) from error
    return Made(outcome.outputs, (*outcome.complaints, *watch.findings()))


def is_native(target: compiler.Target, stage: str) -> bool:
    """Return whether a stage runs as native code, which may crash or hang."""
    return stage in ("cpp", "cuda", "mlir", "triton") or (stage == "kernel" and target.kind == "cuda")


def verdict_on(truth: Truth, lowering: compiler.Lowering, stage: str, made: Made) -> Verdict:
    """Judge the results and complaints of a stage."""
    if made.complaints:
        return Verdict(False, float("inf"), (), "\n".join(made.complaints))
    if stage == "torch":
        # The same kernels run on the same numbers: only decompositions made during capture may differ from eager.
        same = all(oracle.exact(a, b).ok for a, b in zip(made.outputs, truth.subject.eager, strict=True))
        near = Verdict(True, 0.0) if same else truth.within(made.outputs, truth.from_eager)
        # Gradient kernels are decomposed into other formulas, whose roundings may be smaller than eager's.
        return near if near.ok or not truth.faithful else truth.within(made.outputs, truth.eagers)
    found = truth.judge(made.outputs)
    if found.ok and stage == "tensor":
        real = truth.algebra(lowering.stages["tensor"])
        return real if not real.ok else found
    return found


def guilty(truth: Truth, ladder: Ladder, stage: str) -> str | None:
    """Return the first pass application, as name#number, whose result is wrong when run as this stage; or None."""
    if stage == "torch":
        return "capture"
    for application in ladder.applications:
        if application.stage == stage and not assess(truth, ladder.at(stage, application.after), stage).ok:
            return f"{application.name}#{application.number}"
    if ladder.error is not None:
        return f"{ladder.next_pass.name}#{ladder.next_number}"
    return None


def _foreign(made: Subject, options: Mapping[str, Any]) -> Judged:
    """Check a case through a torch.compile backend; only its results are judged."""
    stage = foreign.judge(made, options["backend"], options["target"], options["seed"])
    if stage.verdict == "pass":
        return Judged(verdict="pass", stages=(stage,))
    return Judged(first_bad_stage=stage.stage, stages=(stage,), detail=stage.message)
