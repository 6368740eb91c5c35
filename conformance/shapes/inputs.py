"""Make the tensors and the function of a case; equal case ids, arguments and run seeds give equal data.

Data is drawn on the CPU in f32 (f64 for f64), rounded to the argument's dtype, and stored in the given layout,
including gaps, strides of 0 and offsets.
"""

import copy
import functools
import linecache
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

import compiler
from conformance.shapes import draw, modules
from conformance.shapes.cases import FLOATS, Arg, Case, seed
from conformance.shapes.distributions import parse
from conformance.shapes.expressions import program_source
from conformance.shapes.toml_values import CaseError, one_line

DTYPES = modules.DTYPES
Function = Callable[..., Any]  # from tensors to a tensor or a nested structure of tensors


def fault(case: Case, run_seed: int = 0) -> CaseError | None:
    """Return an error if PyTorch itself cannot run the case, or raises another exception than it names; else None."""
    try:
        program, arguments = bind(case, make(case, run_seed))
        with torch.no_grad():
            program(*arguments)
    except CaseError as error:
        return error
    except Exception as error:  # the case's program may raise anything
        if type(error).__name__ == case.raises:
            return None
        return CaseError(case, "expr", f"PyTorch itself does not run it: {one_line(error)}")
    return None


def make(case: Case, run_seed: int = 0, *, blank: bool = False) -> dict[str, Tensor]:
    """Make the case's tensors, by argument name and in the order of arguments; with `blank` uninitialised.

    A gradient case also gets a weight for each floating-point result, `weight_of_N`. Raises CaseError.
    """
    try:
        tensors = {arg.name: tensor(arg, seed(case, arg.name, run_seed), blank) for arg in case.args}
        weights = _weights(case, tuple(tensors.values())) if case.grad else ()
        return tensors | {arg.name: tensor(arg, seed(case, arg.name, run_seed), blank) for arg in weights}
    except (RuntimeError, MemoryError) as error:  # usually out of memory
        raise CaseError(case, "args", f"PyTorch cannot make them: {one_line(error)}") from error


def _weights(case: Case, tensors: Sequence[Tensor]) -> Iterator[Arg]:
    """Yield the gradients with respect to the results of a case, as arguments: integers if the inputs are integers."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    is_integer = case.distribution == "integers"
    for n, y in enumerate(pytree.tree_leaves(trace_shapes(function(case), tensors))):
        if isinstance(y, Tensor) and y.is_floating_point():
            distribution = (
                {"kind": "integers", "low": -3, "high": 3} if is_integer else {"kind": "normal", "mean": 0, "std": 1}
            )
            yield Arg(f"weight_of_{n}", tuple(y.shape), names[y.dtype], inputs=distribution)


def function(case: Case) -> Function:
    """Return the case's program as a function of all its tensors."""
    text, calls = _source_and_modules(case)
    file = f"<{case.file}::{case.id}>"
    # So that tracebacks and torch's tracer can show the source lines.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, object] = {**modules.SCOPE, **modules.make_modules(case, calls)}
    defined: dict[str, Function] = {}
    exec(compile(text, file, "exec"), scope, defined)
    return next(iter(defined.values()))


def source(case: Case) -> str:
    """Return the text of the function, with dims, params and consts as literals; it needs torch, F, nn and math.

    The modules that it makes are referred to by the names in `module_calls`.
    """
    return _source_and_modules(case)[0]


def module_calls(case: Case) -> dict[str, str]:
    """Return the calls that make the modules of the case's text, by the modules' names."""
    return _source_and_modules(case)[1]


def _source_and_modules(case: Case) -> tuple[str, dict[str, str]]:
    values = {**case.dims, **case.params, **case.consts, "dtype": case.dtype}
    program = program_source(case.op, case.expr, [arg.name for arg in case.args], values)
    try:
        return modules.extract_modules(program)
    except ValueError as error:
        raise CaseError(case, "expr", str(error)) from error


def bind(case: Case, tensors: Mapping[str, Tensor]) -> tuple[Function, tuple[Tensor, ...]]:
    """Return the callable and inputs for the compiler; constant arguments become weights of a module."""
    bound = function(case)
    rest = {name: tensor for name, tensor in tensors.items() if name not in case.constants}
    if case.constants:
        bound = BoundModule(bound, tuple(tensors), {name: tensors[name] for name in case.constants}).eval()
    if case.grad:
        free = [arg for arg in case.args if not arg.constant]
        differentiable = tuple(n for n, arg in enumerate(free) if is_differentiated(case, arg))
        bound = Gradients(bound, len(free), differentiable)
    if case.mutates:
        bound = _on_copies(bound, tuple(list(rest).index(name) for name in case.mutates))
    return bound, tuple(rest.values())


def is_differentiated(case: Case, arg: Arg) -> bool:
    """Return whether the gradient of an argument is compared."""
    return arg.name in case.grad and arg.dtype in FLOATS


def _on_copies(inner: Function, mutated: Sequence[int]) -> Function:
    """Convert a program that mutates arguments to one that mutates copies and returns these as well."""

    @functools.wraps(inner)
    def pure(*arguments: Tensor) -> tuple[Any, list[Tensor]]:
        copies = [x.clone() if n in mutated else x for n, x in enumerate(arguments)]
        return inner(*copies), [copies[n] for n in mutated]

    return pure


