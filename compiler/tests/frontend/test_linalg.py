"""Factorisations as steps are what torch's own are, in f64, in which both are exact but for a few roundings."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from compiler.frontend import linalg
from compiler.tests.meaning import fresh_seed


def _same(name: str, *args: Any, **kwargs: Any) -> None:
    op, overload = f"{name}.default".split(".")
    want = getattr(getattr(torch.ops.aten, op), overload)(*args, **kwargs)
    some = bool(args[0].numel())
    torch.testing.assert_close(
        linalg.DEFINITIONS[f"{name}.default"](*args, **kwargs), want, rtol=1e-9, atol=1e-9, check_stride=some
    )


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.manual_seed(fresh_seed())


def _random(*sizes: int) -> torch.Tensor:
    """Pivots near 0 would cost digits, so that the diagonal is large, and in places that pivoting moves."""
    made = torch.randn(*sizes, dtype=torch.float64)
    return made + 6 * torch.eye(*sizes[-2:], dtype=torch.float64).flip(-1)


@pytest.mark.parametrize("sizes", [(5, 5), (2, 5, 5), (0, 3, 3), (0, 0), (2, 1, 4, 4)], ids=str)
def test_square_matrices_are_factored_and_solved(sizes: tuple[int, ...]) -> None:
    x, b = _random(*sizes), torch.randn(*sizes[:-1], 3, dtype=torch.float64)
    positive = x @ x.mT + torch.eye(sizes[-1], dtype=torch.float64)
    for given in (x, x.mT):
        _same("_linalg_det", given)
        _same("_linalg_slogdet", given)
        _same("linalg_inv_ex", given)
        _same("_linalg_solve_ex", given, b)
    for upper in (False, True):
        _same("linalg_cholesky_ex", positive, upper=upper)
        factor = torch.linalg.cholesky(positive, upper=upper)
        _same("cholesky_solve", b, factor, upper)
        _same("cholesky_inverse", factor, upper)
        for flag in (False, True):
            _same("triangular_solve", b, factor, upper, flag)
            _same("linalg_solve_triangular", factor, b if flag else b.mT, upper=upper, left=flag)
            if sizes[-1]:
                packed = torch.linalg.lu_factor(x)
                _same("linalg_lu_solve", *packed, b if flag else b.mT, left=flag, adjoint=upper)


@pytest.mark.parametrize("sizes", [(5, 3), (3, 5), (2, 4, 4), (2, 0, 3, 5)], ids=str)
def test_any_matrix_is_factored(sizes: tuple[int, ...]) -> None:
    x, b = _random(*sizes), torch.randn(*sizes[:-1], 3, dtype=torch.float64)
    for name in ("linalg_lu_factor_ex", "linalg_lu", "geqrf"):
        _same(name, x)
    _same("lu_unpack", *torch.linalg.lu_factor(x))
    for mode in ("reduced", "complete", "r"):
        _same("linalg_qr", x, mode)
    packed = torch.geqrf(x)
    if sizes[-2] >= sizes[-1]:
        _same("linalg_householder_product", *packed)
    for left in (False, True):
        for transpose in (False, True):
            _same("ormqr", *packed, b if left else b.mT.contiguous(), left, transpose)


def test_pivots_are_applied_to_the_numbers_of_rows_without_gathers() -> None:
    """A gather from a gather from a gather is one index, which grows with each of them."""
    pivots = torch.tensor([[3, 2, 4, 4]], dtype=torch.int32)
    order = make_fx(lambda x: linalg._row_permutation(x, 8))(pivots)
    assert "gather" not in order.code
    assert order(pivots).tolist() == [[2, 1, 3, 0, 4, 5, 6, 7]]


def test_a_matrix_that_is_not_positive_definite_fails_when_called() -> None:
    function = torch.compile(lambda x: torch.cholesky(x), backend="mlcomp", fullgraph=True)
    with pytest.raises(torch.linalg.LinAlgError, match="cholesky: a matrix is singular"):  # type: ignore[attr-defined]
        function(-torch.eye(3))


def test_a_matrix_without_an_inverse_is_refused_as_the_program_runs() -> None:
    inverse: Any = torch.compile(torch.linalg.inv, backend="mlcomp", options={"fallback": "error"})
    x = torch.randn(3, 3) + 9 * torch.eye(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(inverse(x), torch.linalg.inv(x))
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):  # type: ignore[attr-defined]
        inverse(torch.zeros(3, 3))


def test_exponentials_of_matrices_of_any_norm() -> None:
    x = torch.randn(8, 4, 4, dtype=torch.float64) * torch.logspace(-3, 1, 8, dtype=torch.float64)[:, None, None]
    want, got = torch.matrix_exp(x), linalg.DEFINITIONS["linalg_matrix_exp.default"](x)
    assert ((got - want).abs().amax((-2, -1)) <= 1e-10 * want.abs().amax((-2, -1))).all()
    with pytest.raises(RuntimeError, match="above 2"):
        linalg.DEFINITIONS["linalg_matrix_exp.default"](x * 1e6)
