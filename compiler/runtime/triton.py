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
from compiler.runtime.triton_interpreter import Library, Meanings, interpret

INSTALL = "`pip install triton` (Linux; it comes with PyTorch for CUDA)"


def missing() -> str:
    """What to install; empty if Triton is installed."""
    found = importlib.util.find_spec("triton") is not None
    return "" if found else f"target triton needs triton to run: {INSTALL}"


def on_gpu() -> bool:
    """Whether Triton compiles for a GPU, rather than interprets."""
    return torch.cuda.is_available()


def load(text: str, meanings: Meanings) -> Callable[..., None]:
    """The function `launch` of the text. Raises ToolchainError, with installation advice, if Triton is missing."""
    if problem := missing():
        raise ToolchainError(problem)
    return _loaded(text, None if on_gpu() else meanings)


@functools.lru_cache(maxsize=256)
def _loaded(text: str, meanings: Meanings | None) -> Callable[..., None]:
    if meanings is not None:
        interpret()
    name = f"mlc_triton_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # where Triton looks up the source
    module = types.ModuleType(name)
    exec(compile(text, file, "exec"), module.__dict__)
    if meanings is not None:
        vars(module)["libdevice"] = Library(meanings)
    launch: Callable[..., None] = module.__dict__["launch"]
    return launch


def _run(
    launch: Callable[..., None], buffers: Sequence[torch.Tensor], sizes: Sequence[int], failed: torch.Tensor | None
) -> None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        launch(*buffers, *sizes, failed)


def entry(launch: Callable[..., None], kinds: Sequence[str], sizes: Sequence[int]) -> guarded.Call:
    """A call of a text on buffers of these types in this machine's memory, copied to the GPU and back if there is
    one."""

    def call(memory: guarded.Bytes, places: Sequence[int], number: int) -> Sequence[str]:
        device = "cuda" if on_gpu() else "cpu"
        whole = torch.from_numpy(memory)
        held = whole.to(device)
        buffers = [_at(held, place, kind) for place, kind in zip(places, kinds, strict=True)]
        failed = torch.zeros(1, dtype=torch.int32, device=device)
        _run(launch, buffers, sizes, failed)
        if device == "cuda":
            whole.copy_(held)
        return (guarded.INVALID,) if int(failed) else ()

    return call


def _at(memory: torch.Tensor, place: int, kind: str) -> torch.Tensor:
    """A tensor of that type that starts at byte `place`."""
    size = DTYPES[kind].itemsize
    return memory[place : place + (len(memory) - place) // size * size].view(DTYPES[kind])


def caller(
    launch: Callable[..., None],
    plan: Plan,
    bound: Mapping[int, torch.Tensor],
    temporaries: Sequence[launcher.Buffer],
    invalid: Callable[..., object],
    device: torch.device,
    fails: bool,
) -> launcher.Launcher:
    """The text as a function of the unbound tensors; with `fails`, it calls `invalid` for data that it rejects."""

    def run(inputs: list[torch.Tensor], outputs: tuple[torch.Tensor, ...]) -> object:
        failed = torch.zeros(1, dtype=torch.int32, device=device) if fails else None
        made = [launcher.empty(b, device) for b in temporaries]
        _run(launch, [*inputs, *outputs, *made], plan.sizes, failed)
        return failed is not None and int(failed)

    return launcher.in_python(plan, bound, run, invalid, device)
