"""Findings of a launch: turn the machine's numbers into reports with file, line, buffer and threads."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.runtime.emulator.native import Result

TEXT = "kernel.cpp"  # the build's name for the emitted text
Block = tuple[int, int, int]


@dataclass(frozen=True)
class Report:
    """A finding at one place. `line` is in the kernel's text, 0 if unknown; `header` is the place in a device function.

    `offset` and `bytes` describe the access in `buffer`; -1 and 0 without a buffer. `other_thread` raced with `thread`,
    -1 if unknown; `other_block` is its block, if another one. `times` counts repetitions.
    """

    kind: str
    kernel: str
    line: int
    header: str = ""
    buffer: str = ""
    offset: int = -1
    bytes: int = 0
    block: Block = (0, 0, 0)
    thread: int = -1
    other_thread: int = -1
    other_line: int = 0
    other_block: int = -1
    note: str = ""
    times: int = 1

    def __str__(self) -> str:
        location = f" at {self.buffer}+{self.offset} ({self.bytes} bytes)" if self.buffer else ""
        in_header = f" in {self.header}" if self.header else ""
        other = ""
        if self.other_thread >= 0:
            other_block = f" of another block ({self.other_block})" if self.other_block >= 0 else ""
            other_line = f" line {self.other_line}" if self.other_line else ""
            other = f", against thread {self.other_thread}{other_block}{other_line}"
        note = f": {self.note}" if self.note else ""
        return (
            f"{self.kind}{location}, {self.kernel} line {self.line}{in_header}, block {self.block} thread {self.thread}"
            f"{other}{note} ({self.times}x)"
        )


@dataclass(frozen=True)
class Place:
    """The origin of an address: a line of the text and, in a device function, `header` as file:line."""

    line: int = 0
    header: str = ""


def reports(result: Result, kernel: str, path: Path) -> tuple[Report, ...]:
    """The findings of a launch, with addresses resolved to places."""
    findings = list(result.findings[: result.count])
    sites = sorted({s for f in findings for s in (f.site, f.other_site) if s})
    place_of = dict(zip(sites, source_places(path, tuple(sites)), strict=True)) if sites else {}
    unknown = Place()
    return tuple(
        Report(
            kind=f.kind.decode(),
            kernel=kernel,
            line=place_of.get(f.site, unknown).line,
            header=place_of.get(f.site, unknown).header,
            buffer=f.buffer.decode(),
            offset=f.offset,
            bytes=f.bytes,
            block=(f.block[0], f.block[1], f.block[2]),
            thread=f.thread,
            other_thread=f.other_thread,
            other_line=place_of.get(f.other_site, unknown).line,
            other_block=f.other_block,
            note=f.note.decode(),
            times=f.times,
        )
        for f in findings
    )


@functools.lru_cache(maxsize=4096)
def source_places(path: Path, sites: tuple[int, ...]) -> tuple[Place, ...]:
    """The places of return addresses in an object; all unknown without addr2line, which comes with g++."""
    addr2line = shutil.which("addr2line")
    if addr2line is None:
        return tuple(Place() for _ in sites)
    # A return address is after its call, perhaps on the next line.
    command = [addr2line, "-a", "-i", "-e", str(path), *(hex(site - 1) for site in sites)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    chains: list[list[str]] = []
    for line in answer.splitlines():
        if line.startswith("0x"):
            chains.append([])
        elif chains:
            chains[-1].append(line.split(" ")[0])
    return (
        tuple(_source_place(chain) for chain in chains) if len(chains) == len(sites) else tuple(Place() for _ in sites)
    )


def _source_place(chain: Sequence[str]) -> Place:
    """The line of the innermost frame in the text; a frame inside it is in a device function."""
    frames = [(Path(name).name, number) for name, _, number in (frame.rpartition(":") for frame in chain)]
    line = next((int(number) for name, number in frames if name == TEXT and number.isdigit()), 0)
    inner = next(((name, number) for name, number in frames if not name.startswith("mlc_")), ("", ""))
    header = f"{inner[0]}:{inner[1]}" if inner[0] not in {TEXT, "", "??"} else ""
    return Place(line, header)
