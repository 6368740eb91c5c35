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
from compiler.runtime import detect, guarded, launcher
from compiler.runtime.emulator import findings
from compiler.targets.target import Target

_LAUNCH = re.compile(r"\s*(\w+)\s*<<<\s*([\dx]+)\s*,\s*([\dx]+)\s*>>>\s*")
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Ran:
    """The outputs by name, complaints about the runs, the largest difference from eager, and the verdict.

    The verdict is None without an expression to compare with.
    """

    lowering: Lowering
    outputs: Mapping[str, torch.Tensor]
    complaints: tuple[str, ...]
    difference: float = 0.0
    verdict: Verdict | None = None

    @property
    def right(self) -> bool:
        return not self.complaints and (self.verdict is None or self.verdict.ok)


def run(path: Path, target: str | None, code: str | None, seed: int, shapes: Shapes | None = None) -> Ran:
    """Compile and run the text of a file, on the inputs of an expression if there is one, else on random inputs."""
    lowering = dumps.load(path, target)
    with torch.no_grad():
        wanted = _of_expression(code, seed, path, lowering) if code is not None else None
        inputs = wanted.inputs if wanted is not None else draw(lowering, seed, shapes or {})
        outcome = _guarded(path, lowering, inputs)
        names = [t.name for t in lowering.stages["kernel"].outputs]
        outputs = dict(zip(names, outcome.outputs, strict=True)) if outcome.outputs else {}
        complaints = outcome.complaints if outcome.same else (*outcome.complaints, "three runs do not agree")
        if wanted is None or not outputs:
            return Ran(lowering, outputs, complaints)
        if [(x.numel(), x.dtype) for x in outputs.values()] != [(x.numel(), x.dtype) for x in wanted.outputs]:
            shown = ", ".join(f"{launcher.NAMES[x.dtype]}{list(x.shape)}" for x in wanted.outputs)
            raise CompilerError(f"{path}: the expression computes {shown}, and the text does not")
        ours = [x.reshape(e.shape) for x, e in zip(outputs.values(), wanted.outputs, strict=True)]
        verdict = truth.judge(wanted.program, inputs, ours, lowering)
        return Ran(lowering, outputs, complaints, executable.difference(ours, wanted.outputs), verdict)


def check(path: Path, target: str | None, seed: int, shapes: Shapes, launches: Sequence[str] = ()) -> tuple[str, ...]:
    """Findings of the emulator's checks in a CUDA text, with lines; blocks and threads run in three orders."""
    lowering = dumps.load(path, target)
    if "cuda" not in lowering.stages:
        raise CompilerError(f"{path}: check mode is for CUDA texts, and target {lowering.target.name} has none")
    lowering = _launched(path, lowering, launches)
    found = _guarded(path, lowering, draw(lowering, seed, shapes), check=True).complaints
    # Different orders report the same problem at different places: keep one finding per kind, line and buffer.
    return tuple({re.split("[+,]", line)[0]: line for line in reversed(found)}.values())[::-1]


def _guarded(path: Path, lowering: Lowering, inputs: Sequence[torch.Tensor], check: bool = False) -> guarded.Outcome:
    """Run three times; if the file has the compiled text, complaints refer to its lines."""
    is_text = dumps.stage_of(path) in ("cpp", "cuda")
    try:
        outcome = executable.execute_guarded(lowering, inputs, cache=detect.default_cache(os.environ), check=check)
    except ToolchainError as problem:
        if not is_text:
            raise
        said = re.sub(rf"\b{findings.TEXT}:", f"{path}:", str(problem))
        raise CompilerError(f"{path} does not compile: {said}") from problem
    if not is_text:
        return outcome
    placed = tuple(re.sub(r"^kernel\.cu:", f"{path}:", line) for line in outcome.complaints)
    return guarded.Outcome(outcome.outputs, placed, outcome.same)


@dataclass(frozen=True)
class _Wanted:
    """The program of an expression, its inputs (including weights) in the program's order, and eager's outputs."""

    program: aten.Program
    inputs: list[torch.Tensor]
    outputs: tuple[torch.Tensor, ...]


