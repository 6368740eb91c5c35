"""Cache of whole Dynamo graphs: an earlier process's program for a graph is loaded without tracing the graph again.

Only a graph that becomes one program is cached: its sizes are known, it does not train, and it returns only results of
the program. The key is the text of the graph and of the state that tracing depends on, the backend's options, and the
compiler's sources.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from compiler import frontend
from compiler.backend import identity, input_writes, tangents
from compiler.errors import CacheError
from compiler.execution import stored
from compiler.frontend.results import View
from compiler.ir import aten_text
from compiler.ir.expr import const, static
from compiler.ir.text import TextError
from compiler.runtime import detect, store

SUFFIX = ".json"
_MAX_CONSTANT_BYTES = 1 << 16  # limit of a program's constants in bytes


@dataclass(frozen=True)
class CachedGraph:
    """The cached form of a graph: a program, the number of the graph's `calls`, and how inputs and results correspond.

    `tensors` are the positions of the graph's inputs that the program takes; `result_positions` has, for each result of
    the graph, the position among the program's results. The program's last results are new values of the inputs at
    `updates`. The version counters of the inputs at `version_counted` are incremented for autograd.
    """

    captured: frontend.Captured
    device: str
    calls: int
    tensors: tuple[int, ...]
    result_positions: tuple[int, ...]
    updates: tuple[int, ...] = ()
    version_counted: tuple[int, ...] = ()


def entry_path(graph: GraphModule, inputs: Sequence[Any], options_text: str) -> Path | None:
    """The cache file of a graph compiled with options `options_text`; None if the graph has no identity text or no
    context."""
    context = TracingContext.try_get()
    text = identity.text_of(graph, inputs)
    if text is None or context is None or context.fakify_first_call:
        return None
    key = hashlib.sha256("\0".join((stored.sources(), options_text, text)).encode()).hexdigest()
    try:
        return store.entry(detect.default_cache(os.environ), key, SUFFIX)
    except CacheError:  # reported when the program is built
        return None


def completed(cached: CachedGraph, inputs: Sequence[Any], result_count: int) -> CachedGraph | None:
    """Complete the program that AOTAutograd has just compiled for inference; None if it cannot be cached.

    That is so if running the graph takes more than the program and updates inside of the graph: aliases to recreate,
    random state, updated inputs that share memory, or a number of results other than the `result_count` of the Dynamo
    graph.
    """
    context = TracingContext.try_get()
    metadata = None if context is None or context.guards_context.aotautograd_guards else context.fw_metadata
    if metadata is None or metadata.tokens or metadata.num_intermediate_bases:
        return None
    if metadata.is_rng_op_functionalized or metadata.num_graphsafe_rng_states:
        return None
    are_independent = all(
        x.output_type is OutputType.non_alias and x.raw_type in (torch.Tensor, FunctionalTensor) and not x.dynamic_dims
        for x in metadata.output_info
    )
    if not are_independent or (len(metadata.input_info), len(metadata.output_info)) != (len(inputs), result_count):
        return None
    have_own_memory = len({x.untyped_storage()._cdata for x in inputs}) == len(inputs)
    updated = [k for k, x in enumerate(metadata.input_info) if x.mutates_data or x.mutates_metadata]
    if updated != sorted(cached.updates) or metadata.mutated_inp_runtime_indices or (updated and not have_own_memory):
        return None
    return replace(cached, version_counted=tuple(metadata.mutated_graph_handled_indices_seen_by_autograd))


def is_cacheable(captured: frontend.Captured) -> bool:
    """Whether a program may be cached: no symbolic sizes, literals or guards, and few bytes of constants."""
    size = sum(x.nbytes for x in captured.constants.values())
    are_strided = all(type(x) is torch.Tensor and x.layout is torch.strided for x in captured.constants.values())
    is_static = not captured.program.sizes and not captured.literals and not captured.guards
    return (
        is_static
        and are_strided
        and size <= _MAX_CONSTANT_BYTES
        and all(isinstance(x, View) for x in captured.views or ())
    )


def read(path: Path) -> CachedGraph | None:
    """The entry at `path`; None if it is missing or damaged."""
    try:
        entry = store.read_parts(path)
        return None if entry is None else _from_json(json.loads(entry[0]))
    except (CacheError, TextError):
        return None


def write(path: Path, cached: CachedGraph) -> None:
    """Store a program; does nothing if the cache is read-only or full."""
    with contextlib.suppress(CacheError), store.build_folder(path) as folder:
        draft = folder / "graph"
        draft.write_text(json.dumps(_to_json(cached)))
        store.publish(draft, path)


def runner(
    cached: CachedGraph, launch: Callable[..., Sequence[Any]], trace: Callable[[Sequence[Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """A function that runs a graph by its cached program.

    Arguments that the program refuses, and dual tensors, make `trace` compile the graph; all later calls use that.
    """

    def run_program(inputs: list[Any]) -> Sequence[Any]:
        results = launch(*(inputs[k] for k in cached.tensors))
        return [results[k] for k in cached.result_positions]

    run_and_update, traced = input_writes.with_copies(run_program, cached.updates), list[Callable[..., Any]]()

    def run(*inputs: Any) -> Any:
        if not traced and tangents.has_tangent(inputs):
            traced.append(trace(inputs))
        if traced:
            return traced[0](*inputs)
        try:
            made = run_and_update(list(inputs))
        except (TypeError, ValueError):
            traced.append(trace(inputs))
            return traced[0](*inputs)
        torch.autograd.graph.increment_version(inputs[k] for k in cached.version_counted)
        return made

    return run


def _to_json(cached: CachedGraph) -> dict[str, Any]:
    captured = cached.captured
    return {
        "program": aten_text.show(captured.program),
        "constants": {name: _tensor_data(x) for name, x in captured.constants.items()},
        "arguments": captured.arguments,
        "positions": captured.positions,
        "results": captured.structure.num_leaves,
        "views": None if captured.views is None else [_view_numbers(v) for v in captured.views if isinstance(v, View)],
        "device": cached.device, "calls": cached.calls, "tensors": cached.tensors, "picked": cached.result_positions,
        "updates": cached.updates, "counted": cached.version_counted,
    }  # fmt: skip


def _from_json(entry: dict[str, Any]) -> CachedGraph:
    views = None if entry["views"] is None else tuple(_view(*numbers) for numbers in entry["views"])
    captured = frontend.Captured(
        aten_text.parse(entry["program"]),
        {name: _tensor_from_data(*data) for name, data in entry["constants"].items()},
        tuple(entry["arguments"]),
        pytree.tree_flatten((0,) * entry["results"])[1],
        views=views,
        positions=tuple(entry["positions"]),
    )
    positions = (tuple(entry[name]) for name in ("tensors", "picked", "updates", "counted"))
    return CachedGraph(captured, entry["device"], entry["calls"], *positions)


def _view_numbers(v: View) -> list[Any]:
    memory, shape, strides = ([static(n) for n in part] for part in (v.memory, v.shape, v.strides))
    return [v.source, memory, static(v.begin), shape, strides, static(v.offset)]


def _view(source: int, memory: list[int], begin: int, shape: list[int], strides: list[int], offset: int) -> View:
    sizes = [tuple(map(const, part)) for part in (memory, shape, strides)]
    return View(source, sizes[0], const(begin), sizes[1], sizes[2], const(offset))


def _tensor_data(x: torch.Tensor) -> list[Any]:
    """A tensor as its type, device, shape and strides, and its elements in row-major order as base64."""
    content = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    name = str(x.dtype).removeprefix("torch.")
    return [name, str(x.device), list(x.shape), list(x.stride()), base64.b64encode(content).decode()]


def _tensor_from_data(name: str, device: str, shape: list[int], strides: list[int], content: str) -> torch.Tensor:
    out = torch.empty_strided(shape, strides, dtype=getattr(torch, name), device=device)
    data = bytearray(base64.b64decode(content))
    if data:
        out.copy_(torch.frombuffer(data, dtype=out.dtype).reshape(shape))
    return out
