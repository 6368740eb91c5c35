"""No barrier, fence or wait of a program can be left out: the lowering to threads refuses what lacks one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from compiler.ir import tile
from compiler.ir.roles import Advance, Arrive, Expect, One, Role, Wait
from compiler.ir.statement import If, Stmt
from compiler.passes.gpu.threads import tile_to_threads
from compiler.tests.passes.gpu.test_tile_passes import decided
from compiler.tests.passes.gpu.test_tile_to_threads import PROGRAMS, TARGETS, read

Body = tuple[Stmt, ...]
REASONS = (
    "threads touch the same memory out of order", "roles wait for ever", "not all arrive", "loses count",
    "do not go as far", "more arrive", "before it is known to be there", "still use",
)  # fmt: skip


def without_one(body: Body) -> Iterator[Body]:
    """The statements with one of those that order threads left out."""
    for n, s in enumerate(body):
        if isinstance(s, tile.Sync | Wait | Arrive | Advance | Expect | One):
            yield (*body[:n], *body[n + 1 :])
        elif isinstance(s, tile.For | tile.Stage | If | Role):
            yield from ((*body[:n], s.replace(body=inner), *body[n + 1 :]) for inner in without_one(s.body))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_none_can_be_left_out(path: Path) -> None:
    program, name = read(path)
    made = decided(program, TARGETS[name])
    kernel = made.kernels[0]
    for body in without_one(kernel.body):
        with pytest.raises(ValueError, match=f"kernel {kernel.name}: ") as problem:
            tile_to_threads(made.replace(kernels=(kernel.replace(body=body),)), TARGETS[name])
        assert any(said in str(problem.value) for said in REASONS)
