"""Small programs written by hand: one in Loop IR, and several in Kernel IR, for the tests of its text, its interpreter
and its C++."""

SCALE = """\
def f(x: f32[4, 40], *, y: f32[4, 40]):
    with kernel("scale", [x, y], writes=[y], origin=["aten.mul.Tensor"]):
        for i in parallel(4):
            for j in parallel(40):
                y_ = x[i, j] * 2.0
                y[i, j] = y_
"""

SAMPLES = {
    # a vector loop with a scalar tail
    "pointwise": """
def pointwise(x: f32[100], y: f32[100], *, z: f32[100]):
    with function("pointwise", [x, y, z], writes=[z], origin=['aten.mul', 'aten.relu']):
        for i in range(0, 96, 8):
            z[i] = max(x[i, f32x8] * y[i, f32x8] + broadcast(1.5, 8), broadcast(0.0, 8))
        for j in range(96, 100, 1):
            z[j] = max(x[j] * y[j] + 1.5, 0.0)
""",
    # rows spread over threads, reductions over lanes, a temporary
    "softmax": """
def softmax(x: f32[7, 21], *, y: f32[7, 21]):
    t: f32[7, 21]
    with function("rows", [x, t, y], writes=[t, y], schedule='bind("i", blocks)'):
        for i in range(0, 7, 1, parallel):
            m: f32 = -inf
            lanes: f32x8 = broadcast(-inf, 8)
            for j in range(0, 16, 8):
                lanes = max(lanes, x[i * 21 + j, f32x8])
            m = max(m, across(max, lanes))
            for j in range(16, 21, 1):
                m = max(m, x[i * 21 + j])
            s: f32 = 0.0
            for k in range(0, 21, 1):
                e: f32 = exp(x[i * 21 + k] - m)
                t[i * 21 + k] = e
                s = s + e
            for l in range(0, 21, 1, unroll):
                y[i * 21 + l] = t[i * 21 + l] / s
""",
    # 16-bit floats and narrow integers are widened as they are loaded
    "mixed": """
def mixed(a: bf16[32], b: f16[32], c: i8[32], *, y: bf16[32], z: f16[32], w: f64[32], raw: bf16[32], n: i8[32]):
    with function("mixed", [a, b, c, y, z, w, raw, n], writes=[y, z, w, raw, n]):
        for i in range(0, 32, 8):
            v: f32x8 = f32x8(a[i, bf16x8]) * f32x8(b[i, f16x8]) + f32x8(c[i, i8x8])
            y[i] = bf16x8(v)
            z[i] = f16x8(v)
            w[i] = f64x8(b[i, f16x8])
            raw[i] = where(f32x8(a[i, bf16x8]) < broadcast(0.0, 8), broadcast(literal(1.5, bf16), 8), a[i, bf16x8])
            n[i] = c[i, i8x8] * broadcast(i8(77), 8) - broadcast(i8(3), 8)
""",
    # masks of several widths meet
    "masks": """
def masks(x: f32[32], n: i8[32], p: bool[32], d: f64[32], *, y: f32[32], q: bool[32], w: f64[32], c: i64[32]):
    with function("masks", [x, n, p, d, y, q, w, c], writes=[y, q, w, c]):
        for i in range(0, 32, 8):
            narrow: boolx8 = n[i, i8x8] < broadcast(i8(0), 8)
            wide: boolx8 = x[i, f32x8] < f32x8(n[i, i8x8])
            both: boolx8 = wide & narrow | ~p[i, boolx8]
            y[i] = where(both ^ narrow, x[i, f32x8], broadcast(-1.0, 8))
            q[i] = max(both, narrow) == (wide < p[i, boolx8])
            w[i] = where(p[i, boolx8], d[i, f64x8], f64x8(narrow))
            c[i] = i64x8(isnan(d[i, f64x8]) | narrow) + i64x8(boolx8(x[i, f32x8]))
            narrow = wide
            if across(any, narrow) & ~across(all, p[i, boolx8]):
                c[i] = c[i] + 100
            else:
                c[i] = c[i] - 100
""",
    # gathers by a table, with a stride, and from nowhere but where the guard allows
    "gather": """
def gather(x: f32[64], at: i32[16], b: bf16[64], p: bool[64], *, y: f32[16], z: f32[16], w: bf16[16], q: bool[16]):
    s: f32[16]
    with function("gather", [x, at, b, p, y, z, w, q, s], writes=[y, z, w, q, s]):
        for i in range(0, 16, 8):
            place: i64x8 = i64x8(at[i, i32x8])
            y[i] = gather(x, place)
            z[i] = gather(x, ramp(i, 1, 8) * broadcast(3, 8) + broadcast(2, 8)) + f32x8(gather(b, place))
            w[i] = gather(b, ramp(i, 2, 8))
            q[i] = gather(p, place) | gather(p, ramp(i + 1, 1, 8))
        for j in range(0, 16, 1):
            s[j] = x[j - 3] if 3 <= j else -inf
        for j in range(0, 16, 1):
            y[j] = min(y[j], s[15 - j])
""",
    # combining stores, arrays, index arithmetic, wrapping integers, bits
    "scatter": """
def scatter(x: i32[24], f: f16[24], *, y: i32[12], m: f16[12], u: u8[24]):
    with function("scatter", [x, f, y, m, u], writes=[y, m, u]):
        t = array(local, i32, 24)
        big = array(local, i32, 20000)
        for i in range(0, 24, 8):
            t[i] = (x[i, i32x8] << broadcast(i32(3), 8)) * broadcast(i32(1000003), 8) ^ x[i, i32x8]
            big[i + 16384] = t[i, i32x8]
        for j in range(0, 12, 1):
            y[j] = 0
            m[j] = literal(-inf, f16)
        for j in range(0, 24, 1):
            y[j // 5 + j % 7] += t[j] + big[j + 16384]
            y[(j - 12) % 5] = update(max, t[j])
            m[(j - 12) // 5 + 3] = update(max, f[j])
            u[j] = u8(t[j]) * u8(3) - u8(200)
""".replace("y[j] = 0\n", "y[j] = i32(0)\n"),
    # names that mean something in C++ or to one another
    "names": """
def names(int: f32[8], mlc_exp: f32[8], *, double: f32[8]):
    with function("new", [int, mlc_exp, double], writes=[double]):
        for f32x8 in range(0, 8, 8):
            int_: f32x8 = int[f32x8, f32x8] + mlc_exp[f32x8, f32x8]
            threads: f32 = across(sum, int_)
            double[f32x8] = exp(int_ - broadcast(threads, 8))
""",
    # loads asked for ahead, stores past the caches
    "marked": """
def marked(x: f32[40], h: bf16[40], *, y: f32[40], z: bf16[40]):
    with function("marked", [x, h, y, z], writes=[y, z]):
        s: f32x8 = broadcast(0.0, 8)
        for i in range(0, 40, 8, past, ahead=32):
            s = s + x[i, f32x8] * f32x8(h[i, bf16x8])
        for j in range(0, 40, 8, past):
            y[j] = x[j, f32x8] - s
            z[j] = bf16x8(s)
""",
    # two functions, one of them on several threads, with a remark
    "two": """
def two(x: f64[40], *, y: f64[40]):
    t: f64[40]
    with function("first", [x, t], writes=[t]):
        'twice'
        for i in range(0, 40, 4, parallel):
            t[i] = x[i, f64x4] + x[i, f64x4]
    with function("second", [t, y], writes=[y]):
        s: f64 = f64(0.0)
        for i in range(0, 40, 1):
            s = s + t[i]
        for i in range(0, 40, 1, parallel):
            y[i] = t[i] - s
""",
}
