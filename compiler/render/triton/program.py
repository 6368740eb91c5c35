"""A scheduled program of Tile IR as a Python file: a function for Triton for each kernel, and `launch`, which runs
them on buffers."""

from __future__ import annotations

from compiler.ir.expr import Const, fresh
from compiler.ir.statement import Program
from compiler.ir.tensor import Tensor
from compiler.render.triton.kernel import Function, function
from compiler.render.triton.operations import HELPERS
from compiler.render.triton.values import RESERVED

LAUNCH = "launch"


def render(program: Program) -> str:
    """The text; raises Unsupported for what Triton has no words for, ValueError for schedules that it cannot follow."""
    taken = {*RESERVED, *HELPERS, LAUNCH, "mlc_failed"}
    buffers = {t.name: _name(t.name, taken) for t in (*program.inputs, *program.outputs, *program.temps)}
    functions: list[Function] = []
    calls: list[str] = []
    for k in program.kernels:
        name = _name(k.name, taken)
        f = function(k, name, buffers)
        functions.append(f)
        if f.programs:
            options = f"num_warps={f.warps}, enable_reflect_ftz=False"
            args = [*(buffers[p.name] for p in k.params), *(["mlc_failed"] if f.fails else []), options]
            calls.append(f"    {name}[({f.programs},)]({', '.join(args)})")
    helpers = [h for h in HELPERS if any(h in f.helpers for f in functions)]
    lines = [
        *head(program, buffers),
        "import triton",
        "import triton.language as tl",
        "from triton.language.extra import libdevice",
        *(x for h in helpers for x in ("", "", "@triton.jit", HELPERS[h])),
        *(x for f in functions for x in ("", "", *f.lines)),
        "", "",
        f"def {LAUNCH}({', '.join([*buffers.values(), 'mlc_failed'])}):",
        *(calls or ["    pass"]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def head(program: Program, buffers: dict[str, str]) -> list[str]:
    """What `launch` is to be called with."""
    groups = (("inputs", program.inputs), ("outputs", program.outputs), ("temporaries", program.temps))
    rows = [f"# {what}: {', '.join(_shown(t) for t in some)}" for what, some in groups if some]
    return [*rows, "# mlc_failed: i32[1], set to 1 where data are invalid"]


def _shown(t: Tensor) -> str:
    def numbers(some: tuple[object, ...]) -> str:
        return ", ".join(str(n.value) if isinstance(n, Const) else "?" for n in some)

    return f"{t.name}: {t.dtype}[{numbers(t.shape)}] strides [{numbers(t.strides)}]"


def _name(stem: str, taken: set[str]) -> str:
    return fresh(stem, taken)
