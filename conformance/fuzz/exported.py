"""Check a random program through `torch.export` against eager.

Exported programs keep calls that AOTAutograd decomposes, so they reach rules of the compiler that no graph of
`torch.compile` reaches. Programs that mutate their arguments, gradients, and data with infinities and NaN are left out;
for the last, compiler/README.md, "Numerics", leaves results of calls such as attention unspecified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import compiler
from conformance.fuzz import blame, generate, runs
from conformance.fuzz.program import Program, arguments, bind_numbers
from conformance.judge import ladder
from conformance.judge.subject import Subject, Truth
from conformance.rows import FuzzResult

Tell = Callable[[str], None]
ValueDifference = Callable[[Tensor, Tensor, Tensor], str]

KIND = "export"
STAGE = "torch.export"  # the stage to blame if none of the compiler's stages is
EXPORT_INTERVAL = 3  # every third program is exported, since most of its kernels are the same as under `torch.compile`


def check_exported(
    program: Program, options: Mapping[str, Any], tell: Tell, value_difference: ValueDifference
) -> FuzzResult:
    """Check a program at the first of its sizes; `value_difference` is `check.value_difference`."""
    if ("graph" in options.get("what", ()) and program.index % EXPORT_INTERVAL) or generate.has_specials(program):
        return FuzzResult()
    program = replace(program, points=program.points[:1], varying={}, gradients=())
    target, call = compiler.target(options["target"]), bind_numbers(program, program.points[0])
    tensors = tuple(arguments(program, program.points[0]).values())
    tell(STAGE)
    with torch.no_grad():
        try:
            captured = compiler.capture(call, tuple(runs.copy_arguments(tensors)))
        except compiler.Unsupported:
            return FuzzResult()
        except Exception as error:
            if isinstance(error, compiler.CompilerError) and error.__cause__ is not None:  # torch itself failed
                return FuzzResult()
            finding = FuzzResult(
                verdict="fail", kind=KIND, first_bad_stage=STAGE, detail=f"{type(error).__name__}: {error}"
            )
            return replace(finding, repro=blame.write_repro(program, options, finding=finding))
        try:
            compiled = compiler.compile(captured, target=target)
            results = compiled(*runs.copy_arguments(tensors, compiler.tensors_on(target)))
            outputs = tuple(x.cpu() for x in pytree.tree_leaves(results))
        except compiler.Unsupported:
            return FuzzResult()
        except Exception as error:  # of any part of the compiler
            return _blame_stage(program, options, tell, captured, tensors, (), f"{type(error).__name__}: {error}")
        wrong = _eager_difference(call, tensors, outputs, value_difference)
        if wrong and _equals_contiguous(call, tensors, outputs, value_difference):
            return FuzzResult(verdict="torch", kind=KIND, detail=wrong)
        return _blame_stage(program, options, tell, captured, tensors, outputs, wrong) if wrong else FuzzResult()


def _eager_difference(
    call: Callable[..., Any], arguments: Sequence[Tensor], outputs: Sequence[Tensor], value_difference: ValueDifference
) -> str:
    """Return how results differ from eager's; "" if they do not. Strides and aliasing are not compared."""
    flags = [False] * len(arguments)
    expected = runs.call(call, runs.copy_arguments(arguments), flags)
    with runs.in_f64():
        reference = runs.call(call, [runs.perturb(x) for x in runs.copy_arguments(arguments)], flags)
    if len(outputs) != len(expected.outputs):
        return f"{len(outputs)} results, in eager {len(expected.outputs)}"
    for k, (a, b, c) in enumerate(zip(outputs, expected.outputs, reference.outputs, strict=True)):
        if message := value_difference(a, b, c):
            return f"result {k}: {message}"
    return ""


def _equals_contiguous(
    call: Callable[..., Any], arguments: Sequence[Tensor], outputs: Sequence[Tensor], value_difference: ValueDifference
) -> bool:
    """Return whether results equal those of eager with contiguous operands, from which eager's own then differ."""
    mode = runs.ContiguousOperands()  # type: ignore[no-untyped-call]

    def with_contiguous(*arguments: Tensor) -> Any:
        with mode:
            return call(*arguments)

    return not _eager_difference(with_contiguous, arguments, outputs, value_difference) and not mode.uses_strides


def _blame_stage(
    program: Program, options: Mapping[str, Any], tell: Tell, captured: compiler.Captured,
    arguments: tuple[Tensor, ...], outputs: Sequence[Tensor], difference: str,
) -> FuzzResult:  # fmt: skip
    """Return the finding with the first bad stage and pass; it passes if the results are within the derived bounds."""
    prepared = Subject(
        blame.GRAPH, bind_numbers(program, program.points[0]), arguments, captured, captured.inputs(arguments)
    )
    lowered = ladder.climb(captured.program, compiler.target(options["target"]))
    row = ladder.judge(
        prepared, lowered, blame.stages(program), lambda stage: tell(f"stage {stage} of what is exported")
    )
    finding = FuzzResult(
        verdict="fail", kind=KIND, first_bad_stage=row.first_bad_stage or STAGE, detail=difference, why=row.detail
    )
    if row.verdict == "pass":
        verdict = Truth(prepared, lowered.equations, compiler.accuracy(lowered.lowering)).judge(
            prepared.leaves(outputs)
        )
        if outputs and verdict.ok:
            return FuzzResult(detail=f"within the bounds of what is exported: {difference}")
    finding = replace(finding, first_bad_pass=row.first_bad_pass)
    return replace(finding, repro=blame.write_repro(program, options, [arguments], [lowered.lowering], finding))
