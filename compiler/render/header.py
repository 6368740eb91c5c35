"""The header of a text: the program's launches as comments, from which the text can be run; and their parser.

```
// f, for sm_90a
// def f(x: f32[64, 100], *, y: f32[64, 100]):
//     with function("rows", [x, y], writes=[y], grid=[64], block=[32, 1, 1]):
//         pass
```
They are Kernel IR, reduced to what the launches need: dynamic shared memory, the wait for preceding kernels, and one
requirement in place of all, if there are any. A CPU text has a single entry, so only the buffers are listed.
"""

from __future__ import annotations

import re

from compiler.ir import isomorphism, kernel_text
from compiler.ir import kernel as k
from compiler.ir.expr import Op, op
from compiler.passes.gpu.dependent_launch import WAIT, overlaps
from compiler.render import c

# Stands for all requirements: a function that has any takes an argument to report failures.
_REQUIREMENT = k.Declare("checked", Op("require", (op("ge", k.Builtin("thread.x"), 0), k.Builtin("thread.x"))))
_TITLE = re.compile(r"// .+, for (\S+)$")


def lines(program: k.Program, target: str) -> list[str]:
    """The comments at the head of the text of `program`."""
    launches = launches_only(program.replace(functions=tuple(f for f in program.functions if f.block)))
    text = kernel_text.show(launches).removesuffix("\n    pass\n")
    return c.comment(f"{program.name}, for {target}\n{text}")


def launches_only(program: k.Program) -> k.Program:
    """The program with its functions reduced to what their launches need."""
    shared_names = isomorphism.firsts(program.functions)  # several functions of the program may share one in the text
    return program.replace(functions=tuple(_launch(f.replace(name=shared_names[f.name])) for f in program.functions))


def _launch(f: k.Function) -> k.Function:
    dynamic = k.dynamic_shared(f)[0]
    arrays = [n for s in f.body for n in s.walk() if isinstance(n, k.Array) and n.name in dynamic]
    body = (*arrays, *([WAIT] if overlaps(f) else []), *([_REQUIREMENT] if c.has_requirements(f.body) else []))
    return f.replace(body=body, origin=(), schedule="")


def is_launch(f: k.Function) -> bool:
    """Whether only the launch of a function is known: its text may do anything."""
    return bool(f.block) and all(s in (WAIT, _REQUIREMENT) or isinstance(s, k.Array) for s in f.body)


def parse(text: str) -> k.Program:
    """The program in the header of a text. Raises ValueError if the header is missing or malformed."""
    rows = text.splitlines()
    first = next((n for n, row in enumerate(rows) if row.startswith("// def ")), None)
    if first is None:
        raise ValueError("no head says what it is called with: a line such as `// def f(x: f32[64], *, y: f32[64]):`")
    last = first + 1
    while last < len(rows) and rows[last].startswith("//   "):
        last += 1
    # Preceded by empty lines, so that messages have line numbers of the whole text.
    program = kernel_text.parse(
        "\n" * first + "\n".join(row[len("// ") :] for row in rows[first:last]) + "\n    pass\n"
    )
    k.verify(program)
    return program


def target(text: str) -> str | None:
    """The target that the first line of a text names; None if it names none."""
    title = _TITLE.match(text.split("\n", 1)[0])
    return title[1] if title else None
