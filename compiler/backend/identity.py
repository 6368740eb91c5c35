"""A text that identifies a Dynamo graph: equal texts imply that AOTAutograd produces the same graphs.

The text has every call with all its arguments, every property of an input that torch can distinguish, and the state of
torch that tracing depends on. A graph has no text if any of that cannot be described completely: functions that are not
torch's own, attributes of the graph, symbolic sizes, tensor subclasses, random generators.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import math
import operator
import os
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch._decomp import global_decomposition_table
from torch._functorch import config as functorch
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.amp import autocast_mode
from torch.fx import GraphModule, Node
from torch.fx.experimental import _config as symbols

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
# Modules in which functions that a graph may call are looked up; the first match names a function.
_NAMESPACES: tuple[Any, ...] = (
    operator, math, builtins, torch, torch._C, torch._C._nn, torch.linalg, torch.fft,
    torch.special, torch.nn.functional, torch.functional, autocast_mode,
)  # fmt: skip
_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None), type(...))
_TORCH_TYPES = (torch.dtype, torch.device, torch.layout, torch.memory_format)
# Functions without arguments that return torch's settings of algorithms, precision and determinism.
_SETTING_NAME = re.compile(r"_get_\w*(enabled|allow|determin|precision|benchmark|priority|prefer)\w*")


class _Undescribable(Exception):
    """Something cannot be described completely."""


def text_of(graph: GraphModule, inputs: Sequence[Any]) -> str | None:
    """The text of a graph and of the inputs that it is compiled for; None if it cannot be described completely."""
    try:
        return "\n".join([*_state_lines(), *_input_lines(graph, inputs), *_call_lines(graph)])
    except _Undescribable:
        return None


def _call_lines(graph: GraphModule) -> Iterator[str]:
    numbers: dict[Node, int] = {}
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "call_function", "call_method", "output") or node.meta.get("custom"):
            raise _Undescribable(node.op)
        _check_describable(node)
        target = _function_name(node.target) if node.op == "call_function" else ""
        if node.op == "call_method":
            # A method's meaning depends on the type of its receiver.
            if not node.args or not isinstance(_example_value(node.args[0]), torch.Tensor):
                raise _Undescribable(node.target)
            target = str(node.target)
        yield f"{node.op} {target} {_argument(node.args, numbers)} {_argument(node.kwargs, numbers)}"
        numbers[node] = len(numbers)


def _check_describable(node: Node) -> None:
    """Raise `_Undescribable` unless a value consists of plain tensors of known sizes and of plain Python values."""
    value = _example_value(node)
    for x in value if isinstance(value, tuple | list) else (value,):
        if isinstance(x, torch.Tensor):
            if type(x) not in (FakeTensor, torch.Tensor) or not all(type(n) is int for n in (*x.shape, *x.stride())):
                raise _Undescribable(node.name)
        elif not isinstance(x, (*_PLAIN_TYPES, torch.Size)):
            raise _Undescribable(node.name)


def _example_value(x: Any) -> Any:
    return x.meta.get("example_value") if isinstance(x, Node) else None


def _argument(x: Any, numbers: dict[Node, int]) -> str:
    if isinstance(x, Node):
        return f"%{numbers[x]}"
    if type(x) in _PLAIN_TYPES or type(x) in _TORCH_TYPES:
        return repr(x)
    if isinstance(x, dict):
        return f"{{{', '.join(f'{key!r}: {_argument(value, numbers)}' for key, value in x.items())}}}"
    if isinstance(x, slice):
        return f"slice{_argument((x.start, x.stop, x.step), numbers)}"
    if isinstance(x, tuple | list):
        kind = next(t.__name__ for t in (torch.Size, tuple, list) if isinstance(x, t))
        return f"{kind}({', '.join(_argument(item, numbers) for item in x)})"
    raise _Undescribable(type(x).__name__)


def _function_name(target: Any) -> str:
    if isinstance(target, OpOverload | OpOverloadPacket):
        name = str(target)
        if not name.startswith(("aten.", "prims.")):
            raise _Undescribable(name)
        return name
    name = _function_names().get(target, "") if isinstance(target, _FUNCTIONS) else ""
    if not name or (isinstance(target, FunctionType) and not _is_torch(target)):
        raise _Undescribable(target)
    return name


@functools.cache
def _function_names() -> dict[Any, str]:
    """Qualified names of Python's and torch's functions, as their modules have them at the first call."""
    out: dict[Any, str] = {}
    for namespace in _NAMESPACES:
        for name, function in vars(namespace).items():
            if isinstance(function, _FUNCTIONS):
                out.setdefault(function, f"{namespace.__name__}.{name}")
    return out


def _is_torch(function: FunctionType) -> bool:
    return function.__code__.co_filename.startswith(_TORCH)


def _input_lines(graph: GraphModule, inputs: Sequence[Any]) -> Iterator[str]:
    storages: dict[int, int] = {}
    for number, x in enumerate(inputs):
        if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.layout is not torch.strided:
            raise _Undescribable(type(x).__name__)
        if x._has_symbolic_sizes_strides or torch._C._functorch.is_functorch_wrapped_tensor(x):
            raise _Undescribable(x.shape)
        memory = storages.setdefault(x.untyped_storage()._cdata, number)
        layout = (tuple(x.shape), x.stride(), x.storage_offset(), x.untyped_storage().nbytes())
        dispatch_state = (x.requires_grad, x.is_leaf, x._is_view(), str(torch._C._dispatch_keys(x)))
        yield f"{type(x).__name__} {x.dtype} {x.device} {layout} {dispatch_state} {memory}"
    for device in sorted({x.device.index for x in inputs if x.is_cuda}):
        properties = torch.cuda.get_device_properties(device)
        yield f"{device}: {properties.name} {properties.major}.{properties.minor}"


def _state_lines() -> list[str]:
    """The state of torch that tracing depends on."""
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        raise _Undescribable("modes")
    tables = global_decomposition_table.values()
    if any(not str(getattr(f, "__module__", "")).startswith("torch.") for table in tables for f in table.values()):
        raise _Undescribable("decompositions")
    autocast = [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in torch._C._autocast_supported_devices()
    ]
    modes = (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(),
        torch.get_default_device(), torch.is_autocast_cache_enabled(), torch.backends.mha.get_fastpath_enabled(),
    )  # fmt: skip
    setup = [x.get_hash().hex() for x in (functorch, symbols)]
    versions = (torch.__version__, torch.version.git_version, torch.version.cuda, platform.python_version())
    return [repr(part) for part in (versions, setup, modes, autocast, _settings(), _registered_kernels())]


def _settings() -> list[tuple[str, str]]:
    return [(name, _setting(name)) for name in filter(_SETTING_NAME.fullmatch, dir(torch._C))]


def _setting(name: str) -> str:
    try:
        return str(getattr(torch._C, name)())
    except (TypeError, RuntimeError) as problem:  # it takes arguments, or this machine lacks the setting
        return type(problem).__name__


def _registered_kernels() -> str:
    """A digest of the names of the kernels that Python code has registered for ATen ops."""
    names = sorted(x for x in torch.library._impls if x.startswith("aten/"))
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
