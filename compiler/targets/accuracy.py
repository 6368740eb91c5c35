"""The largest error, in units in the last place, that each device function of a kind of target may make.

The error-bound oracle reads the claims. An ulp is the spacing of the dtype at the exact result (below the normal range,
the smallest denormal), so a correctly rounded function has 0.5. Functions that are not listed are exact or correctly
rounded. The 16-bit floats are computed as f32 and then rounded: the claim of f32, and 0.5 ulp of their own.
"""

from collections.abc import Mapping
from types import MappingProxyType

CORRECTLY_ROUNDED = 0.5

# For the CPU `render/cpp/*.h` implements the functions, and `tests/test_cpp_functions.py` holds every claim against
# dense random and edge inputs with and without fused multiply-add. Where the f64 function is the C library's, the claim
# is what its documentation allows.
MAX_ULP: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "exp": {"f32": 1.25, "f64": 1.0},
        "exp2": {"f32": 1.25, "f64": 1.25},
        "exp2_ftz": {"f32": 1.25, "f64": 1.25},
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


# CUDA's own functions without fast-math flags. The CUDA C++ Programming Guide ("Mathematical functions", tables of
# maximum ulp errors) counts from the correctly rounded result, which is half an ulp from the exact one; of its editions
# from 11 to 13 the larger figure stands. sqrt and division are correctly rounded. `exp2_ftz` is an instruction that PTX
# allows a relative error of 2^-22, four ulps at most.
_CUDA: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "exp": (2, 1), "exp2": (2, 1), "expm1": (1, 1), "sinh": (3, 2), "cosh": (2, 1), "tanh": (2, 1), "log": (1, 1),
        "log2": (1, 1), "log10": (2, 1), "log1p": (1, 1), "asinh": (3, 3), "acosh": (4, 3), "atanh": (3, 2),
        "sin": (2, 2), "cos": (2, 2), "tan": (4, 2), "asin": (4, 2), "acos": (3, 2), "atan": (2, 2), "atan2": (3, 2),
        "exp2_ftz": (4, 1), "erf": (2, 2), "erfc": (4, 5), "lgamma": (6, 4), "pow": (9, 2), "rsqrt": (2, 1),
    }
)  # fmt: skip
_GUIDE: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {name: {"f32": f32 + CORRECTLY_ROUNDED, "f64": f64 + CORRECTLY_ROUNDED} for name, (f32, f64) in _CUDA.items()}
)


def max_ulp(function: str, dtype: str, kind: str = "cpu") -> float:
    """The claim for a function by its IR name on a kind of target; dtype is "f32" or "f64".

    Programs for any target pass through stages that a CPU executes, and where there is no GPU its C library stands in
    for CUDA's functions as well, so no claim is less than the CPU's.

    >>> max_ulp("exp", "f32"), max_ulp("sqrt", "f32"), max_ulp("exp", "f32", "cuda"), max_ulp("tanh", "f32", "cuda")
    (1.25, 0.5, 2.5, 2.75)
    """
    host = MAX_ULP.get(function, {}).get(dtype, CORRECTLY_ROUNDED)
    return max(host, _GUIDE.get(function, {}).get(dtype, CORRECTLY_ROUNDED)) if kind == "cuda" else host


def in_series(n: int, kind: str = "cpu") -> int:
    """How many roundings one term of a sum of `n` may suffer on a kind of target, whatever the order of summation.

    Tensor cores cut sums off rather than round them, twice the error of an addition; they add four terms or more at a
    time, so that it is made for fewer of them, and long sums are promoted in parts.
    """
    return max(0, n - 1)


# exp(x) as exp2_ftz(x * log2(e)), in halves of an ulp for each unit of |x|: the product is rounded, and so is log2(e).
BY_EXP2 = 1.25

# A product of two f32 numbers by three of tf32, in halves of an ulp. Each number is one of 11 bits and another of 11
# for the rest, which leaves out 2^-22 of it; the product of the two lesser parts, left out, is at most as much.
THREEFOLD = 3 * 2.0**-22 / 2.0**-24
