"""Read ONNX models: check them, convert their weights, and determine the shapes of their inputs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from compiler.errors import CompilerError, Unsupported

OLDEST = 7  # the first opset whose ops broadcast as NumPy does
Sizes = Mapping[str, Sequence[int]]


def library(name: str = "onnx") -> Any:
    """A module of the optional package onnx; raises CompilerError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise CompilerError(
            f"ONNX models need the package onnx, which cannot be imported ({problem}): "
            'pip install "pytest-mlcomp[onnx]"'
        ) from problem


# Torch's element types by ONNX's names.
DTYPES = {
    "FLOAT": torch.float32, "DOUBLE": torch.float64, "FLOAT16": torch.float16, "BFLOAT16": torch.bfloat16,
    "INT64": torch.int64, "INT32": torch.int32, "INT16": torch.int16, "INT8": torch.int8, "UINT8": torch.uint8,
    "BOOL": torch.bool, "FLOAT8E4M3FN": torch.float8_e4m3fn, "FLOAT8E5M2": torch.float8_e5m2,
}  # fmt: skip
# Types that NumPy gets from the package ml_dtypes, by their name there, with integers of the same size.
FOREIGN = {
    "bfloat16": (torch.bfloat16, torch.int16), "float8_e4m3fn": (torch.float8_e4m3fn, torch.uint8),
    "float8_e5m2": (torch.float8_e5m2, torch.uint8),
}  # fmt: skip


@dataclass(frozen=True)
class Input:
    """An input tensor; `shape` has names for sizes that the model leaves open."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Model:
    """`proto` is the onnx package's ModelProto, `opsets` op versions by domain, `weights` values of initializers."""

    proto: Any
    opsets: dict[str, int]
    weights: dict[str, torch.Tensor]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]


def dtype(number: int) -> torch.dtype:
    """Torch's element type for ONNX's number; raises Unsupported if there is none."""
    name = library().TensorProto.DataType.Name(number)
    if name not in DTYPES:
        raise Unsupported(f"onnx {name}", (), f"the element types are {', '.join(DTYPES)}")
    return DTYPES[name]


def type_number(element_type: torch.dtype) -> int:
    """ONNX's number for an element type."""
    name = next(n for n, t in DTYPES.items() if t is element_type)
    return int(library().TensorProto.DataType.Value(name))


def tensor(proto: Any, folder: str = "") -> torch.Tensor:
    """The value of a TensorProto."""
    dtype(proto.data_type)  # raises for unknown types
    return from_numpy(library("onnx.numpy_helper").to_array(proto, folder))


def from_numpy(array: Any) -> torch.Tensor:
    """A tensor with a copy of the array."""
    array = library("numpy").array(array, order="C", copy=True)
    if array.dtype.name in FOREIGN:
        target, storage = FOREIGN[array.dtype.name]
        return torch.from_numpy(array.view(str(storage).removeprefix("torch."))).view(target)
    return torch.from_numpy(array)


def to_numpy(value: torch.Tensor) -> Any:
    """A tensor as an array of the type that onnx's reference evaluator uses."""
    for name, (source, storage) in FOREIGN.items():
        if value.dtype is source:
            return value.contiguous().view(storage).numpy().view(getattr(library("ml_dtypes"), name))
    return value.numpy()


def read(model: Any) -> Model:
    """A model from a ModelProto, its bytes or its file; raises CompilerError, Unsupported for an unknown opset."""
    if isinstance(model, Model):
        return model
    proto = _load_proto(library(), model)
    opsets = {o.domain: o.version for o in proto.opset_import}
    if opsets.get("", OLDEST) < OLDEST:
        raise Unsupported(
            f"opset {opsets['']}", (), f"the oldest is {OLDEST}; onnx.version_converter makes newer models"
        )
    newest = library().defs.onnx_opset_version()
    if opsets.get("", OLDEST) > newest:
        raise Unsupported(f"opset {opsets['']}", (), f"the newest that this version of onnx knows is {newest}")
    if proto.functions:
        proto = library("onnx.inliner").inline_local_functions(proto)
    weights = {i.name: tensor(i) for i in proto.graph.initializer}
    inputs = tuple(_convert_input(i) for i in proto.graph.input if i.name not in weights)
    return Model(proto, opsets, weights, inputs, tuple(o.name for o in proto.graph.output))


def _load_proto(onnx: Any, model: Any) -> Any:
    if isinstance(model, onnx.ModelProto):
        return model
    try:
        return onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(str(model))
    except FileNotFoundError:
        raise
    except Exception as problem:  # protobuf's exceptions have no common class in all versions
        source = "the bytes" if isinstance(model, bytes) else Path(str(model))
        raise CompilerError(f"{source}: no ONNX model: {problem}") from problem


def _convert_input(info: Any) -> Input:
    value_kind = info.type.WhichOneof("value")
    if value_kind != "tensor_type":
        raise Unsupported(
            f"input {info.name!r}", (str(value_kind).removesuffix("_type"),), "only tensors can be inputs"
        )
    if not info.type.tensor_type.HasField("shape"):
        raise Unsupported(f"input {info.name!r}", (), "has no shape, so its rank is unknown")
    shape = tuple(
        d.dim_value if d.HasField("dim_value") else d.dim_param or f"{info.name}.{axis}"
        for axis, d in enumerate(info.type.tensor_type.shape.dim)
    )
    return Input(info.name, dtype(info.type.tensor_type.elem_type), shape)


def input_shapes(model: Model, given: Sizes) -> dict[str, tuple[int, ...]]:
    """The shape of each input; `given` has the shapes of some. Sizes with the same name are equal.

    Raises CompilerError for unknown inputs and for sizes that are left open or contradict each other.
    """
    unknown = sorted(set(given) - {i.name for i in model.inputs})
    if unknown:
        names = ", ".join(i.name for i in model.inputs)
        raise CompilerError(f"the model has no input {', '.join(unknown)}; its inputs are {names}")
    sizes: dict[int | str, int] = {}
    for i in model.inputs:
        if i.name in given:
            given_shape = tuple(given[i.name])
            fits = len(given_shape) == len(i.shape)
            if not fits or any(
                sizes.setdefault(s, n) != n for s, n in zip(i.shape, given_shape, strict=True) if s != n
            ):
                raise CompilerError(f"input {i.name}: shape {list(given_shape)} does not fit {_shape_text(i.shape)}")
            if any(isinstance(s, int) and s != n for s, n in zip(i.shape, given_shape, strict=True)):
                raise CompilerError(f"input {i.name}: shape {list(given_shape)} does not fit {_shape_text(i.shape)}")
    resolved = {i.name: tuple(sizes.get(s, s) for s in i.shape) for i in model.inputs}
    for name, shape in resolved.items():
        if open_sizes := [s for s in shape if isinstance(s, str)]:
            raise CompilerError(
                f"input {name} is {_shape_text(shape)}: say the size {open_sizes[0]}, for example {name}=[SIZES]"
            )
    return {name: tuple(int(s) for s in shape) for name, shape in resolved.items()}


def _shape_text(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"
