"""Run a text of any stage from a file, on random inputs or those of an expression, and judge its results."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from compiler import frontend
from compiler.errors import CompilerError, ToolchainError
from compiler.execution import buffers, dumps, executable, expression, gpu_programs, truth
from compiler.interpret.verdicts import Verdict
from compiler.ir import aten
from compiler.ir.expr import Size, const
from compiler.ir.sizes import numbers
from compiler.ir.text import show_type
from compiler.pipeline import Lowering
from compiler.runtime import detect, guarded, launcher, memory
from compiler.runtime.emulator import findings
from compiler.targets.target import Target

PATIENCE = 600.0  # the most seconds that a text runs
_LAUNCH = re.compile(r"\s*(\w+)\s*<<<\s*([\dx]+)\s*,\s*([\dx]+)\s*>>>\s*")
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class TrialResult:
    """The outputs by name, complaints about the runs, the largest difference from eager, and the verdict.

    The verdict is None without an expression to compare with.
    """

    lowering: Lowering
    outputs: Mapping[str, torch.Tensor]
    complaints: tuple[str, ...]
    difference: float = 0.0
    verdict: Verdict | None = None

    @property
    def is_right(self) -> bool:
        return not self.complaints and (self.verdict is None or self.verdict.ok)


def run(path: Path, target: str | None, code: str | None, seed: int, shapes: Shapes | None = None) -> TrialResult:
    """Compile and run the text of a file, on the inputs of an expression if there is one, else on random inputs."""
    lowering = dumps.load(path, target)
    with torch.no_grad():
        expected = _from_expression(code, seed, path, lowering) if code is not None else None
        inputs = expected.inputs if expected is not None else draw_inputs(lowering, seed, shapes or {})
        outcome = _guarded(path, lowering, inputs)
        names = [t.name for t in lowering.stages["kernel"].outputs]
        outputs = dict(zip(names, outcome.outputs, strict=True)) if outcome.outputs else {}
        complaints = outcome.complaints if outcome.same else (*outcome.complaints, "three runs do not agree")
        if expected is None or not outputs:
            return TrialResult(lowering, outputs, complaints)
        if [(x.numel(), x.dtype) for x in outputs.values()] != [(x.numel(), x.dtype) for x in expected.outputs]:
            computed = ", ".join(f"{launcher.NAMES[x.dtype]}{list(x.shape)}" for x in expected.outputs)
            raise CompilerError(f"{path}: the expression computes {computed}, and the text does not")
        ours = [x.reshape(e.shape) for x, e in zip(outputs.values(), expected.outputs, strict=True)]
        verdict = truth.judge(expected.program, inputs, ours, lowering)
        return TrialResult(lowering, outputs, complaints, executable.difference(ours, expected.outputs), verdict)


def check(path: Path, target: str | None, seed: int, shapes: Shapes, launches: Sequence[str] = ()) -> tuple[str, ...]:
    """Findings of the emulator's checks in a CUDA text, with lines; blocks and threads run in three orders."""
    lowering = dumps.load(path, target)
    if "cuda" not in lowering.stages:
        raise CompilerError(f"{path}: check mode is for CUDA texts, and target {lowering.target.name} has none")
    lowering = _with_launches(path, lowering, launches)
    complaints = _guarded(path, lowering, draw_inputs(lowering, seed, shapes), check=True).complaints
    # Different orders report the same problem at different places: keep one finding per kind, line and buffer.
    return tuple({re.split("[+,]", line)[0]: line for line in reversed(complaints)}.values())[::-1]


def _guarded(path: Path, lowering: Lowering, inputs: Sequence[torch.Tensor], check: bool = False) -> guarded.Outcome:
    """Run three times, in a process of its own unless it is on a GPU, since an edited text may crash.

    If the file has the compiled text, complaints refer to its lines.
    """
    is_text = dumps.stage_of(path) in ("cpp", "cuda")
    patience = 0.0 if gpu_programs.on_gpu(lowering.target) and not check else PATIENCE
    cache = detect.default_cache(os.environ)
    try:
        outcome = executable.execute_guarded(lowering, inputs, patience=patience, cache=cache, check=check)
    except ToolchainError as problem:
        if not is_text:
            raise
        message = re.sub(rf"\b{findings.TEXT}:", f"{path}:", str(problem))
        raise CompilerError(f"{path} does not compile: {message}") from problem
    if not outcome.outputs and outcome.complaints:
        raise CompilerError(f"{path} does not run to its end: {' '.join(outcome.complaints)}")
    if not is_text:
        return outcome
    complaints = tuple(re.sub(r"^kernel\.cu:", f"{path}:", line) for line in outcome.complaints)
    return guarded.Outcome(outcome.outputs, complaints, outcome.same)


@dataclass(frozen=True)
class _Expected:
    """The program of an expression, its inputs (including weights) in the program's order, and eager's outputs."""

    program: aten.Program
    inputs: list[torch.Tensor]
    outputs: tuple[torch.Tensor, ...]


