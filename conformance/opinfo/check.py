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
    unchecked = rows.OpInfo(name=name, dtype=kind)
    device = compiler.tensors_on(compiler.target(options["target"]))
    with threads(options["threads"]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tell("samples")
        torch.manual_seed(options["seed"])
        try:
            samples = entries.samples(name, kind, options["samples"], device)
        except Exception as error:  # an entry may have no samples for some dtypes
            return replace(unchecked, verdict="none", detail=f"no samples: {error}")
        tell("eager")
        eager_runs = [
            (s, *eager_and_reference) for s in samples if (eager_and_reference := _run_in_eager(s)) is not None
        ]
        if not eager_runs:
            return replace(unchecked, verdict="none", detail="eager runs none of the samples")
        tell("torch.compile")
        return replace(
            unchecked,
            **_verdict_of([s for s, *_ in eager_runs], [b for _, *b in eager_runs], {**options, "name": name}, device),
        )


def _run_in_eager(sample: Sample) -> tuple[Run, Run] | None:
    """Run a sample in eager and in f64; None if eager fails. If f64 is not possible, eager's run is returned twice."""
    try:
        eager = runs.call(lambda *x: sample(x), runs.copy_arguments(sample.tensors, _device(sample)), sample.needs)
    except Exception:
        return None
    if not eager.outputs or (any(sample.needs) and not any(g is not None for g in eager.gradients)):
        return None
    try:
        with runs.in_f64():
            reference = runs.call(lambda *x: sample(x), [runs.widen(x) for x in sample.tensors], sample.needs)
    except Exception:  # some kernels do not support f64
        return eager, eager
    same_shapes = [x.shape for x in reference.outputs] == [x.shape for x in eager.outputs]
    return eager, reference if same_shapes else eager


def _device(sample: Sample) -> str:
    return next((x.device.type for x in sample.tensors), "cpu")


def _verdict_of(
    samples: Sequence[Sample], eager: Sequence[Sequence[Run]], options: Mapping[str, Any], device: str
) -> dict[str, Any]:
    bounds = [0]
    for s in samples:
        bounds.append(bounds[-1] + len(s.tensors))

    def function(*tensors: Tensor) -> list[list[Tensor]]:
        return [s(tensors[a:b]) for s, a, b in zip(samples, bounds, bounds[1:], strict=False)]

    torch._dynamo.reset()
    backend_options: dict[str, Any] = {"fallback": False, "target": None if device == "cuda" else options["target"]}
    compiled = torch.compile(function, backend="mlcomp", fullgraph=True, dynamic=False, options=backend_options)
    tensors = [x for s in samples for x in s.tensors]
    needs = [n for s in samples for n in s.needs]
    try:
        result = runs.call(compiled, runs.copy_arguments(tensors, device), needs)
    except Exception as error:
        return _verdict_of_error(error)
    if options["name"] in ties.UNSPECIFIED_TIES:
        result = ties.replace_tied_indices(result, samples, [e[0] for e in eager])
    if options["name"] in ties.UNWRITTEN:
        result = ties.replace_unwritten(result, [e[0] for e in eager])
    difference = _difference(result, _join_runs([e[0] for e in eager]), _join_runs([e[1] for e in eager]))
    if not difference:
        return {"verdict": "pass"}
    if not all(_is_reproducible(s, *e) for s, e in zip(samples, eager, strict=True)):
        return {"verdict": "none", "detail": "eager does not do the same twice"}
    return {"verdict": "wrong", "detail": difference}


def _verdict_of_error(error: Exception) -> dict[str, Any]:
    """Return the verdict on an exception: unsupported by the compiler, refused by torch, or an error."""
    try:
        raise_if_unsupported(error)
    except RefusedProgram as refusal:
        text = str(refusal)
        return {"verdict": "unsupported", "detail": text, "missing": tuple(sorted(set(_OP.findall(text))))}
    message = (str(error).strip().splitlines() or [""])[0]
    is_torch_error = isinstance(error, torch._dynamo.exc.TorchDynamoException) and not hasattr(error, "inner_exception")
    return {"verdict": "torch" if is_torch_error else "error", "detail": f"{type(error).__name__}: {message}"}


def _join_runs(parts: Sequence[Run]) -> Run:
    fields = [[x for p in parts for x in getattr(p, field)] for field in ("outputs", "inputs", "gradients")]
    return Run(*map(tuple, fields))


def _is_reproducible(sample: Sample, expected: Run, reference: Run) -> bool:
    repeated = _run_in_eager(sample)
    return repeated is not None and not _difference(repeated[0], expected, reference)


def _difference(result: Run, expected: Run, reference: Run) -> str:
    """Return the first difference between results, inputs after the call, or gradients and eager's; "" if none."""
    sizes = (largest(x.double().nan_to_num(0, 0, 0)) for x in expected.outputs if x.is_floating_point())
    most = max(sizes, default=0.0)
    for field in ("outputs", "inputs", "gradients"):
        # Gradients may be differences of values as large as the results, whose f64 rounding errors count.
        slack = ROUNDINGS * 2.0**-52 * most if field == "gradients" else 0.0
        tensors = zip(getattr(result, field), getattr(expected, field), getattr(reference, field), strict=True)
        for k, (a, b, c) in enumerate(tensors):
            if (a is None) != (b is None):
                return f"{field} {k}: {'none' if a is None else 'a tensor'}, in eager not so"
            if a is not None and (wrong := value_difference(a, b, b if c is None else c, slack)):
                return f"{field} {k}: {wrong}"
    return ""
