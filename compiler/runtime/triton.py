"""A Python file of functions for Triton in; calls of it out: on a GPU, or by Triton's interpreter where there is none.

Triton is imported here alone, and only when asked for.
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
    """What to install, if anything; empty where Triton is here."""
    found = importlib.util.find_spec("triton") is not None
    return "" if found else f"target triton needs triton to run: {INSTALL}"


def on_gpu() -> bool:
    """Whether a GPU runs what Triton compiles, rather than Triton's interpreter."""
    return torch.cuda.is_available()


def load(text: str, meanings: Meanings) -> Callable[..., None]:
    """The function `launch` of the text; raises ToolchainError, which says what to install where Triton is not."""
    if problem := missing():
        raise ToolchainError(problem)
    return _loaded(text, None if on_gpu() else meanings)


@functools.lru_cache(maxsize=256)
def _loaded(text: str, meanings: Meanings | None) -> Callable[..., None]:
    if meanings is not None:
        interpret()
    name = f"mlc_triton_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # where Triton looks for its source
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
    """A call of a text on memory of this machine, of which buffers of these types are parts; by way of the GPU's if
    that runs it."""

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
    """What begins there, as a tensor of that type."""
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
    """The text as a function of the tensors that are not bound; data of which it `fails` are `invalid`."""

    def run(inputs: list[torch.Tensor], outputs: tuple[torch.Tensor, ...]) -> object:
        failed = torch.zeros(1, dtype=torch.int32, device=device) if fails else None
        made = [launcher.empty(b, device) for b in temporaries]
        _run(launch, [*inputs, *outputs, *made], plan.sizes, failed)
        return failed is not None and int(failed)

    return launcher.in_python(plan, bound, run, invalid, device)
