"""The largest error, in units in the last place, that each device function of a kind of target may make.

The error-bound oracle reads the claims, which are those of `ir/functions.py`; what is not there is exact or correctly
rounded. The 16-bit floats are computed as f32 and then rounded: the claim of f32, and 0.5 ulp of their own.
"""

from compiler.ir.functions import CORRECTLY_ROUNDED, FUNCTIONS

# What has no operation in TOSA: a quotient is a product with a reciprocal, a root a power, and a logarithm scaled. Half
# an ulp may grow to a whole one where a factor takes it past a power of two.
_TOSA = {"div": 1.5, "sqrt": 1.0, "log2": 3.5, "log10": 3.5}


def max_ulp(function: str, dtype: str, kind: str = "cpu") -> float:
    """The claim for a function by its IR name on a kind of target; dtype is "f32" or "f64".

    Programs for any target pass through stages that a CPU executes, and where there is no GPU its C library stands in
    for CUDA's functions as well, so no claim is less than the CPU's.

    >>> max_ulp("exp", "f32"), max_ulp("sqrt", "f32"), max_ulp("exp", "f32", "cuda"), max_ulp("tanh", "f32", "cuda")
    (1.25, 0.5, 2.5, 2.75)
    """
    if kind == "tosa" and function in _TOSA:
        return _TOSA[function]
    if function not in FUNCTIONS:
        return CORRECTLY_ROUNDED
    row, at = FUNCTIONS[function], ("f32", "f64").index(dtype)
    return max(row.cpu[at], row.cuda[at] + CORRECTLY_ROUNDED) if kind in ("cuda", "triton") else row.cpu[at]


# exp(x) as exp2_ftz(x * log2(e)), in halves of an ulp for each unit of |x|: the product is rounded, and so is log2(e).
BY_EXP2 = 1.25

# What a tensor core drops of each product of 8-bit floats: 13 bits below the largest that it adds at a time are kept,
# and what is added to is about eleven times a product, the root of the 128 that are summed before they are promoted.
COARSE = 2.0**-13 * 11.4

# A product of two f32 numbers by three of tf32, in halves of an ulp. Each number is one of 11 bits and another of 11
# for the rest, which leaves out 2^-22 of it; the product of the two lesser parts, left out, is at most as much.
THREEFOLD = 3 * 2.0**-22 / 2.0**-24
