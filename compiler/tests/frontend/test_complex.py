"""Complex numbers as pairs of real ones, and Fourier transforms, against eager."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from compiler.backend import FallbackWarning
from compiler.frontend import fourier


@pytest.mark.parametrize("n", [1, 2, 7, 64, 65, 96, 127, 360, 1000])
def test_transforms_of_any_length(n: int, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(3, n, dtype=torch.complex128)
    for sign, right in ((-1, torch.fft.fft), (1, torch.fft.ifft)):
        made = torch.complex(*fourier.transform(x.real, x.imag, sign, fourier.Roots.value))
        torch.testing.assert_close(made if sign < 0 else made / n, right(x), rtol=1e-11, atol=1e-11)
        assert {r.n for r in fourier.needed(n, sign, torch.float64)} >= {n}


def test_a_long_prime_is_refused() -> None:
    assert not fourier.needed(1031, 1, torch.float32) and fourier.needed(1024, 1, torch.float32)


def arithmetic(z: Tensor, w: Tensor, x: Tensor) -> list[Tensor]:
    product = (z.t() * w.conj() - 2j * x).t()
    parts = torch.stack([product.real, product.imag]).sum(0) + torch.view_as_real(w)[..., 1].t()
    waves = torch.fft.irfft(torch.fft.rfft2(x, norm="ortho") * w[:, :4], n=6)
    return [product, parts, (z @ w).abs(), waves, torch.where(x > 0, w, 1 + 1j).sum(0) / (w[0] + 3), w.angle()]


def test_complex_arguments_results_and_gradients(seed: int) -> None:
    torch.manual_seed(seed)
    given = [torch.randn(6, 5, dtype=torch.complex64), torch.randn(5, 6, dtype=torch.complex64), torch.randn(5, 6)]
    compiled: Any = torch.compile(arithmetic, backend="mlcomp", options={"fallback": "error"})
    found = []
    for function in (arithmetic, compiled):
        leaves = [x.clone().requires_grad_() for x in given]
        made = function(*leaves)
        total = torch.stack([y.abs().sum() for y in made]).sum()
        found.append((made, torch.autograd.grad(total, leaves)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def constants(z: Tensor, x: Tensor) -> list[Tensor]:
    rows = z.clone()
    rows[0] = torch.tensor(1j)
    rows[x[:, 0] > 0] = torch.tensor(2 - 1j)
    return [rows * torch.tensor([1, 2j, 3, 4, 5]), x * torch.tensor(1j), torch.fft.hfft(x)]


def test_complex_numbers_that_a_program_holds(seed: int) -> None:
    torch.manual_seed(seed)
    given = [torch.randn(6, 5, dtype=torch.complex64), torch.randn(6, 5)]
    compiled: Any = torch.compile(constants, backend="mlcomp", options={"fallback": "error"})
    found = []
    for function in (constants, compiled):
        leaves = [x.clone().requires_grad_() for x in given]
        made = function(*leaves)
        total = torch.stack([y.abs().sum() for y in made]).sum()
        found.append((made, torch.autograd.grad(total, leaves)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert [y.stride() for y in found[1][0]] == [y.stride() for y in found[0][0]]


def test_an_op_without_a_meaning_on_parts_runs_in_eager() -> None:
    x = torch.randn(3, 3, dtype=torch.complex64)
    for fallback in ("eager", "error"):
        torch._dynamo.reset()
        compiled: Any = torch.compile(torch.cumprod, backend="mlcomp", options={"fallback": fallback})
        if fallback == "error":
            with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"cumprod.*complex"):
                compiled(x, 0)
        else:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                torch.testing.assert_close(compiled(x, 0), x.cumprod(0))
            assert any(w.category is FallbackWarning for w in seen)
