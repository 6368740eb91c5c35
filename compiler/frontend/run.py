"""Run Torch IR by PyTorch's eager kernels, and explain why data are invalid.

If compiled code finds invalid data, the program is run again, call by call, on copies in CPU memory, and eager's error
is raised with the position in the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from compiler.errors import CompilerError
from compiler.frontend.checks import SINGULAR
from compiler.frontend.types import torch_dtype
from compiler.interpret import scalar
from compiler.ir import aten
from compiler.ir.aten import Call, Program, Ref, Type
from compiler.ir.dtype import DType
from compiler.ir.expr import Cast, Const, Expr, Op, static
from compiler.ir.sizes import bind, fixed

_COMPARISONS = {f"aten.{name}.Scalar" for name in ("eq", "ne", "lt", "le", "gt", "ge")}
# The scalar is stored in the type of the tensor.
_FILLS = {f"aten.{name}" for name in ("masked_fill.Scalar", "fill.Scalar", "scatter.value", "index_fill.int_Scalar")}


# Translates an error that a call raised: called with the call, its arguments and the error.
ErrorTranslator = Callable[[Call, list[Any], dict[str, Any], Exception], Exception]


def execute(
    program: Program,
    tensors: Sequence[torch.Tensor],
    dtype: torch.dtype | None = None,
    translate_error: ErrorTranslator | None = None,
) -> tuple[torch.Tensor, ...]:
    """Run a program by PyTorch's eager kernels, call by call; `translate_error` may translate the exceptions of calls.

    With `dtype` (float64 for a reference), all floating-point values have that dtype, also where a call asks for
    another one. Scalars that tensors are compared with stay rounded to the original dtype of the tensor, sorts and
    top-k are stable, and sums of products that are zero are +0. Raises CompilerError for a wrong number of tensors.
    """
    if len(tensors) != len(program.inputs):
        raise CompilerError(f"{program.name} takes {len(program.inputs)} tensors, not {len(tensors)}")
    declared = [(i.name, i.type.shape) for i in program.inputs]
    program = fixed(program, bind(program.sizes, declared, [t.shape for t in tensors]) if program.sizes else {})
    types = aten.types(program)
    env: dict[str, Any] = {i.name: _to_dtype(t, dtype) for i, t in zip(program.inputs, tensors, strict=True)}
    device = torch.device(tensors[0].device if tensors else "cpu")
    with torch.no_grad(), _default_dtype(dtype), device, nullcontext() if dtype is None else FirstOfEqual():
        for call in program.calls:
            args = [_argument_value(a, env, dtype) for a in call.args]
            kwargs = {k: _argument_value(a, env, dtype, k) for k, a in call.kwargs}
            if dtype is not None:
                args = _keep_original_rounding(call, args, types)
            result = _call(call, args, kwargs, translate_error, in_f64=dtype is torch.float64)
            results = result if isinstance(result, tuple | list) else (result,) if call.outputs else ()
            env |= {n: _to_dtype(r, dtype) for n, r in zip(call.outputs, results, strict=True)}
    return tuple(env[name] for name in program.outputs)


def _call(
    call: Call, args: list[Any], kwargs: dict[str, Any], translate_error: ErrorTranslator | None, in_f64: bool
) -> Any:
    function = _IN_F64.get(call.op) if in_f64 else None
    try:
        result = (function or resolve(call.op))(*args, **kwargs)
        is_signless = in_f64 and call.op.split(".")[1] in _CONTRACTIONS
        return result + 0.0 if is_signless else result  # -0 + 0 is 0
    except Exception as error:
        if translate_error is None:
            raise
        raise translate_error(call, args, kwargs, error) from error


def resolve(op: str) -> Callable[..., Any]:
    """PyTorch's function for a name such as `aten.add.Tensor`."""
    namespace, name, overload = op.split(".")
    function: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return function


