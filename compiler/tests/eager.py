"""A function's Tensor program, evaluated by the interpreter, next to what the function gives in eager."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from compiler import frontend
from compiler.interpret import tensor as interpret
from compiler.ir import aten, aten_text, tensor, tensor_text
from compiler.passes.torch_to_tensor import lower

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def array(t: torch.Tensor) -> Any:
    return (t.float() if t.dtype is torch.bfloat16 else t).detach().contiguous().numpy()


def program(function: Callable[..., Any], *inputs: Any, constants: tuple[int, ...] = ()) -> tensor.Program:
    """The Tensor program of a function, verified, whose text is read back as itself."""
    made = lower.lower(frontend.capture(function, inputs, constants).program)
    tensor.verify(made)
    assert tensor_text.parse(tensor_text.show(made)) is made
    return made


def agree(function: Callable[..., Any], *inputs: Any, tolerance: float | None = None) -> None:
    """The Tensor program gives what eager gives, in types, shapes and values, NaN and infinities included."""
    captured = frontend.capture(function, inputs)
    aten.verify(captured.program)
    assert aten_text.parse(aten_text.show(captured.program)) is captured.program
    made = lower.lower(captured.program)
    tensor.verify(made)
    text = tensor_text.show(made)
    assert tensor_text.parse(text) is made
    given = dict(zip(captured.arguments, torch.utils._pytree.tree_leaves(inputs), strict=False)) | captured.constants
    with np.errstate(all="ignore"):
        results = interpret.run(made, [array(given[t.name]) for t in made.inputs])
    wanted = [x for x in torch.utils._pytree.tree_leaves(function(*inputs)) if isinstance(x, torch.Tensor)]
    assert len(results) == len(wanted), text
    for ours, theirs in zip(results, wanted, strict=True):
        assert ours.shape == tuple(theirs.shape), text
        value = torch.from_numpy(np.array(ours)).to(theirs.dtype)
        limit = TOLERANCE.get(theirs.dtype, 0.0) if tolerance is None else tolerance
        torch.testing.assert_close(value, theirs, rtol=limit, atol=limit, equal_nan=True, msg=lambda m: f"{m}\n{text}")
