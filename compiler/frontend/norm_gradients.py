"""Gradients of norms whose saved statistics have 16 bits, as those of 16-bit tensors on CPUs have.

The gradient computes `x - mean`. If `x` is recomputed there from other 16-bit values, mlcomp has it in f32, while the
saved mean was rounded: where the elements of a row are equal, the difference is the mean's rounding error instead of
zero, and the reciprocal of a standard deviation of zero, 1 / sqrt(eps), makes it large. So `x` is rounded as well.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from compiler.frontend.types import TORCH_HALVES

# The argument that holds the mean, by op.
MEANS = {
    "native_batch_norm_backward.default": "save_mean", "batch_norm_backward.default": "save_mean",
    "native_layer_norm_backward.default": "mean", "native_group_norm_backward.default": "mean",
}  # fmt: skip


def of_rounded_input(definition: Callable[..., Any], mean: str) -> Callable[..., Any]:
    """A definition that rounds its argument `input` to its own type if the argument `mean` is of that type."""
    signature = inspect.signature(definition)

    @functools.wraps(definition)
    def with_rounded_input(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        x, saved = call.arguments["input"], call.arguments.get(mean)
        if saved is not None and x.dtype in TORCH_HALVES and saved.dtype is x.dtype:
            call.arguments["input"] = x.float().to(x.dtype)  # a conversion rounds
        return definition(*call.args, **call.kwargs)

    return with_rounded_input
