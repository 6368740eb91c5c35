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


def _small(x: Tensor) -> bool:
    return x.dtype in (torch.float32, torch.float64) and all(type(n) is int and n <= LARGEST for n in x.shape[-2:])


def _of_small(how: Callable[..., Any], place: int = 0, by_columns: bool = True) -> Callable[..., Any]:
    """Apply `how` if argument number `place` is a small real matrix; NotImplemented otherwise.

    With `by_columns`, matrices among the results are stored column-major, as torch's are.
    """

    def function(*args: Any, **kwargs: Any) -> Any:
        if not _small(args[place]):
            return NotImplemented
        made = how(*args, **kwargs)
        if not by_columns:
            return made
        rank = max(x.dim() for x in args if isinstance(x, Tensor))
        return pytree.tree_map_only(Tensor, lambda x: _by_columns(x) if x.dim() == rank else x, made)

    return function


def _by_columns(x: Tensor) -> Tensor:
    made: Tensor = x.mT.contiguous().mT
    return made


def _numbers(n: int, x: Tensor) -> Tensor:
    return torch.arange(n, device=x.device)


def _first(info: Tensor, failed: Tensor, step: int) -> Tensor:
    return torch.where((info == 0) & failed, step + 1, info)


def _checked(info: Tensor, op: str) -> None:
    torch.ops.aten._assert_async.msg((info == 0).all(), f"{op}: {SINGULAR}")


def _batch(a: Tensor, b: Tensor) -> torch.Size:
    """The common batch sizes of two matrices."""
    made: torch.Size = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    return made


