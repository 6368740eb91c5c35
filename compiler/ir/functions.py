"""Mathematical functions of floats, one row each, from which everything about a function derives.

These are type rules (`expr.OPS`), interpreters, headers for C++ and CUDA, error bounds, the lowering from torch, the
cost in fusion, and the wrong functions that the self-test plants. A function is added as a row here, a device function
`mlc_NAME` in the row's header of `render/cpp`, and one in `render/cuda/mlc/mathematics.cuh`.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

CORRECTLY_ROUNDED = 0.5
COST = 10  # fused multiply-adds of a vector lane per function (rough, for CPUs and GPUs alike)


@dataclass(frozen=True)
class Function:
    """A function, by its name in torch, NumPy and C.

    `cpu` is the largest error of the CPU device function for f32 and f64, in units in the last place: the spacing of
    the type at the exact result (below the normal range, the smallest denormal), so that a correctly rounded function
    has 0.5. `cuda` is the error stated by the CUDA C++ Programming Guide ("Mathematical functions"), which counts from
    the correctly rounded result. `header` declares the CPU device function; without one it is declared with the
    arithmetic. `torch` are its names in ATen. `meaning` is a function of Python floats, if NumPy has none. `library`
    says that the C library has the function. `mistaken` are functions that a wrong compiler may call instead. `swing`
    is the largest difference between any two values of an oscillating function whose slope is at most 1; 0 for others.
    `poles` are one of its poles, the distance between two, and the last one.
    """

    name: str
    cpu: tuple[float, float]
    cuda: tuple[float, float]
    header: str = ""
    arity: int = 1
    torch: tuple[str, ...] = ()
    meaning: Callable[[float], float] | None = None
    library: bool = True
    mistaken: tuple[str, ...] = ()
    cost: int = COST
    swing: float = 0.0
    poles: tuple[float, float, float] | None = None


@functools.cache
def _library(name: str) -> Callable[[float], float]:
    """The C library's function of doubles, from the library that Python is linked with."""
    function: Any = getattr(ctypes.CDLL(None), name)
    function.argtypes, function.restype = (ctypes.c_double,), ctypes.c_double
    return cast(Callable[[float], float], function)


def _log_gamma(x: float) -> float:
    """As in C: Python's own raises at the poles, and is inaccurate near 1 and 2."""
    return _library("lgamma")(x)


_EXP, _LOG, _SPECIAL, _CIRCLE = "exponential.h", "logarithm.h", "special.h", "trigonometric.h"
# The tests of the headers check every claim for CPUs against dense random and edge inputs, with and without fused
# multiply-add. Where the f64 function is the C library's, the claim is what its documentation allows. For CUDA it is
# the largest figure of the guide's editions 11 to 13.
_ROWS = (
    Function("exp", (1.25, 1.0), (2, 1), _EXP, torch=("exp",), mistaken=("exp2", "expm1")),
    Function("exp2", (1.25, 1.25), (2, 1), _EXP, torch=("exp2", "special_exp2"), mistaken=("exp",)),
    # exp2, but zero for results below the smallest normal number: an instruction for which PTX allows a relative error
    # of 2^-22, four ulps at most.
    Function("exp2_ftz", (1.25, 1.25), (4, 1), _EXP, library=False, mistaken=("exp",)),
    Function("expm1", (1.25, 1.5), (1, 1), _EXP, torch=("expm1", "special_expm1"), mistaken=("exp",)),
    Function("sinh", (1.75, 2.0), (3, 2), _EXP, torch=("sinh",), mistaken=("cosh",)),
    Function("cosh", (1.5, 2.0), (2, 1), _EXP, torch=("cosh",), mistaken=("sinh",)),
    Function("log", (1.0, 1.0), (1, 1), _LOG, torch=("log",), mistaken=("log2", "log1p")),
    Function("log2", (1.5, 1.0), (1, 1), _LOG, torch=("log2",), mistaken=("log",)),
    Function("log10", (2.0, 2.0), (2, 1), _LOG, torch=("log10",), mistaken=("log",)),
    Function("log1p", (1.5, 1.0), (1, 1), _LOG, torch=("log1p", "special_log1p"), mistaken=("log",)),
    Function("asinh", (2.0, 2.0), (3, 3), _LOG, torch=("asinh",)),
    Function("acosh", (2.0, 2.5), (4, 3), _LOG, torch=("acosh",)),
    Function("atanh", (2.5, 2.0), (3, 2), _LOG, torch=("atanh",)),
    Function("pow", (1.0, 1.0), (9, 2), "power.h", 2, cost=30),
    Function("rsqrt", (1.5, 1.5), (2, 1), torch=("rsqrt",), library=False, mistaken=("sqrt",), cost=4),
    Function("erf", (2.5, 1.5), (2, 2), _SPECIAL, torch=("erf", "special_erf"), meaning=math.erf,
             mistaken=("erfc", "tanh")),
    Function("erfc", (1.0, 5.5), (4, 5), _SPECIAL, torch=("erfc", "special_erfc"), meaning=math.erfc,
             mistaken=("erf",)),
    # f32 is computed in f64; CUDA's f64 function is less accurate between -11.0001 and -2.2637, near its zeros.
    Function("lgamma", (1.0, 12.0), (1, 4), _SPECIAL, torch=("lgamma",), meaning=_log_gamma, mistaken=("log",),
             cost=30, poles=(0.0, 1.0, 0.0)),
    Function("tanh", (2.75, 2.75), (2, 1), "tanh.h", torch=("tanh",), mistaken=("atan",)),
    Function("sin", (2.25, 1.0), (2, 2), _CIRCLE, torch=("sin",), mistaken=("cos",), swing=2.0),
    Function("cos", (2.25, 1.0), (2, 2), _CIRCLE, torch=("cos",), mistaken=("sin",), swing=2.0),
    Function("tan", (3.75, 1.0), (4, 2), _CIRCLE, torch=("tan",), mistaken=("tanh",),
             poles=(math.pi / 2, math.pi, math.inf)),
    Function("asin", (2.5, 1.0), (4, 2), _CIRCLE, torch=("asin",), mistaken=("acos",)),
    Function("acos", (1.5, 1.0), (3, 2), _CIRCLE, torch=("acos",), mistaken=("asin",)),
    Function("atan", (2.0, 1.0), (2, 2), _CIRCLE, torch=("atan",), mistaken=("asin",)),
    Function("atan2", (2.5, 1.0), (3, 2), _CIRCLE, 2, torch=("atan2",), cost=20),
)  # fmt: skip
FUNCTIONS = {row.name: row for row in _ROWS}
