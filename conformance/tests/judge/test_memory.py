"""The arenas of real programs are hardly larger than what is alive at once in them."""

import pytest

import compiler
from conformance.judge import subject
from conformance.shapes import expand, files


@pytest.mark.parametrize(
    ("file", "name", "target"),
    [
        ("resnet50", "bottleneck", "sm_90a"),
        ("tinyllama", "layer", "sm_90a"),
        ("small-blocks", "dense_block", "cpu"),
        ("small-blocks", "netvlad", "cpu"),
    ],
)
def test_an_arena_is_near_the_lower_bound_by_liveness(file: str, name: str, target: str) -> None:
    rows = expand.benches(files.load(files.find_shapes() / f"models/{file}.toml"), "full")
    lowered = [
        compiler.lower(subject.prepare(c, 0, blank=True).program, compiler.target(target), until="kernel")
        for c in rows
        if c.id.startswith(f"{name}[")
    ]
    plans = [compiler.memory_schedule(made, {}) for made in lowered]
    assert max(len(plan.names) for plan in plans) > 3, "there is something to share"
    assert all(plan.least <= plan.arena.size <= 1.1 * plan.least for plan in plans)
