"""Compile MLIR on tensors to a cached shared object, with LLVM's tools."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.errors import ToolchainError
from compiler.runtime import detect, process, store
from compiler.runtime.launcher import ENTRY

VERSION = "22"
INSTALL = f"`apt-get install mlir-{VERSION}-tools llvm-{VERSION}` (Debian)"
# Lower tensors to buffers, those to loops, those to branches, and the rest to LLVM's dialect.
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
    """What to install; empty if all tools are present."""
    tools = [name for name in ("mlir-opt", "mlir-translate", "llc") if _path(name) is None]
    if not tools:
        return ""
    return f"target mlir needs {', '.join(f'{name}-{VERSION}' for name in tools)} to run: {INSTALL}"


@functools.cache
def _path(name: str) -> str | None:
    return shutil.which(f"{name}-{VERSION}")


@dataclass(frozen=True)
class Module:
    """A program's text, the LLVM IR to append to it (`appended_ir`), and the name of its entry function there. All
    names defined in either are unique to the module."""

    text: str
    appended_ir: str
    entry: str


def build(module: Module, cache: Path | None = None) -> Path:
    """Return the path of its shared object. Raises ToolchainError."""
    path = _path_of(module, cache)
    if not store.is_intact(path):
        _build([module], [path])
    return path


def build_together(modules: Sequence[Module], cache: Path | None = None) -> None:
    """Build the modules that are not in the cache, with one run of each tool for all of them.

    If a tool rejects them together, nothing is built, and each is judged alone when it is requested.
    """
    uncached = {_path_of(module, cache): module for module in modules}
    uncached = {path: module for path, module in uncached.items() if not store.is_intact(path)}
    if len(uncached) > 1:
        with contextlib.suppress(ToolchainError):
            _build(list(uncached.values()), list(uncached))


def _path_of(module: Module, cache: Path | None) -> Path:
    if problem := missing():
        raise ToolchainError(problem)
    parts = (module.text, module.appended_ir, module.entry, *PASSES, *CODE, *LINK)
    machine = (detect.cpu().model, *sorted(detect.cpu().features), _version())
    return store.entry(cache, hashlib.sha256("\0".join((*parts, *machine)).encode()).hexdigest(), ".so")


@functools.cache
def _version() -> str:
    return process.run([_path("llc") or "", "--version"], Path.cwd())[1]


def _build(modules: Sequence[Module], paths: Sequence[Path]) -> None:
    """Build one object of all modules, and from it a shared object for each, with its own entry."""
    with store.build_folder(paths[0]) as work:
        source, lowered, code, object_file = (work / f"kernel.{end}" for end in ("mlir", "llvm.mlir", "ll", "o"))
        source.write_text("".join(module.text for module in modules))
        _run(["mlir-opt", str(source), f"-pass-pipeline=builtin.module({','.join(PASSES)})", "-o", str(lowered)], work)
        _run(["mlir-translate", "--mlir-to-llvmir", str(lowered), "-o", str(code)], work)
        with code.open("a") as file:
            file.write("".join(module.appended_ir for module in modules))
        _run(["llc", *CODE, str(code), "-o", str(object_file)], work)
        for module, path in zip(modules, paths, strict=True):
            with store.build_folder(path) as folder:
                entry_option = f"-Wl,--defsym={ENTRY}={module.entry}"
                linker = detect.toolchain("g++").path
                _run([linker, str(object_file), "-o", str(folder / "kernel.so"), entry_option, *LINK], folder)
                store.publish(folder / "kernel.so", path)


def _run(command: list[str], work: Path) -> None:
    tool = _path(command[0]) or command[0]
    status, messages = process.run([tool, *command[1:]], work)
    if status != 0:
        raise ToolchainError(f"{Path(tool).name} refused a program:\n{messages[:2000]}")
