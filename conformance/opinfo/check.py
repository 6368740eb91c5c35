"""Check an OpInfo entry in one dtype: compile its samples together and compare the results with eager's.

Samples that eager does not run are left out; entries whose results in eager are not reproducible have no verdict. The
tolerance is derived from eager's distance from f64, as for random programs. It runs in the child process.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import compiler
from conformance import rows
from conformance.fuzz import runs
from conformance.fuzz.check import ROUNDINGS, RefusedProgram, largest, raise_if_unsupported, value_difference
from conformance.fuzz.runs import Run
from conformance.judge.ladder import threads
from conformance.opinfo import entries, ties
from conformance.opinfo.entries import Sample

_OP = re.compile(r"\b((?:aten|prims|prim|inductor|higher_order)\.[A-Za-z_0-9]+(?:\.[A-Za-z_0-9]+)?)\(")


def check(name: str, kind: str, options: Mapping[str, Any], tell: Callable[[str], None]) -> rows.OpInfo:
    """Check an entry and return its row; `options` has target, threads, seed and the number of samples."""
    known = rows.OpInfo(name=name, dtype=kind)
    device = compiler.tensors_on(compiler.target(options["target"]))
    with threads(options["threads"]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tell("samples")
        torch.manual_seed(options["seed"])
        try:
            found = entries.samples(name, kind, options["samples"], device)
        except Exception as error:  # an entry may have no samples for some dtypes
            return replace(known, verdict="none", detail=f"no samples: {error}")
        tell("eager")
        ran = [(s, *both) for s in found if (both := _in_eager(s)) is not None]
        if not ran:
            return replace(known, verdict="none", detail="eager runs none of the samples")
        tell("torch.compile")
        return replace(known, **_judged([s for s, *_ in ran], [b for _, *b in ran], {**options, "name": name}, device))


def _in_eager(sample: Sample) -> tuple[Run, Run] | None:
    """Run a sample in eager and in f64; None if eager fails. If f64 is not possible, eager's run is returned twice."""
    try:
        want = runs.call(lambda *x: sample(x), runs.copy_arguments(sample.tensors, _device(sample)), sample.needs)
    except Exception:
        return None
    if not want.outputs or (any(sample.needs) and not any(g is not None for g in want.gradients)):
        return None
    try:
        with runs.in_f64():
            right = runs.call(lambda *x: sample(x), [runs.widen(x) for x in sample.tensors], sample.needs)
    except Exception:  # some kernels do not support f64
        return want, want
    alike = [x.shape for x in right.outputs] == [x.shape for x in want.outputs]
    return want, right if alike else want


def _device(sample: Sample) -> str:
    return next((x.device.type for x in sample.tensors), "cpu")


def _judged(
    samples: Sequence[Sample], eager: Sequence[Sequence[Run]], options: Mapping[str, Any], device: str
) -> dict[str, Any]:
    bounds = [0]
    for s in samples:
        bounds.append(bounds[-1] + len(s.tensors))

    def function(*tensors: Tensor) -> list[list[Tensor]]:
        return [s(tensors[a:b]) for s, a, b in zip(samples, bounds, bounds[1:], strict=False)]

    torch._dynamo.reset()
    given: dict[str, Any] = {"fallback": False, "target": None if device == "cuda" else options["target"]}
    compiled = torch.compile(function, backend="mlcomp", fullgraph=True, dynamic=False, options=given)
    tensors = [x for s in samples for x in s.tensors]
    needs = [n for s in samples for n in s.needs]
    try:
        made = runs.call(compiled, runs.copy_arguments(tensors, device), needs)
    except Exception as error:
        return _failed(error)
    if options["name"] in ties.OPEN:
        made = ties.settled(made, samples, [e[0] for e in eager])
    if options["name"] in ties.UNWRITTEN:
        made = ties.written(made, [e[0] for e in eager])
    wrong = _difference(made, _joined([e[0] for e in eager]), _joined([e[1] for e in eager]))
    if not wrong:
        return {"verdict": "pass"}
    if not all(_repeats(s, *e) for s, e in zip(samples, eager, strict=True)):
        return {"verdict": "none", "detail": "eager does not do the same twice"}
    return {"verdict": "wrong", "detail": wrong}


def _failed(error: Exception) -> dict[str, Any]:
    """Return the verdict on an exception: unsupported by the compiler, refused by torch, or an error."""
    try:
        raise_if_unsupported(error)
    except RefusedProgram as refusal:
        text = str(refusal)
        return {"verdict": "unsupported", "detail": text, "missing": tuple(sorted(set(_OP.findall(text))))}
    said = (str(error).strip().splitlines() or [""])[0]
    theirs = isinstance(error, torch._dynamo.exc.TorchDynamoException) and not hasattr(error, "inner_exception")
    return {"verdict": "torch" if theirs else "error", "detail": f"{type(error).__name__}: {said}"}


def _joined(parts: Sequence[Run]) -> Run:
    every = [[x for p in parts for x in getattr(p, of)] for of in ("outputs", "inputs", "gradients")]
    return Run(*map(tuple, every))


def _repeats(sample: Sample, want: Run, right: Run) -> bool:
    again = _in_eager(sample)
    return again is not None and not _difference(again[0], want, right)


def _difference(made: Run, want: Run, right: Run) -> str:
    """Return the first difference between results, inputs after the call, or gradients and eager's; "" if none."""
    sizes = (largest(x.double().nan_to_num(0, 0, 0)) for x in want.outputs if x.is_floating_point())
    most = max(sizes, default=0.0)
    for of in ("outputs", "inputs", "gradients"):
        # Gradients may be differences of values as large as the results, whose f64 rounding errors count.
        lost = ROUNDINGS * 2.0**-52 * most if of == "gradients" else 0.0
        every = zip(getattr(made, of), getattr(want, of), getattr(right, of), strict=True)
        for k, (a, b, c) in enumerate(every):
            if (a is None) != (b is None):
                return f"{of} {k}: {'none' if a is None else 'a tensor'}, in eager not so"
            if a is not None and (wrong := value_difference(a, b, b if c is None else c, lost)):
                return f"{of} {k}: {wrong}"
    return ""
