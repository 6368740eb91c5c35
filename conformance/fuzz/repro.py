"""A program that failed in; a folder out: a script of the program beside eager, and every graph's stages and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import compiler
from conformance.fuzz.asked import PROGRAM
from conformance.fuzz.corpus import dumped
from conformance.fuzz.program import Program, arguments, described, line
from conformance.judge.repro import write_texts
from conformance.rows import Found

SCRIPT = '''"""{title}

{described}
"""

from pathlib import Path

import torch
import torch.nn.functional as F

{line}


needs = {needs}
for tensors in torch.load(Path(__file__).parent / "inputs.pt"):
    options = {{"fallback": False, "target": "{target}"}}
    compiled = torch.compile(f, backend="mlcomp", dynamic={dynamic}, options=options)
    for name, call in (("eager", f), ("mlcomp", compiled)):
        given = [x.clone().requires_grad_(need) for x, need in zip(tensors, needs)]
        made = call(*given)
        print(name, *(made if isinstance(made, tuple | list) else [made]), sep="\\n")
        if any(needs):
            ends = [x for x in (made if isinstance(made, tuple | list) else [made]) if x.requires_grad]
            weights = [((torch.arange(x.numel()) * 7 % 5) - 2).to(x.dtype).reshape(x.shape) for x in ends]
            leaves = [x for x in given if x.requires_grad]
            print("gradients", *torch.autograd.grad(ends, leaves, weights, allow_unused=True), sep="\\n")
'''


def dump(
    folder: Path,
    program: Program,
    target: str,
    inputs: Sequence[Sequence[Any]],
    lowerings: Sequence[compiler.Lowering],
    found: Found,
) -> str:
    """Write what is needed to see it again; the folder, or why it could not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.py").write_text(_script(program, target, found))
        (folder / "failure.txt").write_text(f"{found.first_bad_stage}, {found.first_bad_pass}\n{found.why}\n")
        (folder / PROGRAM).write_text(dumped(program), encoding="utf-8")
        torch.save([list(arguments(program, point).values()) for point in program.points], folder / "inputs.pt")
        for number, (given, lowering) in enumerate(zip(inputs, lowerings, strict=False)):
            graph = folder / f"graph{number}"
            write_texts(graph, lowering)
            torch.save([x for x in given if isinstance(x, Tensor)], graph / "inputs.pt")
    except OSError as error:
        return f"(not written to {folder}: {error.strerror})"
    return str(folder)


def _script(program: Program, target: str, found: Found) -> str:
    return SCRIPT.format(
        title=f"Random program {program.seed}.{program.index}: {found.first_bad_stage}, {found.first_bad_pass}.",
        described=described(program),
        line=line(program),
        needs=[arg.name in program.gradients for arg in program.args],
        dynamic=program.dynamic,
        target=target,
    )
