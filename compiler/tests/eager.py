"""An expression's Tensor program, evaluated by the interpreter, next to what the expression gives in eager."""

import ast
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from compiler import frontend
from compiler.interpret import tensor as interpret
from compiler.ir import aten, aten_text, tensor, tensor_text
from compiler.passes.torch_to_tensor import lower

TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
NAMES = {"torch": torch, "F": F, "inf": float("inf"), "nan": float("nan")}
NAMES |= {
    n: getattr(torch, n) for n in ("float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool")
}


def words(text: str) -> list[str]:
    return text.split()


def expressions(table: str) -> list[str]:
    """The lines of a table of expressions."""
    return [line.strip() for line in table.strip().splitlines() if line.strip() and not line.strip().startswith("#")]


def check(expression: str, inputs: Callable[[], Mapping[str, torch.Tensor]]) -> None:
    """`agree` for an expression of some of the named inputs, which are made from a fresh seed each time."""
    seed = random.SystemRandom().randrange(2**31)
    torch.manual_seed(seed)
    tensors = inputs()
    used = [n for n in tensors if n in {x.id for x in ast.walk(ast.parse(expression)) if isinstance(x, ast.Name)}]
    function = eval(f"lambda {', '.join(used)}: {expression}", dict(NAMES))
    try:
        agree(function, *(tensors[n] for n in used))
    except AssertionError as problem:
        raise AssertionError(f"{expression} with seed {seed}: {problem}") from problem


def agree(function: Callable[..., Any], *inputs: Any) -> None:
    """The Tensor program gives what eager gives, in types, shapes and values, NaN and infinities included."""
    captured = frontend.capture(function, inputs)
    aten.verify(captured.program)
    assert aten_text.parse(aten_text.show(captured.program)) is captured.program
    program = lower.lower(captured.program)
    tensor.verify(program)
    text = tensor_text.show(program)
    assert tensor_text.parse(text) is program
    given = dict(zip(captured.arguments, pytree.tree_leaves(inputs), strict=False)) | captured.constants
    with np.errstate(all="ignore"):
        results = interpret.run(program, [array(given[t.name]) for t in program.inputs])
    wanted = [x for x in pytree.tree_leaves(function(*inputs)) if isinstance(x, torch.Tensor)]
    assert len(results) == len(wanted), text
    for ours, theirs in zip(results, wanted, strict=True):
        _close(torch.from_numpy(np.array(ours)).to(theirs.dtype), theirs, text)


def _close(ours: torch.Tensor, theirs: torch.Tensor, text: str) -> None:
    limit = TOLERANCE.get(theirs.dtype, 0.0)
    try:
        torch.testing.assert_close(ours, theirs, rtol=limit, atol=limit, equal_nan=True)
    except AssertionError as problem:
        raise AssertionError(f"{problem}\n{text}") from problem


def array(t: torch.Tensor) -> Any:
    """As the interpreter takes it: bf16 values in an f32 array."""
    return (t.float() if t.dtype is torch.bfloat16 else t).detach().contiguous().numpy()
