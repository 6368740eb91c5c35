"""NVRTC, the CUDA compiler as a library, called through ctypes.

It needs neither a GPU nor its driver. It is part of CUDA builds of torch, of CuPy, and of `nvidia-cuda-nvrtc`.
"""

import ctypes
import functools
import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SYSTEM = (Path("/usr/local/cuda/lib64"), Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"))
FIRST_CACHING_VERSION = [12, 9]  # the first version with a cache of its own


def folders() -> tuple[Path, ...]:
    """Candidate folders of NVRTC: NVIDIA's Python packages first, then those of toolkits."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    return (*(lib for root in roots for lib in sorted(root.glob("*/lib"), reverse=True)), *SYSTEM)


def find(search_folders: Sequence[Path]) -> tuple[Path, Path] | None:
    """NVRTC and its library of built-in functions, the newest in the first folder that has both; None if none has."""
    for folder in search_folders:
        built_in = _newest(folder, r"libnvrtc-builtins\.so\.([\d.]+)")
        library = _newest(folder, r"libnvrtc\.so\.([\d.]+)")
        if library and built_in:
            return library, built_in
    return None


def _newest(folder: Path, pattern: str) -> Path | None:
    candidates = [(m[1].split("."), p) for p in folder.glob("libnvrtc*") if (m := re.fullmatch(pattern, p.name))]
    return max(candidates, key=lambda pair: [int(n) for n in pair[0]])[1] if candidates else None


@functools.cache
def paths() -> tuple[Path, Path] | None:
    """The paths of NVRTC and its built-in functions; None if none loads on this machine."""
    libraries = find(folders())
    try:
        return libraries if libraries is not None and load_library(libraries) else None
    except OSError:
        return None


@functools.cache
def load_library(libraries: tuple[Path, Path]) -> ctypes.CDLL:
    """Load NVRTC from these paths. Raises OSError if it does not load."""
    nvrtc, built_in = libraries
    # NVRTC loads this by name at the first compilation, which fails with NVRTC_ERROR_BUILTIN_OPERATION_FAILURE if the
    # loader does not search this folder.
    ctypes.CDLL(str(built_in), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(nvrtc))


@dataclass(frozen=True)
class Task:
    """A text to compile with the NVRTC at these paths; see `compile`."""

    libraries: tuple[Path, Path]
    text: str
    name: str
    options: tuple[str, ...]


def compile_task(task: Task) -> tuple[int, bytes, str]:
    """Compile a task, in whatever process."""
    return compile(load_library(task.libraries), task.text, task.name, task.options)


def version(nvrtc: ctypes.CDLL) -> str:
    """Its version, as `major.minor`."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile(nvrtc: ctypes.CDLL, text: str, name: str, options: Sequence[str]) -> tuple[int, bytes, str]:
    """Return NVRTC's result code (0 is success), the cubin, and its messages, which call the text `name`.

    No standard headers are available: the text must be self-contained. Each --ptxas-options takes one option. Newer
    versions, on a machine with a GPU, have their own cache, whose cubins come unverified and without ptxas' report: it
    is disabled.
    """
    if [int(n) for n in version(nvrtc).split(".")] >= FIRST_CACHING_VERSION:
        options = (*options, "--no-cache")
    program = ctypes.c_void_p()
    code = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    if code:
        return code, b"", _error_text(nvrtc, code)
    try:
        array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        code = nvrtc.nvrtcCompileProgram(program, len(options), array)
        messages = _bytes(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        log = messages.rstrip(b"\0").decode(errors="replace") or (_error_text(nvrtc, code) if code else "")
        image = b"" if code else _bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code, image, log


def _bytes(size_of: Callable[..., int], copy: Callable[..., int], program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    copy(program, buffer)
    return buffer.raw[: size.value]


def _error_text(nvrtc: ctypes.CDLL, code: int) -> str:
    function = nvrtc.nvrtcGetErrorString
    function.restype = ctypes.c_char_p
    return str((function(code) or b"unknown error").decode())
