"""Triton's interpreter, extended by CUDA's math library, correct bf16, and fast reductions."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

# Functions of CUDA's math library, by name, as functions of NumPy arrays.
LibraryFunctions = Callable[[str], Callable[..., Any]]


class Library:
    """CUDA's math library (libdevice) for the interpreter."""

    def __init__(self, functions: LibraryFunctions) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = self._functions(name)

        def call(*args: Any) -> Any:
            import triton.language as tl  # noqa: PLC0415

            interpreter: Any = importlib.import_module("triton.runtime.interpreter")
            dtype = args[0].dtype.scalar
            values = np.asarray(function(*np.broadcast_arrays(*(a.handle.data for a in args))))
            handle = interpreter.TensorHandle(values.astype(args[0].handle.data.dtype), dtype)
            tiles = any(a.type.is_block() for a in args)  # scalars are held as arrays too
            return tl.core.tensor(handle, tl.block_type(dtype, list(values.shape)) if tiles else dtype)

        return call


@functools.cache
def interpret() -> None:
    """Make Triton interpret its own functions from now on, in all modules that imported them, and patch it."""
    import triton  # noqa: PLC0415

    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    jit: Any = importlib.import_module("triton.runtime.jit")
    triton.knobs.runtime.interpret = True
    for name, module in list(sys.modules.items()):
        if name.startswith("triton.language"):
            for key, value in list(vars(module).items()):
                if isinstance(value, jit.JITFunction):
                    setattr(module, key, interpreter.InterpretedFunction(value.fn))
    interpreter.ReduceOps.generic_reduce = _reduce
    builder = interpreter.InterpreterBuilder
    builder.cast_impl = functools.partialmethod(_cast, interpreter, triton.language, builder.cast_impl)
    builder.create_splat = functools.partialmethod(_splat, interpreter, triton.language, builder.create_splat)
    builder.create_dot = functools.partialmethod(_dot, interpreter, triton.language, builder.create_dot)


def _reduce(self: Any, operands: Any) -> list[Any]:
    """`ReduceOps.generic_reduce` by halving the axis in each step, as a GPU does, instead of element by element."""
    given_axis, (operands, axis) = self.axis, self.unravel(operands, self.axis)
    data = [np.moveaxis(x.handle.data, axis, 0) for x in operands]
    while len(data[0]) > 1:
        half = len(data[0]) // 2
        parts = (self.to_tensor(d[at], x.dtype) for at in (slice(half), slice(half, None))
                 for d, x in zip(data, operands, strict=True))  # fmt: skip
        combined = self.combine_fn.fn(*parts)
        data = [m.handle.data for m in (combined if isinstance(combined, tuple) else (combined,))]
    if self.keep_dims and given_axis is not None:
        return [self.to_tensor(np.moveaxis(d, 0, axis), x.dtype) for d, x in zip(data, operands, strict=True)]
    return [self.to_tensor(d[0], x.dtype) for d, x in zip(data, operands, strict=True)]


def _widen(x: Any) -> Any:
    """Convert the bits of bf16 to f32."""
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _cast(self: Any, interpreter: Any, tl: Any, original: Callable[..., Any], x: Any, dtype: Any) -> Any:
    """Conversions from and to bf16. The interpreter's own truncates, and flushes subnormals."""
    match x.dtype.scalar, dtype.scalar:
        case (tl.bfloat16, tl.float32):
            return interpreter.TensorHandle(_widen(x.data), tl.float32)
        case (tl.float32, tl.bfloat16):
            rounded = torch.from_numpy(np.array(x.data, np.float32, ndmin=1)).to(torch.bfloat16)
            bits = rounded.view(torch.int16).numpy().view(np.uint16).reshape(np.shape(x.data))
            return interpreter.TensorHandle(bits, tl.bfloat16)
    return original(self, x, dtype)


def _dot(self: Any, interpreter: Any, tl: Any, original: Callable[..., Any], a: Any, b: Any, *rest: Any) -> Any:
    """A matmul. The interpreter's own multiplies the bits of bf16."""
    if a.dtype.scalar == tl.bfloat16:
        a, b = (interpreter.TensorHandle(_widen(x.data), tl.float32) for x in (a, b))
    return original(self, a, b, *rest)


def _splat(self: Any, interpreter: Any, tl: Any, original: Callable[..., Any], dtype: Any, x: Any) -> Any:
    """Broadcast a scalar. The interpreter's own turns comparisons of scalars into integers, which are no masks."""
    made = original(self, dtype, x)
    return interpreter.TensorHandle(made.data.astype(np.bool_), tl.int1) if x.data.dtype == np.bool_ else made
