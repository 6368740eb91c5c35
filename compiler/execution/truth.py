"""Judge the results of a program against Torch IR.

The reference is Torch IR in f64 on the same inputs; the allowed error of each element is derived from Tensor IR. The
suite judges in the same way, so that a program judged correct here is correct in a shape file.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def judge(program: aten.Program, inputs: Tensors, results: Tensors, lowering: Lowering) -> Verdict:
    """The worst verdict on `results`, the outputs of a program computed by the code of `lowering`.

    If a bound is below the rounding of the reference itself, Tensor IR gives the exact value, provided that both agree
    in real arithmetic.
    """
    on_cpu = [x.cpu() for x in inputs]
    with torch.device("cpu"):
        reference = executable.reference(program, on_cpu)
    equations = torch_to_tensor.lower(program, order_equations=lowering.target.kind == "cpu")
    arrays = list(map(to_array, on_cpu))
    derived = bounds(equations, arrays, executable.accuracy(lowering))
    centres = map(to_array, reference)
    verdict = _judge_all(results, [verdicts.around(c, b) for c, b in zip(centres, derived, strict=True)])
    if verdict.ok:
        return verdict
    real = bounds(equations, arrays, Accuracy(algebra=True))
    return verdict if not _judge_all(reference, real).ok else _judge_all(results, derived)


def _judge_all(results: Tensors, bounded: Sequence[Bounded]) -> Verdict:
    """The worst verdict over all outputs."""
    pairs = zip(results, bounded, strict=True)
    judged = (
        verdicts.judge(to_array(y), verdicts.shaped(b, tuple(y.shape)), launcher.NAMES[y.dtype]) for y, b in pairs
    )
    return verdicts.worst(judged, named=len(results) > 1)


def to_array(x: torch.Tensor) -> Array:
    """A tensor as bounds represent it: floats of at most 16 bits as f32."""
    array = executable.to_array(x.cpu())
    return array.astype(np.float32) if array.dtype == np.float16 else array
