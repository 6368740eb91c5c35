"""Gradients of functions, and their capture as the ATen calls that autograd makes.

A gradient function takes the arguments of the original function, then one tensor of weights for each floating-point
result: the gradients are those of the weighted sum of all elements of these results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from compiler.errors import CompilerError
from compiler.frontend import margins, python_kernels
from compiler.frontend.decompose import Decompositions, decompositions
from compiler.frontend.trace import Captured, from_graph

Function = Callable[..., Any]


def gradient(function: Function, count: int, differentiated: Sequence[int]) -> Function:
    """A function that computes the gradients of `function`, which takes `count` tensors, for those at `differentiated`.

    Its arguments are those of `function` and a weight for each of its floating-point results.
    """

    def gradients(*tensors: torch.Tensor) -> list[torch.Tensor]:
        arguments, weights = tensors[:count], tensors[count:]

        def results(*leaves: torch.Tensor) -> list[torch.Tensor]:
            leaf_at = dict(zip(differentiated, leaves, strict=True))
            outputs = function(*(leaf_at.get(n, x) for n, x in enumerate(arguments)))
            return [y for y in pytree.tree_leaves(outputs) if isinstance(y, torch.Tensor) and y.is_floating_point()]

        backward = torch.func.vjp(results, *(arguments[n] for n in differentiated))[1]
        return [g.clone(memory_format=torch.contiguous_format) for g in backward(list(weights))]

    return gradients


def capture_gradient(
    function: Function, inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], differentiated: Sequence[int],
    constants: Sequence[int] = (),
) -> Captured:  # fmt: skip
    """Trace `gradient(function, len(inputs), differentiated)` to Torch IR.

    `constants` are positions of weights in `inputs`. Tensors that the function closes over become constant inputs, as
    for `capture`. Raises CompilerError if PyTorch cannot trace the gradient.
    """
    tensors = (*inputs, *weights)
    try:
        with (
            torch.no_grad(),
            enable_python_dispatcher(),
            margins.with_definitions(),
            python_kernels.resizing_as_one_op(tensors),
        ):
            plain = _trace(gradient(function, len(inputs), differentiated), tensors)
            # Autograd's formulas write to their intermediate results; only a traced graph of calls can be
            # functionalised.
            graph = _trace(torch.func.functionalize(plain, remove="mutations"), tensors, decompositions())
    except Exception as problem:  # whatever PyTorch raises if it cannot run or differentiate a function
        name = getattr(function, "__qualname__", type(function).__name__)
        raise CompilerError(
            f"the gradient of {name} cannot be traced: {type(problem).__name__}: {problem}"
        ) from problem
    graph.graph.eliminate_dead_code()
    return from_graph(graph, {n: inputs[n] for n in constants})


def _trace(function: Function, inputs: Sequence[torch.Tensor], table: Decompositions | None = None) -> GraphModule:
    return make_fx(function, table, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
