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
from conformance.fuzz.program import Program, arguments, bound
from conformance.judge import ladder
from conformance.judge.subject import Subject, Truth
from conformance.rows import Found

Tell = Callable[[str], None]
Far = Callable[[Tensor, Tensor, Tensor], str]

KIND = "export"
STAGE = "torch.export"  # the stage to blame if none of the compiler's stages is
EVERY = 3  # every third program is exported, since most of its kernels are the same as under `torch.compile`


def found(program: Program, options: Mapping[str, Any], tell: Tell, far: Far) -> Found:
    """Check a program at the first of its sizes; `far` is `check.far`."""
    if ("graph" in options.get("what", ()) and program.index % EVERY) or generate.special(program):
        return Found()
    program = replace(program, points=program.points[:1], varying={}, gradients=())
    target, call = compiler.target(options["target"]), bound(program, program.points[0])
    given = tuple(arguments(program, program.points[0]).values())
    tell(STAGE)
    with torch.no_grad():
        try:
            captured = compiler.capture(call, tuple(runs.copied(given)))
        except compiler.Unsupported:
            return Found()
        except Exception as error:
            if isinstance(error, compiler.CompilerError) and error.__cause__ is not None:  # torch itself failed
                return Found()
            bad = Found(verdict="fail", kind=KIND, first_bad_stage=STAGE, detail=f"{type(error).__name__}: {error}")
            return replace(bad, repro=blame.kept(program, options, found=bad))
        try:
            compiled = compiler.compile(captured, target=target)
            results = compiled(*runs.copied(given, compiler.tensors_on(target)))
            made = tuple(x.cpu() for x in pytree.tree_leaves(results))
        except compiler.Unsupported:
            return Found()
        except Exception as error:  # of any part of the compiler
            return _blamed(program, options, tell, captured, given, (), f"{type(error).__name__}: {error}")
        wrong = _wrong(call, given, made, far)
        return _blamed(program, options, tell, captured, given, made, wrong) if wrong else Found()


def _wrong(call: Callable[..., Any], given: Sequence[Tensor], made: Sequence[Tensor], far: Far) -> str:
    """Return how results differ from eager's; "" if they do not. Strides and aliasing are not compared."""
    needs = [False] * len(given)
    want = runs.call(call, runs.copied(given), needs)
    with runs.in_f64():
        right = runs.call(call, [runs.nearby(x) for x in runs.copied(given)], needs)
    if len(made) != len(want.outputs):
        return f"{len(made)} results, in eager {len(want.outputs)}"
    for k, (a, b, c) in enumerate(zip(made, want.outputs, right.outputs, strict=True)):
        if said := far(a, b, c):
            return f"result {k}: {said}"
    return ""


def _blamed(
    program: Program, options: Mapping[str, Any], tell: Tell, captured: compiler.Captured, given: tuple[Tensor, ...],
    made: Sequence[Tensor], wrong: str,
) -> Found:  # fmt: skip
    """Return the finding with the first bad stage and pass; it passes if the results are within the derived bounds."""
    one = Subject(blame.GRAPH, bound(program, program.points[0]), given, captured, captured.inputs(given))
    climbed = ladder.climb(captured.program, compiler.target(options["target"]))
    row = ladder.judge(one, climbed, blame.stages(program), lambda stage: tell(f"stage {stage} of what is exported"))
    bad = Found(verdict="fail", kind=KIND, first_bad_stage=row.first_bad_stage or STAGE, detail=wrong, why=row.detail)
    if row.verdict == "pass":
        said = Truth(one, climbed.equations, compiler.accuracy(climbed.lowering)).judge(one.leaves(made))
        if made and said.ok:
            return Found(detail=f"within the bounds of what is exported: {wrong}")
    bad = replace(bad, first_bad_pass=row.first_bad_pass)
    return replace(bad, repro=blame.kept(program, options, [given], [climbed.lowering], bad))
