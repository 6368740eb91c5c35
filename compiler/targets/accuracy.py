"""The largest error, in units in the last place, that each device function of the CPU target may make.

`render/cpp/*.h` implements the functions, `tests/test_cpp_functions.py` holds every claim against dense random and edge
inputs with and without fused multiply-add, and the error-bound oracle reads the claims. An ulp is the spacing of the
dtype at the exact result (below the normal range, the smallest denormal), so a correctly rounded function has 0.5.
Functions that are not listed are exact or correctly rounded. The 16-bit floats are computed as f32 and then rounded:
the claim of f32, and 0.5 ulp of their own.
"""

from collections.abc import Mapping
from types import MappingProxyType

CORRECTLY_ROUNDED = 0.5

# Where the f64 function is the C library's, the claim is what its documentation allows.
MAX_ULP: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "exp": {"f32": 1.25, "f64": 1.0},
        "exp2": {"f32": 1.25, "f64": 1.25},
        "expm1": {"f32": 1.25, "f64": 1.5},
        "sinh": {"f32": 1.75, "f64": 2.0},
        "cosh": {"f32": 1.5, "f64": 2.0},
        "tanh": {"f32": 2.75, "f64": 2.75},
        "log": {"f32": 1.0, "f64": 1.0},
        "log2": {"f32": 1.5, "f64": 1.0},
        "log10": {"f32": 2.0, "f64": 2.0},
        "log1p": {"f32": 1.5, "f64": 1.0},
        "asinh": {"f32": 2.0, "f64": 2.0},
        "acosh": {"f32": 2.0, "f64": 2.5},
        "atanh": {"f32": 2.5, "f64": 2.0},
        "sin": {"f32": 2.25, "f64": 1.0},
        "cos": {"f32": 2.25, "f64": 1.0},
        "tan": {"f32": 3.75, "f64": 1.0},
        "asin": {"f32": 2.5, "f64": 1.0},
        "acos": {"f32": 1.5, "f64": 1.0},
        "atan": {"f32": 2.0, "f64": 1.0},
        "atan2": {"f32": 2.5, "f64": 1.0},
        "erf": {"f32": 2.5, "f64": 1.5},
        "erfc": {"f32": 1.0, "f64": 5.5},
        "lgamma": {"f32": 1.0, "f64": 12.0},
        "pow": {"f32": 1.0, "f64": 1.0},
        "rsqrt": {"f32": 1.5, "f64": 1.5},
    }
)


def max_ulp(function: str, dtype: str) -> float:
    """The claim for a function by its IR name; dtype is "f32" or "f64".

    >>> max_ulp("exp", "f32"), max_ulp("sqrt", "f32")
    (1.25, 0.5)
    """
    return MAX_ULP.get(function, {}).get(dtype, CORRECTLY_ROUNDED)
