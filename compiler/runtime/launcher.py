"""Turn a shared object and the plan of its buffers into a function from tensors to tensors."""

import ctypes
import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from compiler.errors import CacheError, CompilerError, InvalidData, ToolchainError
from compiler.runtime import extension, memory, store
from compiler.runtime.packs import Pack, with_pieces, within_packs

log = logging.getLogger("mlcomp")

# int mlc_entry(void** buffers, const long long* sizes, int threads); buffers: inputs, outputs, temporaries. A nonzero
# result means that the data has an invalid index, target or divisor, and that the outputs are meaningless.
ENTRY = "mlc_entry"

DTYPES: Mapping[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
    "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}

# Kernels of GPUs may access 16 bytes at once from the start of any buffer; torch aligns its own allocations to 512.
ALIGNMENT = 16


@dataclass(frozen=True)
class Buffer:
    """A tensor passed to the entry: name, dtype and layout in memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} with strides {self.stride}"


@dataclass(frozen=True)
class Plan:
    """All buffers of an entry in the order of its pointers: inputs, outputs, then temporaries at offsets `temporaries`
    in an arena of `arena` bytes. The last `zeros` temporaries are zero before and after. `sizes` is passed through.
    `written` pairs each result that is an input, which the entry writes, with that input; all other results are the
    outputs, in order. The pieces of `packed_inputs` and `packed_outputs` are passed as packs.py says."""

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    temporaries: tuple[int, ...] = ()
    arena: int = 0
    sizes: tuple[int, ...] = ()
    zeros: int = 0
    written: tuple[tuple[int, int], ...] = ()
    packed_inputs: tuple[Pack, ...] = ()
    packed_outputs: tuple[Pack, ...] = ()


Launcher = Callable[..., tuple[torch.Tensor, ...]]


@functools.cache
def library(path: Path) -> ctypes.CDLL:
    """Load a shared object once, resolving all symbols now, so that a missing one is an error here."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompilerError(
            f"cannot load the compiled kernel {path}: {error}; delete the file and try again."
        ) from error


def entry(path: Path, name: str = ENTRY) -> Any:  # a ctypes function pointer, whose class is private
    """The function `name` of a shared object, typed as a kernel entry. Raises CompilerError if it is missing."""
    try:
        function = getattr(library(path), name)
    except AttributeError as error:
        raise CompilerError(
            f"the compiled kernel {path} has no function {name}; delete the file and try again."
        ) from error
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    function.restype = ctypes.c_int
    return function


def run_once(
    path: Path, buffers: Sequence[Any], sizes: Sequence[int] = (), threads: int = 1, name: str = ENTRY
) -> None:
    """Call an entry on buffers that the caller allocated and filled: tensors, numpy arrays or addresses.

    Nothing is checked: `buffers` must be all inputs, outputs and temporaries, with the sizes that the kernel expects.
    Raises InvalidData if the entry rejects the data.
    """
    pointers = (ctypes.c_void_p * max(1, len(buffers)))(*map(address, buffers))
    extents = (ctypes.c_longlong * max(1, len(sizes)))(*sizes)
    if entry(path, name)(pointers, extents, threads):
        raise InvalidData


def address(buffer: Any) -> int:
    """The address of the first element of a tensor or an array; an int is an address already."""
    match buffer:
        case int():
            return buffer
        case torch.Tensor():
            return buffer.data_ptr()
        case _:
            return int(buffer.ctypes.data)


CPU = torch.device("cpu")


def _expected(position: int, buffer: Buffer, device: torch.device) -> str:
    return f"argument {position} ({buffer.name}): expected {buffer} on {device}"


def refusal(position: int, buffer: Buffer, value: object, device: torch.device = CPU) -> TypeError | ValueError:
    """The error for an argument that does not match what the kernel was compiled for."""
    prefix = f"{_expected(position, buffer, device)}, got "
    if not isinstance(value, torch.Tensor):
        return TypeError(f"{prefix}{type(value).__name__}; pass a tensor")
    actual = f"{NAMES.get(value.dtype, str(value.dtype))}{list(value.shape)}"
    if value.layout is torch.strided:
        actual += f" with strides {value.stride()}"
    actual += f" on {value.device}" + ("" if value.layout is torch.strided else f", layout {value.layout}")
    remedy = "kernels are compiled for one shape, dtype and layout: convert the argument or compile for it"
    return (TypeError if value.dtype is not DTYPES[buffer.dtype] else ValueError)(f"{prefix}{actual}; {remedy}")


def admit(position: int, buffer: Buffer, value: object, device: torch.device = CPU) -> torch.Tensor:
    """Return the argument as a plain tensor whose memory a kernel on `device` may read, or raise its refusal."""
    if not isinstance(value, torch.Tensor):
        raise refusal(position, buffer, value, device)
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        # Such a class stores its elements elsewhere, if anywhere.
        actual = f"got a {type(value).__name__}, which has no memory of its own; pass a plain tensor"
        raise TypeError(f"{_expected(position, buffer, device)}, {actual}")
    if type(value) is not torch.Tensor:
        value = value.as_subclass(torch.Tensor)
    value = value.resolve_neg()
    if not fits(buffer, value, device):
        raise refusal(position, buffer, value, device)
    try:
        start = value.data_ptr()
    except RuntimeError as error:  # inside torch.vmap and the like: a wrapper without memory whose type is Tensor
        raise TypeError(f"{_expected(position, buffer, device)}, got {error}") from error
    if start == 0 and value.numel():
        raise ValueError(f"argument {position} ({buffer.name}): its storage was freed (resized to 0)")
    return value


