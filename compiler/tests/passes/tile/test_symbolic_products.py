"""Products of bf16 whose sizes vary take matrix instructions on CPUs, whichever of their sizes does."""

import pytest
import torch

import compiler
from compiler.targets import cpu
from compiler.targets.target import Target
from compiler.tests.meaning import fresh_seed

PAIRING, TILING = (cpu.target((*cpu.AVX512.features, *needed)) for needed in (cpu.PAIRS, cpu.TILES))


@pytest.mark.parametrize("target,function", [(PAIRING, "mlc_interleaved_block<"), (TILING, "mlc_tile_block<")])
@pytest.mark.parametrize("depth", [12, 90])
@pytest.mark.parametrize("varying", ["m", "n", "k", "mnk"])
def test_sums_are_added_to_a_tile_if_sizes_vary(varying: str, depth: int, target: Target, function: str) -> None:
    seed = fresh_seed()
    source = torch.Generator().manual_seed(seed)
    sizes = {x: torch.export.Dim(x, min=2) if x in varying else torch.export.Dim.STATIC for x in "mkn"}
    shapes = tuple({axis: sizes[x] for axis, x in enumerate(names)} for names in ("mk", "kn"))
    a, b = (torch.randint(-4, 5, s, generator=source).bfloat16() for s in ((70, depth), (depth, 50)))
    lowering = compiler.lower(compiler.capture(torch.mm, [a, b], dynamic_shapes=shapes).program, target)
    assert function in lowering.stages["cpp"]
    for stage in ("tile", "kernel"):
        (made,) = compiler.execute(lowering, stage, [a, b])
        assert torch.equal(made, (a.double() @ b.double()).bfloat16()), f"{stage}, seed {seed}"
