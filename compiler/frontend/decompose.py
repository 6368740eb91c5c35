"""Decompose all calls in ATen graphs that `torch_to_tensor` has no rule for."""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch._decomp import _should_decompose_because_unsafe_op, get_decompositions
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram, default_decompositions
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule, Interpreter, Node
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from compiler.errors import Unsupported
from compiler.frontend import (
    definitions,
    distances,
    embeddings,
    floats,
    foreach,
    graphs,
    incomplete_gamma,
    linalg,
    margins,
    norm_gradients,
    recurrent_cells,
    samples,
    selections,
    shape_functions,
    special,
    undeclared_views,
    windows,
)
from compiler.frontend.layouts import Layout, ensure_layout, op_layouts, to_layout
from compiler.passes.torch_to_tensor.lower import ASSERTIONS, RULES

# Calls that only check or record something about the trace.
IGNORED = {
    "aten._assert_tensor_metadata.default", "aten._log_api_usage_once.default", "aten._assert_scalar.default",
    "aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default",
}  # fmt: skip

ORIGIN = "original_aten"  # key in a node's meta: the op that was decomposed into it

Decompositions = dict[OpOverload[Any, Any], Callable[..., Any]]


@functools.cache
def decompositions() -> Decompositions:
    """Torch's decompositions into core ATen and those of this package, for the ops that have no rule."""
    table: Decompositions = (
        dict(default_decompositions()) | foreach.list_decompositions() | special.special_decompositions()
    )
    table[torch.ops.aten._transformer_encoder_layer_fwd.default] = _encoder_layer
    table[torch.ops.aten.max_unpool2d.default] = _max_unpool
    table[torch.ops.aten.max_unpool3d.default] = _max_unpool
    table[torch.ops.aten._neg_view.default] = torch.neg  # no kernel reads lazily negated memory
    table[torch.ops.aten._weight_norm_interface_backward.default] = _weight_norm_backward
    families = (
        definitions, distances, embeddings, floats, incomplete_gamma, linalg, margins, recurrent_cells, samples,
        selections, windows,
    )  # fmt: skip
    own_definitions = {name: definition for family in families for name, definition in family.DEFINITIONS.items()}
    table |= {
        _overload(name): _with_op_layout(_overload(name), definition) for name, definition in own_definitions.items()
    }
    table.update(get_decompositions([_overload(name) for name in _ON_REQUEST]))  # type: ignore[arg-type]
    for name, overload in _COPYING_VIEWS.items():
        table[_overload(f"{name}_copy.{overload}")] = functools.partial(
            definitions.copying_form, _overload(f"{name}.{overload}")
        )
    for name, mean in norm_gradients.MEANS.items():
        table[_overload(name)] = norm_gradients.of_rounded_input(table[_overload(name)], mean)
    for accepts, names in ((_are_of_one_type, _OF_ONE_TYPE), (_are_floats, _OF_FLOATS)):
        table |= {_overload(name): _if_types_fit(accepts, table[_overload(name)]) for name in names}
    del table[torch.ops.aten.bernoulli.default]  # its decomposition draws other numbers than the op
    table = {op: definition for op, definition in table.items() if str(op) not in RULES}
    return table | shape_functions.corrections(table)


# Ops that torch decomposes only on request.
_ON_REQUEST = (
    "dist.default", "_batch_norm_with_update_functional.default", "tril_indices.default",
    "triu_indices.default", "batch_norm_backward.default",
)  # fmt: skip
# Ops whose eager kernels refuse mixed types, or integers, although their definitions accept them.
_OF_ONE_TYPE = (
    "_cdist_forward.default", "grid_sampler_2d.default", "grid_sampler_3d.default", "linalg_cross.default"
)  # fmt: skip
_OF_FLOATS = ("glu.default", "log_sigmoid_forward.default", "logcumsumexp.default")
# Views that have a copying form, and its overload.
_COPYING_VIEWS = {
    "as_strided": "default", "detach": "default", "narrow": "default", "permute": "default", "select": "int",
    "slice": "Tensor", "split": "Tensor", "unbind": "int", "view": "dtype",
}  # fmt: skip


def _if_types_fit(accepts: Callable[[set[torch.dtype]], bool], definition: Callable[..., Any]) -> Callable[..., Any]:
    """The definition for calls whose types fit. Others keep the op itself, which then reports the types."""

    @functools.wraps(definition)
    def checked(*args: Any, **kwargs: Any) -> Any:
        types = {x.dtype for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        return definition(*args, **kwargs) if accepts(types) else NotImplemented

    return checked


def _are_of_one_type(types: set[torch.dtype]) -> bool:
    return len(types) == 1


def _are_floats(types: set[torch.dtype]) -> bool:
    return all(x.is_floating_point or x.is_complex for x in types)


def _with_op_layout(op: Any, definition: Callable[..., Any]) -> Callable[..., Any]:
    """A definition whose results have the strides of the op's results, which a program may return."""

    @functools.wraps(definition)
    def in_op_layout(*args: Any, **kwargs: Any) -> Any:
        outputs = definition(*args, **kwargs)
        if outputs is NotImplemented:
            return outputs
        results, spec = pytree.tree_flatten(outputs)
        layouts = op_layouts(op, args, kwargs)
        if len(results) != len(layouts):
            return outputs
        return pytree.tree_unflatten(list(map(to_layout, results, layouts)), spec)

    return in_op_layout


def _overload(name: str) -> Any:
    op, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, op), overload)


