"""Run a program under the harshest conditions, and collect its outputs and complaints about it.

All buffers lie between guard zones in one piece of memory, which read as NaN or as large integers (`_zone_element`).
Outputs and temporaries start poisoned, except those that the plan requires to be zero. Nothing is reset between runs.
The last run has its temporaries at the offsets in the plan. A further run may have its inputs beside closed pages
(`edges`).
"""

from __future__ import annotations

import faulthandler
import math
import mmap
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import as_strided

from compiler.errors import InvalidData
from compiler.runtime import edges, launcher
from compiler.runtime.launcher import DTYPES, Buffer, Plan
from compiler.runtime.memory import ALIGNMENT, element_span

WIDEST_ACCESS = 16  # bytes of the widest access
GUARD = 4096  # bytes of the zone before and of that after each buffer
# Bytes that tell zones of different buffers apart. Those of near buffers are no small number apart: `x + 1` hits none.
MARKS = tuple(0x81 + 23 * n % 62 for n in range(62))
# The highest bytes of a signalling NaN, by type. Any mark may follow: its bit 6, which makes f32 and bf16 quiet, is 0.
SIGNALLING = {"f64": b"\xf1\xff", "f32": b"\xff", "bf16": b"\xff", "f16": b"\xfd"}
NAN_BYTE = 0xFF  # a NaN in every floating type
POISON_BYTE = 0x7F  # for integers and bools; no valid bool has this byte
INVALID = str(InvalidData())
RAISED = "it raised an error"
EDGE_PATIENCE = 60.0  # time limit in seconds of the run with closed pages
MAX_MESSAGE = 1 << 16  # the most bytes of messages from the forked process
Bytes = edges.Bytes
# (memory, offset of each buffer in it, number of the run) -> its own complaints
Call = Callable[[Bytes, Sequence[int], int], Sequence[str]]


@dataclass(frozen=True)
class Outcome:
    """The outputs of the first run; complaints about missing or forbidden writes; whether all runs agree bitwise."""

    outputs: tuple[torch.Tensor, ...]
    complaints: tuple[str, ...] = ()
    same: bool = True


@dataclass(frozen=True)
class _Region:
    """The location of a buffer: `start` and `size` in bytes. `element` fills the zones around it."""

    name: str
    start: int
    size: int
    element: bytes


