"""Compile CUDA text to a cubin (machine code and ptxas' report), in a cache keyed by source, architecture and flags.

NVRTC is used if installed (0.05 s for a small kernel, without starting a process), else nvcc (0.4 s).
"""

import functools
import hashlib
import os
import re
import shlex
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from compiler.errors import ToolchainError
from compiler.runtime import build, detect, nvrtc, process, store, workers

INSTALL_COMPILER = (
    "install NVRTC (`pip install nvidia-cuda-nvrtc`) or a CUDA toolkit, 12.8 or newer, whose nvcc is on PATH, "
    "and run the same command again"
)
SOURCE = "kernel.cu"  # the name of the text in messages
_TOOLKIT = Path("/usr/local/cuda/bin/nvcc")


def kernel_flags(*, contract: bool = True, line_info: bool = False) -> tuple[str, ...]:
    """Flags for a kernel, which both compilers accept; never --use_fast_math, which flushes subnormals and approximates
    divisions and square roots. `line_info` is for profilers and sanitizers: it changes no instruction."""
    lines = ("--generate-line-info",) if line_info else ()
    return ("--std=c++17", f"--fmad={str(contract).lower()}", "--ptxas-options=-v", *lines)


KERNEL_FLAGS = kernel_flags()


@dataclass(frozen=True)
class Cubin:
    """Machine code for `arch`; `log` has the messages of the compiler and ptxas, `path` is the file in the cache."""

    path: Path
    arch: str
    image: bytes
    log: str


@dataclass(frozen=True)
class Compiler:
    """A compiler to cubins: (text, arch, flags, include folders, work folder) -> (exit status, cubin, messages)."""

    name: str
    version: str
    compile: Callable[[str, str, tuple[str, ...], tuple[Path, ...], Path], tuple[int, bytes, str]]
    command: tuple[str, ...] = ()


_built: dict[tuple[object, ...], Cubin] = {}


def build_cubin(
    source: str,
    arch: str,
    flags: tuple[str, ...] = KERNEL_FLAGS,
    *,
    include: tuple[Path, ...] = (),
    cache: Path | None = None,
    compiler: Compiler | None = None,
) -> Cubin:
    """Return the cubin of `source` for an architecture such as sm_90a, compiled unless `cache` has it.

    Without `cache` it is built in a folder of this process. Raises ToolchainError if the compiler rejects the text
    (quoting its file and line) or is missing, and CacheError for an unusable folder.
    """
    if not re.fullmatch(r"sm_\d+[af]?", arch):
        raise ToolchainError(f"{arch!r} is no architecture that CUDA compiles for: write one like sm_80 or sm_90a")
    tool = compiler or installed_compiler()
    request = (source, arch, flags, include, cache, tool.name, tool.version)
    built = _built.get(request)
    if built is not None and built.path.exists():
        return built
    path = store.entry(cache, key(source, arch, flags, include, tool), ".cubin")
    packed, *_ = store.read_parts(path, path.with_suffix(".cu")) or (None,)
    if packed is None:
        packed = _compile(source, arch, flags, include, tool, path)
    _built[request] = cubin = _unpack(path, arch, packed)
    return cubin


def build_cubins(
    sources: Sequence[str],
    arch: str,
    flags: tuple[str, ...] = KERNEL_FLAGS,
    *,
    include: tuple[Path, ...] = (),
    cache: Path | None = None,
    compiler: Compiler | None = None,
) -> tuple[Cubin, ...]:
    """Return the cubins of the parts of a program, compiled in parallel, one per core."""
    tool = compiler or installed_compiler()
    with ThreadPoolExecutor(min(len(sources), detect.usable_cores())) as pool:
        futures = [
            pool.submit(build_cubin, source, arch, flags, include=include, cache=cache, compiler=tool)
            for source in sources
        ]
        try:
            return tuple(x.result() for x in futures)
        finally:
            for x in futures:
                x.cancel()  # those not begun, after a failure


