"""Hand over many of the tensors that a forward graph saves for its backward graph as one: a pack of each element type.

AOTAutograd, autograd and the launchers of the two programs take about 1 us of host time for each saved tensor, of which
a training step of a ResNet-18 has a hundred. In the graphs, a pack is a call of `packed`, and its pieces are
views of it. The forward program writes its outputs into the pack and the backward program reads them there, so that
neither is executed.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from compiler.backend import passthrough, regions, saved_rows
from compiler.backend.input_writes import INTO, WRITES, Boxed
from compiler.frontend import Captured, graphs
from compiler.frontend.types import IR_DTYPES
from compiler.runtime import launcher, memory
from compiler.runtime.packs import Pack, moved, starts, within_packs

# The most bytes of a piece. On GPUs, kernels that write larger tensors run longer than what is saved on the host, and
# memory that is fragmented may lack room for all of them; on CPUs, large allocations are mapped anew by each call.
MOST_BYTES, MOST_BYTES_ON_CPU = 16 << 20, 64 << 10
PACKED = "packed"  # key in meta: of a graph's output, the packs of its results; of a placeholder, the pieces in it

Piece = tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides, first element in the pack


def packed(tensors: Sequence[Tensor], pieces: Sequence[Piece], numel: int) -> Tensor:
    """Copy tensors of one element type and device into a new pack of `numel` elements."""
    whole = tensors[0].new_empty(numel)
    for x, piece in zip(tensors, pieces, strict=True):
        whole.as_strided(*piece).copy_(x)
    return whole


# ---- both graphs


def pack(forward: GraphModule, backward: GraphModule, results: int, for_gpu: bool) -> None:
    """Pack the tensors that `forward` returns after its first `results` outputs. Changes both graphs.

    Tensors that share memory, such as the queries, keys and values of an attention, share it in the pack too. Unchanged
    are inputs and their views, tensors that share memory with another output, and memories of more than `MOST_BYTES`.
    There are no packs if a size is symbolic, if the backward graph calls `as_strided` on an input, which counts from
    the beginning of its memory, or if a call of the forward graph cannot be compiled: then the graph runs in parts, and
    packs would be made by copying.
    """
    output = graphs.output(forward)
    outputs = list(output.args[0])
    saved = outputs[results:]
    if not all(map(_is_static, saved)) or _addresses_inputs(backward) or _runs_in_parts(forward):
        return
    # Tensors are in this order, before the tangents. Names differ where an earlier pass saves a value in another form.
    reader_of = dict(zip(saved, graphs.placeholders(backward), strict=False))
    sharers: dict[object, list[Node]] = {}
    for n in saved:
        sharers.setdefault(graphs.memory_of(n), []).append(n)
    outside = {graphs.memory_of(n) for n in (*graphs.placeholders(forward), *outputs[:results])}
    groups: dict[tuple[torch.dtype, torch.device], list[list[Node]]] = {}
    for shared, nodes in sharers.items():
        if shared not in outside and _may_be_packed(nodes, MOST_BYTES if for_gpu else MOST_BYTES_ON_CPU):
            x = nodes[0].meta["val"]
            groups.setdefault((x.dtype, x.device), []).append(nodes)
    wholes = [_pack_group(forward, group) for group in groups.values() if sum(map(len, group)) > 1]
    if not wholes:
        return
    _read_from_packs(backward, wholes, reader_of)
    within = {x for whole in wholes for x in whole.args[0]}
    output.args = ((*outputs[:results], *wholes, *(n for n in saved if n not in within)),)
    forward.recompile()
    backward.recompile()


def _is_static(node: object) -> bool:
    x = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(x, Tensor) or x.layout is not torch.strided:
        return False
    return all(isinstance(n, int) for n in (*x.shape, *x.stride(), x.storage_offset()))


def _may_be_packed(sharers: Sequence[Node], most: int) -> bool:
    """Whether the memory of these values can be part of a pack, and is of at most `most` bytes."""
    values = [n.meta["val"] for n in sharers]
    item_bytes = values[0].element_size()
    # AOTAutograd hands those of this mark over apart from the others.
    if not all(n.op == "call_function" and not n.meta.get("saved_tensor_with_no_vc_check") for n in sharers):
        return False
    if len(set(sharers)) < len(sharers) or len({x.dtype for x in values}) > 1 or values[0].dtype not in IR_DTYPES:
        return False
    are_aligned = all(x.storage_offset() * item_bytes % launcher.ALIGNMENT == 0 for x in values)
    return are_aligned and 0 < _span(values) * item_bytes <= most


def _addresses_inputs(backward: GraphModule) -> bool:
    """Whether a call depends on where the memory of an input begins."""
    inputs = {graphs.memory_of(n) for n in graphs.placeholders(backward)}
    addressed = [n.args[0] for n in backward.graph.nodes if saved_rows.depends_on_strides(n)]
    nested = [m for m in backward.modules() if isinstance(m, GraphModule) and m is not backward]
    in_nested = any(saved_rows.depends_on_strides(n) for m in nested for n in m.graph.nodes)
    return in_nested or any(graphs.memory_of(x) in inputs for x in addressed)


def _runs_in_parts(forward: GraphModule) -> bool:
    calls = [n for n in forward.graph.nodes if n.op == "call_function" and n.target not in (operator.getitem, *WRITES)]
    return any(graphs.tensors_in(n.meta.get("val")) and regions.is_refused_for_all_sizes(n) for n in calls)


def _span(sharers: Sequence[Tensor]) -> int:
    """The elements of the memory that tensors share: up to its end, since a program writes all of it."""
    ends = [int(x.storage_offset()) + memory.element_span(tuple(x.shape), tuple(x.stride())) for x in sharers]
    return max(*ends, int(sharers[0].untyped_storage().nbytes()) // sharers[0].element_size())


def _pack_group(forward: GraphModule, group: Sequence[Sequence[Node]]) -> Any:
    """The call that packs tensors of one element type, of which those of one memory are together in `group`."""
    values: list[list[Any]] = [[n.meta["val"] for n in sharers] for sharers in group]
    begins, numel = starts([_span(sharers) for sharers in values], values[0][0].element_size())
    pieces = tuple(
        ((*x.shape,), (*x.stride(),), begin + x.storage_offset())
        for sharers, begin in zip(values, begins, strict=True)
        for x in sharers
    )
    with forward.graph.inserting_before(graphs.output(forward)):
        node = forward.graph.call_function(packed, (tuple(itertools.chain(*group)), pieces, numel))
    with values[0][0].fake_mode:
        node.meta = {"val": values[0][0].new_empty(numel)}
    return node


def _read_from_packs(backward: GraphModule, wholes: Sequence[Any], reader_of: dict[Node, Node]) -> None:
    """Replace the placeholders of pieces by views of placeholders of packs, which precede all others."""
    graph = backward.graph
    with graph.inserting_before(next(iter(graph.nodes))):
        placeholders = [graph.placeholder(whole.name) for whole in wholes]
    with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
        for placeholder, whole in zip(placeholders, wholes, strict=True):
            members, pieces, _ = whole.args
            placeholder.meta = {"val": whole.meta["val"], PACKED: pieces}
            for member, piece in zip(members, pieces, strict=True):
                view = graph.call_function(torch.ops.aten.as_strided.default, (placeholder, *piece))
                view.meta = reader_of[member].meta
                reader_of[member].replace_all_uses_with(view)
                graph.erase_node(reader_of[member])


# ---- one graph


def opened_results(forward: GraphModule) -> tuple[tuple[Pack, ...], Callable[[Boxed], Boxed]]:
    """Let a graph return the pieces of its packs after its other results. Changes the graph.

    Returns the packs by the positions of these results, and a function that makes of a function with these results one
    with packs, of which a program may have made all or a part, as `Captured.packed_results` says.
    """
    output = graphs.output(forward)
    outputs = list(output.args[0])
    wholes: list[Any] = [n for n in outputs if isinstance(n, Node) and n.target is packed]
    if not wholes:
        return (), lambda run: run
    at, others = outputs.index(wholes[0]), [n for n in outputs if n not in wholes]
    begins = [len(others) + sum(len(whole.args[0]) for whole in wholes[:k]) for k in range(len(wholes) + 1)]
    output.args = ((*others, *(x for whole in wholes for x in whole.args[0])),)
    calls = [whole.args[1:] for whole in wholes]
    for whole in wholes:
        forward.graph.erase_node(whole)
    forward.recompile()

    def with_packs(run: Boxed) -> Boxed:
        def run_and_pack(inputs: list[Any]) -> list[Any]:
            made = run(inputs)
            packs = [_whole(made[a:b], *call) for (a, b), call in zip(itertools.pairwise(begins), calls, strict=True)]
            return [*made[:at], *packs, *made[at : len(others)]]

        return run_and_pack

    packs = tuple(
        Pack(numel, tuple((begin + k, start) for k, (*_, start) in enumerate(pieces)))
        for begin, (pieces, numel) in zip(begins, calls, strict=False)
    )
    return packs, with_packs


def _whole(parts: Sequence[Any], pieces: Sequence[Piece], numel: int) -> Tensor:
    """The pack of `parts`: what a program has put into one is None, but for the pack itself, and the rest is copied."""
    whole: Tensor | None = next((x for x in parts if x is not None and x.shape == (numel,)), None)
    if whole is None:
        return packed(parts, pieces, numel)
    for x, piece in zip(parts, pieces, strict=True):
        if x is not None and x is not whole:
            whole.as_strided(*piece).copy_(x)
    return whole


def given_packs(backward: GraphModule) -> Callable[[Boxed], Boxed]:
    """Return a function that makes a function with the inputs of the graph read packs from wherever they are in memory.

    What reads the pieces by `as_strided` would ignore that; only hooks for saved tensors move them.
    """
    positions = [k for k, p in enumerate(graphs.placeholders(backward)) if PACKED in p.meta]

    def with_packs(run: Boxed) -> Boxed:
        def run_given(inputs: list[Any]) -> Sequence[Any]:
            for k in positions:
                if inputs[k].storage_offset() or not inputs[k].is_contiguous():
                    inputs[k] = inputs[k].clone(memory_format=torch.contiguous_format)
            return run(inputs)

        return run_given if positions else run

    return with_packs


def copy_marks(source: GraphModule, target: GraphModule) -> None:
    """Mark the packs among the inputs and the results of a graph that was traced from another one."""
    for old, new in zip(graphs.placeholders(source), graphs.placeholders(target), strict=True):
        if PACKED in old.meta:
            new.meta[PACKED] = old.meta[PACKED]
    graphs.output(target).meta[PACKED] = graphs.output(source).meta.get(PACKED, ())


def opened_inputs(backward: GraphModule) -> tuple[GraphModule, tuple[int, ...], tuple[Pack, ...]]:
    """The graph with the pieces of its packs as inputs.

    Also returns, for each of its inputs, the position of the original's input that it is or is in, and the packs by
    positions of its inputs. The graph is the original if it has no pack, or returns views of pieces.
    """
    placeholders = graphs.placeholders(backward)
    unchanged = backward, tuple(range(len(placeholders))), ()
    views = {p: list(p.users) for p in placeholders if PACKED in p.meta}
    results = [n for n in graphs.output(backward).args[0] if isinstance(n, Node)]
    if not views or any(_root(n) in views for n in results if passthrough.is_passed_on(n)):
        return unchanged
    pieces: dict[Node, Any] = {v: v.args[1:] for users in views.values() for v in users}
    if not all(v.target is torch.ops.aten.as_strided.default for v in pieces):
        return unchanged
    opened, copies = Graph(), dict[Node, Node]()
    origins: list[int] = []
    for k, p in enumerate(placeholders):
        for n in views.get(p, [p]):
            copies[n] = opened.placeholder(n.name)
            copies[n].meta = dict(n.meta)
            origins.append(k)
    for n in backward.graph.nodes:
        if n not in copies and n not in views:
            copies[n] = opened.node_copy(n, copies.__getitem__)
    made = GraphModule(backward, opened)
    output = graphs.output(made)
    if INTO in output.meta:
        output.meta[INTO] = {n: copies[p] for n, p in output.meta[INTO].items()}
    inputs = graphs.placeholders(made)
    packs = tuple(
        Pack(p.meta["val"].numel(), tuple((inputs.index(copies[v]), pieces[v][2]) for v in users))
        for p, users in views.items()
    )
    return made, tuple(origins), packs


def _root(node: Node) -> Node:
    while node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


# ---- one program


def packs_of(graph: GraphModule, outputs: Sequence[Any], computed: Sequence[Node]) -> tuple[Pack, ...]:
    """The packs of a graph's results by positions in `computed`, without pieces that are also other results or that
    the program does not compute."""
    position = {n: k for k, n in enumerate(computed) if outputs.count(n) == 1}
    packs: Sequence[Pack] = graphs.output(graph).meta.get(PACKED, ())
    return moved(packs, {n: position[x] for n, x in enumerate(outputs) if x in position})


def captured_with_packs(
    captured: Captured,
    result_packs: tuple[Pack, ...],
    input_packs: Sequence[Pack],
    taken_positions: Sequence[int],
    origins: Sequence[int],
) -> tuple[Captured, list[int | None]]:
    """The program with packs, and for each of its arguments the position of the graph's input to pass; None for None.

    The arguments are the inputs of the opened graph at `taken_positions`. `input_packs` and `origins` are as
    `opened_inputs` returns them.
    """
    names = [i.name for i in captured.program.inputs]
    inputs = [names.index(name) for name in captured.arguments]
    packs = moved(input_packs, dict(zip(taken_positions, inputs, strict=True)))
    within = within_packs(packs)
    sources = [None if n in within else origins[k] for k, n in zip(taken_positions, inputs, strict=True)]
    return replace(captured, packed_inputs=packs, packed_results=result_packs), sources
