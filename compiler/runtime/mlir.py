"""MLIR on tensors to a shared object, by the tools of LLVM: texts in; the path of a .so in the cache out."""

from __future__ import annotations

import functools
import hashlib
import shutil
from pathlib import Path

from compiler.errors import ToolchainError
from compiler.runtime import detect, process, store

VERSION = "22"
INSTALL = f"`apt-get install mlir-{VERSION}-tools llvm-{VERSION}` (Debian)"
# Tensors become buffers, buffers loops, loops branches, and what is left LLVM's dialect.
PASSES = (
    "func.func(tosa-to-linalg-named)", "func.func(tosa-to-linalg)", "func.func(tosa-to-arith)",
    "func.func(tosa-to-tensor)",
    "inline", "symbol-dce", "canonicalize", "cse",
    "one-shot-bufferize{bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map}",
    "canonicalize", "buffer-deallocation-pipeline", "convert-bufferization-to-memref", "convert-linalg-to-loops",
    "lower-affine", "convert-scf-to-cf", "expand-strided-metadata", "lower-affine", "arith-expand{include-bf16=true}",
    "math-expand-ops{ops=rsqrt}", "convert-math-to-libm", "convert-math-to-llvm", "convert-arith-to-llvm",
    "convert-func-to-llvm{use-bare-ptr-memref-call-conv=1}", "finalize-memref-to-llvm", "convert-cf-to-llvm",
    "convert-index-to-llvm", "reconcile-unrealized-casts",
)  # fmt: skip
CODE = ("-O2", "-mcpu=native", "-relocation-model=pic", "-filetype=obj")
LINK = ("-shared", "-nostdlib", "-Wl,--no-undefined", "-lm", "-lc", "-lgcc")


def missing() -> str:
    """What to install, if anything; empty where all tools are here."""
    lacking = [name for name in ("mlir-opt", "mlir-translate", "llc") if _path(name) is None]
    if not lacking:
        return ""
    return f"target mlir needs {', '.join(f'{name}-{VERSION}' for name in lacking)} to run: {INSTALL}"


@functools.cache
def _path(name: str) -> str | None:
    return shutil.which(f"{name}-{VERSION}")


def build(text: str, around: str, cache: Path | None = None) -> Path:
    """The shared object of a module of MLIR and the LLVM IR `around` it; raises ToolchainError."""
    if problem := missing():
        raise ToolchainError(problem)
    parts = (text, around, *PASSES, *CODE, detect.cpu().model, *sorted(detect.cpu().features), _version())
    path = store.entry(cache, hashlib.sha256("\0".join(parts).encode()).hexdigest(), ".so")
    if not store.intact(path):
        with store.workshop(path) as work:
            store.publish(_made(text, around, work), path)
    return path


@functools.cache
def _version() -> str:
    return process.run([_path("llc") or "", "--version"], Path.cwd())[1]


def _made(text: str, around: str, work: Path) -> Path:
    module, lowered, code, thing, product = (work / f"kernel.{end}" for end in ("mlir", "llvm.mlir", "ll", "o", "so"))
    module.write_text(text)
    _run(["mlir-opt", str(module), f"-pass-pipeline=builtin.module({','.join(PASSES)})", "-o", str(lowered)], work)
    _run(["mlir-translate", "--mlir-to-llvmir", str(lowered), "-o", str(code)], work)
    with code.open("a") as file:
        file.write(around)
    _run(["llc", *CODE, str(code), "-o", str(thing)], work)
    _run([detect.toolchain("g++").path, str(thing), "-o", str(product), *LINK], work)
    return product


def _run(command: list[str], work: Path) -> None:
    first = _path(command[0]) or command[0]
    status, messages = process.run([first, *command[1:]], work)
    if status != 0:
        raise ToolchainError(f"{Path(first).name} refused a program:\n{messages[:2000]}")
