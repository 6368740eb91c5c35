// Every device function; a kernel includes only the headers of the functions that it calls.
//
// function -> header
// fma isnan max min signbit sqrt where -> vector.h
// abs ceil floor neg round rsqrt shl shr sign trunc -> arithmetic.h
// floordiv fmod remainder truncdiv -> division.h
// cosh exp exp2 exp2_ftz expm1 sinh -> exponential.h
// tanh -> tanh.h
// acosh asinh atanh log log10 log1p log2 -> logarithm.h
// pow -> power.h
// erf erfc lgamma -> special.h
// acos asin atan atan2 cos sin tan -> trigonometric.h
//
// The C++ name has the prefix mlc_. All take scalars and vectors (mlc_vec<T, N>) of one type and return that type,
// except isnan and signbit, which return a mask, and where(mask, a, b). Loads and stores are in memory.h, conversions and masks in
// convert.h, matrix products in gemm.h.
#pragma once
#include "arithmetic.h"
#include "convert.h"
#include "division.h"
#include "exponential.h"
#include "logarithm.h"
#include "memory.h"
#include "power.h"
#include "special.h"
#include "tanh.h"
#include "trigonometric.h"
#include "vector.h"
