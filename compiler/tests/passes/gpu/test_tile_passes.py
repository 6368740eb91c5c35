"""The passes that write decisions of GPUs into Tile IR leave a program alone in which they are written already."""

from pathlib import Path
from typing import Any

import pytest

from compiler.ir import tile, tile_text
from compiler.pipeline import Context, passes_for
from compiler.targets import nvidia
from compiler.targets.target import Target
from compiler.tests.passes.gpu.test_tile_to_threads import PROGRAMS, TARGETS, read


def decided(program: Any, target: Target) -> Any:
    for p in passes_for(target):
        if p.source == p.result == "tile" and not p.optional:
            program = p.run(program, Context(target, {}))
            tile.verify(program)
    return program


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_what_is_decided_stays(path: Path) -> None:
    program, target = read(path)
    made = decided(program, TARGETS[target])
    assert tile_text.parse(tile_text.show(made)) is made
    assert decided(made, TARGETS[target]) is made


def test_an_accumulator_without_a_layout_is_not_emitted() -> None:
    to_threads = next(p for p in passes_for(nvidia.SM_80) if p.name == "tile-to-threads")
    program, _ = read(next(path for path in PROGRAMS if path.stem == "mma_bf16_columns"))
    with pytest.raises(ValueError, match="acc has no layout, which `layouts` gives it"):
        to_threads.run(program, Context(nvidia.SM_80, {}))
