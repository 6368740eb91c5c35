"""A tool of NVIDIA's compute-sanitizer in; the command that runs a process under it, and what it found, case by case.

One process serves many cases, because starting under a sanitizer costs seconds. What the sanitizer says goes to a file
of its own, at some time after the kernel that it is about. So each case ends with a control: a kernel with the very
fault that the tool looks for. What is reported before the control is the case's, and a control that is not reported
shows a sanitizer that sees nothing.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 30.0  # seconds that the report of a control may take
PAUSE = 0.002
COMMAND = "compute-sanitizer"
PLACES = (Path("/usr/local/cuda/bin"), Path("/opt/nvidia/cuda/bin"))
# Allocations are the driver's own, so that an access beyond one is seen.
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
CONTROLS = 64  # names that take turns
_PRINTED = 100_000  # reports after which the tool is silent; its own limit is 100
_SHOWN = 20  # findings of one case that are told


@dataclass(frozen=True)
class Tool:
    """A tool by its name: its flags, and the body of a kernel of 64 threads that it must complain about."""

    name: str
    flags: tuple[str, ...]
    control: str


TOOLS = {
    tool.name: tool
    for tool in (
        # The kernel alone is stopped, so that the process can go on; what calls of CUDA return is not looked at.
        Tool(
            "memcheck",
            ("--destroy-on-device-error", "kernel", "--report-api-errors", "no"),
            "if (threadIdx.x == 0) *(volatile int*)8 = 1;",
        ),
        Tool(
            "racecheck",
            ("--racecheck-report", "analysis"),
            "__shared__ volatile int shared[64];\n"
            "    shared[threadIdx.x] = threadIdx.x;\n"
            "    if (shared[63 - threadIdx.x] == 64) out[threadIdx.x] = 1;",
        ),
    )
}


def installed() -> str | None:
    """The sanitizer's path."""
    found = (str(place / COMMAND) for place in PLACES if (place / COMMAND).exists())
    return shutil.which(COMMAND) or next(found, None)


def command(tool: str, log: Path) -> list[str]:
    """What to put before a command so that it runs under the tool, whose reports go to the file `log`."""
    common = ("--log-file", str(log), "--show-backtrace", "no", "--print-limit", str(_PRINTED))
    return [installed() or COMMAND, "--tool", tool, *common, *TOOLS[tool].flags]


class Blind(Exception):
    """The sanitizer did not report a fault that was planted for it; only a new process can go on."""

    lost = True


class Watch:
    """What the tool says in its file, from one call of `findings` to the next."""

    def __init__(self, tool: str, log: Path, launch: Callable[[int], None], patience: float = PATIENCE) -> None:
        """`launch(n)` runs control number n and waits for its end."""
        self.tool, self._log, self._launch, self._patience = tool, log, launch, patience
        self._read = len(self._text())
        self._controls = 0

    def findings(self) -> tuple[str, ...]:
        """What was reported since the last time; raises Blind if the control was not."""
        number = self._controls % CONTROLS
        self._controls += 1
        with contextlib.suppress(RuntimeError):  # that is how CUDA tells of the planted fault
            self._launch(number)
        name = control(number)
        end = time.monotonic() + self._patience
        while not (found := re.search(rf"\b{name}\b", self._text()[self._read :])):
            if time.monotonic() > end:
                said = self._text()[self._read :].strip()
                raise Blind(f"the sanitizer did not report the fault planted in {name}; it said: {said or 'nothing'}")
            time.sleep(PAUSE)
        new = self._text()[self._read :]
        own = new[: found.start()]
        self._read += found.end()
        return tuple(text for text in blocks(own) if not re.search(rf"\b{control('')}", text))[:_SHOWN]

    def _text(self) -> str:
        try:
            return self._log.read_text(errors="replace")
        except FileNotFoundError:
            return ""


def blocks(text: str) -> list[str]:
    """The reports in a sanitizer's text, each on one line; what began before the text, or does not end in it, is none.

    >>> said = '''=========     by thread (1,0,0) in block (0,0,0)
    ... =========
    ... ========= Invalid __global__ read of size 4 bytes
    ... =========     at softmax+0x70 in kernel.cu:12
    ... =========     by thread (3,0,0) in block (2,0,0)
    ... =========
    ... ========= Invalid __global__ write of size 4 bytes
    ... =========     at '''
    >>> blocks(said)
    ['kernel.cu:12: Invalid __global__ read of size 4 bytes; at softmax+0x70; by thread (3,0,0) in block (2,0,0)']
    """
    found: list[list[str]] = []
    lines = text.splitlines()
    for line in lines:
        if (head := re.match(r"=========\s(\S.*)", line)) is not None:
            found.append([head[1].strip()])
        elif found and (more := re.match(r"=========\s{2,}(\S.*)", line)) is not None:
            found[-1].append(more[1].strip())
    if found and lines and not re.fullmatch(r"=========\s*", lines[-1]):
        found.pop()  # its end is yet to come: it is the control's own
    return [_one_line(block) for block in found if not block[0].startswith("COMPUTE-SANITIZER")]


def _one_line(block: Sequence[str]) -> str:
    """The block with its place in the text first, as compilers write it."""
    said = "; ".join(block)
    place = re.search(r" in (?:\S*/)?(kernel\.cu:\d+)", said)
    return f"{place[1]}: {said.replace(place[0], '')}" if place else said


def control(number: int | str) -> str:
    """The name of a control."""
    return f"mlcomp_control_{number}"


@functools.cache
def watch(tool: str, log: str) -> Watch:
    """The watch of this process, which runs under the tool."""
    import cupy  # noqa: PLC0415  only where there is a GPU

    kernels = (
        f'extern "C" __global__ void {control(n)}(int* out) {{\n    {TOOLS[tool].control}\n}}\n'
        for n in range(CONTROLS)
    )
    module = cupy.RawModule(code="".join(kernels))
    out = cupy.zeros(64, cupy.int32)

    def launch(number: int) -> None:
        module.get_function(control(number))((1,), (64,), (out,))
        cupy.cuda.runtime.deviceSynchronize()

    return Watch(tool, Path(log), launch)
