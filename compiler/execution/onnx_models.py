"""Run an ONNX file on random inputs, and compare it with the reference evaluator of the onnx package."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from compiler.errors import CompilerError
from compiler.execution import executable, named
from compiler.execution.gpu_programs import tensors_on
from compiler.onnx import from_onnx, model
from compiler.onnx.model import Sizes


@dataclass(frozen=True)
class Outcome:
    """A compiled model; the largest difference from onnx's evaluator, and the allowed one."""

    compiled: executable.Executable
    capture_seconds: float
    compile_seconds: float
    difference: float
    allowed: float


def run(path: Path, seed: int, target: str, shapes: Sizes) -> Outcome:
    """Compile the model of a file, run it, and compare it with onnx's evaluator."""
    machine = named.target(target)
    start = time.perf_counter()
    onnx_model = model.read(path)
    captured = from_onnx(onnx_model, shapes, device=tensors_on(machine))
    captured_at = time.perf_counter()
    compiled = executable.build_captured(captured, machine)
    end = time.perf_counter()
    inputs = random_inputs(onnx_model, shapes, seed)
    results = compiled(*(x.to(tensors_on(machine)) for x in inputs.values()))
    expected = _evaluate(onnx_model, inputs)
    theirs = [model.from_numpy(x) for x in pytree.tree_leaves(expected)]
    difference = executable.difference([x.cpu() for x in pytree.tree_leaves(results)], theirs)
    return Outcome(
        compiled, captured_at - start, end - captured_at, difference, max(map(_allowed, theirs), default=0.0)
    )


def _allowed(x: torch.Tensor) -> float:
    """A bound on the evaluator's own rounding error: it computes in the model's types, in its own order."""
    unit = torch.finfo(x.dtype).eps if x.dtype.is_floating_point else 0.0
    return 32 * unit * float(x.double().abs().nan_to_num(0.0, 0.0, 0.0).max()) if x.numel() else 0.0


def _evaluate(onnx_model: model.Model, inputs: Mapping[str, torch.Tensor]) -> list[Any]:
    """The results of onnx's evaluator."""
    try:
        evaluator = model.library("onnx.reference").ReferenceEvaluator(onnx_model.proto)
        results: list[Any] = evaluator.run(None, {name: model.to_numpy(x) for name, x in inputs.items()})
    except Exception as problem:  # whatever one of its ops raises
        raise CompilerError(
            f"onnx's evaluator does not run the model: {type(problem).__name__}: {problem}"
        ) from problem
    return results


def random_inputs(onnx_model: model.Model, shapes: Sizes, seed: int) -> dict[str, torch.Tensor]:
    """Random inputs: normally distributed floats, and integers 0 or 1, which are valid indices of most tables."""
    generator = torch.Generator().manual_seed(seed)
    sizes = model.input_shapes(onnx_model, shapes)

    def draw(i: model.Input) -> torch.Tensor:
        if i.dtype.is_floating_point:
            return torch.randn(sizes[i.name], generator=generator).to(i.dtype)
        return torch.randint(0, 2, sizes[i.name], generator=generator).to(i.dtype)

    return {i.name: draw(i) for i in onnx_model.inputs}
