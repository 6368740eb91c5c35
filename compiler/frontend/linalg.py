"""Factorisations of small matrices and solves with them, unrolled by column, with LAPACK's pivoting and signs.

The unrolled steps are as many as the matrix has columns; calls on larger matrices stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from compiler.frontend.checks import SINGULAR

LARGEST = 8  # the most rows and columns


def _is_small(x: Tensor) -> bool:
    return x.dtype in (torch.float32, torch.float64) and all(type(n) is int and n <= LARGEST for n in x.shape[-2:])


def _if_small(definition: Callable[..., Any], position: int = 0, column_major: bool = True) -> Callable[..., Any]:
    """Apply `definition` if argument number `position` is a small real matrix; NotImplemented otherwise.

    With `column_major`, matrices among the results are stored column-major, as torch's are.
    """

    def function(*args: Any, **kwargs: Any) -> Any:
        if not _is_small(args[position]):
            return NotImplemented
        results = definition(*args, **kwargs)
        if not column_major:
            return results
        rank = max(x.dim() for x in args if isinstance(x, Tensor))
        return pytree.tree_map_only(Tensor, lambda x: _to_column_major(x) if x.dim() == rank else x, results)

    return function


def _to_column_major(x: Tensor) -> Tensor:
    stored: Tensor = x.mT.contiguous().mT
    return stored


def _indices(n: int, x: Tensor) -> Tensor:
    return torch.arange(n, device=x.device)


def _first_failure(info: Tensor, failed: Tensor, step: int) -> Tensor:
    return torch.where((info == 0) & failed, step + 1, info)


def _assert_success(info: Tensor, op: str) -> None:
    torch.ops.aten._assert_async.msg((info == 0).all(), f"{op}: {SINGULAR}")


def _batch_shape(a: Tensor, b: Tensor) -> torch.Size:
    """The common batch sizes of two matrices."""
    shape: torch.Size = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    return shape


def _cholesky_ex(x: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    n = x.shape[-1]
    info = x.new_zeros(x.shape[:-2], dtype=torch.int32)
    if not x.numel():
        return x.clone(), info
    rest, rows, columns = x.mT if upper else x, _indices(n, x), []
    for k in range(n):
        pivot = rest[..., k, k]
        info = _first_failure(info, (pivot > 0).logical_not(), k)
        columns.append(torch.where(rows >= k, rest[..., k] / pivot.sqrt().unsqueeze(-1), 0))
        rest = rest - columns[-1].unsqueeze(-1) * columns[-1].unsqueeze(-2)
    if check_errors:
        _assert_success(info, "cholesky")
    return torch.stack(columns, -2 if upper else -1), info


def _cholesky(x: Tensor, upper: bool = False) -> Tensor:
    return _cholesky_ex(x, upper=upper, check_errors=True)[0]


def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """X with `a @ X = b`, or `X @ a = b`, where only one triangle of `a` is read."""
    if not left:
        return _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    n = a.shape[-1]
    batch = _batch_shape(a, b)
    a, rest = a.expand(*batch, n, n), b.expand(*batch, *b.shape[-2:])
    if not rest.numel():
        return rest.clone()
    rows = {}
    for k in reversed(range(n)) if upper else range(n):
        row = rest[..., k, :]
        rows[k] = row if unitriangular else row / a[..., k, k].unsqueeze(-1)
        rest = rest - a[..., k].unsqueeze(-1) * rows[k].unsqueeze(-2)
    return torch.stack([rows[k] for k in range(n)], -2)


def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mT if upper else factor
    intermediate = _solve_triangular(lower, b, upper=False)
    return _solve_triangular(lower.mT, intermediate, upper=True)


def _identity(n: int, like: Tensor) -> Tensor:
    return torch.eye(n, dtype=like.dtype, device=like.device)


def _cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    return _cholesky_solve(_identity(factor.shape[-1], factor), factor, upper)


def _triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    batch = _batch_shape(a, b)
    matrix, is_upper = (a.mT, not upper) if transpose else (a, upper)
    solution = _solve_triangular(matrix, b, upper=is_upper, unitriangular=unitriangular)
    return solution, a.expand(*batch, *a.shape[-2:]).clone()


def _swap_rows(rows: Tensor, k: int, other: Tensor) -> Tensor:
    """Row numbers with k and `other`, which differs by matrix, exchanged."""
    other = other.unsqueeze(-1)
    return torch.where(rows == k, other, torch.where(rows == other, k, rows))


def _take_rows(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(-2, order.unsqueeze(-1).expand(x.shape))


def _lu_factor_ex(x: Tensor, *, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    m, n = x.shape[-2:]
    info = x.new_zeros(x.shape[:-2], dtype=torch.int32)
    if not x.numel():
        return x.clone(), x.new_zeros(*x.shape[:-2], min(m, n), dtype=torch.int32), info
    rows, columns, pivots = _indices(m, x), _indices(n, x), []
    for k in range(min(m, n)):
        other = x[..., k:, k].abs().argmax(-1) + k if pivot else info.long() * 0 + k
        pivots.append(other + 1)
        x = _take_rows(x, _swap_rows(rows, k, other)) if pivot else x
        pivot_value = x[..., k, k].unsqueeze(-1)
        info = _first_failure(info, pivot_value.squeeze(-1) == 0, k)
        factors = torch.where((rows > k) & (pivot_value != 0), x[..., k] / pivot_value, 0)
        pivot_row = torch.where(columns > k, x[..., k, :], 0)
        is_factor = (columns == k) & (rows > k).unsqueeze(-1)
        x = torch.where(is_factor, factors.unsqueeze(-1), x - factors.unsqueeze(-1) * pivot_row.unsqueeze(-2))
    if check_errors:
        _assert_success(info, "lu_factor")
    return x, torch.stack(pivots, -1).to(torch.int32), info


def _row_permutation(pivots: Tensor, m: int) -> Tensor:
    """The row permutation: `A[order] = L @ U`."""
    order = _indices(m, pivots).expand(*pivots.shape[:-1], m)
    for k in reversed(range(pivots.shape[-1])):
        order = _swap_rows(order, k, pivots[..., k].long() - 1)
    return order


def _lu_unpack(
    lu: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    m, n = lu.shape[-2:]
    k, empty = min(m, n), lu.new_empty(0)
    lower, upper, permutation = empty, empty, empty
    if unpack_data:
        lower = lu[..., :k].tril(-1) + torch.eye(m, k, dtype=lu.dtype, device=lu.device)
        upper = lu[..., :k, :].triu()
    if unpack_pivots:
        permutation = (_indices(m, lu).unsqueeze(-1) == _row_permutation(pivots, m).unsqueeze(-2)).to(lu.dtype)
    return permutation, lower, upper


def _lu(x: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    lu, pivots, _ = _lu_factor_ex(x, pivot=pivot)
    permutation, lower, upper = _lu_unpack(lu, pivots, True, pivot)
    return permutation, lower, upper


def _lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """X with `A @ X = b`; or with A on the right, or transposed."""
    solution = _to_column_major(_solve_by_lu(lu, pivots, b if left else b.mT, adjoint == left))
    return solution if left else solution.mT


def _solve_by_lu(lu: Tensor, pivots: Tensor, b: Tensor, transposed: bool) -> Tensor:
    """X with `A @ X = b`, or with A transposed, where `A[order] = L @ U`."""
    n = lu.shape[-1]
    batch = _batch_shape(lu, b)
    order, b = _row_permutation(pivots, n).expand(*batch, n), b.expand(*batch, *b.shape[-2:])
    if not b.numel():
        return b.clone()
    if transposed:
        intermediate = _solve_triangular(lu.mT, b, upper=False)
        return _take_rows(_solve_triangular(lu.mT, intermediate, upper=True, unitriangular=True), order.argsort(-1))
    intermediate = _solve_triangular(lu, _take_rows(b, order), upper=False, unitriangular=True)
    return _solve_triangular(lu, intermediate, upper=True)


def _factor_for_gradient(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The factorisation that determinants return for their gradients: of the transpose if the matrix is row-major."""
    return _lu_factor_ex(x.mT if x.is_contiguous() else x)