class _Layout:
    """Lays out buffers one after the other, each with a zone of `GUARD` bytes before and one after it."""

    def __init__(self) -> None:
        self.end = 0
        self.regions: list[_Region] = []

    def add_region(self, name: str, size: int, dtype: str, misaligned: int = 0) -> _Region:
        start = -(-(self.end + GUARD) // ALIGNMENT) * ALIGNMENT + misaligned
        self.end = start + size + GUARD
        self.regions.append(_Region(name, start, size, _zone_element(dtype, len(self.regions))))
        return self.regions[-1]


def _zone_element(dtype: str, number: int) -> bytes:
    """The bytes that fill the zones of the buffer with this number in the memory.

    A read from a zone should spoil the results, and a write to it should change it, even a write of what was read from
    a zone. Hence the zones of a buffer hold:

    - a signalling NaN of its type. Any arithmetic makes a quiet NaN of it, also where it accumulates in place;
      conversions and GPUs make NaNs of their own; and constants are no such NaNs;
    - in types without one, a negative integer far from the constants 0, 1, -1 and the limits of the type, and no bool.
      8-bit floats have too few NaNs: in every four elements, two are NaN, the first and the last a large number;
    - a mark of the buffer in every element. A copy from the zone of another buffer changes the mark, at any distance
      and in any type: of `len(MARKS)` buffers in a row, all marks differ.

    Not seen is only a write of what is already there, such as a copy in place.
    """
    mark = MARKS[number % len(MARKS)]
    if dtype in ("f8e4m3", "f8e5m2"):
        return bytes([mark | 0x40, NAN_BYTE, NAN_BYTE, mark | 0x40])
    top = SIGNALLING.get(dtype, b"")
    return bytes([mark] * (DTYPES[dtype].itemsize - len(top))) + top


def entry(path: Path, sizes: Sequence[int] = (), threads: int = 1) -> Call:
    """The entry of a shared object as a `Call` on this machine's memory. If it rejects the data, the complaint is
    `INVALID`."""

    def call(memory: Bytes, offsets: Sequence[int], number: int) -> Sequence[str]:
        try:
            launcher.run_once(path, [memory.ctypes.data + offset for offset in offsets], sizes, threads)
        except InvalidData:
            return (INVALID,)
        return ()

    return call


def entries(path: Path, sizes: Sequence[int], patience: float, closed: bool) -> tuple[Call, Call | None]:
    """The entry of a shared object for `run` with this patience; if it is run beside `closed` pages too, also the same
    without threads."""
    return entry(path, sizes, 1 if patience else torch.get_num_threads()), entry(path, sizes) if closed else None


@dataclass(frozen=True)
class _Memory:
    """One piece of memory with all buffers of a program and, for each run, copies of its outputs (`output_copies`).

    Temporaries are `apart`, except in the last run, where they are `packed`. Those of `plan.zeros` must be zero before
    and after in both locations (`zeroed`).
    """

    data: Bytes
    regions: Sequence[_Region]
    sources: Sequence[_Region]
    targets: Sequence[_Region]
    scratch: Sequence[_Region]
    arena: _Region
    output_copies: Sequence[Sequence[_Region]]
    packed: Sequence[int]
    zeroed: Sequence[_Region]
    slots: Sequence[edges.Slot]

    @property
    def separate(self) -> list[int]:
        return [region.start for region in self.scratch]


def run(
    call: Call,
    plan: Plan,
    inputs: Sequence[torch.Tensor],
    temps: Sequence[Buffer],
    runs: int = 3,
    patience: float = 0.0,
    unthreaded: Call | None = None,
) -> Outcome:
    """Run the program `runs` times; with `patience`, in a forked process with a timeout of that many seconds.

    If nothing is wrong, it is also run by `unthreaded`, which uses no threads, in a forked process with closed pages.

    `inputs` are all inputs of the plan, including constants. This process survives any crash of a kernel in a fork,
    where kernels must not use threads.
    """
    memory = _lay_out_memory(plan, inputs, temps, runs, unthreaded is not None)
    data, output_copies = memory.data, memory.output_copies
    before = data.copy()
    shared = [p.start for p in (*memory.sources, *memory.targets)]

    def work() -> list[str]:
        complaints: list[str] = []
        for number, copies in enumerate(output_copies):
            temporaries = memory.packed if number and number == runs - 1 else memory.separate
            complaints += call(data, [*shared, *temporaries], number)
            for region, copy in zip(memory.targets, copies, strict=True):
                _region_bytes(data, copy)[:] = _region_bytes(data, region)
        return complaints

    failure, messages = _run_forked(work, patience) if patience else ("", work())
    if failure:
        return Outcome((), (failure,))
    same = all(
        np.array_equal(_region_bytes(data, a), _region_bytes(data, b))
        for row in output_copies[1:]
        for a, b in zip(output_copies[0], row, strict=True)
    )
    outputs = tuple(_tensor(data, region, b) for region, b in zip(output_copies[0], plan.outputs, strict=True))
    found = (*dict.fromkeys(messages), *_write_complaints(before, memory, plan))
    if unthreaded is not None and not found:
        found = _edge_complaints(unthreaded, memory, patience or EDGE_PATIENCE)
    return Outcome(outputs, found, same)


def _edge_complaints(call: Call, memory: _Memory, patience: float) -> tuple[str, ...]:
    """Complaints about accesses outside of inputs and writes to them, whatever the values."""
    others = [*(region.start for region in memory.targets), *memory.separate]
    inputs = [_region_bytes(memory.data, region) for region in memory.sources]
    failure, messages = _run_forked(lambda: edges.run(call, memory.data, memory.slots, inputs, others), patience)
    return (edges.CRASHED + failure,) if failure else tuple(messages)


def _lay_out_memory(
    plan: Plan, inputs: Sequence[torch.Tensor], temps: Sequence[Buffer], runs: int, closed: bool
) -> _Memory:
    """Memory that holds the inputs; everything else is poisoned, except what must be zero."""
    layout = _Layout()
    sources = [
        layout.add_region(b.name, _span(x), b.dtype, x.data_ptr() % 64)
        for b, x in zip(plan.inputs, inputs, strict=True)
    ]
    targets = [layout.add_region(b.name, size(b), b.dtype) for b in plan.outputs]
    scratch = [
        layout.add_region(b.name, temporary_size(b.shape, b.stride, DTYPES[b.dtype].itemsize), b.dtype) for b in temps
    ]
    arena = layout.add_region("the arena of temporaries", plan.arena, "f32")
    output_copies = [[layout.add_region("", size(b), b.dtype) for b in plan.outputs] for _ in range(runs)]
    slots, end = edges.slots(layout.end, [region.size for region in sources] if closed else [])
    data = np.frombuffer(mmap.mmap(-1, end), np.uint8)  # shared with a forked process
    data[:] = NAN_BYTE
    for region in layout.regions:
        for start in (region.start - GUARD, region.start + region.size):
            data[start : start + GUARD] = np.resize(np.frombuffer(region.element, np.uint8), GUARD)
    for region, x in zip(sources, inputs, strict=True):
        _region_bytes(data, region)[:] = _raw_bytes(x)
    for region, b in [*zip(targets, plan.outputs, strict=True), *zip(scratch, temps, strict=True)]:
        _region_bytes(data, region)[:] = NAN_BYTE if DTYPES[b.dtype].is_floating_point else POISON_BYTE
    packed = [arena.start + o for o in plan.temporaries]
    zeros = list(zip(scratch, packed, strict=True))[len(temps) - plan.zeros :]
    zeroed = [region for separate, start in zeros for region in (separate, replace(separate, start=start))]
    for region in zeroed:
        _region_bytes(data, region)[:] = 0
    return _Memory(data, layout.regions, sources, targets, scratch, arena, output_copies, packed, zeroed, slots)


def _write_complaints(before: Bytes, memory: _Memory, plan: Plan) -> Iterator[str]:
    """Complaints about forbidden and missing writes."""
    data, first = memory.data, memory.output_copies[0]
    copies = (region for row in memory.output_copies for region in row)
    elements = {region: _element_bytes(b) for region, b in zip(memory.targets, plan.outputs, strict=True)}
    yield from _forbidden_writes(before, data, memory.regions, {*memory.scratch, memory.arena, *copies}, elements)
    yield from (f"{region.name} was not left zero" for region in memory.zeroed if _region_bytes(data, region).any())
    for b, region, target in zip(plan.outputs, first, memory.targets, strict=True):
        if b.dtype == "bool" and (_region_bytes(data, region)[elements[target]] > 1).any():
            yield f"an element of {b.name} was never written"


def _span(x: torch.Tensor) -> int:
    """Bytes from the start of the first to the end of the last element."""
    return element_span(x.shape, x.stride()) * x.element_size()


def size(b: Buffer) -> int:
    """Bytes from the start of the first to the end of the last element."""
    return element_span(b.shape, b.stride) * DTYPES[b.dtype].itemsize


def temporary_size(shape: Sequence[int], stride: Sequence[int], size: int) -> int:
    """Bytes of a temporary with elements of `size` bytes; a multiple of the widest access if its rows are padded, since
    a bulk store writes the whole piece that a row ends in."""
    byte_count = element_span(shape, stride) * size
    return (
        byte_count
        if element_span(shape, stride) == math.prod(shape)
        else -(-byte_count // WIDEST_ACCESS) * WIDEST_ACCESS
    )


def _raw_bytes(x: torch.Tensor) -> Bytes:
    """The memory of a tensor, including gaps between its elements."""
    if not x.numel():
        return np.empty(0, np.uint8)
    flat = x.detach().as_strided((element_span(x.shape, x.stride()),), (1,), x.storage_offset())
    return np.asarray(flat.clone().view(torch.uint8).numpy())


def _region_bytes(data: Bytes, region: _Region) -> Bytes:
    return data[region.start : region.start + region.size]


def _tensor(data: Bytes, region: _Region, b: Buffer) -> torch.Tensor:
    dtype = DTYPES[b.dtype]
    if not math.prod(b.shape):
        return torch.empty(b.shape, dtype=dtype)
    content = _region_bytes(data, region).copy()
    flat = torch.from_numpy(content != 0) if dtype is torch.bool else torch.from_numpy(content).view(dtype)
    return flat.as_strided(b.shape, b.stride)


def _element_bytes(b: Buffer) -> npt.NDArray[np.bool_]:
    """For each byte of a buffer, whether it is part of an element: its elements may lie apart."""
    flat = np.zeros(size(b), np.bool_)
    step = DTYPES[b.dtype].itemsize
    if flat.size:
        as_strided(flat, (*b.shape, step), (*(n * step for n in b.stride), 1))[...] = True
    return flat


def _forbidden_writes(
    before: Bytes,
    after: Bytes,
    regions: Sequence[_Region],
    writable: set[_Region],
    elements: Mapping[_Region, npt.NDArray[np.bool_]],
) -> list[str]:
    """A complaint about the first write outside of the `writable` buffers and the `elements` of outputs, if any."""
    different = before != after
    for region in writable:
        _region_bytes(different, region)[:] = False
    for region, is_element in elements.items():
        _region_bytes(different, region)[is_element] = False
    if not different.any():
        return []
    position = int(np.argmax(different))
    for region in regions:
        if region.start <= position < region.start + region.size:
            inside = f"{position - region.start} bytes into it"
            gap = f"memory was written between the elements of {region.name}, {inside}"
            return [gap if region in elements else f"input {region.name} was changed, {inside}"]
    nearest = min((p for p in regions if p.name), key=lambda p: max(p.start - position, position - p.start - p.size))
    side = (
        f"{nearest.start - position} bytes before"
        if position < nearest.start
        else f"{position - nearest.start - nearest.size} bytes behind"
    )
    return [f"memory was written {side} {nearest.name}"]


def _run_forked(work: Callable[[], list[str]], patience: float) -> tuple[str, list[str]]:
    """Run `work` in a forked process. Returns how the process was lost ("" if not), and the result of `work`.

    PyTorch may use no threads there, as those of its pools are lost in a fork.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a lock held by a lost thread: `patience` ends that
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            faulthandler.disable()  # the parent reports how it ended
            signal.alarm(math.ceil(patience) + 1)  # ends it if the parent has died
            torch.set_num_threads(1)
            failed, messages = _messages_of(work)
            os.write(writer, messages.encode()[:MAX_MESSAGE])  # the capacity of a pipe
            status = int(failed)
        finally:
            os._exit(status)  # must not run the parent's cleanup
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        failure = _wait(pid, patience)
        messages = pipe.read().decode(errors="replace")
    if failure == RAISED and messages:
        return f"{RAISED}: {messages}", []
    return failure, [text for text in messages.split("\0") if text]


def _messages_of(work: Callable[[], list[str]]) -> tuple[bool, str]:
    """Whether `work` raises an error, and its messages or that error as one text."""
    try:
        return False, "\0".join(work())
    except Exception as problem:
        return True, f"{type(problem).__name__}: {problem}"


def _wait(pid: int, patience: float) -> str:
    """Wait until a process ends, or kill it after `patience` seconds. Returns what went wrong, "" if nothing."""
    end = time.monotonic() + patience
    done, status = 0, 0
    try:
        while not done and time.monotonic() < end:
            time.sleep(0.0005)
            done, status = os.waitpid(pid, os.WNOHANG)
    finally:  # also if this process is interrupted
        if not done:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if not done:
        return f"it did not end within {patience:g} s"
    if os.WIFSIGNALED(status):
        return f"it died of {signal.Signals(os.WTERMSIG(status)).name}"
    return "" if os.waitstatus_to_exitcode(status) == 0 else RAISED
