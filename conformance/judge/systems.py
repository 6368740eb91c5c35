"""Build a function with the system of a given name: a warmed-up callable, with the time that building it took.

`mlcomp` is our compiler, `eager` is PyTorch itself, `compile` and `max-autotune` are torch.compile with Inductor, and
any other name is a torch.compile backend.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

import compiler
from conformance.judge import device

Function = Callable[..., object]
Axes = Sequence[Mapping[int, object] | None]

OURS = "mlcomp"
EAGER = "eager"
# Modes without CUDA graphs, since on a GPU every contestant is timed in a graph.
INDUCTOR_MODES = {"compile": None, "max-autotune": "max-autotune-no-cudagraphs"}
ATTENTION = (
    SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
)  # fmt: skip


class NotInstalled(ValueError):
    """torch knows no backend of this name."""


class NotCompiled(Exception):
    """torch.compile never called the backend, so what ran was not that backend."""


@dataclass(frozen=True)
class BuiltFunction:
    """A function built by one system; `kernels` and `digest` are None unless the system is ours.

    `cached` says that the system took some of it from its cache.
    """

    name: str
    call: Function
    compile_seconds: float = 0.0
    kernels: int | None = None
    digest: str | None = None
    cached: bool = False


def build(
    name: str, function: Function, inputs: Sequence[torch.Tensor], target: str, dynamic: Axes | None = None
) -> BuiltFunction:
    """Build the function with the named system and call it once, so that nothing is left to compile.

    `dynamic` has for each input the axes whose sizes vary between calls.
    """
    if name == EAGER:
        return BuiltFunction(name, function)
    if name == OURS:
        return _build_ours(function, inputs, target, dynamic)
    return _build_through_torch(name, function, inputs, dynamic)


def build_through_torch(
    name: str, function: Function, inputs: Sequence[torch.Tensor], dynamic: Axes | None = None
) -> BuiltFunction:
    """Like `build`, but with ours as the torch.compile backend that users call, without fallback to eager."""
    return BuiltFunction(name, function) if name == EAGER else _build_through_torch(name, function, inputs, dynamic)


def run_dynamo_graph(function: Function, inputs: Sequence[torch.Tensor]) -> object:
    """Return eager's result of the graph that Dynamo passes to backends; `graph_count` does not count it."""
    count = counters["stats"]["unique_graphs"]
    try:
        with torch.no_grad():
            return torch.compile(function, fullgraph=True, backend="eager")(*inputs)
    finally:
        counters["stats"]["unique_graphs"] = count


def graph_count() -> int:
    """Return the number of graphs that torch.compile has passed to backends since the last reset."""
    return int(counters["stats"]["unique_graphs"])


def explain_unknown(name: str) -> str | None:
    """Return an error message for an unknown system's name; None for a known one."""
    known = [OURS, EAGER, *INDUCTOR_MODES, *torch._dynamo.list_backends(exclude_tags=None)]
    if name in known:
        return None
    closest = difflib.get_close_matches(name.lower(), known, n=1)
    prefix = f"did you mean {closest[0]!r}? Known are" if closest else "known are"
    return f"there is no system {name!r}; {prefix} {', '.join(dict.fromkeys(known))}"


@contextmanager
def best_attention(function: Function, inputs: Sequence[torch.Tensor]) -> Iterator[str | None]:
    """Select PyTorch's fastest attention backend for eager; yields its name, or None without attention.

    The selection is a global switch that eager reads on every call, so it adds nothing to the time of a call.
    """
    if not _uses_attention(function, inputs):
        yield None
        return
    seconds = {
        backend: duration
        for backend in ATTENTION
        if (duration := _attention_seconds(backend, function, inputs)) is not None
    }
    # MATH as the second choice, so that inputs that the fastest backend refuses still run.
    ranked = sorted(seconds, key=lambda backend: seconds[backend])
    with sdpa_kernel(list(dict.fromkeys([ranked[0], SDPBackend.MATH])), set_priority=True):
        yield str(ranked[0].name).lower()


def _build_ours(function: Function, inputs: Sequence[torch.Tensor], target: str, dynamic: Axes | None) -> BuiltFunction:
    start = time.perf_counter()
    executable = compiler.compile(function, inputs, target, dynamic_shapes=dynamic)
    executable(*inputs)
    seconds = time.perf_counter() - start
    kernels = executable.kernels
    return BuiltFunction(
        OURS, executable, seconds, kernels if isinstance(kernels, int) else len(kernels), executable.digest
    )


def _build_through_torch(
    name: str, function: Function, inputs: Sequence[torch.Tensor], dynamic: Axes | None
) -> BuiltFunction:
    if complaint := explain_unknown(name):
        raise NotInstalled(complaint)
    # Inductor's pool of compile workers would run while contestants are timed.
    inductor.compile_threads = 1
    # By default Dynamo does not trace recurrent layers; the backend should get them.
    torch._dynamo.config.allow_rnn = True
    # Each case is a new function; without a reset the old ones and their guards accumulate.
    torch._dynamo.reset()
    graphs_before, hits_before = graph_count(), _cache_hits()
    start = time.perf_counter()
    dynamic_mode = None if dynamic else False
    if name in INDUCTOR_MODES:
        call = torch.compile(function, fullgraph=True, dynamic=dynamic_mode, mode=INDUCTOR_MODES[name])
    else:
        options: Any = {"fallback": "error"} if name == OURS else None
        call = torch.compile(function, fullgraph=True, dynamic=dynamic_mode, backend=name, options=options)
    marked = [x.detach() if axes else x for x, axes in zip(inputs, dynamic or [None] * len(inputs), strict=True)]
    for x, axes in zip(marked, dynamic or [None] * len(inputs), strict=True):
        torch._dynamo.maybe_mark_dynamic(x, list(axes or ()))
    call(*marked)
    seconds = time.perf_counter() - start
    if graph_count() == graphs_before:
        raise NotCompiled(
            f"torch.compile never called the backend of {name!r}: there was no tensor operation to compile"
        )
    return BuiltFunction(name, call, seconds, cached=_cache_hits() > hits_before)


def _cache_hits() -> int:
    """Return the number of graphs that torch.compile has taken from its caches in this process."""
    hits = (counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"])
    return sum(map(int, hits))


class _AttentionSeen(TorchFunctionMode):
    """Remembers whether scaled_dot_product_attention was called."""

    seen: bool = False

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen |= func is torch.nn.functional.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


def _uses_attention(function: Function, inputs: Sequence[torch.Tensor]) -> bool:
    mode = _AttentionSeen()
    with mode:
        function(*inputs)
    return mode.seen


def _attention_seconds(backend: SDPBackend, function: Function, inputs: Sequence[torch.Tensor]) -> float | None:
    """Return the least of a few timings with one attention backend; None if it refuses these inputs."""
    with sdpa_kernel(backend):
        try:
            function(*inputs)
        except RuntimeError:  # "No available kernel": the documented error for inputs that a backend does not support
            return None
        if inputs and inputs[0].is_cuda:
            return device.seconds(partial(function, *inputs))
        durations = []
        for _ in range(4):
            start = time.perf_counter_ns()
            function(*inputs)
            durations.append((time.perf_counter_ns() - start) * 1e-9)
    return min(durations)
