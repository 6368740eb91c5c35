"""Complex numbers as pairs of real ones, and Fourier transforms, against eager."""

import warnings
from collections.abc import Callable
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


def powers(z: Tensor, x: Tensor) -> list[Tensor]:
    steps = torch.fft.ifft(torch.fft.fft(x) * (1j * torch.fft.fftfreq(5, 0.1))).real
    return [z**2 + 1, z**3 * z.square(), (z + 3).reciprocal(), z**1.0 * 2, steps + torch.fft.rfftfreq(8)]


@pytest.mark.parametrize("function", [constants, powers])
def test_complex_numbers_that_a_program_makes(function: Callable[..., list[Tensor]], seed: int) -> None:
    torch.manual_seed(seed)
    given = [torch.randn(6, 5, dtype=torch.complex64), torch.randn(6, 5)]
    compiled: Any = torch.compile(function, backend="mlcomp", options={"fallback": "error"})
    found = []
    for called in (function, compiled):
        leaves = [x.clone().requires_grad_() for x in given]
        made = called(*leaves)
        total = torch.stack([y.abs().sum() for y in made]).sum()
        found.append((made, torch.autograd.grad(total, leaves)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert [y.stride() for y in found[1][0]] == [y.stride() for y in found[0][0]]


def test_frequencies_are_those_of_eager() -> None:
    def f(x: Tensor) -> list[Tensor]:
        made = [torch.fft.fftfreq(n, 0.3) for n in (1, 2, 7, 8)] + [torch.fft.rfftfreq(n, 0.3) for n in (1, 7, 8)]
        return [x * 2, *made, torch.fft.fftfreq(5, dtype=torch.float64)]

    compiled: Any = torch.compile(f, backend="mlcomp", options={"fallback": "error"})
    torch.testing.assert_close(compiled(torch.ones(3)), f(torch.ones(3)), rtol=1e-6, atol=0)


def test_powers_that_have_no_products_run_in_eager(seed: int) -> None:
    torch.manual_seed(seed)
    z = torch.randn(3, 3, dtype=torch.complex64)
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda z: torch.pow(2.0, z) * z,
        lambda z: torch.pow(z, 0.5) * z,
        lambda z: torch.pow(z, torch.tensor(2)) * z,
    ]
    for f in functions:
        compiled: Any = torch.compile(f, backend="mlcomp")
        with pytest.warns(FallbackWarning, match=r"aten\.pow\.\w+\(.*\): no rule for this op on complex numbers"):
            torch.testing.assert_close(compiled(z), f(z))


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
            (told,) = (str(w.message) for w in seen if w.category is FallbackWarning)
            assert "aten.cumprod.default([3, 3], 0): no rule for this op on complex numbers" in told