def fits(buffer: Buffer, value: torch.Tensor, device: torch.device = CPU) -> bool:
    """Whether a tensor has the expected layout; strides are irrelevant along axes of size 1 and for empty tensors."""
    if value.dtype is not DTYPES[buffer.dtype] or value.device != device or value.layout is not torch.strided:
        return False
    if value.shape != buffer.shape:
        return False
    axes = zip(buffer.shape, buffer.stride, value.stride(), strict=True)
    return 0 in buffer.shape or all(size == 1 or expected == actual for size, expected, actual in axes)


def bind(plan: Plan, constants: Mapping[int, torch.Tensor], device: torch.device = CPU) -> dict[int, torch.Tensor]:
    """Checked constants by input position. Each is an alias that keeps its memory alive if the caller rebinds it."""
    for position in constants:
        if not 0 <= position < len(plan.inputs):
            raise ValueError(f"constant {position}: the kernel has inputs 0 to {len(plan.inputs) - 1}")
    return {i: admit(i, plan.inputs[i], value.detach(), device) for i, value in constants.items()}


# If all buffers together have fewer bytes, a call keeps the GIL: releasing it costs more than others could gain.
GIL_RELEASE_BYTES = 64 << 10
# Page faults on fresh memory cost more than arithmetic: relu(x*y+1) into 128 MiB takes 54.6 ms with 32,769 faults,
# 14.1 ms with 576 if the output asks for huge pages, 9.9 ms into memory used before (one thread, minimum of 7). glibc
# maps blocks above 32 MiB anew on every call. It recycles smaller ones after a few calls, and for these the advice
# costs a tenth of a relu (232 us with it, 196 without, 512 x 4096 f32).
HUGE_PAGE_BYTES = 32 << 20


def refuse_data(*arguments: object) -> None:
    """Raise InvalidData, for programs without a more specific error."""
    raise InvalidData


def load(
    path: Path,
    plan: Plan,
    *,
    constants: Mapping[int, torch.Tensor] | None = None,
    threads: int = 0,
    cache: Path | None = None,
    huge: int = HUGE_PAGE_BYTES,
    native: bool = True,
    invalid: Callable[..., object] = refuse_data,
) -> Launcher:
    """Return a function that checks its tensors against `plan`, calls the kernel at `path`, and returns fresh outputs.

    `constants` binds inputs by position, which then are not arguments. `threads` 0 means torch's number of threads at
    the call. Outputs of at least `huge` bytes ask for huge pages (0: none do). The native launcher is built into
    `cache` once; if that fails, or without `native`, calls go through ctypes. `invalid` is called with the arguments of
    a call whose data the kernel rejects, and raises.
    """
    bound = bind(plan, constants or {})
    module = _native(cache) if native else None
    if module is None:
        return load_ctypes(path, plan, bound, threads, invalid)
    free_inputs = [i for i in range(len(plan.inputs)) if i not in bound]
    expected = packed_buffers(plan.inputs, plan.packed_inputs)
    byte_count = sum(map(bytes_of, (*plan.inputs, *plan.outputs))) + plan.arena
    launcher: Launcher = module.Launcher(
        ctypes.cast(entry(path), ctypes.c_void_p).value,
        buffer_rows(plan.inputs, plan.packed_inputs, free_inputs),
        buffer_rows(plan.outputs, plan.packed_outputs, range(len(plan.outputs)), len(plan.inputs)),
        tuple((i, tensor.data_ptr()) for i, tensor in bound.items()),
        plan.temporaries,
        plan.arena,
        plan.sizes,
        threads,
        byte_count >= GIL_RELEASE_BYTES,
        huge,
        lambda position, value: admit(position, expected[free_inputs[position]], value),
        tuple(bound.values()),
        invalid,
        written_rows(plan, free_inputs),
    )
    return launcher


@functools.cache
def _native(cache: Path | None) -> Any:  # the extension module, or None
    try:
        try:
            return extension.load(cache)
        except CacheError:
            return extension.load(store.process_folder())
    except ToolchainError as error:
        log.warning("mlcomp: calls go through ctypes, about 10 us slower each: %s", error)
        return None


Row = tuple[object, ...]


def packed_buffers(buffers: Sequence[Buffer], packs: Sequence[Pack]) -> list[Buffer]:
    """The buffers, with each pack at the position of its first piece."""
    numel = {pack.pieces[0][0]: pack.numel for pack in packs}
    return [replace(b, shape=(numel[n],), stride=(1,)) if n in numel else b for n, b in enumerate(buffers)]


