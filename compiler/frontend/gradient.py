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


def gradient(function: Function, count: int, moving: Sequence[int]) -> Function:
    """A function that computes the gradients of `function`, which takes `count` tensors, for those at `moving`.

    Its arguments are those of `function` and a weight for each of its floating-point results.
    """

    def gradients(*given: torch.Tensor) -> list[torch.Tensor]:
        arguments, weights = given[:count], given[count:]

        def results(*leaves: torch.Tensor) -> list[torch.Tensor]:
            moved = dict(zip(moving, leaves, strict=True))
            made = function(*(moved.get(n, x) for n, x in enumerate(arguments)))
            return [y for y in pytree.tree_leaves(made) if isinstance(y, torch.Tensor) and y.is_floating_point()]

        backward = torch.func.vjp(results, *(arguments[n] for n in moving))[1]
        return [g.clone(memory_format=torch.contiguous_format) for g in backward(list(weights))]

    return gradients


def capture_gradient(
    function: Function, inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], moving: Sequence[int],
    constants: Sequence[int] = (),
) -> Captured:  # fmt: skip
    """Trace `gradient(function, len(inputs), moving)` to Torch IR; `constants` are positions of weights in `inputs`.

    Tensors that the function closes over become constant inputs, as for `capture`. Raises CompilerError if PyTorch
    cannot trace the gradient.
    """
    given = (*inputs, *weights)
    try:
        with torch.no_grad(), enable_python_dispatcher(), margins.derived(), python_kernels.whole_resizing(given):
            plain = _traced(gradient(function, len(inputs), moving), given)
            # Autograd's formulas write to their intermediate results; only a traced graph of calls can be
            # functionalised.
            graph = _traced(torch.func.functionalize(plain, remove="mutations"), given, decompositions())
    except Exception as problem:  # whatever PyTorch raises if it cannot run or differentiate a function
        what = getattr(function, "__qualname__", type(function).__name__)
        raise CompilerError(
            f"the gradient of {what} cannot be traced: {type(problem).__name__}: {problem}"
        ) from problem
    graph.graph.eliminate_dead_code()
    return from_graph(graph, {n: inputs[n] for n in constants})


def _traced(function: Function, given: Sequence[torch.Tensor], table: Decompositions | None = None) -> GraphModule:
    return make_fx(function, table, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