def _from_expression(code: str, seed: int, path: Path, lowering: Lowering) -> _Expected:
    _, tensors, captured = expression.capture(code, seed)
    inputs = list(captured.inputs(tensors))
    expression_types = [f"{launcher.NAMES[x.dtype]}{list(x.shape)}" for x in inputs]
    declared = buffers.inputs_of(lowering)
    sizes = buffers.sizes_of(lowering, inputs) if len(inputs) == len(declared) else expected_sizes(lowering)
    program_types = [f"{t.dtype}{list(numbers(t.shape, sizes))}" for t in declared]
    if program_types != expression_types:
        raise CompilerError(
            f"{path} takes {', '.join(program_types)}, and the expression has {', '.join(expression_types)}"
        )
    try:
        return _Expected(captured.program, inputs, frontend.execute(captured.program, inputs))
    except (RuntimeError, IndexError, ValueError) as problem:
        raise CompilerError(f"PyTorch does not run the expression: {type(problem).__name__}: {problem}") from problem


def expected_sizes(lowering: Lowering) -> dict[Size, int]:
    """The expected value of each symbolic size."""
    sizes: Sequence[Size] = next(iter(lowering.stages.values())).sizes
    return {s: max(s.low, min(s.hint, s.high if s.high is not None else s.hint)) for s in sizes}


def draw_inputs(lowering: Lowering, seed: int, shapes: Shapes) -> list[torch.Tensor]:
    """Random inputs of the types that a program declares, with the given shapes for symbolic sizes.

    Integers are valid indices of every axis of every input: at least 0 and below the least extent.
    """
    declared, sizes = buffers.inputs_of(lowering), expected_sizes(lowering)
    if unknown := set(shapes) - {t.name for t in declared}:
        raise CompilerError(f"no input is called {', '.join(sorted(unknown))}; they are {[t.name for t in declared]}")
    for t in declared:
        chosen = shapes.get(t.name, ())
        sizes |= {e: n for e, n in zip(t.shape, chosen, strict=False) if isinstance(e, Size)}
        if t.name in shapes and numbers(t.shape, sizes) != tuple(chosen):
            raise CompilerError(f"{t.name} cannot be {list(chosen)}: it is {show_type(t.dtype, t.shape, t.strides)}")
    generator = torch.Generator().manual_seed(seed)
    layouts = [buffers.buffer(t, sizes) for t in declared]
    least = min((n for b in layouts for n in b.shape if n), default=8)
    return [_random(b, least, generator) for b in layouts]


def _random(b: launcher.Buffer, least: int, generator: torch.Generator) -> torch.Tensor:
    dtype, count = launcher.DTYPES[b.dtype], memory.element_span(b.shape, b.stride)
    if dtype.is_floating_point:
        flat = torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)
    else:
        limit = 2 if dtype is torch.bool else min(least, torch.iinfo(dtype).max)
        flat = torch.randint(0, limit, (count,), generator=generator).to(dtype)
    return flat.as_strided(b.shape, b.stride) if math.prod(b.shape) else torch.empty(b.shape, dtype=dtype)


def _with_launches(path: Path, lowering: Lowering, launches: Sequence[str]) -> Lowering:
    """Replace grids and blocks, given as `kernel<<<64x2, 128>>>`."""
    program = lowering.stages["kernel"]
    for text in launches:
        match = _LAUNCH.fullmatch(text)
        names = [f.name for f in program.functions]
        if match is None or match[1] not in names:
            raise CompilerError(f"launch {text!r}: write KERNEL<<<GRID, BLOCK>>>; the kernels of {path} are {names}")
        grid, block = ([int(n) for n in part.split("x") if n] for part in match.groups()[1:])
        sizes = {"grid": tuple(map(const, grid)), "block": (*block, 1, 1)[:3]}
        functions = [f.replace(**sizes) if f.name == match[1] else f for f in program.functions]
        program = program.replace(functions=tuple(functions))
    return Lowering({**lowering.stages, "kernel": program}, lowering.target, lowering.schedules)


def is_on_hardware(target: Target) -> bool:
    """Whether a target's code runs on its real hardware, rather than emulated."""
    return target.kind != "cuda" or gpu_programs.on_gpu(target)


def summary(result: TrialResult) -> list[tuple[str, str]]:
    """The name of each output, with its type and range of values."""
    return [(name, _describe(x)) for name, x in result.outputs.items()]


def _describe(x: torch.Tensor) -> str:
    type_text, values = f"{launcher.NAMES[x.dtype]}{list(x.shape)}", x.double()
    numbers = values[~values.isnan()]
    value_range = f", from {numbers.min():.4g} to {numbers.max():.4g}" if numbers.numel() else ""
    missing = values.numel() - numbers.numel()
    return f"{type_text}{value_range}{f', {missing} NaN' if missing else ''}"