def _lstm_layer(
    x: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor, h: torch.Tensor,
    c: torch.Tensor, reverse: bool, batch_sizes: Sequence[int], mode: int, hidden_size: int, num_layers: int,
    has_biases: bool, *_: bool,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """`mkldnn_rnn_layer` for one layer of an LSTM in one direction; the last result is for training."""
    params = [w_ih, w_hh, *([b_ih, b_hh] if has_biases else [])]
    steps = x.flip(0) if reverse else x
    y, h, c = torch.lstm(steps, (h, c), params, has_biases, num_layers, 0.0, False, False, False)
    return y.flip(0) if reverse else y, h, c, None


def _native_layer_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Subtract the mean before multiplying.

    Eager's kernel subtracts a product from another. For an element that equals the mean the difference is a rounding
    error in place of 0, which makes a difference if it is multiplied by an infinity.
    """
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    mean = x.sum(axes, keepdim=True) / max(math.prod(shape), 1)  # 0 of no elements, as in eager
    reciprocal = ((x - mean).square().mean(axes, keepdim=True) + eps).rsqrt()
    result = (x - mean) * reciprocal
    result = result if weight is None else result * weight
    return result if bias is None else result + bias, mean, reciprocal


def _layer_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    eps: float = 1e-5, *_: bool,
) -> torch.Tensor:  # fmt: skip
    return _native_layer_norm(x, shape, weight, bias, eps)[0]


# Sums of products. If all of these are -0, torch's sum is -0 or 0, depending on the kernel.
_CONTRACTIONS = frozenset({
    "mm", "bmm", "matmul", "einsum", "linear", "addmm", "addbmm", "baddbmm", "mv", "addmv", "dot", "vdot", "inner",
    "tensordot", "bilinear", "convolution", "conv1d", "conv2d", "conv3d",
})  # fmt: skip
# Ops that have no f64 kernel, or one with another formula.
_IN_F64: dict[str, Callable[..., Any]] = {
    "aten.mkldnn_rnn_layer.default": _lstm_layer, "aten.native_layer_norm.default": _native_layer_norm,
    "aten.layer_norm.default": _layer_norm,
}  # fmt: skip


class FirstOfEqual(TorchDispatchMode):
    """A mode in which sort and top-k are stable; torch leaves the order of equal elements open."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Sort stably; top-k takes the first k of that."""
        stable, options = torch.ops.aten.sort.stable, dict(kwargs or {})
        if func is torch.ops.aten.sort.default:
            names = ("self", "dim", "descending")
            return stable(stable=True, **dict(zip(names, args, strict=False)), **options)
        if func is torch.ops.aten.topk.default and args[0].ndim:
            arguments = dict(zip(("self", "k", "dim", "largest"), args, strict=False)) | options
            x, k, dim = arguments["self"], arguments["k"], arguments.get("dim", -1)
            ordered = stable(x, stable=True, dim=dim, descending=arguments.get("largest", True))
            return tuple(part.narrow(dim, 0, k).contiguous() for part in ordered)
        return func(*args, **options)


@contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Set the type to which ops convert integers when they make floating-point numbers of them."""
    saved = torch.get_default_dtype()
    torch.set_default_dtype(dtype or saved)
    try:
        yield
    finally:
        torch.set_default_dtype(saved)


def _to_dtype(value: Any, dtype: torch.dtype | None) -> Any:
    return (
        value.to(dtype)
        if dtype is not None and isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
    )


def _argument_value(argument: object, env: Mapping[str, Any], dtype: torch.dtype | None, key: str = "") -> Any:
    match argument:
        case Ref(name):
            return env[name]
        case tuple():
            return [_argument_value(a, env, dtype) for a in argument]
        case DType():
            return dtype if dtype is not None and argument.is_float else torch_dtype(argument)
        case Expr():
            return _static_value(argument)
        case str() if key == "memory_format":
            return getattr(torch, argument)
    return argument


def _static_value(e: Expr) -> int | float:
    """The value of an expression whose sizes are known."""
    match e:
        case Cast(arg, kind) if kind.is_float:
            return float(_static_value(arg))
        case Op(name, args) if e.dtype.is_float:
            return float(scalar.apply(name, tuple(np.asarray(float(_static_value(a))) for a in args)))
    return e.value if isinstance(e, Const) and e.dtype.is_float else static(e)


def _keep_original_rounding(call: Call, args: list[Any], types: Mapping[str, Type]) -> list[Any]:
    """Arguments that give a call the meaning in another floating-point type that it has in its own.

    Dependencies on the type are made explicit: the rounding of compared scalars, and defaults derived from the type's
    largest value or rounding unit.
    """
    first = call.args[0] if call.args else None
    dtype = torch_dtype(types[first.name].dtype) if isinstance(first, Ref) else torch.float32
    dtype = dtype if dtype.is_floating_point else torch.float32
    match call.op, args:
        case op, [x, float(y)] if op in _COMPARISONS:
            return [x, torch.tensor(y, dtype=dtype).item()]
        case op, [*tensors, float(y)] if op in _FILLS:
            return [*tensors, torch.tensor(y, dtype=dtype).item()]
        case "aten._softmax.default" | "aten._log_softmax.default", [x, dim_, _]:
            return [x, dim_, False]
        case "aten.rms_norm.default", _:
            rounding_unit = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
            weight, eps = (*args[2:], None, None)[:2]
            return [*args[:2], weight, rounding_unit if eps is None else eps]
        case "aten._fused_rms_norm.default", [x, shape, weight, None]:
            return [x, shape, weight, torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps]
        case "aten.nan_to_num.default", _:
            nan, high, low = (*args[1:], None, None, None)[:3]
            largest = torch.finfo(dtype).max
            return [args[0], nan, largest if high is None else high, -largest if low is None else low]
    return args


# Ops whose negative indices count from the end.
_WRAPPING = {"index", "_unsafe_index", "index_put", "_unsafe_index_put", "_index_put_impl", "take", "put", "index_fill"}
_DIVIDING = {"div", "floor_divide", "remainder", "fmod"}
_ERRORS = (IndexError, RuntimeError, ValueError, NotImplementedError)
_NO_FACTOR: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined]


def refuse(program: Program, tensors: Sequence[torch.Tensor]) -> None:
    """Raise eager's error for the program on this data: of the same class, with the op, the element and the range.

    Raises CompilerError if eager accepts the data.
    """
    execute(program, [t.detach().cpu() for t in tensors], translate_error=_eager_error)
    raise CompilerError(
        f"{program.name}: the compiled code found an index, a target or a divisor out of range, and eager did not; "
        "this is a bug of mlcomp"
    )


def _eager_error(call: Call, args: list[Any], kwargs: dict[str, Any], error: Exception) -> Exception:
    if not isinstance(error, _ERRORS):
        return error
    error_class = _NO_FACTOR if SINGULAR in str(error) else next(k for k in _ERRORS if isinstance(error, k))
    message = str(error).splitlines()[0] if str(error) else type(error).__name__
    position = next(_out_of_range_texts(call.op, args, kwargs), "")
    return error_class(f"{call.op}: {position} ({message})" if position else f"{call.op}: {message}")


def _out_of_range_texts(op: str, args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Descriptions of the arguments of a call that are out of range, found by the arguments' names."""
    names = [a.name for a in resolve(op)._schema.arguments]  # type: ignore[attr-defined]
    arguments = dict(zip(names, args, strict=False)) | dict(kwargs)
    source: Any = arguments.get("weight" if "indices" in arguments and "weight" in arguments else "self")
    wraps = op.split(".")[1] in _WRAPPING
    match arguments:
        case {"target": torch.Tensor() as target} if not target.is_floating_point():
            classes = source.shape[min(1, source.ndim - 1)]
            counted = target[target != arguments.get("ignore_index", -100)]
            yield from _first_outside("target", counted, classes, f"of {classes} classes")
        case {"indices": list() as indices}:
            first = next(d for d, t in enumerate(indices) if t is not None)
            for d, t in enumerate(indices[first:], first):
                if t is not None and t.dtype is not torch.bool:
                    yield from _index_texts(t, source, d, wraps)
        case {"indices": torch.Tensor() as index}:
            yield from _index_texts(index, source, arguments.get("dim", 0), wraps)
        case {"index": torch.Tensor() as index, "dim": int(dim)}:
            yield from _index_texts(index, source, dim, wraps)
        case {"index": torch.Tensor() as index}:
            yield from _first_outside("index", index, source.numel(), f"of {source.numel()} elements", wraps)
        case {"other": other} if op.split(".")[1] in _DIVIDING and not torch.as_tensor(other).all():
            zeros = torch.as_tensor(other).eq(0).nonzero()
            yield f"the divisor is 0 at {zeros[0].tolist()}" if zeros.shape[1] else "the divisor is 0"
        case {"num_classes": int(classes)} if source is not None:
            yield from _first_outside("class", source, classes, f"of {classes} classes")


def _index_texts(index: torch.Tensor, source: torch.Tensor, dim: int | None, wraps: bool) -> Iterator[str]:
    if dim is None:
        yield from _first_outside("index", index, source.numel(), f"of {source.numel()} elements", wraps)
        return
    size = source.shape[dim] if source.ndim else 1
    yield from _first_outside("index", index, size, f"for dimension {dim % max(source.ndim, 1)} of size {size}", wraps)


def _first_outside(what: str, values: torch.Tensor, size: int, range_text: str, wraps: bool = False) -> Iterator[str]:
    """The first value outside of 0 .. size - 1, or, if indices wrap, of -size .. size - 1."""
    bad = values[(values < (-size if wraps else 0)) | (values >= size)]
    if bad.numel():
        yield f"{what} {bad.flatten()[0].item()} is out of range {range_text}"
