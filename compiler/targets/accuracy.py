"""The largest error, in units in the last place, that each device function of a kind of target may have.

The error-bound oracle reads these claims, which come from `ir/functions.py`; functions that are not there are exact or
correctly rounded. 16-bit floats are computed in f32 and then rounded: the claim of f32, plus 0.5 ulp of their own.
"""

from compiler.ir.functions import CORRECTLY_ROUNDED, FUNCTIONS

# Functions without an operation in TOSA: a quotient is a product with a reciprocal, a root a power, a logarithm is
# scaled. Half an ulp may grow to a whole one if a factor takes it past a power of two.
_TOSA = {"div": 1.5, "sqrt": 1.0, "log2": 3.5, "log10": 3.5}


def max_ulp(function: str, dtype: str, kind: str = "cpu") -> float:
    """The claim for a function, by its IR name, on a kind of target; dtype is "f32" or "f64".

    Programs for any target pass through stages that a CPU executes, and without a GPU its C library also replaces
    CUDA's functions, so no claim is less than the CPU's.

    >>> max_ulp("exp", "f32"), max_ulp("sqrt", "f32"), max_ulp("exp", "f32", "cuda"), max_ulp("tanh", "f32", "cuda")
    (1.25, 0.5, 2.5, 2.75)
    """
    if kind == "tosa" and function in _TOSA:
        return _TOSA[function]
    if function not in FUNCTIONS:
        return CORRECTLY_ROUNDED
    row, at = FUNCTIONS[function], ("f32", "f64").index(dtype)
    return max(row.cpu[at], row.cuda[at] + CORRECTLY_ROUNDED) if kind in ("cuda", "triton") else row.cpu[at]


# exp(x) as exp2_ftz(x * log2(e)), in half ulps per unit of |x|: both the product and log2(e) are rounded.
BY_EXP2 = 1.25

# Error of tensor cores per product of 8-bit floats: 13 bits below the largest term of an addition are kept, and the
# accumulator is about eleven times a product, the root of the 128 products that are summed before promotion.
COARSE = 2.0**-13 * 11.4

# A product of two f32 numbers by three of tf32, in half ulps. Each number is split into two of 11 bits, which loses
# 2^-22 of it; the omitted product of the two small parts is at most as much.
THREEFOLD = 3 * 2.0**-22 / 2.0**-24
