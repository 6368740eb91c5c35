"""The kernels of emulator_kernels as programs: a text, a launch plan, random inputs, and what must come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from compiler.runtime.emulator import emulator
from compiler.runtime.emulator.emulator import Outcome
from compiler.runtime.launches import Buffer, Launch, LaunchPlan, Map, Size

KERNELS = Path(__file__).parent / "emulator_kernels"
HEADERS = Path(__file__).parents[1] / "render" / "cuda"

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Program:
    """`expected` holds for the outputs that `launches` leave; temporaries are given by their bytes."""

    launches: tuple[Launch, ...]
    inputs: tuple[Array, ...]
    expected: tuple[Array, ...]
    temporaries: tuple[int, ...] = ()

    def plan(self) -> LaunchPlan:
        """The plan, its temporaries one behind the other."""
        starts = [256 * i + sum(self.temporaries[:i]) for i in range(len(self.temporaries))]
        return LaunchPlan(
            tuple(Buffer(f"input {i}", x.nbytes) for i, x in enumerate(self.inputs)),
            tuple(Buffer(f"output {i}", x.nbytes) for i, x in enumerate(self.expected)),
            self.launches,
            tuple(Buffer(f"temporary {i}", n) for i, n in enumerate(self.temporaries)),
            tuple(starts),
            sum(self.temporaries) + 256 * len(self.temporaries),
        )


Random = np.random.Generator


def one(grid: int | tuple[int, int], block: int, *args: int | Size | Map, shared: int = 0, cluster: int = 1) -> Launch:
    """The launch of `kernel`; buffers are numbers, inputs first."""
    x, y = grid if isinstance(grid, tuple) else (grid, 1)
    return Launch("kernel", (x, y, 1), (block, 1, 1), args, shared, (cluster, 1, 1))


def floats(random: Random, *shape: int) -> npt.NDArray[np.float32]:
    """Small integers, whose sums are exact in any order."""
    return random.integers(-8, 9, shape).astype(np.float32)


def reduce(random: Random) -> Program:
    """Rows that straddle the block's width."""
    x = floats(random, 5, 300)
    return Program((one(5, 128, 0, 1, Size(300)),), (x,), (x.sum(1),))


def tree(random: Random) -> Program:
    """One row a block."""
    x = floats(random, 3, 128)
    return Program((one(3, 128, 0, 1),), (x,), (x.sum(1),))


def matmul(random: Random) -> Program:
    """An extent that is no multiple of the tile."""
    a, b = floats(random, 40, 40), floats(random, 40, 40)
    return Program((one((3, 3), 256, 0, 1, 2, Size(40)),), (a, b), (a @ b,))


def pipeline(random: Random) -> Program:
    """More tiles than stages."""
    x = floats(random, 2, 7 * 512)
    return Program((one(2, 128, 0, 1, Size(7)),), (x,), (x.sum(1),))


def ring(random: Random) -> Program:
    """The ring goes around more than twice."""
    x = floats(random, 2, 8 * 256)
    return Program((one(2, 160, 0, 1, Size(8), shared=3072),), (x,), (2 * x,))


def store(random: Random) -> Program:
    """Each of two tiles is used again."""
    x = floats(random, 2, 5 * 128)
    return Program((one(2, 128, 0, 1, Size(5)),), (x,), (x + 1,))


def ticket(random: Random) -> Program:
    """The counter is cleared by a launch before."""
    x = floats(random, 6 * 64)
    clear = Launch("clear", (1, 1, 1), (1, 1, 1), (3,), synchronizes=False)
    return Program((clear, one(6, 64, 0, 1, 2, 3)), (x,), (x.sum(keepdims=True),), (24, 4))


def cluster(random: Random) -> Program:
    """Two clusters of four blocks."""
    x = floats(random, 2, 4, 32)
    sums = np.broadcast_to(x.sum(1, keepdims=True), x.shape)
    return Program((one(8, 32, 0, 1, cluster=4),), (x,), (np.ascontiguousarray(sums),))


def named(random: Random) -> Program:
    """A tile that is written and read in turns."""
    x = floats(random, 128)
    return Program((one(1, 256, 0, 1, Size(4)),), (x,), (np.stack([x[::-1] + k for k in range(4)]),))


def wgmma(random: Random) -> Program:
    """Two by one tiles, and more stages along k than the ring has."""
    a, b = (floats(random, rows, 320).astype(np.float16) for rows in (128, 64))
    maps = [Map(i, "f16", (320, x.shape[0]), (2, 640), (64, 64), swizzle=128) for i, x in enumerate((a, b))]
    c = a.astype(np.float32) @ b.astype(np.float32).T
    return Program((one((1, 2), 160, *maps, 2, Size(64), Size(5), shared=3 * 16384),), (a, b), (c,))


def wgmma_written(random: Random) -> Program:
    """One product of operands that threads have written."""
    a, b = (floats(random, 64, 64).astype(np.float16) for _ in range(2))
    c = 2 * a.astype(np.float32) @ b.astype(np.float32).T
    return Program((one(1, 128, 0, 1, 2),), (a, b), (c,))


def mma(random: Random) -> Program:
    """Two blocks of rows, and three tiles along k."""
    a, b = (floats(random, *shape).astype(np.float16) for shape in ((128, 96), (96, 64)))
    c = a.astype(np.float32) @ b.astype(np.float32)
    return Program((one(2, 128, 0, 1, 2, Size(96)),), (a, b), (c,))


def multicast(random: Random) -> Program:
    """Two clusters, and each stage used again."""
    x = floats(random, 5 * 64)
    y = x + np.arange(4, dtype=np.float32)[:, None]
    return Program((one(4, 64, Map(0, "f32", (320,), (4,), (64,)), 1, Size(5), cluster=2),), (x,), (y,))


def scatter(random: Random) -> Program:
    """Two clusters of four blocks."""
    x = floats(random, 2, 4, 32)
    y = np.broadcast_to(x.sum((1, 2))[:, None], (2, 4))
    return Program((one(8, 32, 0, 1, cluster=4),), (x,), (np.ascontiguousarray(y),))


PROGRAMS: dict[str, Callable[[Random], Program]] = {
    f.__name__: f
    for f in (
        reduce, tree, matmul, pipeline, mma, ring, store, ticket, cluster, scatter, multicast, named, wgmma,
        wgmma_written,
    )
}  # fmt: skip


def text(name: str) -> str:
    """The text of a kernel."""
    return (KERNELS / f"{name}.cu").read_text()


def run(source: str, program: Program, check: bool, seed: int, cache: Path | None = None) -> tuple[Outcome, bool]:
    """What a run of the text finds, and whether its outputs are the expected ones."""
    path = emulator.build(source, (HEADERS,), check, cache)
    outputs = [np.full_like(x, 77) for x in program.expected]
    outcome = emulator.run(path, program.plan(), [*program.inputs, *outputs], check, seed, timeout=30.0)
    right = all(np.array_equal(x, y) for x, y in zip(outputs, program.expected, strict=True))
    return outcome, right
