"""Refuse calls with argument types that torch traces although eager's kernels refuse them.

Under `torch.compile` such a call then runs in eager, which reports the error.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir import dtype as dt
from compiler.ir.dtype import DType
from compiler.passes.torch_to_tensor.builder import Builder, Value

# Positions of arguments that must have the same type.
_SAME_TYPE: dict[str, tuple[int, ...]] = {
    "mm.default": (0, 1), "bmm.default": (0, 1), "mv.default": (0, 1), "dot.default": (0, 1), "vdot.default": (0, 1),
    "linear.default": (0, 1, 2), "addmm.default": (0, 1, 2), "addmv.default": (0, 1, 2), "addbmm.default": (0, 1, 2),
    "baddbmm.default": (0, 1, 2), "index_put.default": (0, 2), "_unsafe_index_put.default": (0, 2),
    "index_add.default": (0, 3), "index_copy.default": (0, 3), "binary_cross_entropy.default": (0, 1, 2),
    "nll_loss.default": (0, 2), "nll_loss2d.default": (0, 2), "nll_loss_nd.default": (0, 2),
    "nll_loss_forward.default": (0, 2), "nll_loss2d_forward.default": (0, 2),
}  # fmt: skip
# Position of an argument and the types that it may have.
_CLASS_INDEX = (1, (dt.i64, dt.u8))
_ALLOWED_TYPES: dict[str, tuple[int, tuple[DType, ...]]] = {
    "index_select.default": (2, (dt.i64, dt.i32)),
    "nll_loss.default": _CLASS_INDEX, "nll_loss2d.default": _CLASS_INDEX, "nll_loss_nd.default": _CLASS_INDEX,
    "nll_loss_forward.default": _CLASS_INDEX, "nll_loss2d_forward.default": _CLASS_INDEX,
}  # fmt: skip
_DIFFERENCES = {"sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar"}


def check(b: Builder, op: str, args: Sequence[object]) -> None:
    """Raise Unsupported for arguments of types that eager refuses."""
    name = op.removeprefix("aten.")
    dtypes = [x.dtype for k in _SAME_TYPE.get(name, ()) if k < len(args) and isinstance(x := args[k], Value)]
    if len(set(dtypes)) > 1:
        raise b.refuse(f"arguments are to be of one type, and are {' and '.join(map(str, dtypes))}")
    position, allowed = _ALLOWED_TYPES.get(name, (0, ()))
    if allowed and position < len(args) and isinstance(x := args[position], Value) and x.dtype not in allowed:
        raise b.refuse(f"argument {position} is to be {' or '.join(map(str, allowed))}, and is {x.dtype}")
    if name in _DIFFERENCES and any(isinstance(x, bool) or getattr(x, "dtype", None) is dt.boolean for x in args[:2]):
        raise b.refuse("bools have no difference")
