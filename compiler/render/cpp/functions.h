// Every device function; a kernel includes only the headers of the functions that it calls.
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