def _of_expression(code: str, seed: int, path: Path, lowering: Lowering) -> _Wanted:
    _, tensors, captured = expression.capture(code, seed)
    given = list(captured.inputs(tensors))
    theirs = [f"{launcher.NAMES[x.dtype]}{list(x.shape)}" for x in given]
    declared = buffers.inputs_of(lowering)
    at = buffers.sizes_of(lowering, given) if len(given) == len(declared) else hints(lowering)
    own = [f"{t.dtype}{list(numbers(t.shape, at))}" for t in declared]
    if own != theirs:
        raise CompilerError(f"{path} takes {', '.join(own)}, and the expression has {', '.join(theirs)}")
    try:
        return _Wanted(captured.program, given, frontend.execute(captured.program, given))
    except (RuntimeError, IndexError, ValueError) as problem:
        raise CompilerError(f"PyTorch does not run the expression: {type(problem).__name__}: {problem}") from problem


def hints(lowering: Lowering) -> dict[Size, int]:
    """The expected value of each symbolic size."""
    sizes: Sequence[Size] = next(iter(lowering.stages.values())).sizes
    return {s: max(s.low, min(s.hint, s.high if s.high is not None else s.hint)) for s in sizes}


def draw(lowering: Lowering, seed: int, shapes: Shapes) -> list[torch.Tensor]:
    """Random inputs of the types that a program declares, with the given shapes for symbolic sizes.

    Integers are valid indices of every axis of every input: at least 0 and below the least extent.
    """
    declared, at = buffers.inputs_of(lowering), hints(lowering)
    if unknown := set(shapes) - {t.name for t in declared}:
        raise CompilerError(f"no input is called {', '.join(sorted(unknown))}; they are {[t.name for t in declared]}")
    for t in declared:
        chosen = shapes.get(t.name, ())
        at |= {e: n for e, n in zip(t.shape, chosen, strict=False) if isinstance(e, Size)}
        if t.name in shapes and numbers(t.shape, at) != tuple(chosen):
            raise CompilerError(f"{t.name} cannot be {list(chosen)}: it is {show_type(t.dtype, t.shape, t.strides)}")
    generator = torch.Generator().manual_seed(seed)
    laid_out = [buffers.buffer(t, at) for t in declared]
    least = min((n for b in laid_out for n in b.shape if n), default=8)
    return [_random(b, least, generator) for b in laid_out]


def _random(b: launcher.Buffer, least: int, generator: torch.Generator) -> torch.Tensor:
    dtype, count = launcher.DTYPES[b.dtype], guarded.reach(b.shape, b.stride)
    if dtype.is_floating_point:
        flat = torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)
    else:
        most = 2 if dtype is torch.bool else min(least, torch.iinfo(dtype).max)
        flat = torch.randint(0, most, (count,), generator=generator).to(dtype)
    return flat.as_strided(b.shape, b.stride) if math.prod(b.shape) else torch.empty(b.shape, dtype=dtype)


def _launched(path: Path, lowering: Lowering, launches: Sequence[str]) -> Lowering:
    """Replace grids and blocks, given as `kernel<<<64x2, 128>>>`."""
    program = lowering.stages["kernel"]
    for text in launches:
        found = _LAUNCH.fullmatch(text)
        names = [f.name for f in program.functions]
        if found is None or found[1] not in names:
            raise CompilerError(f"launch {text!r}: write KERNEL<<<GRID, BLOCK>>>; the kernels of {path} are {names}")
        grid, block = ([int(n) for n in part.split("x") if n] for part in found.groups()[1:])
        sizes = {"grid": tuple(map(const, grid)), "block": (*block, 1, 1)[:3]}
        functions = [f.replace(**sizes) if f.name == found[1] else f for f in program.functions]
        program = program.replace(functions=tuple(functions))
    return Lowering({**lowering.stages, "kernel": program}, lowering.target, lowering.schedules)


def on_its_machine(target: Target) -> bool:
    """Whether a target's code runs on its real hardware, rather than emulated."""
    return target.kind != "cuda" or gpu_programs.on_gpu(target)


def summary(ran: Ran) -> list[tuple[str, str]]:
    """The name of each output, with its type and range of values."""
    return [(name, _described(x)) for name, x in ran.outputs.items()]


def _described(x: torch.Tensor) -> str:
    kind, values = f"{launcher.NAMES[x.dtype]}{list(x.shape)}", x.double()
    numbers = values[~values.isnan()]
    between = f", from {numbers.min():.4g} to {numbers.max():.4g}" if numbers.numel() else ""
    missing = values.numel() - numbers.numel()
    return f"{kind}{between}{f', {missing} NaN' if missing else ''}"
