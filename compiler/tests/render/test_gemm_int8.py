"""Products of int8 summed in 32 bits: exact at the ends of the type and for depths that fill no vector, on each CPU."""

import pytest
import torch

import compiler
from compiler.execution import named
from compiler.targets import cpu
from compiler.tests.meaning import fresh_seed


@pytest.mark.parametrize("target", ["cpu", "cpu:avx512", "cpu:avx2", "cpu:baseline"])
def test_products_of_int8_are_exact(target: str) -> None:
    machine = compiler.target(target)
    if named.missing(machine):
        pytest.skip(f"this machine cannot run code for {target}")
    seed = fresh_seed()
    source = torch.Generator().manual_seed(seed)
    for m, k, n in ((1, 33, 5), (5, 150, 7)):
        a, b = (torch.randint(-128, 128, shape, dtype=torch.int8, generator=source) for shape in ((m, k), (n, k)))
        a[0], b[0] = -128, -128
        lowering = compiler.lower(compiler.capture(lambda a, b: torch._int_mm(a, b.t()), [a, b]).program, machine)
        assert "mlc_dot_block<" in lowering.stages["cpp"], "by the instruction, not by a plain sum"
        (made,) = compiler.execute(lowering, "cpp", [a, b])
        assert torch.equal(made.long(), a.long() @ b.long().t()), f"seed {seed}"


@pytest.mark.parametrize("turned", [False, True], ids=["rows", "turned"])
@pytest.mark.parametrize("features", [cpu.QUADS[64], cpu.QUADS[32]], ids=["avx512_vnni", "avx_vnni"])
def test_columns_are_interleaved_where_lanes_take_four_products(features: tuple[str, ...], turned: bool) -> None:
    machine = cpu.target((*features, "avx2", "fma", "f16c", "sse2"))
    seed = fresh_seed()
    source = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8, generator=source) for shape in ((66, 37), (37, 50)))
    a[0], b[:, 0] = -128, -128
    b = b.t().contiguous().t() if turned else b
    lowering = compiler.lower(compiler.capture(torch._int_mm, [a, b]).program, machine)
    assert "mlc_interleaved_block<" in lowering.stages["cpp"]
    for stage in ("tile", "kernel", *(["cpp"] if not named.missing(machine) else [])):
        (made,) = compiler.execute(lowering, stage, [a, b])
        assert torch.equal(made.long(), a.long() @ b.long()), f"{stage}, seed {seed}"
