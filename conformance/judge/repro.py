"""Write the folder of a failed case: its data, every stage's text, and a script that runs the stages alone."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import compiler
from conformance.judge.subject import Subject
from conformance.rows import CaseResult
from conformance.shapes import inputs, modules
from conformance.shapes.cases import to_json

SCRIPT = '''"""{title}

{detail}
"""

import argparse
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import compiler

{module}
{source}

torch.set_num_threads({threads})
tensors = list(torch.load(Path(__file__).parent / "inputs.pt").values())
captured = {capture}
named = dict(zip(captured.arguments, tensors)) | captured.constants
given = [named[i.name] for i in captured.program.inputs]
right = compiler.reference(captured.program, given)
target = compiler.target("{target}")
stages = compiler.stages(target)
parser = argparse.ArgumentParser(description="runs every stage alone")
parser.add_argument("--from-dump", choices=stages, help="start from the text of this stage beside this file")
start = parser.parse_args(sys.argv[1:] if __name__ == "__main__" else []).from_dump
if start is None:
    lowering = compiler.lower(captured.program, target)
else:
    lowering = compiler.load(Path(__file__).parent / {texts}.get(start, f"{{start}}.ir"), target)
for stage in stages[stages.index(start or stages[0]) :]:
    try:
        made = compiler.execute(lowering, stage, given)
    except compiler.CompilerError as problem:
        print(f"{{stage:8}} {{problem}}")
        continue
    far = [(a.double().reshape(b.shape) - b.double()).abs().nan_to_num(0.0) for a, b in zip(made, right)]
    print(f"{{stage:8}} largest difference from f64:", *(f"{{d.max():.3g}}" if d.numel() else "none" for d in far))
'''
LONGEST = 40_000  # most characters of a text in a row
TEXTS = {"cpp": "kernel.cpp", "cuda": "kernel.cu", "mlir": "kernel.mlir", "triton": "kernel.py"}
IMPORT = """
import sys

sys.path.insert(0, {folder!r})
from {package} import {root}
"""
MODULE = """
{name} = ({made}).to({dtype}).eval().requires_grad_(False)
{name}.load_state_dict(torch.load(Path(__file__).parent / "{name}.pt"))
"""


def dump(folder: Path, prepared: Subject, lowering: compiler.Lowering, row: CaseResult) -> str:
    """Write the folder that reproduces a failure; returns its path, or why it could not be written."""
    case = prepared.case
    try:
        write_texts(folder, lowering)
        tensors = _arguments(prepared)
        torch.save(tensors, folder / "inputs.pt")
        (folder / "case.json").write_text(json.dumps(to_json(case), indent=1))
        (folder / "failure.txt").write_text(f"{row.detail}\n")
        (folder / "run.py").write_text(_script(prepared, lowering, folder, row))
    except OSError as error:
        return f"(not written to {folder}: {error.strerror})"
    return str(folder)


def write_texts(folder: Path, lowering: compiler.Lowering) -> None:
    """Write every stage's text as a file in the folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    for stage in lowering.stages:
        (folder / TEXTS.get(stage, f"{stage}.ir")).write_text(lowering.show(stage))


def texts(lowering: compiler.Lowering) -> dict[str, str]:
    """Return every stage's text and the schedules, for a row; texts longer than LONGEST are cut."""
    text_of = {stage: lowering.show(stage) for stage in lowering.stages}
    text_of["schedule"] = compiler.show_schedules(lowering.schedules)
    return {name: text if len(text) <= LONGEST else f"{text[:LONGEST]}\n… cut here" for name, text in text_of.items()}


def _arguments(prepared: Subject) -> dict[str, torch.Tensor]:
    """Return all tensors of the case by name, including weights."""
    function = prepared.function.inner if isinstance(prepared.function, inputs.Gradients) else prepared.function
    bound_function = function if isinstance(function, inputs.BoundModule) else None
    arguments = iter(prepared.arguments)
    tensors = {
        arg.name: getattr(bound_function, f"weight_{arg.name}")
        if bound_function is not None and arg.constant
        else next(arguments)
        for arg in prepared.case.args
    }
    return tensors | {f"weight_of_{n}": x for n, x in enumerate(arguments)}


def _script(prepared: Subject, lowering: compiler.Lowering, folder: Path, row: CaseResult) -> str:
    case = prepared.case
    text = inputs.source(case)
    name = text.split("def ", 1)[1].split("(", 1)[0]
    constants = [n for n, arg in enumerate(case.args) if arg.constant]
    capture = f"compiler.capture({name}, tensors, constants={constants})"
    if case.grad:
        count, differentiable = (
            len(case.args),
            [n for n, arg in enumerate(case.args) if inputs.is_differentiated(case, arg)],
        )
        capture = (
            f"compiler.capture_gradient({name}, tensors[:{count}], tensors[{count}:], {differentiable}, {constants})"
        )
    return SCRIPT.format(
        title=_title(case.id, row),
        texts=TEXTS,
        detail=row.detail.replace("\\", "\\\\").replace('"""', "'''"),
        module=_modules(prepared, folder),
        source=text,
        threads=torch.get_num_threads(),
        capture=capture,
        target=lowering.target.name,
    )


def _title(name: str, row: CaseResult) -> str:
    if row.verdict in ("crash", "timeout"):
        return f"{name} loses its process in stage {row.first_bad_stage} ({row.verdict})."
    return f"{name} fails in stage {row.first_bad_stage}, pass {row.first_bad_pass}."


def _modules(prepared: Subject, folder: Path) -> str:
    """Save the weights of the case's modules, and return the lines of the script that recreate the modules."""
    case = prepared.case
    calls = inputs.module_calls(case)
    lines = ""
    if case.module is not None:
        package, _, path = case.module.partition(":")
        lines += IMPORT.format(folder=str(Path(case.file).resolve().parent), package=package, root=path.split(".")[0])
        calls[modules.NAMED] = f"{path}({', '.join(f'{k}={v!r}' for k, v in case.init.items())})"
    for name, module in modules.modules_of(prepared.function).items():
        torch.save(module.state_dict(), folder / f"{name}.pt")
        lines += MODULE.format(name=name, made=calls[name], dtype=inputs.DTYPES[case.dtype])
    return lines
