"""A kernel of a Loop IR program in; out a program of it alone, and the digest by which kernels like it are known."""

from __future__ import annotations

import hashlib
from collections import Counter

from compiler.ir import alike, loop_text
from compiler.ir.statement import Kernel, Program


def alone(program: Program, kernel: Kernel) -> Program:
    """The kernel as a program: it is given what it reads, results in what it writes, and has its own temporaries."""
    users = Counter(p.name for k in program.kernels for p in k.params)
    own = {t.name for t in program.temps if users[t.name] == 1}
    left = [p for p in kernel.params if p.name not in own]
    return Program(
        kernel.name,
        tuple(p for p in left if p.name not in kernel.writes),
        tuple(p for p in left if p.name in kernel.writes),
        tuple(p for p in kernel.params if p.name in own),
        (kernel,),
        program.sizes,
    )


def key(program: Program) -> str:
    """The digest of a program of one kernel: that of another is the same if they differ in names alone."""
    (kernel,) = program.kernels
    about = program.replace(name="f", kernels=(kernel.replace(name="kernel", origin=(), whole=""),))
    text = loop_text.show(alike.renamed(about, alike.names(kernel)))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
