"""Check one ONNX node test: compile its model and compare the results with the test's, within the test's tolerance.

Results outside that tolerance pass if they are about as close to f64 as the expected results are. Tests that onnx's
reference evaluator does not pass are left out. Inputs that must be known at compile time, such as shapes and axes, are
passed as constants. It runs in the child process.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import compiler
from compiler import Undetermined, Unsupported
from conformance import rows
from conformance.fuzz.check import value_difference
from conformance.judge.ladder import threads

Arrays = Sequence[Any]
NARROW = ("float32", "float16", "bfloat16")
TORCH_ONLY_DTYPES = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}


def check(name: str, kind: str, options: Mapping[str, Any], tell: Callable[[str], None]) -> rows.OpInfo:
    """Check a test and return its row; `options` has target and threads."""
    unchecked = rows.OpInfo(name=name, dtype=kind)
    with threads(options["threads"]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tell("onnx's evaluator")
        case = tests()[name]
        if why := _evaluator_failure(case):
            return replace(unchecked, verdict="none", detail=why)
        tell("compiling")
        try:
            for inputs, expected in case.data_sets:
                wrong = _difference_of_model(
                    case, [_array(x) for x in inputs], [_array(x) for x in expected], options["target"]
                )
                if wrong:
                    return replace(unchecked, verdict="wrong", detail=wrong)
        except Unsupported as refusal:
            missing = (refusal.op,) if refusal.op.startswith(("onnx.", "ai.", "aten.")) else ()
            return replace(unchecked, verdict="unsupported", detail=str(refusal), missing=missing)
        except Exception as error:
            message = (str(error).strip().splitlines() or [""])[0]
            return replace(unchecked, verdict="error", detail=f"{type(error).__name__}: {message}")
        return replace(unchecked, verdict="pass")


def _evaluator_failure(case: Any) -> str:
    """Return why onnx's evaluator does not pass the test; "" if it does."""
    try:
        evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator(case.model)
        for inputs, expected in case.data_sets:
            results = evaluator.run(None, dict(zip(evaluator.input_names, map(_array, inputs), strict=True)))
            if wrong := _difference(case, results, [_array(x) for x in expected]):
                return f"onnx's evaluator: {wrong}"
    except Exception as error:
        return f"onnx's evaluator: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return ""


def _array(value: Any) -> Any:
    """Convert a value to an array; some tests have TensorProto messages instead of arrays."""
    return importlib.import_module("onnx.numpy_helper").to_array(value) if hasattr(value, "data_type") else value


def _difference_of_model(case: Any, inputs: Arrays, expected: Arrays, target: str) -> str:
    """Compile and run the model; returns how its results differ, or ""."""
    device = compiler.tensors_on(compiler.target(target))
    input_of = dict(zip([i.name for i in case.model.graph.input], inputs, strict=True))
    constants: dict[str, Tensor] = {}
    while True:
        shapes = {name: x.shape for name, x in input_of.items() if isinstance(x, np.ndarray)}
        try:
            captured = compiler.from_onnx(case.model, shapes=shapes, known=constants, device=device)
            break
        except Undetermined as problem:
            if not problem.inputs or set(problem.inputs) <= constants.keys():
                raise
            constants |= {name: _tensor(input_of[name]) for name in problem.inputs}
    tensors = [_tensor(x).to(device) for n, x in input_of.items() if n not in constants]
    results = pytree.tree_map(Tensor.cpu, compiler.compile(captured, target=target)(*tensors))
    difference = _difference(
        case,
        [_in_format_of(x, expected_result) for x, expected_result in zip(results, expected, strict=True)],
        expected,
    )
    if not difference or not all(
        isinstance(x, Tensor) and x.shape == w.shape for x, w in zip(results, expected, strict=True)
    ):
        return difference
    try:
        exact = _results_in_f64(case, inputs)
    except Exception:  # the evaluator does not support f64 for some ops
        return difference
    triples = zip(results, expected, exact, strict=True)
    return difference if any(value_difference(a, _tensor(b), _tensor(right)) for a, b, right in triples) else ""


def _results_in_f64(case: Any, inputs: Arrays) -> Arrays:
    """Return the results of onnx's evaluator in f64."""
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator(widen_model(case.model))
    wide = [np.asarray(x).astype(np.float64) if np.asarray(x).dtype.name in NARROW else x for x in inputs]
    return list(evaluator.run(None, dict(zip(evaluator.input_names, wide, strict=True))))


def _tensor(array: Any) -> Tensor:
    """Convert an array to a tensor, also for dtypes that NumPy itself lacks."""
    array = np.asarray(array)
    if array.dtype.name in TORCH_ONLY_DTYPES:
        return torch.from_numpy(array.astype(np.float32)).to(TORCH_ONLY_DTYPES[array.dtype.name])
    return torch.from_numpy(array.copy())


def _in_format_of(result: Any, expected: Any) -> Any:
    """Convert a result to the format of the expected one: arrays, or lists for sequences."""
    if isinstance(result, list):
        return [_in_format_of(x, w) for x, w in zip(result, expected, strict=True)]
    if result.dtype is TORCH_ONLY_DTYPES.get(np.asarray(expected).dtype.name):
        return result.float().numpy().astype(expected.dtype)
    return result.numpy()


def _difference(case: Any, results: Arrays, expected: Arrays) -> str:
    """Compare results by onnx's own function; returns its message, or ""."""
    runner = importlib.import_module("onnx.backend.test.runner").Runner
    try:
        runner.assert_similar_outputs(
            expected, [np.asarray(x) if np.isscalar(x) else x for x in results], case.rtol, case.atol
        )
    except AssertionError as problem:
        return " ".join(str(problem).split())
    return ""


TYPES = {"FLOAT": "f32", "DOUBLE": "f64", "FLOAT16": "f16", "BFLOAT16": "bf16"}


@functools.cache
def tests() -> dict[str, Any]:
    """Return all tests by their names without `test_`."""
    node = importlib.import_module("onnx.backend.test.case.node")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns about casts in tests that overflow
        return {case.name.removeprefix("test_"): case for case in node.collect_testcases(None)}


def list_tests() -> list[tuple[str, str]]:
    """Return all tests with the element type of their first input, or of the output if there is no input."""
    return sorted((name, _kind(case.model.graph)) for name, case in tests().items())


def _kind(graph: Any) -> str:
    first = next(iter((*graph.input, *graph.output)))
    if first.type.WhichOneof("value") != "tensor_type":
        return str(first.type.WhichOneof("value")).removesuffix("_type")
    number = first.type.tensor_type.elem_type
    word = str(importlib.import_module("onnx").TensorProto.DataType.Name(number))
    return TYPES.get(word, word.lower().replace("uint", "u").replace("int", "i"))


def operators(name: str) -> list[str]:
    """Return the ops of a test's model."""
    return sorted({node.op_type for node in tests()[name].model.graph.node})


def widen_model(model: Any) -> Any:
    """Return a copy of the model with f64 in place of narrower floating-point types."""
    onnx = importlib.import_module("onnx")
    narrow = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    graph = wide.graph
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type in narrow:
            info.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for attribute in (a for node in graph.node for a in node.attribute):
        if attribute.name in ("to", "dtype", "output_dtype") and attribute.i in narrow:
            attribute.i = onnx.TensorProto.DOUBLE
        if attribute.t.data_type in narrow:
            array = importlib.import_module("onnx.numpy_helper").to_array(attribute.t)
            attribute.t.CopyFrom(importlib.import_module("onnx.numpy_helper").from_array(array.astype("float64")))
    return wide
