"""The autograd node of a compiled graph, for the plain case.

AOTAutograd's node also serves results that alias inputs, inputs that change, subclasses of tensors, sizes and random
states, at some 100 us of host time for a training step, which is more than a small model can afford. Its class knows
whether a graph needs any of that. If not, calls after the first are made by a subclass, which shares all else with it,
such as its treatment by compiled autograd, and leaves every unusual call to it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.eval_frame import skip_code
from torch.autograd import Function
from torch.fx import Node

from compiler.frontend import graphs

_functorch: Any = torch._C._functorch
_autograd: Any = torch._C._autograd


def with_plain_node(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that AOTAutograd returned use a plain autograd node from its second call on, if it can."""
    node: Any = None
    is_first = True

    @functools.wraps(call)
    def run(*args: Any) -> Any:
        nonlocal node, is_first
        if node is not None and torch.is_grad_enabled() and _functorch.peek_interpreter_stack() is None:
            return node.apply(*args)
        results = call(*args)
        if is_first:
            node, is_first = _plain_node(results, args), False
        return results

    return run


def _plain_node(results: Any, args: Sequence[Any]) -> type[Function] | None:
    """The plain node of the graph with these results and arguments; None if it needs AOTAutograd's."""
    if not isinstance(results, list | tuple):
        return None
    made_by = next((x.grad_fn for x in results if isinstance(x, Tensor) and x.grad_fn is not None), None)
    general = getattr(made_by, "_forward_cls", None)
    try:
        return _subclass(general) if general is not None and _is_plain(general, args) else None
    except AttributeError:  # another version of PyTorch
        return None


def _is_plain(general: Any, args: Sequence[Any]) -> bool:
    """Whether AOTAutograd's class `general` serves a graph of tensors that neither aliases nor changes its inputs."""
    meta = general.metadata
    unusual = (
        meta.num_mutated_inp_runtime_indices, meta.num_outputs_aliased, meta.num_intermediate_bases,
        meta.is_rng_op_functionalized, meta.num_graphsafe_rng_states, meta.num_backward_tokens,
        meta.tokens, meta.mutated_graph_handled_indices_seen_by_autograd,
        meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw, meta.dynamic_saved_tensors_idxs,
        meta.dynamic_outputs, meta.grad_enabled_mutation is not None, general.num_symints_saved_for_bw,
    )  # fmt: skip
    if any(unusual) or general.maybe_subclass_metadata is not None or len(meta.input_info) != len(args):
        return False
    if not all(type(x) in (Tensor, torch.nn.Parameter) for x in args):
        return False
    # AOTAutograd detaches inputs whose gradient is known to be None.
    gradients = graphs.output(general._lazy_backward_info.bw_module).args[0]
    return all(isinstance(g, Node) for g, x in zip(gradients, meta.input_info, strict=True) if x.requires_grad)


def _subclass(general: Any) -> type[Function]:
    meta = general.metadata
    compiled_forward, results = general.compiled_fw, meta.num_outputs
    checked, unchecked = (
        meta.tensors_saved_for_backwards_with_vc_check_slice, meta.tensors_saved_for_backwards_no_vc_check_slice,
    )  # fmt: skip
    opaque, reviewed = meta.opaque_objects_saved_for_backwards_slice, meta.unsafe_view_out_indices
    undifferentiable = [k for k, x in enumerate(meta.output_info) if not x.requires_grad]
    tangent_of = [
        k for k, x in enumerate(meta.output_info) if x.requires_grad and issubclass(x.raw_type, Tensor)
    ]  # fmt: skip
    expected = [x.memory_format for x in meta.subclass_tangent_meta]
    takes_list = getattr(general, "boxed_grads_call", False)

    class CompiledFunction(general):  # type: ignore[misc]
        boxed_grads_call = False

        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            with _without_autocast():
                made = compiled_forward([*args])
            ctx.save_for_backward(*(x.detach() if x._is_view() else x for x in made[checked]))
            ctx._tensors_no_vc_check = [x.detach() if x._is_view() else x for x in made[unchecked]]
            ctx.symints, ctx.opaque_objects = (), made[opaque]
            out = [*made[:results]]
            for k in reviewed:
                out[k] = torch.ops.aten._unsafe_view(out[k], out[k].shape)
            ctx.mark_non_differentiable(*(out[k] for k in undifferentiable if isinstance(out[k], Tensor)))
            ctx._materialize_non_diff_grads = False
            return tuple(out)

        @staticmethod
        def backward(ctx: Any, *tangents: Any) -> Any:
            given = [tangents[k] for k in tangent_of]
            compiled_backward = general.compiled_bw
            if compiled_backward is None or _is_unusual() or not all(map(_has_layout, given, expected)):
                return general.backward(ctx, *([[*tangents]] if takes_list else tangents))
            saved = [*ctx.saved_tensors, *ctx._tensors_no_vc_check, *given]
            with _without_autocast():
                return tuple(compiled_backward(saved))

    # A compiled function may run a backward pass, of which Dynamo must not trace a part.
    skip_code(CompiledFunction.backward.__code__)
    return CompiledFunction


def _without_autocast() -> contextlib.AbstractContextManager[Any]:
    return torch._C._DisableAutocast() if torch._C._is_any_autocast_enabled() else contextlib.nullcontext()


def _is_unusual() -> bool:
    """Whether this backward pass is to be differentiated, or runs twice, under transforms, or deterministically."""
    return (
        torch.is_grad_enabled()
        or _autograd._get_current_graph_task_keep_graph()
        or _functorch.peek_interpreter_stack() is not None
        or torch.are_deterministic_algorithms_enabled()
    )


def _has_layout(x: Any, expected: Any) -> bool:
    """Whether a tangent is a plain tensor of the layout that the backward graph was traced for."""
    if type(x) is not Tensor:
        return False
    if expected.memory_format is not None:
        return x.is_contiguous(memory_format=expected.memory_format)
    return bool(x.shape == expected.size and x.stride() == expected.stride)
