"""Run a program under the harshest conditions, and collect its outputs and complaints about it.

All buffers lie between guard zones in one piece of memory whose bytes read as NaN or -1. Outputs and temporaries start
poisoned, except those that the plan requires to be zero. Nothing is reset between runs. The last run has its
temporaries at the offsets in the plan.
"""

from __future__ import annotations

import faulthandler
import math
import mmap
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from compiler.errors import InvalidData
from compiler.runtime import launcher
from compiler.runtime.launcher import DTYPES, Buffer, Plan
from compiler.runtime.memory import ALIGNMENT

PIECE = 16  # bytes of the widest access
GUARD = 4096  # bytes before and after each buffer
BLANK = 0xFF  # a NaN in every floating type, -1 in every signed one
UNWRITTEN = 0x7F  # for integers and bools; no valid bool has this byte
INVALID = str(InvalidData())
MESSAGE = 1 << 16  # the most bytes of messages from the forked process
Bytes = npt.NDArray[np.uint8]
# (memory, offset of each buffer in it, number of the run) -> its own complaints
Call = Callable[[Bytes, Sequence[int], int], Sequence[str]]


@dataclass(frozen=True)
class Outcome:
    """The outputs of the first run; complaints about missing or forbidden writes; whether all runs agree bitwise."""

    outputs: tuple[torch.Tensor, ...]
    complaints: tuple[str, ...] = ()
    same: bool = True


@dataclass(frozen=True)
class _Place:
    """The location of a buffer: `start` and `size` in bytes."""

    name: str
    start: int
    size: int