def _max_unpool(x: torch.Tensor, indices: torch.Tensor, output_size: Sequence[int], *_: Any) -> torch.Tensor:
    """Scatter elements to where a pooling found them. In torch's definition an index may reach into the next plane."""
    planes, rank = x.shape[: -len(output_size)], len(output_size)
    zeros = x.new_zeros(*planes, math.prod(output_size))
    scattered = zeros.scatter(-1, indices.flatten(-rank), x.flatten(-rank))
    return scattered.reshape(*planes, *output_size)


def _weight_norm_backward(
    grad: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of v and g, where the weight is v * g / norms."""
    projection = (grad * v).sum([d for d in range(v.dim()) if d != dim], keepdim=True) / norms
    return g / norms * (grad - v * projection / norms), projection.to(g.dtype)


def _encoder_layer(
    src: torch.Tensor, embed_dim: int, num_heads: int, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor, proj_bias: torch.Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: torch.Tensor, norm_bias_1: torch.Tensor, norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor, ffn_bias_1: torch.Tensor, ffn_weight_2: torch.Tensor, ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None, mask_type: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """`nn.TransformerEncoderLayer` in inference, as its ops."""
    # Only whether a position is masked, as in torch.
    is_visible = None if mask is None else mask.to(torch.bool).logical_not()
    if is_visible is not None and mask_type == 1:  # a key padding mask
        is_visible = is_visible[:, None, None, :]

    def attention(x: torch.Tensor) -> torch.Tensor:
        heads = F.linear(x, qkv_weight, qkv_bias).view(*x.shape[:2], 3, num_heads, embed_dim // num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        heads_out = F.scaled_dot_product_attention(query, key, value, is_visible)
        return F.linear(heads_out.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attention(norm_1(src))
        return x + feed_forward(norm_2(x))
    x = norm_1(src + attention(src))
    return norm_2(x + feed_forward(x))


def decompose(exported: ExportedProgram, spec: Any) -> GraphModule:
    """The exported graph without in-place updates and without decomposable calls that have no rule.

    Raises Unsupported if the program updates an input or a weight.
    """
    graph = exported.graph_module
    replace_inplace_detach(graph)
    _refuse_unseen_writes(graph)
    if not _updated_targets(spec) and not any(graphs.mutates(n) for n in graph.graph.nodes):
        graph = expand(graph)
        if not any(graphs.mutates(n) for n in graph.graph.nodes):
            return graph
    undeclared_views.declare(graph)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own copying uses what torch deprecates
        functional = exported.run_decompositions(decompositions() | undeclared_views.DEFINITIONS)
    updated = _updated_targets(functional.graph_signature)
    if updated:
        raise Unsupported("in-place update", updated, "a program must leave its inputs and weights as they are")
    return expand(functional.graph_module)


def replace_inplace_detach(graph: GraphModule) -> None:
    """Replace in-place detach calls, which torch applies to constants, by plain ones: no difference is observable."""
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.detach_.default:
            node.target = torch.ops.aten.detach.default


def _updated_targets(spec: Any) -> list[str]:
    """The inputs and weights that a program updates."""
    return [str(s.target) for s in spec.output_specs if s.kind is not OutputKind.USER_OUTPUT]


def _refuse_unseen_writes(graph: GraphModule) -> None:
    """Refuse writes that functionalisation does not see and dead-code elimination may drop."""
    for node in graph.graph.nodes:
        op = node.target
        if graphs.mutates(node) and not (op._schema.is_mutable or _should_decompose_because_unsafe_op(op)):
            raise Unsupported(str(op), tuple(map(str, node.args)), "changes its argument in place")


def expand(graph: GraphModule) -> GraphModule:
    """Replace calls that have no rule by their decompositions, repeatedly.

    Retracing the graph before dispatch is an order of magnitude faster than `run_decompositions`, which looks at every
    op that torch knows.
    """
    # Placeholders of plain numbers have no example once a trace has inlined the numbers.
    placeholders = graphs.placeholders(graph)
    examples = [n.meta.get("val", 0) for n in placeholders]
    mode = graphs.fake_mode_of(placeholders) or FakeTensorMode()
    for _ in range(8):
        table = _missing_decompositions(graph)
        if not table:
            break
        graph = retrace(graph, examples, mode, table)
    return graph


def retrace(
    graph: GraphModule, examples: Sequence[Any], mode: FakeTensorMode, table: Decompositions | None = None,
    interpreter_class: type[RetracingInterpreter] | None = None, layouts: Sequence[Layout | None] = (),
    pre_dispatch: bool = True,
) -> GraphModule:  # fmt: skip
    """Trace the graph anew on fake examples; its attribute tensors keep their values.

    During tracing these tensors are inputs too, since only inputs are traced like other values. `layouts` has the sizes
    and strides of each result, or None. Autocast is disabled, although a backward pass may be compiled under it.
    """
    attributes = {n.target: operator.attrgetter(n.target)(graph) for n in graph.graph.nodes if n.op == "get_attr"}
    tensors = {name: t for name, t in attributes.items() if isinstance(t, torch.Tensor)}

    def run(*inputs: Any) -> Any:
        interpreter = (interpreter_class or RetracingInterpreter)(graph)
        interpreter.attribute_values = dict(zip(tensors, inputs[len(examples) :], strict=True))
        results = interpreter.run(*inputs[: len(examples)])
        return [*map(ensure_layout, results, layouts)] if layouts else results

    with torch.no_grad(), torch._C._DisableAutocast(), mode:
        fakes = [mode.from_tensor(t, static_shapes=True) for t in tensors.values()]
        with fx_traceback.preserve_node_meta():
            retraced = make_fx(run, decomposition_table=table, pre_dispatch=pre_dispatch)(*examples, *fakes)
    placeholders = graphs.placeholders(retraced)
    for number, (node, value) in enumerate(zip(placeholders[len(examples) :], tensors.values(), strict=True)):
        retraced.register_buffer(f"held_{number}", value)
        with retraced.graph.inserting_before(node):
            attribute = retraced.graph.get_attr(f"held_{number}")
        attribute.meta = node.meta
        node.replace_all_uses_with(attribute)
        retraced.graph.erase_node(node)
    retraced.recompile()
    return retraced


def specialised(graph: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """The graph traced anew for the sizes and strides of these inputs only; results keep the strides of the old trace.

    With unknown sizes torch may predict other strides than with known ones.
    """
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else x for x in inputs]
    return retrace(graph, fakes, mode, layouts=_result_layouts(graph, inputs))


def _result_layouts(graph: GraphModule, inputs: Sequence[Any]) -> list[Layout | None]:
    """Sizes and strides of each result for these inputs; None if it shares memory with an input or another result."""
    size_of: dict[Any, int] = {}
    examples = [n.meta.get("val") for n in graphs.placeholders(graph)]
    for example, x in zip(examples, inputs, strict=True):
        pairs = zip(example.shape, x.shape, strict=True) if isinstance(example, torch.Tensor) else [(example, x)]
        size_of |= {n.node.expr: m for n, m in pairs if isinstance(n, torch.SymInt)}

    def layout_of(x: Any) -> Layout | None:
        if not isinstance(x, torch.Tensor) or holders[_storage_of(x)] > 1:
            return None
        numbers = [n.node.expr.subs(size_of) if isinstance(n, torch.SymInt) else n for n in (*x.shape, *x.stride())]
        if any(getattr(n, "free_symbols", None) for n in numbers):  # a size that no input determines
            return None
        integers = [*map(int, numbers)]
        return integers[: x.dim()], integers[x.dim() :]

    results = [n.meta.get("val") if isinstance(n, Node) else None for n in graphs.output(graph).args[0]]
    holders = Counter(map(_storage_of, (*examples, *results)))
    return [*map(layout_of, results)]


def _storage_of(x: Any) -> Any:
    return x.untyped_storage()._cdata if isinstance(x, torch.Tensor) else None


class RetracingInterpreter(Interpreter):
    """Runs a graph with other values for its attribute tensors; traced nodes record the op that they come from."""

    attribute_values: dict[Any, Any]

    def run_node(self, n: Node) -> Any:
        fx_traceback.current_meta = {ORIGIN: n.meta.get(ORIGIN) or n.target} if n.op == "call_function" else {}
        return super().run_node(n)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return (
            self.attribute_values[target] if target in self.attribute_values else super().get_attr(target, args, kwargs)
        )


def _missing_decompositions(graph: GraphModule) -> Decompositions:
    """Decompositions for ops without a rule, from the table or the op's own, and for calls with wrong sizes.

    Empty if nothing is left to decompose.
    """
    called = {n.target for n in graph.graph.nodes if isinstance(n.target, OpOverload)}
    missing = {op for op in called if str(op) not in RULES and str(op) not in IGNORED | ASSERTIONS}
    table = decompositions()
    extra: Decompositions = {
        op: functools.partial(_decompose_by_op, op) for op in missing if op not in table and op._can_decompose()
    }
    extra |= {op: definitions.OTHERS[str(op)] for op in missing if str(op) in definitions.OTHERS}
    are_sizes_right = not any(map(shape_functions.may_have_wrong_sizes, graph.graph.nodes))
    return {} if are_sizes_right and not extra and not missing & table.keys() else {**table, **extra}


def _decompose_by_op(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op.decompose(*args, **kwargs)
