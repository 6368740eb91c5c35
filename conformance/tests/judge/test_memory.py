"""The arenas of real programs are hardly larger than what is alive at once in them, and as said of shape files."""

import pytest

import compiler
from conformance.judge import memory
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
    plans = [memory.plan_memory(c, compiler.target(target)) for c in rows if c.id.startswith(f"{name}[")]
    assert max(len(plan.names) for plan in plans) > 3, "there is something to share"
    assert all(plan.unavoidable <= plan.least <= plan.arena.size <= 1.1 * plan.least for plan in plans)


def test_the_lines_of_shape_files_say_it() -> None:
    """Kernels under a limit come in another order: fewer steps of an unrolled loop are alive at once."""
    (case,) = [
        c
        for c in expand.benches(files.load(files.find_shapes() / "models/small-blocks.toml"), "full")
        if c.id.startswith("unrolled_rnn[")
    ]
    plain, limited = (
        memory.plan_memory(case, compiler.target("cpu").replace(memory=limit)).arena.size for limit in (0, 1 << 30)
    )
    assert limited < plain
    head, line = memory.table_lines([case], compiler.target("cpu"))
    assert head.split() == ["peak", "alive", "any", "order"]
    assert line.split()[0] == str(plain) and line.endswith(case.id)
