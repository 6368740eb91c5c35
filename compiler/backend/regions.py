"""A graph of which not all can be compiled in; the same graph with calls of the largest regions that can be out.

Each call is tried alone. What is refused is cut out and runs in eager, at the place that its inputs allow; what draws
random numbers there, or may do so, runs in the order of the graph, so that the same seed gives the same numbers.
Everything between makes one region a stage: calls whose inputs no later cut makes. Regions of fewer than `LEAST` calls
that compute something have nothing to fuse, so that compiling them gains nothing: they run in eager as well.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from compiler import frontend
from compiler.backend.writes import Boxed
from compiler.errors import CompilerError, Unsupported
from compiler.frontend.graphs import output, placeholders
from compiler.passes.torch_to_tensor import lower as torch_to_tensor

LEAST = 2
TARGETS = {"cpu": "cpu", "cuda": "cuda"}  # by the type of the device


def calls(graph: GraphModule) -> list[Node]:
    """What a graph computes: its calls that give tensors and are no views."""
    return [n for n in graph.graph.nodes if _computes(n)]


def refused(graph: GraphModule, anywhere: bool) -> dict[Node, CompilerError]:
    """The calls of a graph that cannot be compiled by themselves, each with the reason.

    All must be on one device, that of most, unless code for another one is made anyway.
    """
    kept = "" if anywhere else _device(graph)
    known: dict[str, CompilerError | None] = {}
    out: dict[Node, CompilerError] = {}
    for node in graph.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or isinstance(_value(node), torch.SymInt):
            continue
        key = _signature(node)
        if key not in known:
            known[key] = _problem(node, graph, kept)
        problem = known[key]
        if problem is not None:
            out[node] = problem
    return out


def gives_overlapping(graph: GraphModule) -> bool:
    """Whether a result of known sizes may have several elements at one place, as windows do."""
    found = [n.meta.get("example_value") for n in output(graph).all_input_nodes]
    strided = [x for x in found if isinstance(x, torch.Tensor) and x.layout == torch.strided]
    return any(not x._has_symbolic_sizes_strides and torch._debug_has_internal_overlap(x) for x in strided)


SYMBOLIC = torch.SymInt | torch.SymFloat | torch.SymBool


def for_all_sizes(node: Node) -> bool:
    """Whether a call is refused whatever the sizes in its graph are, so that knowing them is of no help."""
    values = [_value(x) for x in (node, *node.all_input_nodes)]
    if any(isinstance(v, torch.Tensor | SYMBOLIC) and free_unbacked_symbols(v) for v in values):
        return True
    if isinstance(values[0], SYMBOLIC):
        return False  # a number that sizes give
    return not isinstance(node.target, OpOverload) or str(node.target) not in torch_to_tensor.RULES


def split(graph: GraphModule, apart: Mapping[Node, object]) -> GraphModule:
    """The graph with calls of its regions, submodules `region_0` and so on, between the calls `apart`."""
    stages: dict[Node, int] = {}
    last = 0  # stage of a call whose place among others of its kind matters
    for node in graph.graph.nodes:
        before = [(stages[x], _owner(x) in apart) for x in node.all_input_nodes if x in stages]
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            stages[node] = stages[_owner(node)]
        elif node in apart:
            ordered = _may_draw(node)
            stages[node] = max([last * ordered, *(stage for stage, _ in before)])
            last = stages[node] if ordered else last
        else:
            stages[node] = max([0, *(stage + cut for stage, cut in before)])
    return _grouped(graph, {n: (stage, _owner(n) in apart) for n, stage in stages.items()}, LEAST)


def halves(graph: GraphModule) -> GraphModule:
    """The graph with calls of two regions, of which the first is the first half of what it computes."""
    middle = calls(graph)[len(calls(graph)) // 2]
    stage = 0
    stages: dict[Node, tuple[int, bool]] = {}
    for node in graph.graph.nodes:
        stage = 1 if node is middle else stage
        if node.op == "call_function":
            stages[node] = (stages[_owner(node)][0] if node.target is operator.getitem else stage, False)
    return _grouped(graph, stages, 1)


def _grouped(graph: GraphModule, stages: Mapping[Node, tuple[int, bool]], least: int) -> GraphModule:
    """The calls in the order of their stages, those of each that are not cut out as one region."""
    copied, table = Graph(), dict[Node, Node]()
    ordered = [n for n in graph.graph.nodes if n.op in ("placeholder", "get_attr")]
    ordered += sorted((n for n in graph.graph.nodes if n in stages), key=lambda n: stages[n])
    modes = [v.fake_mode for n in ordered if isinstance(v := _value(n), FakeTensor)]
    for n in ordered:
        table[n] = copied.node_copy(n, table.__getitem__)
        held = operator.attrgetter(n.target)(graph) if n.op == "get_attr" else None  # a branch of a cond is a graph
        if isinstance(held, torch.Tensor) and n.meta.get("val") is None and modes:
            table[n].meta["val"] = modes[0].from_tensor(held, static_shapes=True)
    copied.node_copy(output(graph), table.__getitem__)
    groups: dict[int, list[Node]] = {}
    for n, (stage, cut) in stages.items():
        if not cut:
            groups.setdefault(stage, []).append(n)
    chosen = [own for _, own in sorted(groups.items()) if sum(map(_computes, own)) >= least]
    made = GraphModule(graph, copied)
    return fuse_by_partitions(made, [{table[n]: None for n in own} for own in chosen], "region_", True)


# One call -------------------------------------------------------------------------------------------------------------


def _problem(node: Node, graph: GraphModule, device: str) -> CompilerError | None:
    """Why a call cannot be compiled by itself; None where it can, or fails otherwise than by being refused."""
    tensors = [x for n in (node, *node.all_input_nodes) for x in _tensors(_value(n))]
    elsewhere = sorted({str(x.device) for x in tensors} - {device})
    if device and elsewhere:
        return Unsupported(str(node.target), elsewhere, f"all tensors of a region must be on one device, here {device}")
    if not tensors or str(node.target) in frontend.IGNORED:
        return Unsupported(str(node.target), (), "computes no tensor")
    alone = _alone(node, graph)
    try:
        real = frontend.as_real(alone) if frontend.has_complex(alone) else alone
        torch_to_tensor.lower(frontend.from_graph(real).program)
    except Unsupported as problem:
        return Unsupported(problem.op, (problem.args_text,), problem.why)  # without the trace that torch adds
    except CompilerError as problem:
        return problem
    except Exception:  # a bug, which is found where the region fails
        return None
    return None


def _alone(node: Node, graph: GraphModule) -> GraphModule:
    """A graph of one call; where sizes are symbolic, with the inputs of the whole graph, which say what they are."""
    made, table = Graph(), dict[Node, Node]()
    inputs = list(node.all_input_nodes)
    if any(isinstance(_value(n), torch.SymInt) or _is_symbolic(n) for n in (node, *inputs)):
        inputs += [n for n in placeholders(graph) if _is_symbolic(n) and n not in inputs]
    for n in inputs:
        table[n] = made.placeholder(n.name)
        table[n].meta["val"] = _value(n)
    own = made.node_copy(node, table.__getitem__)
    parts = [n for n in node.users if n.target is operator.getitem and n.users]
    results = [made.node_copy(n, lambda _: own) for n in parts] or [own]
    made.output(tuple(results))
    return GraphModule(graph, made)


def _is_symbolic(node: Node) -> bool:
    x = _value(node)
    return isinstance(x, torch.Tensor) and not all(isinstance(n, int) for n in x.shape)


def _signature(node: Node) -> str:
    """What is the same for calls that are refused, or not, together."""

    def shown(n: Node) -> str:
        return str([(x.dtype, x.shape, x.stride(), x.storage_offset(), x.device) for x in _tensors(_value(n))] or n)

    used = sorted(str(n.args[1]) for n in node.users if n.target is operator.getitem and n.users)
    args = torch.fx.node.map_arg((node.args, node.kwargs), shown)
    return f"{node.target}{args}{shown(node)}{used}"


def _owner(node: Node) -> Node:
    """The call that a part is taken of, or the call itself."""
    while node.op == "call_function" and node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return node


def _computes(node: Node) -> bool:
    if node.op != "call_function" or node.target is operator.getitem or not _tensors(_value(node)):
        return False
    return not (isinstance(node.target, OpOverload) and node.target.is_view)


def _may_draw(node: Node) -> bool:
    """Whether a call draws random numbers, or may do so, as higher-order ops and those of other libraries may."""
    op = node.target
    if not isinstance(op, OpOverload) or op.namespace not in ("aten", "prims"):
        return True
    return torch.Tag.nondeterministic_seeded in op.tags


def _value(node: Node) -> Any:
    if node.op == "get_attr" and node.meta.get("val") is None:
        return operator.attrgetter(str(node.target))(node.graph.owning_module)
    return node.meta.get("val")


def _tensors(value: Any) -> Sequence[torch.Tensor]:
    return [x for x in (value if isinstance(value, tuple | list) else [value]) if isinstance(x, torch.Tensor)]


def _device(graph: GraphModule) -> str:
    """Where most of a graph's tensors are, of the devices that there is code for."""
    made = [x for n in graph.graph.nodes if n.op == "call_function" for x in _tensors(_value(n))]
    count = Counter(str(x.device) for x in made if x.device.type in TARGETS)
    return count.most_common(1)[0][0] if count else ""


class Region(torch.nn.Module):
    """A module that runs a compiled region in place of its graph."""

    def __init__(self, run: Boxed) -> None:
        super().__init__()
        self.run = run

    def forward(self, *inputs: Any) -> Sequence[Any]:
        return self.run(list(inputs))
