"""Write the repro folder of a failed program, and the shape file of a reduced one.

The folder has a script that runs the program and eager, and the stages and inputs of every graph. The shape file has
one case, which is checked as such, and a comment that says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import compiler
from conformance.fuzz.asked import PROGRAM_FILE
from conformance.fuzz.corpus import program_to_json
from conformance.fuzz.program import Program, as_line, call_arguments, describe_arguments, gradient_flags
from conformance.judge import ladder
from conformance.judge.repro import write_texts
from conformance.rows import CaseResult, FuzzResult
from conformance.shapes.cases import FLOATS, Case, to_json
from conformance.shapes.expand import expand
from conformance.shapes.files import load

TEXT = """# {title}
format = 1

[[case]]
name = "random.{seed}.{index}"
expr = '''
{expr}
'''
{args}
dtypes = ["{dtype}"]
tier = "smoke"
"""
LOST_KINDS = ("crash", "timeout")


def write(path: Path, program: Program, options: Mapping[str, Any]) -> str:
    """Write the shape file and check it; returns its path with what to do with it, or why it is of no use."""
    title = f"Random program {program.seed}.{program.index}, reduced: {options['kind']} in {options.get('stage')}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shape_file(program, title), encoding="utf-8")
        if options["kind"] in (*LOST_KINDS, "schedule"):
            return f"{path} (to be put into shapes/regressions; not tried, it was {options['kind']})"
        row = _check_case(path, options)
        if row.verdict != "fail":
            return f"{path} (passes as a case: what differs is around the graphs that torch.compile makes)"
        path.write_text(
            shape_file(program, f"{title}: wrong since {row.first_bad_stage}, {row.first_bad_pass}"), "utf-8"
        )
    except OSError as error:
        return f"(not written to {path}: {error.strerror})"
    except Exception as error:  # for example if the equations are wrong, so that there is no reference
        return f"{path} (cannot be tried, {type(error).__name__}: {error})"
    return f"{path} (fails; it is to be put into shapes/regressions with what mends it)"


def _check_case(path: Path, options: Mapping[str, Any]) -> CaseResult:
    case: Case = next(iter(expand(load(path, "smoke"), "smoke")))
    check_options = {"target": options["target"], "seed": 0, "threads": options.get("threads", 1)}
    return ladder.check(to_json(case), check_options)


def shape_file(program: Program, title: str) -> str:
    """Return the text of the shape file."""
    results = ", ".join(program.results) + ("," if len(program.results) == 1 else "")
    dtype = next((arg.dtype for arg in program.args if arg.dtype in FLOATS), program.args[0].dtype)
    lines = [
        f'args.{arg.name} = {{ shape = {json.dumps(list(arg.shape))}, dtype = "{arg.dtype}", '
        f'layout = ["{arg.layout}"], inputs = {_table(arg.inputs)} }}'
        for arg in program.args
    ]
    layouts = [arg.layout for arg in program.args if arg.layout != "contig"]
    lines += [f'layouts = ["{layouts[0]}"]'] if layouts else []  # a row has one layout
    lines += [f"grad = {json.dumps(list(program.gradients))}"] if program.gradients else []
    scales = program.altered.scales if program.altered else {}
    prologue = [f"{name} = {program.points[0][name]!r}" for name in program.numbers]
    prologue += [f"{name} = {name} * 2.0**{e}" for name, e in scales.items()]
    return TEXT.format(
        title=f"{title}\n# {describe_arguments(program)}", seed=program.seed, index=program.index,
        expr="\n".join([*prologue, *program.lines, f"({results})"]), args="\n".join(lines), dtype=dtype,
    )  # fmt: skip


def _table(options: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{name} = {_toml(value)}" for name, value in options.items()) + " }"


def _toml(value: Any) -> str:
    """Format a value as TOML.

    >>> _toml((1, -0.0, float("-inf"))), _toml("index")
    ('[1, -0.0, -inf]', '"index"')
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


SCRIPT = '''"""{title}

{described}
"""

from pathlib import Path

import torch
import torch.nn.functional as F

{line}


needs = {needs}
for arguments in torch.load(Path(__file__).parent / "inputs.pt"):
    options = {{"fallback": False, "target": "{target}"}}
    compiled = torch.compile(f, backend="mlcomp", dynamic={dynamic}, options=options)
    for name, call in (("eager", f), ("mlcomp", compiled)):
        given = [
            x.clone().requires_grad_(need) if isinstance(x, torch.Tensor) else x for x, need in zip(arguments, needs)
        ]
        made = call(*given)
        print(name, *(made if isinstance(made, tuple | list) else [made]), sep="\\n")
        if any(needs):
            ends = [x for x in (made if isinstance(made, tuple | list) else [made]) if x.requires_grad]
            weights = [((torch.arange(x.numel()) * 7 % 5) - 2).to(x.dtype).reshape(x.shape) for x in ends]
            leaves = [x for x, need in zip(given, needs) if need]
            print("gradients", *torch.autograd.grad(ends, leaves, weights, allow_unused=True), sep="\\n")
'''


def dump(
    folder: Path,
    program: Program,
    target: str,
    inputs: Sequence[Sequence[Any]],
    lowerings: Sequence[compiler.Lowering],
    finding: FuzzResult,
) -> str:
    """Write the repro folder; returns its path, or why it could not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.py").write_text(_script(program, target, finding))
        (folder / "failure.txt").write_text(f"{finding.first_bad_stage}, {finding.first_bad_pass}\n{finding.why}\n")
        (folder / PROGRAM_FILE).write_text(program_to_json(program), encoding="utf-8")
        torch.save([call_arguments(program, point) for point in program.points], folder / "inputs.pt")
        for number, (arguments, lowering) in enumerate(zip(inputs, lowerings, strict=False)):
            graph = folder / f"graph{number}"
            write_texts(graph, lowering)
            torch.save([x for x in arguments if isinstance(x, Tensor)], graph / "inputs.pt")
    except OSError as error:
        return f"(not written to {folder}: {error.strerror})"
    return str(folder)


def _script(program: Program, target: str, finding: FuzzResult) -> str:
    return SCRIPT.format(
        title=f"Random program {program.seed}.{program.index}: {finding.first_bad_stage}, {finding.first_bad_pass}.",
        described=describe_arguments(program),
        line=as_line(program),
        needs=gradient_flags(program),
        dynamic=program.dynamic,
        target=target,
    )
