"""Run cases under a tool of NVIDIA's compute-sanitizer, and attribute its reports to cases.

One process runs many cases, because starting under a sanitizer takes seconds. The sanitizer writes its reports to a
log, some time after the kernel in question. Therefore each case ends with a control: a kernel with a fault that the
tool must report. Reports before that of the control belong to the case. A control that is not reported means that the
sanitizer does not work.
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

PATIENCE = 30.0  # seconds to wait for the report of a control
PAUSE = 0.002
COMMAND = "compute-sanitizer"
FOLDERS = (Path("/usr/local/cuda/bin"), Path("/opt/nvidia/cuda/bin"))
# Without PyTorch's caching allocator each tensor is a separate allocation, so that an access beyond it is detected.
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
CONTROLS = 64  # number of control names, used in rotation
_PRINTED = 100_000  # most reports that the tool prints; its default is 100
_SHOWN = 20  # most findings returned for one case


@dataclass(frozen=True)
class Tool:
    """A tool, its flags, and the body of a control: a faulty kernel of 64 threads that it must report."""

    name: str
    flags: tuple[str, ...]
    control: str


TOOLS = {
    tool.name: tool
    for tool in (
        # A fault stops only the kernel, so that the process can continue; errors returned by CUDA calls are ignored.
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
    """Return the path of compute-sanitizer, or None."""
    paths = (str(place / COMMAND) for place in FOLDERS if (place / COMMAND).exists())
    return shutil.which(COMMAND) or next(paths, None)


def command(tool: str, log: Path) -> list[str]:
    """Return the prefix of a command that runs it under the tool with reports in the file `log`."""
    common = ("--log-file", str(log), "--show-backtrace", "no", "--print-limit", str(_PRINTED))
    return [installed() or COMMAND, "--tool", tool, *common, *TOOLS[tool].flags]


class MissedControl(Exception):
    """The sanitizer did not report a control; the process must be replaced (`lost`)."""

    lost = True


class Watch:
    """Reads the tool's log, from one call of `findings` to the next."""

    def __init__(self, tool: str, log: Path, launch: Callable[[int], None], patience: float = PATIENCE) -> None:
        """Begin at the present end of the log; `launch(n)` runs control number n and waits for its end."""
        self.tool, self._log, self._launch, self._patience = tool, log, launch, patience
        self._read = len(self._text())
        self._controls = 0

    def findings(self) -> tuple[str, ...]:
        """Return the reports since the last call; raises MissedControl if that of the control does not come in time."""
        number = self._controls % CONTROLS
        self._controls += 1
        with contextlib.suppress(RuntimeError):  # CUDA's error for the planted fault
            self._launch(number)
        name = control(number)
        deadline = time.monotonic() + self._patience
        while not (found := re.search(rf"\b{name}\b", self._text()[self._read :])):
            if time.monotonic() > deadline:
                output = self._text()[self._read :].strip()
                raise MissedControl(
                    f"the sanitizer did not report the fault planted in {name}; it said: {output or 'nothing'}"
                )
            time.sleep(PAUSE)
        unread = self._text()[self._read :]
        reports = unread[: found.start()]
        self._read += found.end()
        return tuple(text for text in blocks(reports) if not re.search(rf"\b{control('')}", text))[:_SHOWN]

    def _text(self) -> str:
        try:
            return self._log.read_text(errors="replace")
        except FileNotFoundError:
            return ""


def blocks(text: str) -> list[str]:
    """Return the complete reports in a part of the log, each as one line; those cut at its ends are left out.

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
    reports: list[list[str]] = []
    lines = text.splitlines()
    for line in lines:
        if (head := re.match(r"=========\s(\S.*)", line)) is not None:
            reports.append([head[1].strip()])
        elif reports and (continuation := re.match(r"=========\s{2,}(\S.*)", line)) is not None:
            reports[-1].append(continuation[1].strip())
    if reports and lines and not re.fullmatch(r"=========\s*", lines[-1]):
        reports.pop()  # incomplete: it is the control's own report
    return [_one_line(block) for block in reports if not block[0].startswith("COMPUTE-SANITIZER")]


def _one_line(block: Sequence[str]) -> str:
    """Join a report to one line, with its place in the source first, as in compiler messages."""
    report = "; ".join(block)
    location = re.search(r" in (?:\S*/)?(kernel\.cu:\d+)", report)
    return f"{location[1]}: {report.replace(location[0], '')}" if location else report


def control(number: int | str) -> str:
    """Return the kernel name of a control."""
    return f"mlcomp_control_{number}"


@functools.cache
def watch(tool: str, log: str) -> Watch:
    """Return the watch of this process, which runs under the tool."""
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
