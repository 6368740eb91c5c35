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
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram, default_decompositions
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule, Interpreter, Node
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

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
    samples,
    selections,
    special,
    windows,
)
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
    table: Decompositions = dict(default_decompositions()) | foreach.over_lists() | special.functions()
    table[torch.ops.aten._transformer_encoder_layer_fwd.default] = _encoder_layer
    table[torch.ops.aten.max_unpool2d.default] = _max_unpool
    table[torch.ops.aten.max_unpool3d.default] = _max_unpool
    table[torch.ops.aten._neg_view.default] = torch.neg  # no kernel reads lazily negated memory
    table[torch.ops.aten._weight_norm_interface_backward.default] = _weight_norm_backward
    families = (
        definitions, distances, embeddings, floats, incomplete_gamma, linalg, margins, samples, selections, windows,
    )  # fmt: skip
    own = {name: how for family in families for name, how in family.DEFINITIONS.items()}
    table |= {_overload(name): _laid_out(_overload(name), how) for name, how in own.items()}
    table.update(get_decompositions([_overload(name) for name in _BESIDES]))  # type: ignore[arg-type]
    for name, overload in _COPIED.items():
        table[_overload(f"{name}_copy.{overload}")] = functools.partial(
            definitions.copied, _overload(f"{name}.{overload}")
        )
    for fits, names in ((_is_of_one_type, _OF_ONE_TYPE), (_is_of_fractions, _OF_FRACTIONS)):
        table |= {_overload(name): _where(fits, table[_overload(name)]) for name in names}
    del table[torch.ops.aten.bernoulli.default]  # its decomposition draws other numbers than the op
    return {op: how for op, how in table.items() if str(op) not in RULES}


# Ops that torch decomposes only on request.
_BESIDES = (
    "dist.default", "_batch_norm_with_update_functional.default", "tril_indices.default",
    "triu_indices.default", "batch_norm_backward.default",
)  # fmt: skip
# Ops whose eager kernels refuse mixed types, or integers, although their definitions accept them.
_OF_ONE_TYPE = (
    "_cdist_forward.default", "grid_sampler_2d.default", "grid_sampler_3d.default", "linalg_cross.default"
)  # fmt: skip
_OF_FRACTIONS = ("glu.default", "log_sigmoid_forward.default", "logcumsumexp.default")
# Views that have a copying form, and its overload.
_COPIED = {
    "as_strided": "default", "detach": "default", "narrow": "default", "permute": "default", "select": "int",
    "slice": "Tensor", "split": "Tensor", "unbind": "int", "view": "dtype",
}  # fmt: skip


def _where(fits: Callable[[set[torch.dtype]], bool], how: Callable[..., Any]) -> Callable[..., Any]:
    """The definition for calls whose types fit. Others keep the op itself, which then reports the types."""

    @functools.wraps(how)
    def made(*args: Any, **kwargs: Any) -> Any:
        types = {x.dtype for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        return how(*args, **kwargs) if fits(types) else NotImplemented

    return made


def _is_of_one_type(types: set[torch.dtype]) -> bool:
    return len(types) == 1


def _is_of_fractions(types: set[torch.dtype]) -> bool:
    return all(x.is_floating_point or x.is_complex for x in types)


def _laid_out(op: Any, how: Callable[..., Any]) -> Callable[..., Any]:
    """A definition whose results have the strides of the op's results, which a program may return."""

    @functools.wraps(how)
    def made(*args: Any, **kwargs: Any) -> Any:
        found = how(*args, **kwargs)
        if found is NotImplemented:
            return found
        results, spec = pytree.tree_flatten(found)
        promised = _promised(op, args, kwargs)
        if len(results) != len(promised):
            return found
        return pytree.tree_unflatten(list(map(_as_promised, results, promised)), spec)

    return made


_Lies = tuple[list[int], list[int]]  # sizes and strides of a tensor


def _lies(x: torch.Tensor) -> _Lies:
    """Sizes and strides; if they are symbolic, those of the example, so that no guard is added."""
    return [*map(_plain, x.shape)], [*map(_plain, x.stride())]


def _plain(n: Any) -> Any:
    return n.node.hint if isinstance(n, torch.SymInt | torch.SymFloat | torch.SymBool) else n


def _promised(op: Any, args: Any, kwargs: Any) -> list[_Lies | None]:
    """Sizes and strides of the op's results, from its meta kernel on that device; empty if torch cannot tell."""

    def empty(x: Any) -> Any:
        return (
            torch.empty_strided(*_lies(x), dtype=x.dtype, device=x.device) if isinstance(x, torch.Tensor) else _plain(x)
        )

    with _disable_current_modes(), FakeTensorMode():
        try:
            made = op(*pytree.tree_map(empty, args), **pytree.tree_map(empty, kwargs))
        except (RuntimeError, TypeError):  # no kernel for this, or a size that has no example
            return []
        return [_lies(x) if isinstance(x, torch.Tensor) else None for x in pytree.tree_leaves(made)]


def _as_promised(x: Any, lies: _Lies | None) -> Any:
    """Copy a tensor to the promised order of axes in memory, at storage offset 0, unless it is stored so already."""
    if not isinstance(x, torch.Tensor) or lies is None or len(lies[0]) != x.dim():
        return x
    sizes, steps = lies
    order = sorted(range(x.dim()), key=lambda axis: -steps[axis])
    dense = math.prod(sizes) > 0 and _in_one_piece(sizes, steps, order)
    if not dense or (_plain(x.storage_offset()) == 0 and _in_one_piece(*_lies(x), order)):
        return x
    back = [order.index(axis) for axis in range(x.dim())]
    return x.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def as_laid(x: Any, like: Any) -> Any:
    """The tensor with the order of axes in memory that `like` has."""
    return _as_promised(x, _lies(like)) if isinstance(like, torch.Tensor) else x


def _laid(x: Any, lies: _Lies | None) -> Any:
    return x if lies is None or _lies(x) == lies else _as_promised(x, lies)


def _in_one_piece(sizes: list[int], steps: list[int], order: list[int]) -> bool:
    """Whether a tensor is dense with its axes in this order."""
    wanted = 1
    for axis in reversed(order):
        if sizes[axis] > 1 and steps[axis] != wanted:
            return False
        wanted *= sizes[axis]
    return True


def _overload(name: str) -> Any:
    op, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, op), overload)


