"""Torch IR and tensors in; what its calls mean out, by PyTorch's eager kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from compiler.errors import CompilerError
from compiler.frontend.types import torch_dtype
from compiler.ir import aten
from compiler.ir.aten import Call, Program, Ref, Type
from compiler.ir.dtype import DType
from compiler.ir.expr import Expr, static
from compiler.ir.sizes import bind, fixed

_COMPARISONS = {f"aten.{name}.Scalar" for name in ("eq", "ne", "lt", "le", "gt", "ge")}
# What is stored is the scalar as the tensor's type has it.
_FILLS = {f"aten.{name}" for name in ("masked_fill.Scalar", "fill.Scalar", "scatter.value", "index_fill.int_Scalar")}


# A call, its arguments and an error that it raised in; the error to raise instead out.
Told = Callable[[Call, list[Any], dict[str, Any], Exception], Exception]


def execute(
    program: Program, tensors: Sequence[torch.Tensor], dtype: torch.dtype | None = None, told: Told | None = None
) -> tuple[torch.Tensor, ...]:
    """The program by PyTorch's eager kernels, one call after the other; errors of calls as `told` has them, if given.

    With `dtype` (float64 for a reference), everything of a floating type is held in that type instead, the types that
    calls ask for included; scalars that tensors are compared with stay rounded to the original type of these; and of
    equal elements the first comes first.
    """
    if len(tensors) != len(program.inputs):
        raise CompilerError(f"{program.name} takes {len(program.inputs)} tensors, not {len(tensors)}")
    declared = [(i.name, i.type.shape) for i in program.inputs]
    program = fixed(program, bind(program.sizes, declared, [t.shape for t in tensors]) if program.sizes else {})
    known = aten.types(program)
    env: dict[str, Any] = {i.name: _promoted(t, dtype) for i, t in zip(program.inputs, tensors, strict=True)}
    place = torch.device(tensors[0].device if tensors else "cpu")
    with torch.no_grad(), _default_dtype(dtype), place, nullcontext() if dtype is None else FirstOfEqual():
        for call in program.calls:
            args = [_actual(a, env, dtype) for a in call.args]
            kwargs = {k: _actual(a, env, dtype, k) for k, a in call.kwargs}
            if dtype is not None:
                args = _faithful(call, args, known)
            result = _called(call, args, kwargs, told)
            results = result if isinstance(result, tuple | list) else (result,) if call.outputs else ()
            env |= {n: _promoted(r, dtype) for n, r in zip(call.outputs, results, strict=True)}
    return tuple(env[name] for name in program.outputs)


def _called(call: Call, args: list[Any], kwargs: dict[str, Any], told: Told | None) -> Any:
    try:
        return resolve(call.op)(*args, **kwargs)
    except Exception as error:
        if told is None:
            raise
        raise told(call, args, kwargs, error) from error


def resolve(op: str) -> Callable[..., Any]:
    """PyTorch's function for a name such as `aten.add.Tensor`."""
    space, name, overload = op.split(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, space), name), overload)
    return found


class FirstOfEqual(TorchDispatchMode):
    """Within it, sorts and top-k name the first of equal elements first, where torch leaves open which."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Sort stably, and of that the first are the top k."""
        stable, named = torch.ops.aten.sort.stable, dict(kwargs or {})
        if func is torch.ops.aten.sort.default:
            names = ("self", "dim", "descending")
            return stable(stable=True, **dict(zip(names, args, strict=False)), **named)
        if func is torch.ops.aten.topk.default and args[0].ndim:
            given = dict(zip(("self", "k", "dim", "largest"), args, strict=False)) | named
            x, k, along = given["self"], given["k"], given.get("dim", -1)
            found = stable(x, stable=True, dim=along, descending=given.get("largest", True))
            return tuple(part.narrow(along, 0, k).contiguous() for part in found)
        return func(*args, **named)


@contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """What integers become when an op makes floating numbers of them."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _promoted(value: Any, dtype: torch.dtype | None) -> Any:
    return (
        value.to(dtype)
        if dtype is not None and isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
    )


def _actual(argument: object, env: Mapping[str, Any], dtype: torch.dtype | None, key: str = "") -> Any:
    match argument:
        case Ref(name):
            return env[name]
        case tuple():
            return [_actual(a, env, dtype) for a in argument]
        case DType():
            return dtype if dtype is not None and argument.is_float else torch_dtype(argument)
        case Expr():
            return static(argument)
        case str() if key == "memory_format":
            return getattr(torch, argument)
    return argument


def _faithful(call: Call, args: list[Any], known: Mapping[str, Type]) -> list[Any]:
    """Arguments with which a call means in another floating type what it does in its own.

    What depends on the type is spelled out: the rounding of a scalar that is compared with, and defaults made of the
    type's greatest value or rounding unit.
    """
    first = call.args[0] if call.args else None
    own = torch_dtype(known[first.name].dtype) if isinstance(first, Ref) else torch.float32
    own = own if own.is_floating_point else torch.float32
    match call.op, args:
        case op, [x, float(y)] if op in _COMPARISONS:
            return [x, torch.tensor(y, dtype=own).item()]
        case op, [*tensors, float(y)] if op in _FILLS:
            return [*tensors, torch.tensor(y, dtype=own).item()]
        case "aten._softmax.default" | "aten._log_softmax.default", [x, dim_, _]:
            return [x, dim_, False]
        case "aten.rms_norm.default", _:
            unit = torch.finfo(torch.float64 if own is torch.float64 else torch.float32).eps
            weight, eps = (*args[2:], None, None)[:2]
            return [*args[:2], weight, unit if eps is None else eps]
        case "aten._fused_rms_norm.default", [x, shape, weight, None]:
            return [x, shape, weight, torch.finfo(torch.float64 if own is torch.float64 else torch.float32).eps]
        case "aten.nan_to_num.default", _:
            nan, high, low = (*args[1:], None, None, None)[:3]
            top = torch.finfo(own).max
            return [args[0], nan, top if high is None else high, -top if low is None else low]
    return args
