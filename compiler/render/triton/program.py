"""A scheduled program of Tile IR as a Python file: a Triton function per kernel, and `launch`, which runs them on
buffers."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.errors import Unsupported
from compiler.ir import isomorphism
from compiler.ir.dtype import EIGHTHS
from compiler.ir.expr import OPS, Const, Expr, Op, Size, dim, fresh
from compiler.ir.node import Node
from compiler.ir.statement import Program
from compiler.ir.tensor import Tensor
from compiler.render.triton.kernel import Function, function
from compiler.render.triton.operations import HELPERS
from compiler.render.triton.values import RESERVED

LAUNCH = "launch"


def render(program: Program) -> str:
    """The text, in which kernels equal up to names are one function.

    Raises Unsupported for what Triton lacks, ValueError for schedules that it cannot follow.
    """
    for t in (*program.inputs, *program.outputs, *program.temps):
        if t.dtype in EIGHTHS:
            raise Unsupported(str(t.dtype), (), "target triton has no conversions of it")
    taken = {*RESERVED, *HELPERS, LAUNCH, "OPTIONS"}
    names = [t.name for t in (*program.inputs, *program.outputs, *program.temps)] + [s.name for s in program.sizes]
    buffers = {name: fresh(name, taken) for name in names}
    sizes = [buffers[s.name] for s in program.sizes]
    functions_by_shape: dict[Node, tuple[str, Function]] = {}
    calls: list[str] = []
    for k in program.kernels:
        if (shape := isomorphism.shape_of(k)) not in functions_by_shape:
            name = fresh(k.name, taken)
            functions_by_shape[shape] = name, function(k, name, buffers, program.sizes)
        name, f = functions_by_shape[shape]
        if f.programs != dim(0):
            args = [*(buffers[p.name] for p in k.params), *sizes, *(["mlc_failed"] if f.checks_data else [])]
            calls.append(
                f"    {name}[({_size_text(f.programs, buffers)},)]({', '.join(args)}, num_warps={f.warps}, **OPTIONS)"
            )
    functions = [f for _, f in functions_by_shape.values()]
    helpers = [h for h in HELPERS if any(h in f.helpers for f in functions)]
    lines = [
        *head(program),
        "import triton",
        "import triton.language as tl",
        "from triton.language.extra import libdevice",
        "",
        'OPTIONS = {"enable_fp_fusion": True, "enable_reflect_ftz": False}  # as CUDA is compiled',
        *(x for h in helpers for x in ("", "", "@triton.jit", HELPERS[h])),
        *(x for f in functions for x in ("", "", *f.lines)),
        "", "",
        f"def {LAUNCH}({', '.join([*buffers.values(), 'mlc_failed'])}):",
        *(calls or ["    pass"]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def head(program: Program) -> list[str]:
    """Comments on the parameters of `launch`."""
    groups = (("inputs", program.inputs), ("outputs", program.outputs), ("temporaries", program.temps))
    rows = [f"# {label}: {', '.join(_describe(t) for t in tensors)}" for label, tensors in groups if tensors]
    return [*rows, "# mlc_failed: i32[1], set to 1 where data are invalid"]


def _describe(t: Tensor) -> str:
    def numbers(sizes: tuple[object, ...]) -> str:
        return ", ".join(str(n.value) if isinstance(n, Const) else "?" for n in sizes)

    return f"{t.name}: {t.dtype}[{numbers(t.shape)}] strides [{numbers(t.strides)}]"


def _size_text(e: Expr, names: Mapping[str, str]) -> str:
    """A function of the sizes, in Python."""
    match e:
        case Const(n):
            return str(n)
        case Size(name):
            return names[name]
        case Op("min" | "max" as function_name, args):
            return f"{function_name}({', '.join(_size_text(a, names) for a in args)})"
        case Op(name, (a, b)) if OPS[name].infix:
            return f"({_size_text(a, names)} {OPS[name].infix} {_size_text(b, names)})"
    raise ValueError(f"nobody knows how many programs {e} are")
