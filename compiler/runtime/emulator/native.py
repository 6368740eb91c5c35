"""The machine's C interface in ctypes: the structs of machine.h and reports.h, field by field, and its functions."""

from __future__ import annotations

import ctypes
from typing import Any

MOST_REPORTS = 64
INPUT, OUTPUT, TEMPORARY, ARGUMENT, ZERO = range(5)  # kinds of buffers in check mode


class Request(ctypes.Structure):
    """One launch."""

    _fields_ = (
        ("kernel", ctypes.c_void_p), ("words", ctypes.c_void_p), ("word_count", ctypes.c_int64),
        ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("cluster", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32), ("synchronizes", ctypes.c_uint32), ("threads", ctypes.c_uint32),
        ("overlaps", ctypes.c_uint32),
        ("seed", ctypes.c_uint64), ("seconds", ctypes.c_double),
    )  # fmt: skip


class Finding(ctypes.Structure):
    """A report. Sites are offsets in the kernel's object; numbers that do not apply are -1 or 0."""

    _fields_ = (
        ("kind", ctypes.c_char * 64), ("note", ctypes.c_char * 160), ("buffer", ctypes.c_char * 48),
        ("offset", ctypes.c_int64), ("bytes", ctypes.c_int64),
        ("site", ctypes.c_uint32), ("other_site", ctypes.c_uint32),
        ("block", ctypes.c_int32 * 3), ("thread", ctypes.c_int32), ("other_thread", ctypes.c_int32),
        ("other_block", ctypes.c_int32), ("times", ctypes.c_uint32),
    )  # fmt: skip


class Result(ctypes.Structure):
    """The result of a launch; `failed` if a finding ended it."""

    _fields_ = (
        ("switches", ctypes.c_uint64), ("accesses", ctypes.c_uint64), ("failed", ctypes.c_uint32),
        ("count", ctypes.c_uint32), ("findings", Finding * MOST_REPORTS),
    )  # fmt: skip


class TensorMap(ctypes.Structure):
    """mlc_tensor_map of mlc_emulator.h."""

    _fields_ = (
        ("base", ctypes.c_void_p), ("rank", ctypes.c_uint), ("element", ctypes.c_uint), ("swizzle", ctypes.c_uint),
        ("box", ctypes.c_uint * 5), ("steps", ctypes.c_uint * 5), ("dims", ctypes.c_long * 5),
        ("strides", ctypes.c_long * 5),
    )  # fmt: skip


class Machine:
    """The machine that a kernel's object is linked to."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.launch = _function(library, "mlc_launch", None, ctypes.c_void_p, ctypes.c_void_p)
        self.checks = hasattr(library, "mlc_check_begin")
        if self.checks:
            size, address = ctypes.c_size_t, ctypes.c_void_p
            self.begin = _function(library, "mlc_check_begin", ctypes.c_int, size, size)
            self.add_buffer = _function(
                library, "mlc_check_buffer", address, ctypes.c_char_p, address, size, ctypes.c_int
            )


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function
