"""Partition a graph, parts of which cannot be compiled, into the largest compilable regions and calls in eager.

Each call is tried alone. A refused call is cut out and runs in eager, as early as its inputs allow. Those that draw
random numbers, or may do so, keep the order of the graph, so that the same seed gives the same numbers. Between cuts,
each stage is one region: calls whose inputs no later cut makes. A region with fewer than `MIN_CALLS` calls that compute
something has nothing to fuse, so it runs in eager as well.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from compiler import frontend
from compiler.backend import devices
from compiler.backend.input_writes import Boxed
from compiler.errors import CompilerError, Unsupported
from compiler.frontend.graphs import fake_mode_of, output, placeholders, tensors_in
from compiler.passes.torch_to_tensor import lower as torch_to_tensor

MIN_CALLS = 2


def calls(graph: GraphModule) -> list[Node]:
    """The calls of a graph that compute tensors, views excluded."""
    return [n for n in graph.graph.nodes if _computes(n)]


def refused_calls(graph: GraphModule, any_device: bool) -> dict[Node, CompilerError]:
    """The calls of a graph that cannot be compiled by themselves, each with the reason.

    All must be on the device that most tensors are on, unless a target is given (`any_device`).
    """
    device = "" if any_device else _main_device(graph)
    problems: dict[str, CompilerError | None] = {}
    out: dict[Node, CompilerError] = {}
    for node in graph.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or isinstance(_value(node), torch.SymInt):
            continue
        key = _signature(node)
        if key not in problems:
            problems[key] = _call_refusal(node, graph, device)
        problem = problems[key]
        if problem is not None:
            out[node] = problem
    return out


def has_overlapping_result(graph: GraphModule) -> bool:
    """Whether elements of a result overlap in memory, as in an expanded tensor or an unfolded window. If its sizes or
    strides are symbolic, only an axis of stride 0 is found."""
    values = [n.meta.get("example_value") for n in output(graph).all_input_nodes]
    return any(_overlaps(x) for x in values if isinstance(x, torch.Tensor) and x.layout == torch.strided)


def _overlaps(x: torch.Tensor) -> bool:
    if not x._has_symbolic_sizes_strides:
        return bool(torch._debug_has_internal_overlap(x))
    # Comparing symbols would add guards.
    axes = zip(x.shape, x.stride(), strict=True)
    return any(isinstance(step, int) and step == 0 and not (isinstance(n, int) and n <= 1) for n, step in axes)


_REFUSED_BY_TYPE = frozenset({torch.ops.aten.view.dtype})  # calls that are refused for their element types alone
SYMBOLIC = torch.SymInt | torch.SymFloat | torch.SymBool


def is_refused_for_all_sizes(node: Node) -> bool:
    """Whether a call is refused for any sizes, so that specialising the graph does not help."""
    values = [_value(x) for x in (node, *node.all_input_nodes)]
    if any(isinstance(v, torch.Tensor | SYMBOLIC) and free_unbacked_symbols(v) for v in values):
        return True
    if isinstance(values[0], SYMBOLIC):
        return False  # a number computed from sizes
    has_rule = isinstance(node.target, OpOverload) and str(node.target) in torch_to_tensor.RULES
    return not has_rule or node.target in _REFUSED_BY_TYPE


def split(graph: GraphModule, eager_calls: Mapping[Node, object], min_calls: int = MIN_CALLS) -> GraphModule:
    """The graph with its regions as submodules `region_0` and so on, called between the calls in `eager_calls`.

    Each has at least `min_calls` calls that compute.
    """
    stages: dict[Node, int] = {}
    last = 0  # the last stage of a call that may draw random numbers
    for node in graph.graph.nodes:
        input_stages = [(stages[x], _producer(x) in eager_calls) for x in node.all_input_nodes if x in stages]
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            stages[node] = stages[_producer(node)]
        elif node in eager_calls:
            ordered = _may_be_random(node)
            stages[node] = max([last * ordered, *(stage for stage, _ in input_stages)])
            last = stages[node] if ordered else last
        else:
            stages[node] = max([0, *(stage + cut for stage, cut in input_stages)])
    return _form_regions(graph, {n: (stage, _producer(n) in eager_calls) for n, stage in stages.items()}, min_calls)


def halves(graph: GraphModule) -> GraphModule:
    """The graph as calls of two regions, each with half of its computing calls."""
    middle = calls(graph)[len(calls(graph)) // 2]
    stage = 0
    stages: dict[Node, tuple[int, bool]] = {}
    for node in graph.graph.nodes:
        stage = 1 if node is middle else stage
        if node.op == "call_function":
            stages[node] = (stages[_producer(node)][0] if node.target is operator.getitem else stage, False)
    return _form_regions(graph, stages, 1)


def _form_regions(graph: GraphModule, stages: Mapping[Node, tuple[int, bool]], min_calls: int) -> GraphModule:
    """Sort the calls by stage and make a region of those in each stage that are not cut out.

    A stage with fewer than `min_calls` computing calls makes none. `stages` has the stage of each call and whether it
    is cut.
    """
    copied, table = Graph(), dict[Node, Node]()
    ordered = [n for n in graph.graph.nodes if n.op in ("placeholder", "get_attr")]
    ordered += sorted((n for n in graph.graph.nodes if n in stages), key=lambda n: stages[n])
    mode = fake_mode_of(ordered)
    for n in ordered:
        table[n] = copied.node_copy(n, table.__getitem__)
        attribute = (
            operator.attrgetter(n.target)(graph) if n.op == "get_attr" else None
        )  # or a graph: a branch of a cond
        if isinstance(attribute, torch.Tensor) and n.meta.get("val") is None and mode:
            table[n].meta["val"] = mode.from_tensor(attribute, static_shapes=True)
    copied.node_copy(output(graph), table.__getitem__)
    groups: dict[int, list[Node]] = {}
    for n, (stage, cut) in stages.items():
        if not cut:
            groups.setdefault(stage, []).append(n)
    chosen = [group for _, group in sorted(groups.items()) if sum(map(_computes, group)) >= min_calls]
    made = GraphModule(graph, copied)
    return fuse_by_partitions(made, [{table[n]: None for n in group} for group in chosen], "region_", True)


# One call -------------------------------------------------------------------------------------------------------------


def _call_refusal(node: Node, graph: GraphModule, device: str) -> CompilerError | None:
    """Why a call cannot be compiled by itself; None if it can, or if it fails by anything but a refusal."""
    results = tensors_in(_value(node))
    operands = [x for n in node.all_input_nodes for x in tensors_in(_value(n))]
    needed = (*results, *(x for x in operands if not devices.is_number(x)))
    other_devices = sorted({str(x.device) for x in needed} - {device})
    if device and other_devices:
        return Unsupported(
            str(node.target), other_devices, f"all tensors of a region must be on one device, here {device}"
        )
    if not (results or operands) or str(node.target) in frontend.IGNORED:
        return Unsupported(str(node.target), (), "computes no tensor")
    single = _single_call_graph(node, graph)
    try:
        real = frontend.as_real(single) if frontend.has_complex(single) else single
        torch_to_tensor.lower(frontend.from_graph(real).program)
    except Unsupported as problem:
        return Unsupported(problem.op, (problem.args_text,), problem.why)  # without torch's stack trace
    except CompilerError as problem:
        return problem
    except Exception:  # a bug; reported when the region fails
        return None
    return None


def _single_call_graph(node: Node, graph: GraphModule) -> GraphModule:
    """A graph of one call. If its sizes are symbolic, it also takes all inputs of the graph with symbolic sizes."""
    made, table = Graph(), dict[Node, Node]()
    inputs = list(node.all_input_nodes)
    if any(isinstance(_value(n), torch.SymInt) or _is_symbolic(n) for n in (node, *inputs)):
        inputs += [n for n in placeholders(graph) if _is_symbolic(n) and n not in inputs]
    for n in inputs:
        table[n] = made.placeholder(n.name)
        table[n].meta["val"] = _value(n)
    call = made.node_copy(node, table.__getitem__)
    parts = [n for n in node.users if n.target is operator.getitem and n.users]
    results = [made.node_copy(n, lambda _: call) for n in parts] or [call]
    made.output(tuple(results))
    return GraphModule(graph, made)


def _is_symbolic(node: Node) -> bool:
    x = _value(node)
    return isinstance(x, torch.Tensor) and not all(isinstance(n, int) for n in x.shape)


def _signature(node: Node) -> str:
    """A key that decides whether a call is refused."""

    def describe(n: Node) -> str:
        return str([(x.dtype, x.shape, x.stride(), x.storage_offset(), x.device) for x in tensors_in(_value(n))] or n)

    used = sorted(str(n.args[1]) for n in node.users if n.target is operator.getitem and n.users)
    args = torch.fx.node.map_arg((node.args, node.kwargs), describe)
    return f"{node.target}{args}{describe(node)}{used}"


def _producer(node: Node) -> Node:
    """The call whose result a `getitem` selects from, or the call itself."""
    while node.op == "call_function" and node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return node


def _computes(node: Node) -> bool:
    if node.op != "call_function" or node.target is operator.getitem or not tensors_in(_value(node)):
        return False
    return not is_view(node)


def is_view(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.is_view


def _may_be_random(node: Node) -> bool:
    """Whether a call may draw random numbers; assumed of higher-order ops and of ops of other libraries."""
    op = node.target
    if not isinstance(op, OpOverload) or op.namespace not in ("aten", "prims"):
        return True
    return torch.Tag.nondeterministic_seeded in op.tags


def _value(node: Node) -> Any:
    if node.op == "get_attr" and node.meta.get("val") is None:
        return operator.attrgetter(str(node.target))(node.graph.owning_module)
    return node.meta.get("val")


def _main_device(graph: GraphModule) -> str:
    """The device with the most computed tensors among those that a target exists for; "" if there is none."""
    computed = [x for n in graph.graph.nodes if n.op == "call_function" for x in tensors_in(_value(n))]
    count = Counter(str(x.device) for x in computed if x.device.type in devices.TARGETS)
    return count.most_common(1)[0][0] if count else ""


class Region(torch.nn.Module):
    """A module that runs a compiled region in place of its graph."""

    def __init__(self, run: Boxed) -> None:
        super().__init__()
        self.run = run

    def forward(self, *inputs: Any) -> Sequence[Any]:
        return self.run(list(inputs))
