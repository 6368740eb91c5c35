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
    captured_in: float  # seconds
    compiled_in: float
    difference: float
    allowed: float


def run(path: Path, seed: int, target: str, shapes: Sizes) -> Outcome:
    """Compile the model of a file, run it, and compare it with onnx's evaluator."""
    machine = named.target(target)
    start = time.perf_counter()
    read = model.read(path)
    captured = from_onnx(read, shapes, device=tensors_on(machine))
    between = time.perf_counter()
    compiled = executable.build_captured(captured, machine)
    end = time.perf_counter()
    inputs = drawn(read, shapes, seed)
    made = compiled(*(x.to(tensors_on(machine)) for x in inputs.values()))
    wanted = _evaluated(read, inputs)
    theirs = [model.from_numpy(x) for x in pytree.tree_leaves(wanted)]
    difference = executable.difference([x.cpu() for x in pytree.tree_leaves(made)], theirs)
    return Outcome(compiled, between - start, end - between, difference, max(map(_allowed, theirs), default=0.0))


def _allowed(x: torch.Tensor) -> float:
    """A bound on the evaluator's own rounding error: it computes in the model's types, in its own order."""
    unit = torch.finfo(x.dtype).eps if x.dtype.is_floating_point else 0.0
    return 32 * unit * float(x.double().abs().nan_to_num(0.0, 0.0, 0.0).max()) if x.numel() else 0.0


def _evaluated(read: model.Model, inputs: Mapping[str, torch.Tensor]) -> list[Any]:
    """The results of onnx's evaluator."""
    try:
        evaluator = model.library("onnx.reference").ReferenceEvaluator(read.proto)
        made: list[Any] = evaluator.run(None, {name: model.to_numpy(x) for name, x in inputs.items()})
    except Exception as problem:  # whatever one of its ops raises
        raise CompilerError(
            f"onnx's evaluator does not run the model: {type(problem).__name__}: {problem}"
        ) from problem
    return made


def drawn(read: model.Model, shapes: Sizes, seed: int) -> dict[str, torch.Tensor]:
    """Random inputs: normally distributed floats, and integers 0 or 1, which are valid indices of most tables."""
    source = torch.Generator().manual_seed(seed)
    sizes = model.shapes(read, shapes)

    def draw(i: model.Input) -> torch.Tensor:
        if i.dtype.is_floating_point:
            return torch.randn(sizes[i.name], generator=source).to(i.dtype)
        return torch.randint(0, 2, sizes[i.name], generator=source).to(i.dtype)

    return {i.name: draw(i) for i in read.inputs}
