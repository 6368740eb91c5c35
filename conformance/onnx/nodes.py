"""The node tests of the onnx package, each a model of one op, or of those that define it, with inputs and results."""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any

TYPES = {"FLOAT": "f32", "DOUBLE": "f64", "FLOAT16": "f16", "BFLOAT16": "bf16"}


@functools.cache
def tests() -> dict[str, Any]:
    """Every test by its name without `test_`."""
    node = importlib.import_module("onnx.backend.test.case.node")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what NumPy says of the casts that overflow there
        return {case.name.removeprefix("test_"): case for case in node.collect_testcases(None)}


def listed() -> list[tuple[str, str]]:
    """Every test with the element type of its first input, or output where there is no input."""
    return sorted((name, _kind(case.model.graph)) for name, case in tests().items())


def _kind(graph: Any) -> str:
    first = next(iter((*graph.input, *graph.output)))
    if first.type.WhichOneof("value") != "tensor_type":
        return str(first.type.WhichOneof("value")).removesuffix("_type")
    number = first.type.tensor_type.elem_type
    word = str(importlib.import_module("onnx").TensorProto.DataType.Name(number))
    return TYPES.get(word, word.lower().replace("uint", "u").replace("int", "i"))


def operators(name: str) -> list[str]:
    """The ops of a test's model."""
    return sorted({node.op_type for node in tests()[name].model.graph.node})


def widened(model: Any) -> Any:
    """The model with f64 in the place of narrower types."""
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
