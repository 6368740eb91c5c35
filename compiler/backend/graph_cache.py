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
_MOST = 1 << 16  # limit of a program's constants in bytes


@dataclass(frozen=True)
class Whole:
    """The cached form of a graph: a program, the number of the graph's `calls`, and how inputs and results correspond.

    `tensors` are the positions of the graph's inputs that the program takes; `picked` has, for each result of the
    graph, the position among the program's results. The program's last results are new values of the inputs at
    `updates`. The version counters of the inputs at `counted` are incremented for autograd.
    """

    captured: frontend.Captured
    device: str
    calls: int
    tensors: tuple[int, ...]
    picked: tuple[int, ...]
    updates: tuple[int, ...] = ()
    counted: tuple[int, ...] = ()


def place(graph: GraphModule, inputs: Sequence[Any], asked: str) -> Path | None:
    """The cache file of a graph compiled with options `asked`; None if the graph has no identity text or no context."""
    context = TracingContext.try_get()
    text = identity.of(graph, inputs)
    if text is None or context is None or context.fakify_first_call:
        return None
    key = hashlib.sha256("\0".join((stored.sources(), asked, text)).encode()).hexdigest()
    try:
        return store.entry(detect.default_cache(os.environ), key, SUFFIX)
    except CacheError:  # reported when the program is built
        return None


def around(whole: Whole, inputs: Sequence[Any], gives: int) -> Whole | None:
    """Complete the program that AOTAutograd has just compiled for inference; None if it cannot be cached.

    That is so if running the graph takes more than the program and updates inside of the graph: aliases to recreate,
    random state, updated inputs that share memory, or a number of results other than the `gives` of the Dynamo graph.
    """
    context = TracingContext.try_get()
    about = None if context is None or context.guards_context.aotautograd_guards else context.fw_metadata
    if about is None or about.tokens or about.num_intermediate_bases:
        return None
    if about.is_rng_op_functionalized or about.num_graphsafe_rng_states:
        return None
    own = all(
        x.output_type is OutputType.non_alias and x.raw_type in (torch.Tensor, FunctionalTensor) and not x.dynamic_dims
        for x in about.output_info
    )
    if not own or (len(about.input_info), len(about.output_info)) != (len(inputs), gives):
        return None
    apart = len({x.untyped_storage()._cdata for x in inputs}) == len(inputs)
    updated = [k for k, x in enumerate(about.input_info) if x.mutates_data or x.mutates_metadata]
    if updated != sorted(whole.updates) or about.mutated_inp_runtime_indices or (updated and not apart):
        return None
    return replace(whole, counted=tuple(about.mutated_graph_handled_indices_seen_by_autograd))


def is_keepable(captured: frontend.Captured) -> bool:
    """Whether a program may be cached: no symbolic sizes, literals or guards, and few bytes of constants."""
    size = sum(x.nbytes for x in captured.constants.values())
    strided = all(type(x) is torch.Tensor and x.layout is torch.strided for x in captured.constants.values())
    plain = not captured.program.sizes and not captured.literals and not captured.guards
    return plain and strided and size <= _MOST and all(isinstance(x, View) for x in captured.views or ())


def read(path: Path) -> Whole | None:
    """The entry at `path`; None if it is missing or damaged."""
    try:
        found = store.taken(path)
        return None if found is None else _parsed(json.loads(found[0]))
    except (CacheError, TextError):
        return None


def write(path: Path, whole: Whole) -> None:
    """Store a program; does nothing if the cache is read-only or full."""
    with contextlib.suppress(CacheError), store.workshop(path) as work:
        draft = work / "graph"
        draft.write_text(json.dumps(_shown(whole)))
        store.publish(draft, path)


def running(
    whole: Whole, launch: Callable[..., Sequence[Any]], trace: Callable[[Sequence[Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """A function that runs a graph by its cached program.

    Arguments that the program refuses, and dual tensors, make `trace` compile the graph; all later calls use that.
    """

    def launched(inputs: list[Any]) -> Sequence[Any]:
        made = launch(*(inputs[k] for k in whole.tensors))
        return [made[k] for k in whole.picked]

    updated, traced = input_writes.writing(launched, whole.updates), list[Callable[..., Any]]()

    def run(*inputs: Any) -> Any:
        if not traced and tangents.found(inputs):
            traced.append(trace(inputs))
        if traced:
            return traced[0](*inputs)
        try:
            made = updated(list(inputs))
        except (TypeError, ValueError):
            traced.append(trace(inputs))
            return traced[0](*inputs)
        torch.autograd.graph.increment_version(inputs[k] for k in whole.counted)
        return made

    return run


def _shown(whole: Whole) -> dict[str, Any]:
    captured = whole.captured
    return {
        "program": aten_text.show(captured.program),
        "constants": {name: _data(x) for name, x in captured.constants.items()},
        "arguments": captured.arguments,
        "positions": captured.positions,
        "results": captured.structure.num_leaves,
        "views": None if captured.views is None else [_numbers(v) for v in captured.views if isinstance(v, View)],
        "device": whole.device, "calls": whole.calls, "tensors": whole.tensors, "picked": whole.picked,
        "updates": whole.updates, "counted": whole.counted,
    }  # fmt: skip


def _parsed(held: dict[str, Any]) -> Whole:
    views = None if held["views"] is None else tuple(_view(*numbers) for numbers in held["views"])
    captured = frontend.Captured(
        aten_text.parse(held["program"]),
        {name: _tensor(*data) for name, data in held["constants"].items()},
        tuple(held["arguments"]),
        pytree.tree_flatten((0,) * held["results"])[1],
        views=views,
        positions=tuple(held["positions"]),
    )
    places = (tuple(held[name]) for name in ("tensors", "picked", "updates", "counted"))
    return Whole(captured, held["device"], held["calls"], *places)


def _numbers(v: View) -> list[Any]:
    memory, shape, strides = ([static(n) for n in part] for part in (v.memory, v.shape, v.strides))
    return [v.source, memory, static(v.begin), shape, strides, static(v.offset)]


def _view(source: int, memory: list[int], begin: int, shape: list[int], strides: list[int], offset: int) -> View:
    sizes = [tuple(map(const, part)) for part in (memory, shape, strides)]
    return View(source, sizes[0], const(begin), sizes[1], sizes[2], const(offset))


def _data(x: torch.Tensor) -> list[Any]:
    """A tensor as its type, device, shape and strides, and its elements in row-major order as base64."""
    content = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    name = str(x.dtype).removeprefix("torch.")
    return [name, str(x.device), list(x.shape), list(x.stride()), base64.b64encode(content).decode()]


def _tensor(name: str, device: str, shape: list[int], strides: list[int], content: str) -> torch.Tensor:
    out = torch.empty_strided(shape, strides, dtype=getattr(torch, name), device=device)
    data = bytearray(base64.b64decode(content))
    if data:
        out.copy_(torch.frombuffer(data, dtype=out.dtype).reshape(shape))
    return out
