"""The ordered list of all passes, each with the invariant that it establishes.

A pass is a function of a program and a `Context`, which holds everything else that it may read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from compiler.ir import aten, kernel, statement, tensor
from compiler.ir.stages import IRS
from compiler.passes.applications import Applications
from compiler.passes.cpu.register_accumulators import keep_accumulators
from compiler.passes.cpu.tile_to_kernel import tile_to_kernel
from compiler.passes.exact_roundings import remove_exact_roundings
from compiler.passes.gpu.assign_stages import assign_stages
from compiler.passes.gpu.barriers import barriers
from compiler.passes.gpu.dependent_launch import dependent_launch
from compiler.passes.gpu.early_launch import early_launch
from compiler.passes.gpu.early_prefetch import early_prefetch
from compiler.passes.gpu.fragment_prefetch import prefetch_fragments
from compiler.passes.gpu.launches import launches
from compiler.passes.gpu.layouts import layouts
from compiler.passes.gpu.shared_copies import shared_copies
from compiler.passes.gpu.shared_launches import shared_launches
from compiler.passes.gpu.thread_maps import thread_maps
from compiler.passes.gpu.threads import tile_to_threads
from compiler.passes.gpu.vectorize import vectorize
from compiler.passes.gpu.warp_specialisation import warp_roles
from compiler.passes.loop.align_rows import align_rows
from compiler.passes.loop.concat_in_place import concat_in_place
from compiler.passes.loop.demote import demote
from compiler.passes.loop.forward_copies import forward_copies
from compiler.passes.loop.fuse_attention import fuse_attention
from compiler.passes.loop.fuse_rows import fuse_rows
from compiler.passes.loop.merge_axes import merge_axes
from compiler.passes.loop.order_axes import order_axes
from compiler.passes.loop.order_kernels import order_kernels
from compiler.passes.loop.recompute import recompute
from compiler.passes.loop.split_keys import split_keys
from compiler.passes.loop.views import views
from compiler.passes.loop.window_rows import window_rows
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.packed_conversions import pack_conversions
from compiler.passes.requirements import requirements, without_requirements
from compiler.passes.tensor.compose import compose
from compiler.passes.tensor.fuse import fuse
from compiler.passes.tensor.rematerialize import rematerialize
from compiler.passes.tensor.round_stored import round_stored
from compiler.passes.tensor.scatters import scatters
from compiler.passes.tensor.sink import sink
from compiler.passes.tensor_to_loop import tensor_to_loop
from compiler.passes.tile.schedule import apply_schedules
from compiler.passes.torch_to_tensor import lower as torch_to_tensor
from compiler.render import cpp, cuda
from compiler.render.mlir import linalg, tosa
from compiler.render.triton import program as triton
from compiler.schedule.steps import Schedule
from compiler.schedule.steps import show as show_schedule
from compiler.targets.cpu import FAST_GATHER
from compiler.targets.target import Target

IR_STAGES = tuple(IRS)
TEXTS = {"cpu": "cpp", "cuda": "cuda", "mlir": "mlir", "triton": "triton"}  # the last stage, by kind of target
_PARTIAL_STAGES = {
    "mlir": ("torch", "tensor"),
    "triton": ("torch", "tensor", "loop", "tile"),
}  # the IR stages of a kind of target, if not all


def stages(target: Target) -> tuple[str, ...]:
    """The stages that a program for this target goes through, in order, as names; the last one is text.

    >>> from compiler.targets import cpu
    >>> stages(cpu.BASELINE)
    ('torch', 'tensor', 'loop', 'tile', 'kernel', 'cpp')
    """
    return (*_PARTIAL_STAGES.get(target.kind, IR_STAGES), TEXTS[target.kind])


STAGES = (*IR_STAGES, TEXTS["cpu"])

Schedules = Mapping[str, Schedule]


@dataclass(frozen=True)
class Context:
    """What a pass may read besides the program: the target and the schedules. `applications` logs what is applied."""

    target: Target
    schedules: Schedules
    applications: Applications = field(default_factory=Applications)


@dataclass(frozen=True)
class Pass:
    """One pass: `run(program, context)` lowers a program of stage `source` to one of stage `result`.

    `invariant` states what holds afterwards; the verifier of `result` checks it. An `optional` pass may be skipped
    without making the program wrong, which is how a bisection finds the pass that introduced an error. `kind` lists the
    kinds of targets that the pass is for, separated by spaces; empty means all. A pass that is `together` must see all
    kernels of a program at once; any other pass may be run once for a group of equal kernels.
    """

    name: str
    source: str
    result: str
    invariant: str
    run: Callable[[Any, Context], Any]
    optional: bool = False
    kind: str = ""
    together: bool = False


def _decompose(program: aten.Program, context: Context) -> tensor.Program:
    on_cpu = context.target.kind == "cpu"
    return torch_to_tensor.lower(program, order_equations=on_cpu, split_sums=on_cpu)


def _program_only(function: Callable[[Any], Any]) -> Callable[[Any, Context], Any]:
    """A pass that needs only the program."""
    return lambda program, _: function(program)


def _with_target(run: Callable[[Any, Target], Any]) -> Callable[[Any, Context], Any]:
    """A pass that needs only the target."""
    return lambda program, context: run(program, context.target)


def _fuse(program: tensor.Program, context: Context) -> tensor.Program:
    return fuse(program, context.target.cores if context.target.kind in ("cuda", "triton") else 1)


def _apply_schedules(program: statement.Program, context: Context) -> statement.Program:
    return apply_schedules(program, context.schedules, context.target, context.applications)


def _order(program: statement.Program, context: Context) -> statement.Program:
    return order_kernels(program) if context.target.memory else program


def _render(program: kernel.Program, context: Context) -> str:
    return cpp.render(program, target=context.target.name)


def _render_cuda(program: kernel.Program, context: Context) -> str:
    return cuda.render(program, target=context.target.name)


def _render_mlir(program: tensor.Program, context: Context) -> str:
    return tosa.render(program) if "tosa" in context.target.features else linalg.render(program)


def _to_kernel(program: statement.Program, context: Context) -> kernel.Program:
    return tile_to_kernel(program, context.target, _texts(context))


def _to_threads(program: statement.Program, context: Context) -> kernel.Program:
    return tile_to_threads(program, context.target, _texts(context))


def _requirements(program: kernel.Program, context: Context) -> kernel.Program:
    target = context.target
    if not target.checked:
        return without_requirements(program)
    return requirements(program, target.vector, by_lane=FAST_GATHER not in target.features)


def _shared_copies(program: kernel.Program, context: Context) -> kernel.Program:
    return program if context.target.memory else shared_copies(program)  # sharing extends live ranges


def _shared_launches(program: kernel.Program, context: Context) -> kernel.Program:
    return program if context.target.memory else shared_launches(program)  # an earlier launch extends live ranges


def _round_stored(program: tensor.Program, context: Context) -> tensor.Program:
    """Round values that are stored between kernels. The passes up to `demote` are run to find these."""
    names = [p.name for p in PIPELINE]
    until_fused = PIPELINE[names.index("tensor-to-loop") : names.index("demote")]

    def kernels(values: tensor.Program) -> statement.Program:
        lowered: Any = values
        for p in until_fused:
            lowered = p.run(lowered, context)
        assert isinstance(lowered, statement.Program)
        return lowered

    return round_stored(program, kernels)


def _texts(context: Context) -> dict[str, str]:
    return {name: show_schedule(s) for name, s in context.schedules.items()}


# fmt: off
PIPELINE = (
    Pass("decompose", "torch", "tensor", "only equations; one group per call", _decompose),
    Pass("compose", "tensor", "tensor", "no view of a view, no dead equation",
         lambda p, context: compose(p, context.target.kind == "cuda")),
    Pass("sink", "tensor", "tensor", "maps read at few elements are not stored", _program_only(sink), True),
    Pass("scatters", "tensor", "tensor", "maps read only by scatters are in them; counts up to a place are prefix sums",
        lambda p, context: scatters(p, context.target.kind == "cpu"), True, "cpu cuda"),
    Pass("fuse", "tensor", "tensor", "each group is one kernel", _fuse, optional=True),
    Pass("rematerialize", "tensor", "tensor", "no stored value is cheaper to recompute in its readers",
        _program_only(rematerialize), True, "cuda"),
    Pass("round-stored", "tensor", "tensor", "large 16-bit values that other kernels read are rounded once",
        _round_stored, True, "cuda"),
    Pass("tensor-to-loop", "tensor", "loop", "one loop nest per group",
        lambda p, context: tensor_to_loop(p, context.target.kind == "cuda")),
    Pass("fuse-attention", "loop", "loop", "matmuls around a softmax share its loop nest",
        _with_target(fuse_attention), True),
    Pass("recompute", "loop", "loop", "matmuls read only by matmuls are recomputed",
        _with_target(recompute), True, "cuda"),
    Pass("fuse-rows", "loop", "loop", "kernels over the same rows are one kernel",
        _with_target(fuse_rows), True, "cuda"),
    Pass("forward-copies", "loop", "loop", "no kernel only copies a temporary",
        _program_only(forward_copies), True, "cuda"),
    Pass("demote", "loop", "loop", "values that readers round to 16 bits are stored in 16 bits",
        _program_only(demote), True, "cuda"),
    Pass("concat-in-place", "loop", "loop", "the parts of a concatenation are computed in place",
        _program_only(concat_in_place), True, "cuda"),
    Pass("order-axes", "loop", "loop", "temporaries have the axis order in which they are read",
        _program_only(order_axes), True, "cuda"),
    Pass("align-rows", "loop", "loop", "rows of matmul operands are aligned to 16 bytes",
        _program_only(align_rows), True, "cuda"),
    Pass("split-keys", "loop", "loop", "sums over keys for few queries are split",
        _with_target(split_keys), True, "cuda"),
    Pass("views", "loop", "loop", "buffers have an axis for each index", _program_only(views), True, "cuda"),
    Pass("window-rows", "loop", "loop", "rows of windows over few channels are contiguous",
        _with_target(window_rows), True, "cuda"),
    Pass("merge-axes", "loop", "loop", "adjacent contracted axes are one", _program_only(merge_axes), True, "cuda"),
    Pass("order-kernels", "loop", "loop", "under a memory limit, kernels run in the order of least memory",
        _order, True),
    Pass("loop-to-tile", "loop", "tile", "every loop has a binding", _program_only(loop_to_tile)),
    Pass("schedule", "tile", "tile", "every loop is bound as the schedule says", _apply_schedules, optional=True),
    Pass("tile-to-kernel", "tile", "kernel", "flat buffers, C loops, vectors", _to_kernel, kind="cpu"),
    Pass("launches", "tile", "tile", "each kernel is one launch", _program_only(launches), kind="cuda triton"),
    Pass("stages", "tile", "tile", "async copies are in pipeline stages", _program_only(assign_stages), kind="cuda"),
    Pass("layouts", "tile", "tile", "every tile has a layout over threads", _with_target(layouts), kind="cuda"),
    Pass("thread-maps", "tile", "tile", "loops over lanes have an unroll factor",
        _with_target(thread_maps), kind="cuda"),
    Pass("vectorize", "tile", "tile", "copies have a vector width and bounds predicates", _program_only(vectorize),
        kind="cuda"),
    Pass("fragment-prefetch", "tile", "tile", "fragments are loaded ahead",
        _program_only(prefetch_fragments), kind="cuda"),
    Pass("barriers", "tile", "tile", "barriers separate conflicting accesses", _with_target(barriers), kind="cuda"),
    Pass("warp-roles", "tile", "tile", "warps have roles that synchronise by mbarriers",
        _with_target(warp_roles), kind="cuda"),
    Pass("tile-to-threads", "tile", "kernel", "a grid of threads", _to_threads, kind="cuda"),
    Pass("requirements", "kernel", "kernel", "each data check is one statement, hoisted as far as possible",
        _requirements, True),
    Pass("exact-roundings", "kernel", "kernel", "values that 16 bits hold exactly are not rounded",
        _program_only(remove_exact_roundings), True),
    Pass("register-accumulators", "kernel", "kernel", "accumulators at data-dependent places are in registers",
        _program_only(keep_accumulators), True, "cpu"),
    Pass("packed-conversions", "kernel", "kernel", "small integers are widened two at a time",
        _program_only(pack_conversions), True, "cuda"),
    Pass("dependent-launch", "kernel", "kernel", "kernels wait for their predecessor", _with_target(dependent_launch),
        True, "cuda"),
    Pass("shared-copies", "kernel", "kernel", "no two kernels make the same copy", _shared_copies, True, "cuda", True),
    Pass("shared-launches", "kernel", "kernel", "kernels that need only inputs share a launch", _shared_launches, True,
        "cuda", True),
    Pass("early-launch", "kernel", "kernel", "small blocks start while others run", _with_target(early_launch), True,
        "cuda", True),
    Pass("early-prefetch", "kernel", "kernel", "inputs are in the L2 cache when their kernel begins",
        _with_target(early_prefetch), True, "cuda", True),
    Pass("render", "kernel", "cpp", "text that compiles without a warning", _render, kind="cpu"),
    Pass("render-cuda", "kernel", "cuda", "text that nvcc and g++ compile", _render_cuda, kind="cuda"),
    Pass("render-mlir", "tensor", "mlir", "text that mlir-opt verifies", _render_mlir, kind="mlir"),
    Pass("render-triton", "tile", "triton", "text that Triton compiles", _program_only(triton.render), kind="triton"),
)
# fmt: on
