"""Complex numbers as pairs of real ones, and Fourier transforms, against eager."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from compiler import backend
from compiler.backend import FallbackWarning
from compiler.frontend import complex_functions, fourier


@pytest.mark.parametrize("n", [1, 2, 7, 64, 65, 96, 127, 360, 1000])
def test_transforms_of_any_length(n: int, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(3, n, dtype=torch.complex128)
    for sign, right in ((-1, torch.fft.fft), (1, torch.fft.ifft)):
        made = torch.complex(*fourier.transform(x.real, x.imag, sign, fourier.Roots.value))
        torch.testing.assert_close(made if sign < 0 else made / n, right(x), rtol=1e-11, atol=1e-11)
        assert {r.n for r in fourier.needed_constants(n, sign, torch.float64)} >= {n}


def test_a_long_prime_is_refused() -> None:
    assert not fourier.needed_constants(1031, 1, torch.float32) and fourier.needed_constants(1024, 1, torch.float32)


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


@pytest.mark.parametrize("name", [*complex_functions.FUNCTIONS, "sigmoid", "rsqrt"])
def test_functions(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    edges = torch.tensor([0.0, 1e-5, 0.4, 1.0, -1.0, -3.0, 20.0])
    ends = torch.stack([edges.repeat(7), edges.repeat_interleave(7)], -1)
    near_1 = torch.polar(1 + 1e-4 * torch.randn(50), 2 * torch.randn(50))
    z = torch.cat([torch.view_as_complex(ends), torch.randn(200, dtype=torch.complex64), near_1])
    function = getattr(torch, name)
    right = function(z.to(torch.complex128))
    z, right = z[right.abs().isfinite()], right[right.abs().isfinite()]
    compiled: Any = torch.compile(function, backend="mlcomp", options={"fallback": "error"})
    made = compiled(z)
    theirs = ((function(z) - right).abs() / right.abs().clamp(min=1e-30)).max()
    ours = ((made - right).abs() / right.abs().clamp(min=1e-30)).max()
    assert ours < max(2 * theirs, 5e-7), f"{ours}, eager {theirs}"


def general_powers(z: Tensor, w: Tensor, x: Tensor) -> list[Tensor]:
    return [z**w, z**0.5, z**-1, z**-2.5, 2**z, x.abs() ** z, z**x, z ** torch.tensor(2), (z * 0) ** 2.5]


def numbers_among_complex(z: Tensor, w: Tensor, x: Tensor) -> list[Tensor]:
    i = torch.tensor([0, 3])
    made = [F.pad(z, (1, 2), value=1), z.scatter(0, i.expand(1, 2), 3), z.masked_fill(x > 0, 2), z.index_fill(0, i, 1)]
    made += [torch.full_like(z, 2), z.new_full((2,), 1), torch.ones_like(z) * w, 2 - z, torch.lerp(z, w, 0.3)]
    made += [torch.addcmul(z, z, w, value=2), torch.addcdiv(z, w, w + 3), z.index_add(0, i, w[:2], alpha=2)]
    return [*made, torch.linspace(0, 1, 5, dtype=z.dtype) * z, torch.eye(5, dtype=z.dtype) @ w.mT]


def products_and_sums(z: Tensor, w: Tensor, x: Tensor) -> list[Tensor]:
    made = [torch.vdot(z[0], w[0]), torch.dot(z[0], w[0]), z @ w[0], F.linear(z, w, z[0]), z.var(0), z.std()]
    made += [torch.baddbmm(z[None], z.mT[None], w[None], beta=0.5, alpha=2), z.norm()]
    return [*made, torch.linalg.vector_norm(z, dim=1), torch.addmm(z, z[:, :4], w[:4], beta=2)]


@pytest.mark.parametrize("function", [general_powers, numbers_among_complex, products_and_sums])
def test_arithmetic_by_other_ops(function: Callable[..., list[Tensor]], seed: int) -> None:
    torch.manual_seed(seed)
    given = [torch.randn(5, 5, dtype=torch.complex64), torch.randn(5, 5, dtype=torch.complex64), torch.randn(5, 5)]
    compiled: Any = torch.compile(function, backend="mlcomp", options={"fallback": "error"})
    torch.testing.assert_close(compiled(*given), function(*given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1e-30, 1e-23, 1.0, 1e20, 1e30])
def test_quotients_of_numbers_of_any_size(size: float, seed: int) -> None:
    torch.manual_seed(seed)
    x, y = (torch.randn(50, dtype=torch.complex64) * size for _ in range(2))
    compiled: Any = torch.compile(torch.div, backend="mlcomp", options={"fallback": "error"})
    torch.testing.assert_close(compiled(x, y), x / y, rtol=1e-5, atol=1e-5)


def test_what_holds_of_complex_numbers() -> None:
    def function(z: Tensor) -> list[Tensor]:
        made = [z.bool(), z.isnan(), z.isinf(), z.isfinite(), z.logical_not(), z.any(), z.all(0), z.any(1)]
        return [*made, torch.where(z.bool(), z, 1)]

    z = torch.tensor([[0, 1j, complex("nan"), 2], [complex("inf"), 0, -0.0, 1j]])
    compiled: Any = torch.compile(function, backend="mlcomp", options={"fallback": "error"})
    torch.testing.assert_close(compiled(z), function(z), equal_nan=True)


@pytest.mark.parametrize("dynamic", [None, True])
def test_only_the_op_without_a_meaning_on_parts_runs_in_eager(dynamic: bool | None, seed: int) -> None:
    torch.manual_seed(seed)

    def function(z: Tensor, w: Tensor) -> list[Tensor]:
        made = z * w + 1
        return [(torch.linalg.inv(made) * (z * w)).abs(), (made * 1j).sum(0) * 2, (w @ z).conj()]

    compiled: Any = torch.compile(function, backend="mlcomp", dynamic=dynamic)
    for n in (3, 4, 5) if dynamic else (3,):
        leaves = [[torch.randn(n, n, dtype=torch.complex64).requires_grad_() for _ in range(2)]]
        leaves.append([x.detach().clone().requires_grad_() for x in leaves[0]])
        found = []
        for called, given in zip((compiled, function), leaves, strict=True):
            made = called(*given)
            found.append((made, torch.autograd.grad(torch.stack([y.abs().sum() for y in made]).sum(), given)))
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)
    (report,) = backend.explain(function, [x.detach() for x in leaves[0]], {})
    assert report.calls - sum(r.calls for r in report.regions) == 1
    assert len(report.eager) == 1 and "aten.linalg_inv_ex.default" in str(report.eager)


def test_results_that_are_views_of_complex_numbers_are_views() -> None:
    def function(z: Tensor) -> list[Tensor]:
        made = z * 2
        return [made.conj(), made[:2], made[2:], z.t(), z[0].conj(), z.real, made.imag]

    z = torch.randn(4, 3, dtype=torch.complex64)
    compiled: Any = torch.compile(function, backend="mlcomp", options={"fallback": "error"})
    for given in (z, z.conj()):
        found = [called(given.clone()) for called in (compiled, function)]
        for made in found:
            made[0].mul_(1j)  # is seen through the next two and the last
            made[3].add_(1)
        torch.testing.assert_close(*found)
        assert [(x.is_conj(), x.stride()) for x in found[0]] == [(x.is_conj(), x.stride()) for x in found[1]]


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
