"""A program as MLIR text, and as a shared object built from that by MLIR's tools."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from compiler.errors import CompilerError
from compiler.frontend import Captured
from compiler.ir import aten, tensor, tensor_text
from compiler.pipeline import Lowering, lower
from compiler.render.mlir import entry
from compiler.runtime import mlir
from compiler.targets import mlir as targets


def to_mlir(program: Captured | aten.Program | tensor.Program, dialect: str = "linalg") -> str:
    """Print a program as an MLIR function of tensors, in generic form; `dialect` is "linalg" or "tosa".

    If the program has data checks, such as for indices out of range, the last argument of the function is a
    `memref<i8>` that is set to 1 when a check fails. Raises Unsupported for what the dialect lacks, and CompilerError
    for an unknown dialect.
    """
    if dialect not in targets.DIALECTS:
        raise CompilerError(f"unknown dialect {dialect!r}; the dialects are {', '.join(targets.DIALECTS)}")
    source_program = program.program if isinstance(program, Captured) else program
    source = "tensor" if isinstance(source_program, tensor.Program) else "torch"
    text: str = lower(source_program, targets.DIALECTS[dialect], source=source).stages["mlir"]
    return text


def build_text(lowering: Lowering, cache: Path | None) -> Path:
    """Build the text as a shared object; raises ToolchainError, with what to install, if MLIR's tools are missing."""
    return mlir.build(_module(lowering), cache)


def build_together(lowerings: Sequence[Lowering], cache: Path | None = None) -> None:
    """Build the MLIR texts among these in one call of the tools; a text that they reject fails when it is run."""
    modules = [_module(lowering) for lowering in lowerings if "mlir" in lowering.stages]
    if modules and not mlir.missing():
        mlir.build_together(modules, cache)


def _module(lowering: Lowering) -> mlir.Module:
    program, text = lowering.stages["tensor"], lowering.stages["mlir"]
    digest = hashlib.sha256((text + tensor_text.show(program)).encode()).hexdigest()[:16]
    return mlir.Module(entry.entry(text, program, digest), entry.c_entry(program, digest), f"{entry.ENTRY}_{digest}")