def _cholesky_ex(x: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    n = x.shape[-1]
    info = x.new_zeros(x.shape[:-2], dtype=torch.int32)
    if not x.numel():
        return x.clone(), info
    rest, rows, columns = x.mT if upper else x, _numbers(n, x), []
    for k in range(n):
        pivot = rest[..., k, k]
        info = _first(info, (pivot > 0).logical_not(), k)
        columns.append(torch.where(rows >= k, rest[..., k] / pivot.sqrt().unsqueeze(-1), 0))
        rest = rest - columns[-1].unsqueeze(-1) * columns[-1].unsqueeze(-2)
    if check_errors:
        _checked(info, "cholesky")
    return torch.stack(columns, -2 if upper else -1), info


def _cholesky(x: Tensor, upper: bool = False) -> Tensor:
    return _cholesky_ex(x, upper=upper, check_errors=True)[0]


def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """X with `a @ X = b`, or `X @ a = b`, where only one triangle of `a` is read."""
    if not left:
        return _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    n = a.shape[-1]
    batch = _batch(a, b)
    a, rest = a.expand(*batch, n, n), b.expand(*batch, *b.shape[-2:])
    if not rest.numel():
        return rest.clone()
    found = {}
    for k in reversed(range(n)) if upper else range(n):
        row = rest[..., k, :]
        found[k] = row if unitriangular else row / a[..., k, k].unsqueeze(-1)
        rest = rest - a[..., k].unsqueeze(-1) * found[k].unsqueeze(-2)
    return torch.stack([found[k] for k in range(n)], -2)


def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mT if upper else factor
    half = _solve_triangular(lower, b, upper=False)
    return _solve_triangular(lower.mT, half, upper=True)


def _identity(n: int, like: Tensor) -> Tensor:
    return torch.eye(n, dtype=like.dtype, device=like.device)


def _cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    return _cholesky_solve(_identity(factor.shape[-1], factor), factor, upper)


def _triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    batch = _batch(a, b)
    given, up = (a.mT, not upper) if transpose else (a, upper)
    found = _solve_triangular(given, b, upper=up, unitriangular=unitriangular)
    return found, a.expand(*batch, *a.shape[-2:]).clone()


def _swapped(rows: Tensor, k: int, other: Tensor) -> Tensor:
    """Row numbers with k and `other`, which differs by matrix, exchanged."""
    other = other.unsqueeze(-1)
    return torch.where(rows == k, other, torch.where(rows == other, k, rows))


def _taken(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(-2, order.unsqueeze(-1).expand(x.shape))


def _lu_factor_ex(x: Tensor, *, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    m, n = x.shape[-2:]
    info = x.new_zeros(x.shape[:-2], dtype=torch.int32)
    if not x.numel():
        return x.clone(), x.new_zeros(*x.shape[:-2], min(m, n), dtype=torch.int32), info
    rows, columns, pivots = _numbers(m, x), _numbers(n, x), []
    for k in range(min(m, n)):
        other = x[..., k:, k].abs().argmax(-1) + k if pivot else info.long() * 0 + k
        pivots.append(other + 1)
        x = _taken(x, _swapped(rows, k, other)) if pivot else x
        head = x[..., k, k].unsqueeze(-1)
        info = _first(info, head.squeeze(-1) == 0, k)
        below = torch.where((rows > k) & (head != 0), x[..., k] / head, 0)
        right = torch.where(columns > k, x[..., k, :], 0)
        at = (columns == k) & (rows > k).unsqueeze(-1)
        x = torch.where(at, below.unsqueeze(-1), x - below.unsqueeze(-1) * right.unsqueeze(-2))
    if check_errors:
        _checked(info, "lu_factor")
    return x, torch.stack(pivots, -1).to(torch.int32), info


def _order(pivots: Tensor, m: int) -> Tensor:
    """The row permutation: `A[order] = L @ U`."""
    order = _numbers(m, pivots).expand(*pivots.shape[:-1], m)
    for k in reversed(range(pivots.shape[-1])):
        order = _swapped(order, k, pivots[..., k].long() - 1)
    return order


def _lu_unpack(
    lu: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    m, n = lu.shape[-2:]
    k, none = min(m, n), lu.new_empty(0)
    lower, upper, permutation = none, none, none
    if unpack_data:
        lower = lu[..., :k].tril(-1) + torch.eye(m, k, dtype=lu.dtype, device=lu.device)
        upper = lu[..., :k, :].triu()
    if unpack_pivots:
        permutation = (_numbers(m, lu).unsqueeze(-1) == _order(pivots, m).unsqueeze(-2)).to(lu.dtype)
    return permutation, lower, upper


def _lu(x: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    lu, pivots, _ = _lu_factor_ex(x, pivot=pivot)
    permutation, lower, upper = _lu_unpack(lu, pivots, True, pivot)
    return permutation, lower, upper


def _lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """X with `A @ X = b`; or with A on the right, or transposed."""
    made = _by_columns(_lu_solved(lu, pivots, b if left else b.mT, adjoint == left))
    return made if left else made.mT


def _lu_solved(lu: Tensor, pivots: Tensor, b: Tensor, transposed: bool) -> Tensor:
    """X with `A @ X = b`, or with A transposed, where `A[order] = L @ U`."""
    n = lu.shape[-1]
    batch = _batch(lu, b)
    order, b = _order(pivots, n).expand(*batch, n), b.expand(*batch, *b.shape[-2:])
    if not b.numel():
        return b.clone()
    if transposed:
        half = _solve_triangular(lu.mT, b, upper=False)
        return _taken(_solve_triangular(lu.mT, half, upper=True, unitriangular=True), order.argsort(-1))
    half = _solve_triangular(lu, _taken(b, order), upper=False, unitriangular=True)
    return _solve_triangular(lu, half, upper=True)


def _factored(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The factorisation that determinants return for their gradients: of the transpose if the matrix is row-major."""
    return _lu_factor_ex(x.mT if x.is_contiguous() else x)


def _sign(pivots: Tensor) -> Tensor:
    swaps = (pivots != _numbers(pivots.shape[-1], pivots) + 1).sum(-1)
    return 1 - swaps % 2 * 2


def _det(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lu, pivots, _ = _factored(x)
    return lu.diagonal(0, -2, -1).prod(-1) * _sign(pivots), lu, pivots


def _slogdet(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lu, pivots, _ = _factored(x)
    diagonal = lu.diagonal(0, -2, -1)
    return diagonal.sign().prod(-1) * _sign(pivots), diagonal.abs().log().sum(-1), lu, pivots


def _solve_ex(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lu, pivots, info = _lu_factor_ex(a, check_errors=check_errors)
    vector = b.dim() == 1 or b.shape == a.shape[:-1]
    right = b.unsqueeze(-1) if vector else b
    found = _lu_solve(lu, pivots, right, left=left or vector)
    return found.squeeze(-1) if vector else found, lu, pivots, info


def _inv_ex(x: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    lu, pivots, info = _lu_factor_ex(x, check_errors=check_errors)
    return _lu_solve(lu, pivots, _identity(x.shape[-1], x)), info


def _reflected(v: Tensor, tau: Tensor, x: Tensor) -> Tensor:
    """x reflected along v: `(I - tau v v') x`."""
    along = (v.unsqueeze(-1) * x).sum(-2)
    return x - tau[..., None, None] * v.unsqueeze(-1) * along.unsqueeze(-2)


def _geqrf(x: Tensor) -> tuple[Tensor, Tensor]:
    """R in the upper triangle, the Householder vectors without their leading ones below, and their scales tau."""
    m, n = x.shape[-2:]
    if not x.numel():
        return x.clone(), x.new_zeros(*x.shape[:-2], min(m, n))
    rows, columns, scales = _numbers(m, x), _numbers(n, x), []
    for k in range(min(m, n)):
        head, below = x[..., k, k], torch.where(rows > k, x[..., k], 0)
        square = (below * below).sum(-1)
        norm = torch.where(head < 0, 1, -1) * (head * head + square).sqrt()
        flat = square == 0
        scales.append(torch.where(flat, 0, (norm - head) / torch.where(flat, 1, norm)))
        below = below / torch.where(flat, 1, head - norm).unsqueeze(-1)
        right = torch.where(columns >= k, x, 0)
        made = _reflected(below + (rows == k), scales[-1], right)
        kept = torch.where((columns == k) & (rows > k).unsqueeze(-1), below.unsqueeze(-1), made)
        x = torch.where(columns >= k, kept, x)
    return x, torch.stack(scales, -1)


def _reflection(a: Tensor, k: int) -> Tensor:
    rows = _numbers(a.shape[-2], a)
    return torch.where(rows > k, a[..., k], 0) + (rows == k)


def _ormqr(a: Tensor, tau: Tensor, x: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """The product of all reflections, or its transpose, times x."""
    if not left:
        return _ormqr(a, tau, x.mT, True, not transpose).mT
    count = tau.shape[-1]
    for k in range(count) if transpose else reversed(range(count)):
        x = _reflected(_reflection(a, k), tau[..., k], x)
    return x


def _householder_product(a: Tensor, tau: Tensor) -> Tensor:
    start = torch.eye(*a.shape[-2:], dtype=a.dtype, device=a.device).expand(a.shape)
    return _ormqr(a, tau, start) if a.numel() else a.clone()


def _qr(x: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    m, n = x.shape[-2:]
    packed, tau = _geqrf(x)
    k = m if mode == "complete" else min(m, n)
    upper = packed[..., :k, :].triu()
    if mode == "r":
        return x.new_empty(0), upper
    start = torch.eye(m, k, dtype=x.dtype, device=x.device).expand(*x.shape[:-2], m, k)
    return _ormqr(packed, tau, start) if start.numel() else start.clone(), upper


_HALVINGS = 16  # the most halvings of a matrix, which bring its norm to at most 1/2


def _matrix_exp(x: Tensor) -> Any:
    """The series for the matrix over a power of two, squared as often: in f64, as squaring accumulates errors."""
    if not x.numel() or not x.is_floating_point():
        return x.clone() if not x.numel() else NotImplemented
    wide = x.to(torch.float64)
    norm = wide.abs().sum(-2).amax(-1)
    inside = (norm > 2.0 ** (_HALVINGS - 1)).logical_not().all()
    torch.ops.aten._assert_async.msg(inside, "matrix_exp: the norm of a matrix is above 2^15")
    halvings = norm.clamp(min=0.5).log2().ceil() + 1
    small = wide * torch.exp2(-halvings)[..., None, None]
    one = _identity(x.shape[-1], wide)
    made = one.expand(x.shape)
    for k in reversed(range(1, 19 if x.dtype is torch.float64 else 12)):
        made = one + small @ made / k
    for k in range(_HALVINGS):
        made = torch.where((halvings > k)[..., None, None], made @ made, made)
    return made.to(x.dtype)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "linalg_cholesky_ex": _cholesky_ex, "cholesky": _cholesky, "cholesky_inverse": _cholesky_inverse,
    "linalg_solve_triangular": _solve_triangular, "linalg_lu_factor_ex": _lu_factor_ex,
    "_linalg_det": _det, "_linalg_slogdet": _slogdet,
    "_linalg_solve_ex": _solve_ex, "linalg_inv_ex": _inv_ex, "geqrf": _geqrf, "ormqr": _ormqr,
    "linalg_householder_product": _householder_product, "linalg_qr": _qr,
}  # fmt: skip
_LAID_OUT: dict[str, Callable[..., Any]] = {"linalg_lu": _lu, "lu_unpack": _lu_unpack, "linalg_lu_solve": _lu_solve}
_BEHIND: dict[str, Callable[..., Any]] = {"cholesky_solve": _cholesky_solve, "triangular_solve": _triangular_solve}
# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = (
    {f"{name}.default": _of_small(how) for name, how in _FUNCTIONS.items()}
    | {f"{name}.default": _of_small(how, 1) for name, how in _BEHIND.items()}
    | {f"{name}.default": _of_small(how, by_columns=False) for name, how in _LAID_OUT.items()}
    | {"linalg_matrix_exp.default": _matrix_exp}
)