def key(source: str, arch: str, flags: tuple[str, ...], include: tuple[Path, ...], tool: Compiler) -> str:
    """Hex digest of everything that determines the compiler's output."""
    headers = (build.headers_digest(folder) for folder in include)
    parts = ("cubin", source, arch, *flags, tool.name, tool.version, *headers)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _compile(
    source: str, arch: str, flags: tuple[str, ...], include: tuple[Path, ...], tool: Compiler, path: Path
) -> bytes:
    with store.build_folder(path) as folder:
        text, product = folder / SOURCE, folder / "kernel.cubin"
        text.write_text(source)
        code, image, messages = tool.compile(source, arch, flags, include, folder)
        # Compile times are useless later, and would make equal builds differ.
        cleaned = re.sub(r"\S*/\.build-\w+/|.*Compile time = .*\n?", "", messages)
        if code != 0:
            saved, advice = build.refused_path(path, ".cu"), ""
            if tool.command:
                advice = shlex.join(_nvcc_command(tool.command, arch, flags, include, saved, Path(os.devnull)))
            advice = f"try again: {advice}" if advice else f"its text: {saved}"
            raise build.refusal(tool.name, f"a kernel for {arch}", code, cleaned, source, saved, advice)
        packed = _pack(image, cleaned)
        product.write_bytes(packed)
        store.publish(text, path.with_suffix(".cu"))
        store.publish(product, path)
    return packed


def _pack(image: bytes, messages: str) -> bytes:
    """Append the messages to the image: loaders ignore trailing bytes."""
    log = messages.encode()
    return image + log + struct.pack("<Q", len(log))


def _unpack(path: Path, arch: str, packed: bytes) -> Cubin:
    (length,) = struct.unpack("<Q", packed[-8:])
    end = len(packed) - 8 - length
    return Cubin(path, arch, packed[:end], packed[end:-8].decode())


# ---- compilers


def installed_compiler() -> Compiler:
    """The compiler to use on this machine. Raises ToolchainError, with installation advice, if there is none."""
    compiler = nvrtc_compiler() or nvcc_compiler()
    if compiler is None:
        raise ToolchainError(f"no CUDA compiler: neither NVRTC nor nvcc is here; {INSTALL_COMPILER}.")
    return compiler


@functools.cache
def nvrtc_compiler() -> Compiler | None:
    """NVRTC; None if it is not installed or does not load."""
    libraries = nvrtc.paths()
    if libraries is None:
        return None

    def compile(
        source: str, arch: str, flags: tuple[str, ...], include: tuple[Path, ...], work: Path
    ) -> tuple[int, bytes, str]:
        folders = (f"--include-path={folder.absolute()}" for folder in include)
        options = (f"--gpu-architecture={arch}", *flags, *folders)
        return workers.run_task(nvrtc.compile_task, nvrtc.Task(libraries, source, SOURCE, options))

    return Compiler("NVRTC", nvrtc.version(nvrtc.load_library(libraries)), compile)


@functools.cache
def nvcc_compiler(command: str = "nvcc") -> Compiler | None:
    """nvcc from PATH or from the default folder of toolkits; None if neither has it."""
    path = shutil.which(command) or (str(_TOOLKIT) if command == "nvcc" and _TOOLKIT.exists() else None)
    if path is None:
        return None
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise ToolchainError(f"cannot run {path}: {error.strerror}; {INSTALL_COMPILER}.") from error
    release = re.search(r"V[\d.]+", answer)

    def compile(
        source: str, arch: str, flags: tuple[str, ...], include: tuple[Path, ...], work: Path
    ) -> tuple[int, bytes, str]:
        product = work / "made.cubin"
        try:
            code, messages = process.run(_nvcc_command((path,), arch, flags, include, work / SOURCE, product), work)
        except OSError as error:
            raise ToolchainError(f"cannot run {path}: {error.strerror}; {INSTALL_COMPILER}.") from error
        return code, product.read_bytes() if code == 0 else b"", messages

    return Compiler("nvcc", release[0] if release else answer, compile, (path,))


def _nvcc_command(
    command: tuple[str, ...], arch: str, flags: tuple[str, ...], include: tuple[Path, ...], text: Path, product: Path
) -> list[str]:
    # -arch=sm_90a would also compile PTX for sm_90, which lacks some of its instructions.
    number = arch.removeprefix("sm_")
    code = f"--generate-code=arch=compute_{number},code=sm_{number}"
    folders = [f"-I{folder}" for folder in include]
    return [*command, code, *flags, *folders, "--cubin", str(text), "-o", str(product)]
