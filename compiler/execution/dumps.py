"""Read a text of any stage, possibly edited, and lower the program from that stage on.

A file's suffix names its stage (`norm.tile`, `kernel.cu`); with suffix `.ir`, its name does, as in the suite's folders
of failed cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compiler import pipeline
from compiler.errors import CompilerError
from compiler.execution import named
from compiler.ir.stages import IRS
from compiler.pipeline import TEXTS, Lowering
from compiler.render import header
from compiler.targets.target import Target

SUFFIXES: Mapping[str, str] = {**{f".{stage}": stage for stage in IRS}, ".cpp": "cpp", ".cu": "cuda"}


def stage_of(path: Path) -> str | None:
    """The stage that a file's suffix names; None for any other suffix."""
    return SUFFIXES.get(f".{path.stem}" if path.suffix == ".ir" else path.suffix)


def read(path: Path) -> tuple[str, Any]:
    """Read a file: its stage and the program, or the text itself; raises CompilerError with the file and line."""
    stage = stage_of(path)
    if stage is None:
        raise CompilerError(f"{path}: the suffix must name the stage: {', '.join(SUFFIXES)}")
    try:
        source = read_text(path)
        if stage in TEXTS.values():
            return stage, source
        program = IRS[stage].parse(source)
        IRS[stage].verify(program)
    except KeyError as problem:
        raise CompilerError(f"{path}: unknown name {problem}") from problem
    except ValueError as problem:
        first, *more = str(problem).splitlines()  # the message may quote a whole loop
        raise CompilerError(f"{path}: {first}{' …' if more else ''}") from problem
    return stage, program


def read_text(path: Path) -> str:
    """The content of a text file; raises ValueError for a file that is not UTF-8 text."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise ValueError(f"not a text: byte {problem.start + 1} is not UTF-8") from problem
    if "\0" in text:
        raise ValueError(f"not a text: it has a zero byte in line {text[: text.index(chr(0))].count(chr(10)) + 1}")
    return text


def target_of(path: Path | None) -> str:
    """The target that the first line of a C++ or CUDA text names; `cpu` for any other file."""
    if path is None or stage_of(path) not in TEXTS.values():
        return "cpu"
    return header.target(path.read_text(encoding="utf-8", errors="replace")) or "cpu"


def load(path: Path, target: Target | str | None = None) -> Lowering:
    """Read a program from a file and lower it from its stage on.

    A C++ or CUDA text is taken as it is, with the launches of its header as its `kernel` stage. `target` defaults to
    the one that the first line of such a text names, and to this machine's CPU for other files. Raises CompilerError,
    with the file and line, for a file that cannot be read.
    """
    stage, program = read(path)
    machine = target if isinstance(target, Target) else named.target(target or target_of(path))
    if stage not in pipeline.stages(machine):
        raise CompilerError(f"{path}: target {machine.name} has no stage {stage}; choose another --target")
    if not isinstance(program, str):
        return pipeline.lower(program, machine, source=stage)
    try:
        return Lowering({"kernel": header.parse(program), stage: program}, machine, {})
    except ValueError as problem:
        raise CompilerError(f"{path}: {problem}") from problem
