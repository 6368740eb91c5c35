"""A program lowered for Triton; the ways to run its text, on a GPU or by Triton's interpreter, out."""

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


def meaning(name: str) -> Callable[..., Any]:
    """A function of CUDA's library, as our own interpreters have it."""
    return lambda *args: scalar.apply(FUNCTION_OF[name], args)


def temporaries(lowering: Lowering, plan: Plan) -> list[launcher.Buffer]:
    return buffers.temporaries(lowering, dict(zip(lowering.stages["tile"].sizes, plan.sizes, strict=True)))


def guarded_call(lowering: Lowering, plan: Plan) -> guarded.Call:
    """A run of the text on guarded memory."""
    kinds = [b.dtype for b in (*plan.inputs, *plan.outputs, *temporaries(lowering, plan))]
    return triton.entry(triton.load(lowering.stages["triton"], meaning), kinds, plan.sizes)


def loader(
    lowering: Lowering, constants: Mapping[int, torch.Tensor], invalid: Callable[..., object]
) -> Callable[[Plan], Launcher]:
    """What makes a function from tensors to tensors of a plan; tensors are the GPU's where there is one."""
    launch = triton.load(lowering.stages["triton"], meaning)
    fails = "tl.store(mlc_failed" in lowering.stages["triton"]  # a GPU need not be waited for where nothing can
    device = torch.device("cuda", torch.cuda.current_device()) if triton.on_gpu() else launcher.CPU

    def load(plan: Plan) -> Launcher:
        bound = launcher.bind(plan, {n: x.to(device) for n, x in constants.items()}, device)
        return triton.caller(launch, plan, bound, temporaries(lowering, plan), invalid, device, fails)

    return load
