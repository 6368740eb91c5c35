"""Tile IR in, the same out with how the warps of a block that copy and those that compute share its registers.

Warps that only ask for copies, or prepare what comes, need few registers; where those that compute need more than all
alike get, four warps give up theirs.
"""

from __future__ import annotations

from typing import Any

from compiler.ir import tile
from compiler.ir.layout import Fragment
from compiler.ir.statement import Kernel, Program, Stmt
from compiler.passes.gpu import stages
from compiler.passes.gpu.fragments import WARP
from compiler.passes.gpu.launches import block_size
from compiler.schedule.steps import Bind, ScheduleError
from compiler.targets.target import Target, instruction

REGISTERS = 65536  # of a multiprocessor
MOST_REGISTERS = 255  # of a thread
BESIDES = 64  # registers of a thread that computes, beyond its fragments
GROUP = 4 * WARP
MOST_HANDED = 240
FEW, SOME = 24, 56  # registers that a thread keeps that only asks for copies, and one that prepares what comes


def roles(program: Program, target: Target) -> Program:
    """Every pipeline with producers says what their threads keep and what is handed on, where registers are."""
    return program.replace(kernels=tuple(_register_split(kernel, target) for kernel in program.kernels))


def _register_split(kernel: Kernel, target: Target) -> Kernel:
    nodes = [n for s in kernel.body for n in s.walk()]
    pipes = [n for n in nodes if isinstance(n, tile.For) and stages.is_specialised(n)]
    for f in pipes:
        _verify(f, block_size(kernel))
    if not pipes or any("consumer_registers" in dict(f.bind.args) for f in pipes):
        return kernel
    if not _hands_over(kernel, nodes, target, stages.producers(pipes)):
        return kernel
    kept = FEW if stages.producers(pipes) == 1 else SOME
    args = ("producer_registers", kept), ("consumer_registers", consumer_registers(block_size(kernel), kept))

    def go(n: Any) -> Any:
        if not isinstance(n, Stmt):
            return n
        made: Any = n.map(go)
        return made.replace(bind=made.bind.replace(args=(*made.bind.args, *args))) if n in pipes else made

    return kernel.replace(body=tuple(map(go, kernel.body)))


def _verify(f: tile.For, threads: int) -> None:
    """What a step says must be there to be handed on; raises ScheduleError."""
    given = dict(f.bind.args)
    kept, wanted = given.get("producer_registers", 0), given.get("consumer_registers", 0)
    most = consumer_registers(threads, kept)
    if ("producer_registers" in given) != ("consumer_registers" in given) or kept % 8 or wanted % 8 or wanted > most:
        step = Bind(f.var, "pipeline", f.bind.args)
        raise ScheduleError(step, f"where 128 threads keep {kept} registers, {threads} can have {most} each, no others")


def _hands_over(kernel: Kernel, nodes: list[Any], target: Target, warps: int) -> bool:
    """Whether threads that compute need more registers than all alike get.

    Accumulators of four warps are needed whole; what a warp by itself adds up, the compiler may hold a part at a time.
    """
    threads = block_size(kernel)
    tiles = [(n.layout, n.tensor.dtype) for n in nodes if isinstance(n, tile.Alloc)]
    need = BESIDES + sum(f.count * dtype.bytes // 4 for f, dtype in tiles if isinstance(f, Fragment))
    have = REGISTERS // (threads + warps * WARP) // 8 * 8
    able = "setmaxnreg" in target.features and threads % GROUP == 0 and warps * WARP <= GROUP
    matmuls = (instruction(target, n.instruction) for n in nodes if isinstance(n, tile.Mma))
    return able and any(row.b_space == "shared" for row in matmuls) and need > min(have, MOST_REGISTERS)


def consumer_registers(threads: int, kept: int) -> int:
    """Registers for each of the threads that compute, where four more warps keep only so many.

    A block shares out what it was launched with, the same for all its threads and a multiple of 8: who asks for more
    than that waits for ever.

    >>> consumer_registers(256, 24), consumer_registers(512, 24), consumer_registers(256, 56)
    (240, 112, 224)
    """
    launched = REGISTERS // (threads + GROUP) // 8 * 8
    return min((launched * (threads + GROUP) - kept * GROUP) // threads // 8 * 8, MOST_HANDED)
