"""Errors of a GPU: CUDA status codes and exceptions of CuPy and torch become a DeviceError with advice.

Codes are CUresult of the driver API; cudaError_t of the runtime API agrees with it from 100 on.
"""

import contextlib
import re
from collections.abc import Iterator

from compiler.errors import CompilerError


class DeviceError(CompilerError):
    """A call to the GPU failed; `code` is CUDA's error number.

    `lost` means that this process can no longer use the GPU, whoever was at fault: a new process is needed, and all
    other work in flight in this one has failed too.
    """

    meaning = "failed"
    advice = ""
    lost = False

    def __init__(self, code: int, operation: str = "", detail: str = "") -> None:
        self.code = code
        prefix = f"{operation}: " if operation else ""
        suffix = f" ({detail})" if detail else ""
        advice = self.advice or (_LOST_ADVICE if self.lost else "")
        super().__init__(
            f"{prefix}the GPU {self.meaning}, CUDA error {code}{suffix}" + (f"; {advice}" if advice else "")
        )


_LOST_ADVICE = "this process can use the GPU no more, so run what follows in a new one"


class Lost(DeviceError):
    """The context is lost, and with it all of the process's memory on the GPU."""

    meaning = "stopped the process's work"
    lost = True


class IllegalAddress(Lost):
    """A kernel accessed memory outside of the process's allocations."""

    meaning = "found a kernel reading or writing memory that is not there"


class MisalignedAddress(Lost):
    """A kernel accessed an address that is not a multiple of the access size."""

    meaning = "found a kernel's access that is not aligned to its size"


class IllegalInstruction(Lost):
    """A kernel reached an invalid instruction, or one with invalid operands."""

    meaning = "found an instruction that it cannot perform"


class Trapped(Lost):
    """A kernel stopped itself by an assertion or a trap."""

    meaning = "was stopped by a kernel's own check"


class LaunchTimeout(Lost):
    """A kernel exceeded the driver's time limit on a GPU with a display."""

    meaning = "ran into the driver's limit of time for one kernel"


class LaunchFailed(Lost):
    """A kernel failed for a reason that CUDA does not specify."""

    meaning = "lost a kernel"


class Hang(Lost):
    """A kernel did not finish within the timeout. Only the end of its process stops it."""

    meaning = "did not finish in time"
    advice = "end this process, which alone stops the kernel"

    def __init__(self, seconds: float, operation: str = "") -> None:
        super().__init__(TIMED_OUT, operation, f"waited {seconds:g} s")


class OutOfResources(DeviceError):
    """A block needs more registers or shared memory than the GPU has."""

    meaning = "cannot hold a block of this kernel"


class OutOfMemory(DeviceError):
    """The GPU's memory is full."""

    meaning = "is out of memory"


class WrongMachineCode(DeviceError):
    """A cubin is damaged or made for another architecture."""

    meaning = "cannot load this machine code"
    advice = "compile for this GPU's own architecture"


TIMED_OUT = 702
INVALID_CONTEXT = 201
_KINDS: dict[int, type[DeviceError]] = {
    2: OutOfMemory, 200: WrongMachineCode, 209: WrongMachineCode, 218: WrongMachineCode, 700: IllegalAddress,
    701: OutOfResources, TIMED_OUT: LaunchTimeout, 710: Trapped, 714: LaunchFailed, 715: IllegalInstruction,
    716: MisalignedAddress, 717: IllegalAddress, 718: IllegalInstruction, 719: LaunchFailed,
    # Uncorrectable errors in memory or on a link; context or driver shut down.
    4: Lost, 46: Lost, 214: Lost, 220: Lost, 709: Lost, 721: Lost, 999: Lost,
}  # fmt: skip
# torch's wording of these codes, for exceptions without the number.
_TORCH_MESSAGES = {
    r"illegal memory access": 700, r"misaligned address": 716, r"illegal instruction": 715, r"device-side assert": 710,
    r"unspecified launch failure": 719, r"launch timed out": TIMED_OUT, r"invalid program counter": 718,
    r"too many resources requested": 701, r"operation not supported on global/shared address space": 717,
    r"hardware stack error": 714, r"CUDA out of memory": 2,
}  # fmt: skip


def fault(code: int, operation: str = "", detail: str = "") -> DeviceError:
    """The error for a status code; `operation` names the operation in progress.

    >>> type(fault(700)).__name__, fault(700).lost, fault(1).lost
    ('IllegalAddress', True, False)
    """
    return _KINDS.get(code, DeviceError)(code, operation, detail)


def code_of(error: BaseException) -> int | None:
    """CUDA's number for an exception of CuPy or torch; None if it does not concern the GPU.

    >>> code_of(RuntimeError("CUDA error: misaligned address")), code_of(ValueError("no"))
    (716, None)
    """
    if isinstance(error, DeviceError):
        return error.code
    for name in ("status", "error_code"):  # CuPy's exceptions, torch's
        code = getattr(error, name, None)
        if isinstance(code, int):
            return code
    if isinstance(error, RuntimeError):
        return next((code for words, code in _TORCH_MESSAGES.items() if re.search(words, str(error))), None)
    return None


@contextlib.contextmanager
def device_errors(operation: str = "") -> Iterator[None]:
    """Convert exceptions of CuPy and torch about the GPU to a DeviceError that names the `operation`."""
    try:
        yield
    except DeviceError:
        raise
    except Exception as error:
        code = code_of(error)
        if code is None:
            raise
        raise fault(code, operation, str(error).splitlines()[0] if str(error) else "") from error
