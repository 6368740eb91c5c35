"""Text of MLIR of a program, and what its own tools make of it."""

from __future__ import annotations

from pathlib import Path

from compiler.errors import CompilerError
from compiler.frontend import Captured
from compiler.ir import aten, tensor
from compiler.pipeline import Lowering, lower
from compiler.render.mlir import entry
from compiler.runtime import mlir
from compiler.targets import mlir as targets


def to_mlir(program: Captured | aten.Program | tensor.Program, dialect: str = "linalg") -> str:
    """A function of tensors as text of MLIR, operations in their generic form; raises Unsupported.

    Where data may be invalid (an index out of range), its last argument is a `memref<i8>`, which is then set to 1.
    """
    if dialect not in targets.DIALECTS:
        raise CompilerError(f"there is no dialect {dialect!r} to print: there are {', '.join(targets.DIALECTS)}")
    given = program.program if isinstance(program, Captured) else program
    source = "tensor" if isinstance(given, tensor.Program) else "torch"
    text: str = lower(given, targets.DIALECTS[dialect], source=source).stages["mlir"]
    return text


def built(lowering: Lowering, cache: Path | None) -> Path:
    """The text as a shared object; raises ToolchainError, which says what to install where MLIR's tools are not."""
    program = lowering.stages["tensor"]
    return mlir.build(entry.entry(lowering.stages["mlir"], program), entry.around(program), cache)
