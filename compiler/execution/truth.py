"""Whether results of a program are right: Torch IR, its inputs and what was computed in, a verdict out.

What is right is Torch IR in f64 on the same inputs; how far each element may be from it is derived from Tensor IR. The
suite judges by the same two, so that a program that is right here is right in a shape file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from compiler.execution import executable
from compiler.interpret import verdicts
from compiler.interpret.bounded import Accuracy, Bounded
from compiler.interpret.bounds import bounds
from compiler.interpret.scalar import Array
from compiler.interpret.verdicts import Verdict
from compiler.ir import aten
from compiler.passes.torch_to_tensor import lower as torch_to_tensor
from compiler.pipeline import Lowering
from compiler.runtime import launcher

Tensors = Sequence[torch.Tensor]


def judge(program: aten.Program, inputs: Tensors, made: Tensors, lowering: Lowering) -> Verdict:
    """The worst verdict on all outputs of a program that was lowered so.

    Where a bound is less than the rounding of the reference itself, Tensor IR says exactly what is right, if both are
    the same in real numbers.
    """
    given = [x.cpu() for x in inputs]
    with torch.device("cpu"):
        reference = executable.reference(program, given)
    equations = torch_to_tensor.lower(program, orders=lowering.target.kind == "cpu")
    arrays = list(map(to_array, given))
    derived = bounds(equations, arrays, executable.accuracy(lowering))
    centres = map(to_array, reference)
    found = _within(made, [verdicts.around(c, b) for c, b in zip(centres, derived, strict=True)])
    if found.ok:
        return found
    real = bounds(equations, arrays, Accuracy(algebra=True))
    return found if not _within(reference, real).ok else _within(made, derived)


def _within(made: Tensors, bounded: Sequence[Bounded]) -> Verdict:
    """The worst verdict over all outputs."""
    worst = Verdict(True, 0.0)
    for k, (y, b) in enumerate(zip(made, bounded, strict=True)):
        found = verdicts.judge(to_array(y), verdicts.shaped(b, tuple(y.shape)), launcher.NAMES[y.dtype])
        if not found.ok:
            where = f"output {k}: " if len(made) > 1 else ""
            return replace(found, message=where + found.message)
        worst = found if found.err_over_tol >= worst.err_over_tol else worst
    return worst


def to_array(x: torch.Tensor) -> Array:
    """NumPy has no floats of 16 bits or fewer but one; all are held as f32."""
    x = x.detach().cpu()
    return np.asarray((x.float() if x.dtype.itemsize <= 2 and x.is_floating_point() else x).numpy())
