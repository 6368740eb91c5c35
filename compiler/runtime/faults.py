"""What goes wrong on a GPU: a status code of CUDA, or an exception of CuPy or torch, in; the error for people out.

Codes are those of CUresult in the driver's API, with which cudaError_t of the runtime's agrees from 100 on.
"""

import contextlib
import re
from collections.abc import Iterator

from compiler.errors import CompilerError


class DeviceError(CompilerError):
    """A call to the GPU failed; `code` is CUDA's number for it.

    `lost` says that the process can use the GPU no more, whoever was at fault: only a new process can, and what else
    was under way in this one failed with it.
    """

    meaning = "failed"
    advice = ""
    lost = False

    def __init__(self, code: int, what: str = "", detail: str = "") -> None:
        self.code = code
        where = f"{what}: " if what else ""
        said = f" ({detail})" if detail else ""
        advice = self.advice or (_LOST if self.lost else "")
        super().__init__(f"{where}the GPU {self.meaning}, CUDA error {code}{said}" + (f"; {advice}" if advice else ""))


_LOST = "this process can use the GPU no more, so run what follows in a new one"


class Lost(DeviceError):
    """The context is gone and with it all memory that the process has on the GPU."""

    meaning = "stopped the process's work"
    lost = True


class IllegalAddress(Lost):
    """A kernel read or wrote what is not the process's memory."""

    meaning = "found a kernel reading or writing memory that is not there"


class MisalignedAddress(Lost):
    """A kernel's access was not at a multiple of its size."""

    meaning = "found a kernel's access that is not aligned to its size"


class IllegalInstruction(Lost):
    """A kernel came to code that is none, or to an instruction with operands that it must not have."""

    meaning = "found an instruction that it cannot perform"


class Trapped(Lost):
    """A kernel stopped itself: an assertion or a trap."""

    meaning = "was stopped by a kernel's own check"


class LaunchTimeout(Lost):
    """A kernel ran for longer than the driver lets one run on a GPU that has a display."""

    meaning = "ran into the driver's limit of time for one kernel"


class LaunchFailed(Lost):
    """A kernel ended in a way that CUDA has no other name for."""

    meaning = "lost a kernel"


class Hang(Lost):
    """A kernel did not end in the time that it was given. It cannot be stopped but with its process."""

    meaning = "did not finish in time"
    advice = "end this process, which alone stops the kernel"

    def __init__(self, seconds: float, what: str = "") -> None:
        super().__init__(TIMED_OUT, what, f"waited {seconds:g} s")


class OutOfResources(DeviceError):
    """A block needs more registers or shared memory than the GPU has for one."""

    meaning = "cannot hold a block of this kernel"


class OutOfMemory(DeviceError):
    """The GPU's memory is full."""

    meaning = "is out of memory"


class WrongMachineCode(DeviceError):
    """A cubin that is damaged, or made for another architecture."""

    meaning = "cannot load this machine code"
    advice = "compile for this GPU's own architecture"


TIMED_OUT = 702
INVALID_CONTEXT = 201
_KINDS: dict[int, type[DeviceError]] = {
    2: OutOfMemory, 200: WrongMachineCode, 209: WrongMachineCode, 218: WrongMachineCode, 700: IllegalAddress,
    701: OutOfResources, TIMED_OUT: LaunchTimeout, 710: Trapped, 714: LaunchFailed, 715: IllegalInstruction,
    716: MisalignedAddress, 717: IllegalAddress, 718: IllegalInstruction, 719: LaunchFailed,
    # An error that cannot be corrected in memory or on a link, the context or the driver going away.
    4: Lost, 46: Lost, 214: Lost, 220: Lost, 709: Lost, 721: Lost, 999: Lost,
}  # fmt: skip
# How torch words those codes where its exception does not carry the number.
_WORDS = {
    r"illegal memory access": 700, r"misaligned address": 716, r"illegal instruction": 715, r"device-side assert": 710,
    r"unspecified launch failure": 719, r"launch timed out": TIMED_OUT, r"invalid program counter": 718,
    r"too many resources requested": 701, r"operation not supported on global/shared address space": 717,
    r"hardware stack error": 714, r"CUDA out of memory": 2,
}  # fmt: skip


def fault(code: int, what: str = "", detail: str = "") -> DeviceError:
    """The error that a status code stands for; `what` was under way.

    >>> type(fault(700)).__name__, fault(700).lost, fault(1).lost
    ('IllegalAddress', True, False)
    """
    return _KINDS.get(code, DeviceError)(code, what, detail)


def code_of(error: BaseException) -> int | None:
    """CUDA's number for an exception of CuPy or torch; None for one that has nothing to do with the GPU.

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
        return next((code for words, code in _WORDS.items() if re.search(words, str(error))), None)
    return None


@contextlib.contextmanager
def told(what: str = "") -> Iterator[None]:
    """Exceptions of CuPy and torch about the GPU leave the block as a DeviceError that names `what` was under way."""
    try:
        yield
    except DeviceError:
        raise
    except Exception as error:
        code = code_of(error)
        if code is None:
            raise
        raise fault(code, what, str(error).splitlines()[0] if str(error) else "") from error