class Gradients:
    """The gradients of a function of `count` arguments; called with these and then a weight for each result."""

    def __init__(self, inner: Function, count: int, moving: tuple[int, ...]) -> None:
        self.inner, self.count, self.differentiable = inner, count, moving
        self.gradients = compiler.gradient(inner, count, moving)

    def __call__(self, *given: Tensor) -> Any:
        return self.gradients(*given)

    @property
    def in_f64(self) -> Function:
        """The gradients with the module's weights converted to f64."""
        inner = copy.deepcopy(self.inner).double() if isinstance(self.inner, nn.Module) else self.inner
        return compiler.gradient(inner, self.count, self.differentiable)


class BoundModule(nn.Module):
    """A module that calls a function with some of its arguments held as weights."""

    def __init__(self, inner: Function, names: Sequence[str], weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.inner = inner
        self.positions = tuple((names.index(name), f"weight_{name}") for name in sorted(weights, key=names.index))
        for name, weight in weights.items():
            self.register_buffer(f"weight_{name}", weight)

    def forward(self, *inputs: Tensor) -> Any:
        """Call the function with inputs and weights in their positions."""
        args = list(inputs)
        for place, name in self.positions:
            args.insert(place, getattr(self, name))
        return self.inner(*args)


def tensor(arg: Arg, arg_seed: int, blank: bool = False) -> Tensor:
    """Make the tensor of an argument; with `blank` uninitialised."""
    generator = torch.Generator().manual_seed(arg_seed)
    shape = list(arg.shape)
    name, numbers = parse(arg.layout) or ("contig", ())
    if name == "expanded" and shape[numbers[0]]:
        shape[numbers[0]] = 1
    if blank:
        return with_layout(torch.empty(shape, dtype=DTYPES[arg.dtype]), arg.layout, arg.shape)
    dense = draw.tensor(arg.inputs, draw.Draw(tuple(shape), DTYPES[arg.dtype], generator))
    return with_layout(dense, arg.layout, arg.shape)


def with_layout(dense: Tensor, layout: str, shape: tuple[int, ...]) -> Tensor:
    """Return the values stored in the layout."""
    name, numbers = parse(layout) or ("contig", ())
    match name:
        case "transposed":
            return dense.transpose(*numbers).contiguous().transpose(*numbers)
        case "permuted":
            back = tuple(reversed(range(dense.dim())))
            return dense.permute(back).contiguous().permute(back)
        case "strided":
            axis, step = numbers
            return _between_poison(dense, axis, step)
        case "expanded":
            return dense.expand(shape)
        case "offset":
            storage = _poison(dense, dense.numel() + numbers[0])
            view = storage[numbers[0] :].view(dense.shape)
            view.copy_(dense)
            return view
        case "channels_last":
            return dense.contiguous(memory_format=torch.channels_last)
        case _:
            return dense


def _between_poison(dense: Tensor, axis: int, step: int) -> Tensor:
    axis %= dense.dim()
    wide = [size * step if index == axis else size for index, size in enumerate(dense.shape)]
    view = _poison(dense, math.prod(wide)).view(wide)[(slice(None),) * axis + (slice(None, None, step),)]
    view.copy_(dense)
    return view


def _poison(like: Tensor, count: int) -> Tensor:
    """Return storage filled with a value that spoils any result that reads it by mistake: NaN, true or the largest."""
    value = math.nan if like.is_floating_point() else True if like.dtype is torch.bool else torch.iinfo(like.dtype).max
    return torch.full((count,), value, dtype=like.dtype)


def clone_storage(tensor: Tensor, **changes: Any) -> Tensor:
    """Copy a tensor with its whole storage, strides and offset; `changes` are arguments of `Tensor.to`."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    storage = tensor.as_strided((count,), (1,), 0).to(copy=True, **changes)
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def trace_shapes(function: Function, tensors: Sequence[Tensor], *, dynamic: bool = False) -> Any:
    """Return the function's results for fake tensors: dtypes, shapes and the strides that torch.compile promises.

    These strides are not always those of eager's kernels. With `dynamic`, sizes and strides are symbolic, and the
    promised strides may differ.
    """
    environment = ShapeEnv() if dynamic else None
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=environment) as mode, torch.no_grad():
        return function(*(mode.from_tensor(x, static_shapes=not dynamic) for x in tensors))


def strides(x: Tensor) -> list[int]:
    """Return the significant strides: those of axes with several elements; none for an empty tensor."""
    return [int(step) for step, n in zip(x.stride(), x.shape, strict=True) if n > 1] if x.numel() else []


StridesAndOffset = tuple[list[int], int]  # strides and offset


def predicted_layouts(
    function: Function, tensors: Sequence[Tensor], *, dynamic: bool = False
) -> list[StridesAndOffset] | None:
    """Return `strides` and offset of each result as predicted by tracing; None if the function cannot be traced.

    A result may have these or eager's.
    """
    try:
        leaves = pytree.tree_leaves(trace_shapes(function, list(map(clone_storage, tensors)), dynamic=dynamic))
        return [(strides(y), int(y.storage_offset())) if isinstance(y, Tensor) else ([], 0) for y in leaves]
    except Exception:  # of any part of torch
        return None


def widen(x: torch.Tensor) -> torch.Tensor:
    """Convert floating-point tensors to f64; others are unchanged."""
    return x.double() if x.is_floating_point() else x
