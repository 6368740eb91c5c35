"""Load and call Python texts of Triton functions: on a GPU, or without one by Triton's interpreter.

Only this module imports Triton, and only on demand.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import linecache
import types
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from compiler.errors import ToolchainError
from compiler.runtime import guarded, launcher
from compiler.runtime.launcher import DTYPES, Plan
from compiler.runtime.triton_interpreter import Library, LibraryFunctions, interpret

INSTALL = "`pip install triton` (Linux; it comes with PyTorch for CUDA)"


def missing() -> str:
    """What to install; empty if Triton is installed."""
    is_installed = importlib.util.find_spec("triton") is not None
    return "" if is_installed else f"target triton needs triton to run: {INSTALL}"


def on_gpu() -> bool:
    """Whether Triton compiles for a GPU, rather than interprets."""
    return torch.cuda.is_available()


def load(text: str, functions: LibraryFunctions) -> Callable[..., None]:
    """The function `launch` of the text. Raises ToolchainError, with installation advice, if Triton is missing."""
    if problem := missing():
        raise ToolchainError(problem)
    return _load_module(text, None if on_gpu() else functions)


@functools.lru_cache(maxsize=256)
def _load_module(text: str, functions: LibraryFunctions | None) -> Callable[..., None]:
    if functions is not None:
        interpret()
    name = f"mlc_triton_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # where Triton looks up the source
    module = types.ModuleType(name)
    exec(compile(text, file, "exec"), module.__dict__)
    if functions is not None:
        vars(module)["libdevice"] = Library(functions)
    launch: Callable[..., None] = module.__dict__["launch"]
    return launch


def _run(
    launch: Callable[..., None], buffers: Sequence[torch.Tensor], sizes: Sequence[int], failed: torch.Tensor | None
) -> None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        launch(*buffers, *sizes, failed)


def entry(launch: Callable[..., None], dtypes: Sequence[str], sizes: Sequence[int]) -> guarded.Call:
    """A call of a text on buffers of these types in this machine's memory, copied to the GPU and back if there is
    one."""

    def call(memory: guarded.Bytes, offsets: Sequence[int], number: int) -> Sequence[str]:
        device = "cuda" if on_gpu() else "cpu"
        host = torch.from_numpy(memory)
        on_device = host.to(device)
        buffers = [_tensor_at(on_device, offset, dtype) for offset, dtype in zip(offsets, dtypes, strict=True)]
        failed = torch.zeros(1, dtype=torch.int32, device=device)
        _run(launch, buffers, sizes, failed)
        if device == "cuda":
            host.copy_(on_device)
        return (guarded.INVALID,) if int(failed) else ()

    return call


def _tensor_at(memory: torch.Tensor, offset: int, dtype: str) -> torch.Tensor:
    """A tensor of that type that starts at byte `offset`."""
    size = DTYPES[dtype].itemsize
    return memory[offset : offset + (len(memory) - offset) // size * size].view(DTYPES[dtype])


def caller(
    launch: Callable[..., None],
    plan: Plan,
    bound: Mapping[int, torch.Tensor],
    temporaries: Sequence[launcher.Buffer],
    invalid: Callable[..., object],
    device: torch.device,
    can_fail: bool,
) -> launcher.Launcher:
    """The text as a function of the unbound tensors; with `can_fail`, it calls `invalid` for data that it rejects."""

    def run(inputs: list[torch.Tensor], outputs: tuple[torch.Tensor, ...]) -> object:
        failed = torch.zeros(1, dtype=torch.int32, device=device) if can_fail else None
        scratch = [launcher.empty(b, device) for b in temporaries]
        _run(launch, [*inputs, *outputs, *scratch], plan.sizes, failed)
        return failed is not None and int(failed)

    return launcher.python_launcher(plan, bound, run, invalid, device)