def _permutation_sign(pivots: Tensor) -> Tensor:
    swaps = (pivots != _indices(pivots.shape[-1], pivots) + 1).sum(-1)
    return 1 - swaps % 2 * 2


def _det(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lu, pivots, _ = _factor_for_gradient(x)
    return lu.diagonal(0, -2, -1).prod(-1) * _permutation_sign(pivots), lu, pivots


def _slogdet(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lu, pivots, _ = _factor_for_gradient(x)
    diagonal = lu.diagonal(0, -2, -1)
    return diagonal.sign().prod(-1) * _permutation_sign(pivots), diagonal.abs().log().sum(-1), lu, pivots


def _solve_ex(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lu, pivots, info = _lu_factor_ex(a, check_errors=check_errors)
    is_vector = b.dim() == 1 or b.shape == a.shape[:-1]
    right = b.unsqueeze(-1) if is_vector else b
    solution = _lu_solve(lu, pivots, right, left=left or is_vector)
    return solution.squeeze(-1) if is_vector else solution, lu, pivots, info


def _inv_ex(x: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    lu, pivots, info = _lu_factor_ex(x, check_errors=check_errors)
    return _lu_solve(lu, pivots, _identity(x.shape[-1], x)), info


def _reflect(v: Tensor, tau: Tensor, x: Tensor) -> Tensor:
    """x reflected along v: `(I - tau v v') x`."""
    projection = (v.unsqueeze(-1) * x).sum(-2)
    return x - tau[..., None, None] * v.unsqueeze(-1) * projection.unsqueeze(-2)


def _geqrf(x: Tensor) -> tuple[Tensor, Tensor]:
    """R in the upper triangle, the Householder vectors without their leading ones below, and their scales tau."""
    m, n = x.shape[-2:]
    if not x.numel():
        return x.clone(), x.new_zeros(*x.shape[:-2], min(m, n))
    rows, columns, scales = _indices(m, x), _indices(n, x), []
    for k in range(min(m, n)):
        head, vector = x[..., k, k], torch.where(rows > k, x[..., k], 0)
        square = (vector * vector).sum(-1)
        norm = torch.where(head < 0, 1, -1) * (head * head + square).sqrt()
        is_zero = square == 0
        scales.append(torch.where(is_zero, 0, (norm - head) / torch.where(is_zero, 1, norm)))
        vector = vector / torch.where(is_zero, 1, head - norm).unsqueeze(-1)
        right = torch.where(columns >= k, x, 0)
        reflected = _reflect(vector + (rows == k), scales[-1], right)
        kept = torch.where((columns == k) & (rows > k).unsqueeze(-1), vector.unsqueeze(-1), reflected)
        x = torch.where(columns >= k, kept, x)
    return x, torch.stack(scales, -1)


def _householder_vector(a: Tensor, k: int) -> Tensor:
    rows = _indices(a.shape[-2], a)
    return torch.where(rows > k, a[..., k], 0) + (rows == k)


def _ormqr(a: Tensor, tau: Tensor, x: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """The product of all reflections, or its transpose, times x."""
    if not left:
        return _ormqr(a, tau, x.mT, True, not transpose).mT
    count = tau.shape[-1]
    for k in range(count) if transpose else reversed(range(count)):
        x = _reflect(_householder_vector(a, k), tau[..., k], x)
    return x


def _householder_product(a: Tensor, tau: Tensor) -> Tensor:
    identity = torch.eye(*a.shape[-2:], dtype=a.dtype, device=a.device).expand(a.shape)
    return _ormqr(a, tau, identity) if a.numel() else a.clone()


def _qr(x: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    m, n = x.shape[-2:]
    packed, tau = _geqrf(x)
    k = m if mode == "complete" else min(m, n)
    upper = packed[..., :k, :].triu()
    if mode == "r":
        return x.new_empty(0), upper
    identity = torch.eye(m, k, dtype=x.dtype, device=x.device).expand(*x.shape[:-2], m, k)
    return _ormqr(packed, tau, identity) if identity.numel() else identity.clone(), upper


_HALVINGS = 16  # the most halvings of a matrix, which bring its norm to at most 1/2


def _matrix_exp(x: Tensor) -> Any:
    """The series for the matrix over a power of two, squared as often: in f64, as squaring accumulates errors."""
    if not x.numel() or not x.is_floating_point():
        return x.clone() if not x.numel() else NotImplemented
    wide = x.to(torch.float64)
    norm = wide.abs().sum(-2).amax(-1)
    in_range = (norm > 2.0 ** (_HALVINGS - 1)).logical_not().all()
    torch.ops.aten._assert_async.msg(in_range, "matrix_exp: the norm of a matrix is above 2^15")
    halvings = norm.clamp(min=0.5).log2().ceil() + 1
    small = wide * torch.exp2(-halvings)[..., None, None]
    identity = _identity(x.shape[-1], wide)
    power = identity.expand(x.shape)
    for k in reversed(range(1, 19 if x.dtype is torch.float64 else 12)):
        power = identity + small @ power / k
    for k in range(_HALVINGS):
        power = torch.where((halvings > k)[..., None, None], power @ power, power)
    return power.to(x.dtype)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "linalg_cholesky_ex": _cholesky_ex, "cholesky": _cholesky, "cholesky_inverse": _cholesky_inverse,
    "linalg_solve_triangular": _solve_triangular, "linalg_lu_factor_ex": _lu_factor_ex,
    "_linalg_det": _det, "_linalg_slogdet": _slogdet,
    "_linalg_solve_ex": _solve_ex, "linalg_inv_ex": _inv_ex, "geqrf": _geqrf, "ormqr": _ormqr,
    "linalg_householder_product": _householder_product, "linalg_qr": _qr,
}  # fmt: skip
_ROW_MAJOR: dict[str, Callable[..., Any]] = {"linalg_lu": _lu, "lu_unpack": _lu_unpack, "linalg_lu_solve": _lu_solve}
_MATRIX_SECOND: dict[str, Callable[..., Any]] = {
    "cholesky_solve": _cholesky_solve,
    "triangular_solve": _triangular_solve,
}
# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = (
    {f"{name}.default": _if_small(function) for name, function in _FUNCTIONS.items()}
    | {f"{name}.default": _if_small(function, 1) for name, function in _MATRIX_SECOND.items()}
    | {f"{name}.default": _if_small(function, column_major=False) for name, function in _ROW_MAJOR.items()}
    | {"linalg_matrix_exp.default": _matrix_exp}
)
