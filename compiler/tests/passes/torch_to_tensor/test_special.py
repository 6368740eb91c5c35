"""Special functions that are computed in f64, against 40 digits."""

import math
from collections.abc import Callable
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from torch import Tensor

from compiler import frontend
from compiler.errors import InvalidData, Unsupported
from compiler.interpret import tensor
from compiler.passes.torch_to_tensor import orthogonal, special
from compiler.passes.torch_to_tensor.lower import lower

aten = torch.ops.aten
EDGES = torch.tensor([0.0, -0.0, 0.5, 1.0, -1.0, 2.0, 12.0, 20.0, -20.5, 88.0, math.inf, -math.inf, math.nan])


def values(function: Callable[..., Any], *arguments: Tensor) -> Tensor:
    program = lower(frontend.capture(function, arguments).program)
    return torch.from_numpy(np.array(tensor.run(program, [x.numpy() for x in arguments])[0]))


_ORDERED: dict[str, Callable[[int, float], Any]] = {
    "special_bessel_j": mpmath.besselj, "special_bessel_y": mpmath.bessely, "special_modified_bessel_k": mpmath.besselk,
    "special_scaled_modified_bessel_k": lambda n, v: mpmath.besselk(n, v) * mpmath.exp(v),
}  # fmt: skip
_EXACT: dict[str, Callable[[float], Any]] = {
    **{f"{name}{n}": lambda v, n=n, f=f: f(n, v) for name, f in _ORDERED.items() for n in (0, 1)},  # type: ignore[misc]
    "special_airy_ai": mpmath.airyai, "special_spherical_bessel_j0": mpmath.sinc,
    "special_erfcx": lambda v: mpmath.exp(v * v) * mpmath.erfc(v),
    "special_ndtri": lambda v: mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(v) - 1),
}  # fmt: skip


@pytest.mark.parametrize("name", _EXACT)
def test_functions_are_nearly_rounded_correctly(name: str, seed: int) -> None:
    """Half a unit in the last place of f32 is at most 2^-24 of a value; what the series leave out adds 2%."""
    torch.manual_seed(seed)
    x = torch.rand(40) * 40 - 9
    x = torch.rand(40) if name == "special_ndtri" else x.abs() if "_k" in name or "_y" in name else x
    op = getattr(aten, name).default
    with mpmath.workdps(40):
        want = torch.tensor([float(_EXACT[name](float(v))) for v in x], dtype=torch.float64)
    normal = (want.abs() > 2.0**-120) & (want.abs() < 2.0**127)
    assert ((values(op, x) - want).abs() / want.abs())[normal].max() < 1.02 * 2**-24
    torch.testing.assert_close(values(op, EDGES), op(EDGES), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", orthogonal.FORMULAS)
def test_orthogonal_polynomials(name: str, seed: int) -> None:
    """Of NaN eager returns what it has not computed."""
    torch.manual_seed(seed)
    x = torch.cat([torch.rand(20) * 6 - 3, torch.tensor([-1.0, 0.0, 1.0])])
    n, op = torch.arange(-1.0, 31.0).unsqueeze(-1), getattr(aten, name)
    want = op(x.double(), n)  # whose recurrences and angles are in f64 as well
    torch.testing.assert_close(values(op, x, n).double(), want, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert values(lambda x: op(x, 2), torch.arange(3)).dtype is torch.float32
    for degree in (0, 1, 7, 30):  # a literal is another program
        found = values(lambda x, degree=degree: op(x, degree), x).double()
        torch.testing.assert_close(found, want[degree + 1], rtol=1e-6, atol=1e-6, equal_nan=True)
    if "chebyshev" in name:
        x, n = torch.tensor([-1.0, -0.75, 0.1, 0.5, 0.9, 1.0]), torch.tensor([[255.0], [1024.0], [4095.0]])
        x = (x + 1) / 2 if "shifted" in name else x
        torch.testing.assert_close(values(op, x, n).double(), op(x.double(), n), rtol=1e-6, atol=1e-5)
    else:
        with pytest.raises(InvalidData):
            values(op, x, n + 3)


def test_zeta() -> None:
    q = torch.tensor([0.5, 3.0, 40.0, -0.25, -7.5, -2.0, 0.0, math.nan])
    s = torch.tensor([[1.0], [0.5], [2.0], [2.5], [9.0], [math.nan]])
    near: dict[str, Any] = {"rtol": 2e-6, "atol": 1e-6, "equal_nan": True}
    torch.testing.assert_close(values(aten.special_zeta, s, q), aten.special_zeta(s, q), **near)
    for order in (2, 5):
        found = values(lambda x, order=order: torch.special.polygamma(order, x), q)
        torch.testing.assert_close(found, torch.special.polygamma(order, q), **near)


def test_f64_is_refused() -> None:
    assert all(rule is not None for rule in special.RULES.values())
    with pytest.raises(Unsupported, match="of f64"):
        values(aten.special_bessel_j0, EDGES.double())