class _Map:
    """Lays out buffers one after the other, at least `GUARD` bytes apart."""

    def __init__(self) -> None:
        self.end = GUARD
        self.places: list[_Place] = []

    def add(self, name: str, size: int, misaligned: int = 0) -> _Place:
        start = -(-self.end // ALIGNMENT) * ALIGNMENT + misaligned
        self.end = start + size + GUARD
        self.places.append(_Place(name, start, size))
        return self.places[-1]


def entry(path: Path, sizes: Sequence[int] = (), threads: int = 1) -> Call:
    """The entry of a shared object as a `Call` on this machine's memory. If it rejects the data, the complaint is
    `INVALID`."""

    def call(memory: Bytes, places: Sequence[int], number: int) -> Sequence[str]:
        try:
            launcher.run_once(path, [memory.ctypes.data + place for place in places], sizes, threads)
        except InvalidData:
            return (INVALID,)
        return ()

    return call


@dataclass(frozen=True)
class _Memory:
    """One piece of memory with all buffers of a program and, for each run, copies of its outputs (`kept`).

    Temporaries are `apart`, except in the last run, where they are `packed`. Those of `plan.zeros` must be zero before
    and after in both locations (`clear`).
    """

    data: Bytes
    places: Sequence[_Place]
    sources: Sequence[_Place]
    targets: Sequence[_Place]
    scratch: Sequence[_Place]
    arena: _Place
    kept: Sequence[Sequence[_Place]]
    packed: Sequence[int]
    clear: Sequence[_Place]

    @property
    def apart(self) -> list[int]:
        return [place.start for place in self.scratch]


def run(
    call: Call,
    plan: Plan,
    inputs: Sequence[torch.Tensor],
    temps: Sequence[Buffer],
    runs: int = 3,
    patience: float = 0.0,
) -> Outcome:
    """Run the program `runs` times; with `patience`, in a forked process with a timeout of that many seconds.

    `inputs` are all inputs of the plan, including constants. This process survives any crash of a kernel in a fork,
    where kernels must not use threads.
    """
    memory = _laid_out(plan, inputs, temps, runs)
    data, kept = memory.data, memory.kept
    before = data.copy()
    shared = [p.start for p in (*memory.sources, *memory.targets)]

    def work() -> list[str]:
        found: list[str] = []
        for number, copies in enumerate(kept):
            where = memory.packed if number and number == runs - 1 else memory.apart
            found += call(data, [*shared, *where], number)
            for place, copy in zip(memory.targets, copies, strict=True):
                _part(data, copy)[:] = _part(data, place)
        return found

    lost, said = _isolated(work, patience) if patience else ("", work())
    if lost:
        return Outcome((), (lost,))
    same = all(
        np.array_equal(_part(data, a), _part(data, b)) for row in kept[1:] for a, b in zip(kept[0], row, strict=True)
    )
    outputs = tuple(_tensor(data, place, b) for place, b in zip(kept[0], plan.outputs, strict=True))
    return Outcome(outputs, (*dict.fromkeys(said), *_wrongly_written(before, memory, plan)), same)


def _laid_out(plan: Plan, inputs: Sequence[torch.Tensor], temps: Sequence[Buffer], runs: int) -> _Memory:
    """Memory that holds the inputs; everything else is poisoned, except what must be zero."""
    layout = _Map()
    sources = [layout.add(b.name, _span(x), x.data_ptr() % 64) for b, x in zip(plan.inputs, inputs, strict=True)]
    targets = [layout.add(b.name, size(b)) for b in plan.outputs]
    scratch = [layout.add(b.name, held(b.shape, b.stride, DTYPES[b.dtype].itemsize)) for b in temps]
    arena = layout.add("the arena of temporaries", plan.arena)
    kept = [[layout.add("", t.size) for t in targets] for _ in range(runs)]
    data = np.frombuffer(mmap.mmap(-1, layout.end), np.uint8)  # shared with a forked process
    data[:] = BLANK
    for place, x in zip(sources, inputs, strict=True):
        _part(data, place)[:] = _raw(x)
    for place, b in [*zip(targets, plan.outputs, strict=True), *zip(scratch, temps, strict=True)]:
        _part(data, place)[:] = BLANK if DTYPES[b.dtype].is_floating_point else UNWRITTEN
    packed = [arena.start + o for o in plan.temporaries]
    zeros = list(zip(scratch, packed, strict=True))[len(temps) - plan.zeros :]
    clear = [place for own, start in zeros for place in (own, replace(own, start=start))]
    for place in clear:
        _part(data, place)[:] = 0
    return _Memory(data, layout.places, sources, targets, scratch, arena, kept, packed, clear)


def _wrongly_written(before: Bytes, memory: _Memory, plan: Plan) -> Iterator[str]:
    """Complaints about forbidden and missing writes."""
    data, first = memory.data, memory.kept[0]
    copies = (place for row in memory.kept for place in row)
    yield from _changed(before, data, memory.places, {*memory.targets, *memory.scratch, memory.arena, *copies})
    yield from (f"{place.name} was not left zero" for place in memory.clear if _part(data, place).any())
    for b, place in zip(plan.outputs, first, strict=True):
        if b.dtype == "bool" and (_part(data, place) > 1).any():
            yield f"an element of {b.name} was never written"


def _span(x: torch.Tensor) -> int:
    """Bytes from the start of the first to the end of the last element."""
    return reach(x.shape, x.stride()) * x.element_size()


def size(b: Buffer) -> int:
    """Bytes from the start of the first to the end of the last element."""
    return reach(b.shape, b.stride) * DTYPES[b.dtype].itemsize


def held(shape: Sequence[int], stride: Sequence[int], size: int) -> int:
    """Bytes of a temporary with elements of `size` bytes; a multiple of the widest access if its rows are padded, since
    a bulk store writes the whole piece that a row ends in."""
    found = reach(shape, stride) * size
    return found if reach(shape, stride) == math.prod(shape) else -(-found // PIECE) * PIECE


def reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Number of elements from the first to the last of a tensor, gaps included."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def _raw(x: torch.Tensor) -> Bytes:
    """The memory of a tensor, including gaps between its elements."""
    if not x.numel():
        return np.empty(0, np.uint8)
    flat = x.detach().as_strided((reach(x.shape, x.stride()),), (1,), x.storage_offset())
    return np.asarray(flat.clone().view(torch.uint8).numpy())


def _part(data: Bytes, place: _Place) -> Bytes:
    return data[place.start : place.start + place.size]


def _tensor(data: Bytes, place: _Place, b: Buffer) -> torch.Tensor:
    dtype = DTYPES[b.dtype]
    if not math.prod(b.shape):
        return torch.empty(b.shape, dtype=dtype)
    own = _part(data, place).copy()
    flat = torch.from_numpy(own != 0) if dtype is torch.bool else torch.from_numpy(own).view(dtype)
    return flat.as_strided(b.shape, b.stride)


def _changed(before: Bytes, after: Bytes, places: Sequence[_Place], free: set[_Place]) -> list[str]:
    """A complaint about the first write outside of the `free` buffers, if any."""
    different = before != after
    for place in free:
        _part(different, place)[:] = False
    if not different.any():
        return []
    at = int(np.argmax(different))
    for place in places:
        if place.start <= at < place.start + place.size:
            return [f"input {place.name} was changed, {at - place.start} bytes into it"]
    near = min((p for p in places if p.name), key=lambda p: max(p.start - at, at - p.start - p.size))
    side = f"{near.start - at} bytes before" if at < near.start else f"{at - near.start - near.size} bytes behind"
    return [f"memory was written {side} {near.name}"]


def _isolated(work: Callable[[], list[str]], patience: float) -> tuple[str, list[str]]:
    """Run `work` in a forked process. Returns how the process was lost ("" if not), and the result of `work`."""
    hear, tell = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a lock held by a lost thread: `patience` ends that
        pid = os.fork()
    if pid == 0:
        status = 1
        faulthandler.disable()  # the parent reports how it ended
        try:
            said = "\0".join(work())
            os.write(tell, said.encode()[:MESSAGE])  # the capacity of a pipe
            status = 0
        finally:
            os._exit(status)  # must not run the parent's cleanup
    os.close(tell)
    lost = _wait(pid, patience)
    with os.fdopen(hear, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    return lost, [text for text in said.split("\0") if text]


def _wait(pid: int, patience: float) -> str:
    """Wait until a process ends, or kill it after `patience` seconds. Returns what went wrong, "" if nothing."""
    end = time.monotonic() + patience
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return f"it did not end within {patience:g} s"
        time.sleep(0.0005)
    if os.WIFSIGNALED(status):
        return f"it died of {signal.Signals(os.WTERMSIG(status)).name}"
    return "" if os.waitstatus_to_exitcode(status) == 0 else "it raised an error"