def buffer_rows(
    buffers: Sequence[Buffer], packs: Sequence[Pack], passed: Sequence[int], first: int = 0
) -> tuple[Row, ...]:
    """Those buffers that a call takes or returns (`passed`, by position) as rows for launcher.c.

    `first` is the position of `buffers[0]` among all buffers of the entry.
    """
    places = {i: n for n, i in enumerate(passed)}
    pieces = {
        i: (places[pack.pieces[0][0]], start * DTYPES[buffers[i].dtype].itemsize)
        for pack in packs for i, start in pack.pieces
    }  # fmt: skip
    expected = packed_buffers(buffers, packs)
    return tuple(_buffer_row(first + i, expected[i], *pieces.get(i, (-1, 0))) for i in passed)


def _buffer_row(position: int, buffer: Buffer, pack: int, begin: int) -> Row:
    """A buffer as a row for launcher.c. Only views of complex tensors are lazily negated, and those are not dense."""
    dtype = DTYPES[buffer.dtype]
    is_dense = buffer.stride == _dense_strides(buffer.shape) and math.prod(buffer.shape) > 1
    may_be_negated = dtype.is_floating_point and not is_dense
    code = extension.dtype_code(dtype)
    return position, buffer.shape, buffer.stride, dtype, code, bytes_of(buffer), may_be_negated, pack, begin


def _dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))


def load_ctypes(
    path: Path,
    plan: Plan,
    bound: Mapping[int, torch.Tensor],
    threads: int,
    invalid: Callable[..., object] = refuse_data,
) -> Launcher:
    """A launcher in plain Python, several times slower per call than the C one, for machines that cannot build that."""
    function = entry(path)
    sizes = (ctypes.c_longlong * max(1, len(plan.sizes)))(*plan.sizes)

    def run(inputs: list[torch.Tensor], outputs: tuple[torch.Tensor, ...]) -> object:
        arena = torch.empty(plan.arena, dtype=torch.uint8)
        pointers = [*map(address, (*inputs, *outputs)), *(arena.data_ptr() + offset for offset in plan.temporaries)]
        array = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        return function(array, sizes, threads or torch.get_num_threads())

    return python_launcher(plan, bound, run, invalid)


def python_launcher(
    plan: Plan,
    bound: Mapping[int, torch.Tensor],
    run: Callable[[list[torch.Tensor], tuple[torch.Tensor, ...]], object],
    invalid: Callable[..., object],
    device: torch.device = CPU,
) -> Launcher:
    """A function of the unbound inputs that calls `run`, and `invalid` with its arguments if `run` returns true."""
    free_inputs = [i for i in range(len(plan.inputs)) if i not in bound]
    expected, within = packed_buffers(plan.inputs, plan.packed_inputs), within_packs(plan.packed_inputs)
    fresh, outside = packed_buffers(plan.outputs, plan.packed_outputs), within_packs(plan.packed_outputs)

    def launch(*arguments: object) -> tuple[torch.Tensor, ...]:
        if len(arguments) != len(free_inputs):
            raise TypeError(f"expected {len(free_inputs)} arguments, got {len(arguments)}")
        values: dict[int, Any] = {**bound}
        for n, (i, argument) in enumerate(zip(free_inputs, arguments, strict=True)):
            if i not in within:
                values[i] = admit(n, expected[i], argument, device)
            elif argument is not None:
                raise TypeError(f"argument {n} is part of another argument, and is to be None")
        values = with_pieces(values, plan.packed_inputs, plan.inputs)
        values |= {i: aligned(values[i]) for _, i in plan.written}  # `run` may copy others, whose copies are then lost
        results: list[Any] = [None if n in outside else empty(b, device) for n, b in enumerate(fresh)]
        outputs = with_pieces(dict(enumerate(results)), plan.packed_outputs, plan.outputs)
        if run([values[i] for i in range(len(plan.inputs))], tuple(outputs[n] for n in range(len(results)))):
            invalid(*arguments)
        for (result, argument), (_, i) in zip(written_rows(plan, free_inputs), plan.written, strict=True):
            if values[i] is not arguments[argument]:
                arguments[argument].copy_(values[i])  # type: ignore[attr-defined]
            results.insert(result, arguments[argument])
        return tuple(results)

    return launch


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if it is aligned to 16 bytes, else an aligned copy with the same strides."""
    if not tensor.data_ptr() % ALIGNMENT or not tensor.numel():
        return tensor
    span = memory.element_span(tensor.shape, tensor.stride())
    flat = tensor.detach().as_strided((span,), (1,), tensor.storage_offset())
    return flat.clone().as_strided(tensor.shape, tensor.stride(), 0)


def empty(b: Buffer, device: torch.device = CPU) -> torch.Tensor:
    return torch.empty_strided(b.shape, b.stride, dtype=DTYPES[b.dtype], device=device)


def written_rows(plan: Plan, free_inputs: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Each result that is an argument, with the argument's position among the `free_inputs`."""
    return tuple((result, free_inputs.index(i)) for result, i in plan.written)


def bytes_of(buffer: Buffer) -> int:
    """Bytes that a dense buffer occupies."""
    return math.prod(buffer.shape) * DTYPES[buffer.dtype].itemsize
