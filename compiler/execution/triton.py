"""Run the text of a program lowered for Triton, on a GPU or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from compiler.execution import buffers
from compiler.interpret import scalar
from compiler.pipeline import Lowering
from compiler.render.triton.operations import FUNCTION_OF
from compiler.runtime import guarded, launcher, triton
from compiler.runtime.launcher import Launcher, Plan


def library_function(name: str) -> Callable[..., Any]:
    """A function of CUDA's math library, as our interpreters evaluate it."""
    return lambda *args: scalar.apply(FUNCTION_OF[name], args)


def temporaries(lowering: Lowering, plan: Plan) -> list[launcher.Buffer]:
    return buffers.temporaries(lowering, dict(zip(lowering.stages["tile"].sizes, plan.sizes, strict=True)))


def guarded_call(lowering: Lowering, plan: Plan) -> guarded.Call:
    """A call of the text on guarded memory."""
    dtypes = [b.dtype for b in (*plan.inputs, *plan.outputs, *temporaries(lowering, plan))]
    return triton.entry(triton.load(lowering.stages["triton"], library_function), dtypes, plan.sizes)


def loader(
    lowering: Lowering, constants: Mapping[int, torch.Tensor], invalid: Callable[..., object]
) -> Callable[[Plan], Launcher]:
    """Return a function from a plan to a launcher; tensors are on the GPU if there is one."""
    launch = triton.load(lowering.stages["triton"], library_function)
    can_fail = "tl.store(mlc_failed" in lowering.stages["triton"]  # otherwise there is no need to wait for a GPU
    device = torch.device("cuda", torch.cuda.current_device()) if triton.on_gpu() else launcher.CPU

    def load(plan: Plan) -> Launcher:
        bound = launcher.bind(plan, {n: x.to(device) for n, x in constants.items()}, device)
        return triton.caller(launch, plan, bound, temporaries(lowering, plan), invalid, device, can_fail)

    return load