def _max_unpool(x: torch.Tensor, indices: torch.Tensor, output_size: Sequence[int], *_: Any) -> torch.Tensor:
    """Scatter elements to where a pooling found them. In torch's definition an index may reach into the next plane."""
    planes, rank = x.shape[: -len(output_size)], len(output_size)
    blank = x.new_zeros(*planes, math.prod(output_size))
    made = blank.scatter(-1, indices.flatten(-rank), x.flatten(-rank))
    return made.reshape(*planes, *output_size)


def _weight_norm_backward(
    grad: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of v and g, where the weight is v * g / norms."""
    along = (grad * v).sum([d for d in range(v.dim()) if d != dim], keepdim=True) / norms
    return g / norms * (grad - v * along / norms), along.to(g.dtype)


def _encoder_layer(
    src: torch.Tensor, embed_dim: int, num_heads: int, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor, proj_bias: torch.Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: torch.Tensor, norm_bias_1: torch.Tensor, norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor, ffn_bias_1: torch.Tensor, ffn_weight_2: torch.Tensor, ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None, mask_type: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """`nn.TransformerEncoderLayer` in inference, as its ops."""
    seen = None if mask is None else mask.to(torch.bool).logical_not()  # only whether a position is masked, as in torch
    if seen is not None and mask_type == 1:  # a key padding mask
        seen = seen[:, None, None, :]

    def attended(x: torch.Tensor) -> torch.Tensor:
        heads = F.linear(x, qkv_weight, qkv_bias).view(*x.shape[:2], 3, num_heads, embed_dim // num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        made = F.scaled_dot_product_attention(query, key, value, seen)
        return F.linear(made.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def fed_forward(x: torch.Tensor) -> torch.Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attended(norm_1(src))
        return x + fed_forward(norm_2(x))
    x = norm_1(src + attended(src))
    return norm_2(x + fed_forward(x))


def decompose(exported: ExportedProgram, spec: Any) -> GraphModule:
    """The exported graph without in-place updates and without decomposable calls that have no rule.

    Raises Unsupported if the program updates an input or a weight.
    """
    graph = exported.graph_module
    kept_constants(graph)
    _refuse_unseen(graph)
    if not _updates(spec) and not any(graphs.mutates(n) for n in graph.graph.nodes):
        graph = expand(graph)
        if not any(graphs.mutates(n) for n in graph.graph.nodes):
            return graph
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own copying uses what torch deprecates
        functional = exported.run_decompositions(decompositions())
    updated = _updates(functional.graph_signature)
    if updated:
        raise Unsupported("in-place update", updated, "a program must leave its inputs and weights as they are")
    return expand(functional.graph_module)


def kept_constants(graph: GraphModule) -> None:
    """Replace in-place detach calls, which torch applies to constants, by plain ones: no difference is observable."""
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.detach_.default:
            node.target = torch.ops.aten.detach.default


def _updates(spec: Any) -> list[str]:
    """The inputs and weights that a program updates."""
    return [str(s.target) for s in spec.output_specs if s.kind is not OutputKind.USER_OUTPUT]


def _refuse_unseen(graph: GraphModule) -> None:
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
    examples = [n.meta.get("val", 0) for n in graphs.placeholders(graph)]
    modes = [v.fake_mode for v in examples if isinstance(v, FakeTensor)]
    mode = modes[0] if modes else FakeTensorMode()
    for _ in range(8):
        table = _expansions(graph)
        if not table:
            break
        graph = retrace(graph, examples, mode, table)
    return graph


def retrace(
    graph: GraphModule, examples: Sequence[Any], mode: FakeTensorMode, table: Decompositions | None = None,
    reader: type[Holding] | None = None, lies: Sequence[_Lies | None] = (), pre_dispatch: bool = True,
) -> GraphModule:  # fmt: skip
    """Trace the graph anew on fake examples; its attribute tensors keep their values.

    During tracing these tensors are inputs too, since only inputs are traced like other values. `lies` has the sizes
    and strides of each result, or None. Autocast is disabled, although a backward pass may be compiled under it.
    """
    held = {n.target: operator.attrgetter(n.target)(graph) for n in graph.graph.nodes if n.op == "get_attr"}
    tensors = {name: t for name, t in held.items() if isinstance(t, torch.Tensor)}

    def run(*inputs: Any) -> Any:
        interpreter = (reader or Holding)(graph)
        interpreter.held = dict(zip(tensors, inputs[len(examples) :], strict=True))
        results = interpreter.run(*inputs[: len(examples)])
        return [*map(_laid, results, lies)] if lies else results

    with torch.no_grad(), torch._C._DisableAutocast(), mode:
        fakes = [mode.from_tensor(t, static_shapes=True) for t in tensors.values()]
        with fx_traceback.preserve_node_meta():
            made = make_fx(run, decomposition_table=table, pre_dispatch=pre_dispatch)(*examples, *fakes)
    placeholders = graphs.placeholders(made)
    for number, (node, value) in enumerate(zip(placeholders[len(examples) :], tensors.values(), strict=True)):
        made.register_buffer(f"held_{number}", value)
        with made.graph.inserting_before(node):
            own = made.graph.get_attr(f"held_{number}")
        own.meta = node.meta
        node.replace_all_uses_with(own)
        made.graph.erase_node(node)
    made.recompile()
    return made


def specialised(graph: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """The graph traced anew for the sizes and strides of these inputs only; results keep the strides of the old trace.

    With unknown sizes torch may predict other strides than with known ones.
    """
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else x for x in inputs]
    return retrace(graph, fakes, mode, lies=_given_lies(graph, inputs))


def _given_lies(graph: GraphModule, inputs: Sequence[Any]) -> list[_Lies | None]:
    """Sizes and strides of each result for these inputs; None if it shares memory with an input or another result."""
    known: dict[Any, int] = {}
    examples = [n.meta.get("val") for n in graphs.placeholders(graph)]
    for example, x in zip(examples, inputs, strict=True):
        pairs = zip(example.shape, x.shape, strict=True) if isinstance(example, torch.Tensor) else [(example, x)]
        known |= {n.node.expr: m for n, m in pairs if isinstance(n, torch.SymInt)}

    def lies(x: Any) -> _Lies | None:
        if not isinstance(x, torch.Tensor) or taken[_memory(x)] > 1:
            return None
        numbers = [n.node.expr.subs(known) if isinstance(n, torch.SymInt) else n for n in (*x.shape, *x.stride())]
        if any(getattr(n, "free_symbols", None) for n in numbers):  # a size that no input determines
            return None
        plain = [*map(int, numbers)]
        return plain[: x.dim()], plain[x.dim() :]

    made = [n.meta.get("val") if isinstance(n, Node) else None for n in graphs.output(graph).args[0]]
    taken = Counter(map(_memory, (*examples, *made)))
    return [*map(lies, made)]


def _memory(x: Any) -> Any:
    return x.untyped_storage()._cdata if isinstance(x, torch.Tensor) else None


class Holding(Interpreter):
    """Runs a graph with other values for its attribute tensors; traced nodes record the op that they come from."""

    held: dict[Any, Any]

    def run_node(self, n: Node) -> Any:
        fx_traceback.current_meta = {ORIGIN: n.meta.get(ORIGIN) or n.target} if n.op == "call_function" else {}
        return super().run_node(n)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.held[target] if target in self.held else super().get_attr(target, args, kwargs)


def _expansions(graph: GraphModule) -> Decompositions:
    """Decompositions for ops without a rule: from the table, or the op's own; empty if nothing is left to decompose."""
    called = {n.target for n in graph.graph.nodes if isinstance(n.target, OpOverload)}
    missing = {op for op in called if str(op) not in RULES and str(op) not in IGNORED | ASSERTIONS}
    table = decompositions()
    own: Decompositions = {
        op: functools.partial(_by_definition, op) for op in missing if op not in table and op._can_decompose()
    }
    own |= {op: definitions.OTHERS[str(op)] for op in missing if str(op) in definitions.OTHERS}
    return {**table, **own} if own or missing & table.keys() else {}


def _by_definition(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op.decompose(*args, **kwargs)
