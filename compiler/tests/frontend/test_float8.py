"""Floats of 8 bits at every stage: all 256 values, and numbers at, next to and beyond each rounding's border."""

import pytest
import torch

import compiler

STAGES = {"cpu": ("tensor", "loop", "tile", "kernel", "cpp"), "sm_80": ("kernel", "cuda"), "sm_90a": ("cuda",)}
EIGHTHS = (torch.float8_e4m3fn, torch.float8_e5m2)


def borders(dtype: torch.dtype) -> torch.Tensor:
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    finite = numbers[numbers.isfinite()].sort().values.float()
    middles = (finite[1:] + finite[:-1]) / 2
    beyond = torch.tensor([464.0, 480.0, 61439.0, 61440.0, 65536.0, 3e38, torch.inf, torch.nan, 1e-40, 0.0])
    next_to = [middles.nextafter(torch.tensor(x)) for x in (-torch.inf, torch.inf)]
    return torch.cat([finite, middles, *next_to, beyond, -beyond])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same numbers, zeros of one sign, and NaN of any."""
    a, b = a.double(), b.double()
    return bool(((a == b) & (a.signbit() == b.signbit()) | (a.isnan() & b.isnan())).all())


@pytest.mark.parametrize("target", STAGES)
@pytest.mark.parametrize("dtype", EIGHTHS)
def test_conversions_are_those_of_torch(dtype: torch.dtype, target: str) -> None:
    def convert(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x + 0).to(dtype), x.bfloat16().to(dtype), y.float() * 1, y.to(torch.bfloat16)

    inputs = [borders(dtype), torch.arange(256, dtype=torch.uint8).view(dtype)]
    lowered = compiler.lower(compiler.capture(convert, inputs).program, compiler.target(target))
    eager = convert(*inputs)
    if not same(torch.tensor([1e9]).to(dtype), torch.tensor([448.0 if dtype is EIGHTHS[0] else torch.inf])):
        pytest.skip("this PyTorch makes NaN of what is too large")
    for stage in STAGES[target]:
        for got, want in zip(compiler.execute(lowered, stage, inputs), eager, strict=True):
            assert got.dtype is want.dtype and same(got, want), stage
