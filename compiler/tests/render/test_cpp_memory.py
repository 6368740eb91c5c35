"""Loads, stores, conversions and reductions of the C++ device headers against PyTorch and NumPy, at every width."""

import ctypes
import itertools
import mmap
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from compiler.tests.cpp_library import CPP, MACHINES, NUMPY, Array, build, call, floats, integers, seeded, text

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

TORCH = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "i32": torch.int32, "i16": torch.int16}
TORCH |= {"i8": torch.int8, "u8": torch.uint8, "bool": torch.bool, "bf16": torch.bfloat16, "f16": torch.float16}
WIDTHS = (4, 8, 16, 32, 64)
COMPUTED = ("f32", "f64", "i64", "i32", "i16", "i8", "u8")

# memory of type FROM -> lanes of INTO -> memory of type INTO, and back to memory of type FROM; N lanes, and one
CONVERT = """
extern "C" void FROM_to_INTO(const SOURCE* x, TARGET* y, TARGET* y1, SOURCE* back, long count) {
  for (long i = 0; i + LANES <= count; i += LANES) {
    auto v = mlc_load_as<TARGET, LANES>(x + i);
    mlc_store(y + i, v);
    mlc_store_as(back + i, v);
  }
  for (long i = 0; i < count; i++) mlc_store(y1 + i, mlc_load_as<TARGET, 1>(x + i));
}
"""


def values(dtype: str, rng: np.random.Generator, count: int = 512) -> Array:
    """Numbers of any element type as memory holds them; a multiple of 64 of them."""
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype == "bf16":
        return rng.integers(0, 2**16, count).astype(np.uint16)
    x = floats(dtype, rng, count) if dtype in ("f32", "f64", "f16") else integers(dtype, rng, count)
    return rng.permutation(np.concatenate([x, x]))[: x.size // 64 * 64].copy()


def as_torch(x: Array, dtype: str) -> torch.Tensor:
    return torch.from_numpy(x).view(TORCH[dtype]) if dtype == "bf16" else torch.from_numpy(x)


def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal, or both NaN; zeros by sign."""
    if not got.is_floating_point():
        return torch.equal(got, expected)
    nan = got.isnan() & expected.isnan()
    equal = (got == expected) & (got.signbit() == expected.signbit())
    return bool((nan | equal).all())


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("into", ["f32", "f64", "i64", "i32", "u8"])
def test_conversions_are_those_of_torch(into: str, machine: str, tmp_path: Path) -> None:
    # Each pair of types at one width, each width with several pairs.
    turn = ["f32", "f64", "i64", "i32", "u8"].index(into)
    body = "".join(
        text(
            CONVERT, FROM=dtype, INTO=into, SOURCE=CPP[dtype], TARGET=CPP[into],
            LANES=str(WIDTHS[(turn + n) % len(WIDTHS)]),
        )
        for n, dtype in enumerate(TORCH)
    )  # fmt: skip
    library = build(tmp_path, ["memory.h"], body, machine)
    seed, rng = seeded()
    for dtype in TORCH:
        x = values(dtype, rng)
        lanes, scalars, back = (np.zeros(x.size, NUMPY[d]) for d in (into, into, dtype))
        call(library[f"{dtype}_to_{into}"], x, lanes, scalars, back, x.size)
        expected = as_torch(x, dtype).to(TORCH[into])
        where = f"{dtype} to {into} on {machine}, seed {seed}"
        assert same(torch.from_numpy(lanes), expected), where
        assert same(torch.from_numpy(scalars), expected), f"scalar {where}"
        assert same(as_torch(back, dtype), expected.to(TORCH[dtype])), f"and back, {where}"


ROUND = """
extern "C" void round_WIDTH(const float* x, mlc_bf16* b, mlc_f16* h, float* rounded, long count) {
  for (long i = 0; i < count; i += WIDTH) {
    auto v = mlc_load<float, WIDTH>(x + i);
    mlc_store_as(b + i, v);
    mlc_store_as(h + i, v);
    mlc_store(rounded + i, mlc_round_bf16(v) + mlc_round_f16(v));
  }
}
"""


@pytest.mark.parametrize("machine", MACHINES)
def test_sixteen_bit_floats_round_to_nearest_even(machine: str, tmp_path: Path) -> None:
    widths = ("1", "4", "8", "16", "32")
    library = build(tmp_path, ["memory.h"], "".join(text(ROUND, WIDTH=width) for width in widths), machine)
    seed, rng = seeded()
    near = (rng.integers(0, 2**16, 4096).astype(np.uint32) << np.uint32(16)) + rng.integers(-1, 2, 4096).astype(
        np.uint32
    )
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        ties = ((halves[:-1] + halves[1:]) / 2).astype(np.float32)
    x = np.concatenate(
        [near.view(np.float32), (near + np.uint32(0x8000)).view(np.float32), halves, ties, floats("f32", rng, 999)]
    )
    x = x[: x.size // 32 * 32].copy()
    for width in widths:
        b, h, rounded = np.zeros(x.size, np.uint16), np.zeros(x.size, np.float16), np.zeros_like(x)
        call(library[f"round_{width}"], x, b, h, rounded, x.size)
        bf16, f16 = torch.from_numpy(x).bfloat16(), torch.from_numpy(x).half()
        assert same(as_torch(b, "bf16"), bf16), f"bf16, {width} lanes, {machine}, seed {seed}"
        assert same(torch.from_numpy(h), f16), f"f16, {width} lanes, {machine}, seed {seed}"
        assert same(torch.from_numpy(rounded), bf16.float() + f16.float()), f"{width} lanes, {machine}, seed {seed}"


# Every way to reach memory, WIDTH lanes of LANE: n of them, strided, by index, under a mask, and the reductions.
ACCESS = """
extern "C" void access_DTYPE_WIDTH(
    const LANE* x, const long* index, const bool* flags, LANE* y, LANE* reduced, long n) {
  constexpr int N = WIDTH;
  auto some = mlc_load_n<LANE, N>(x, n);
  mlc_store(y, some);
  mlc_store_n(y + N, mlc_load<LANE, N>(x), n);
  mlc_store(y + 2 * N, mlc_load_strided<LANE, N>(x, 3));
  mlc_store_strided(y + 3 * N, 2, mlc_load<LANE, N>(x));
  auto where = mlc_load<long, N>(index);
  mlc_store(y + 5 * N, mlc_gather<LANE>(x, where));
  mlc_scatter(y + 6 * N, where, mlc_load<LANE, N>(x));
  auto mask = mlc_load_mask<LANE, N>(flags);
  mlc_store(y + 10 * N, mlc_gather_masked<LANE>(x, where, mask, mlc_broadcast<LANE, N>((LANE)7)));
  mlc_scatter_masked(y + 11 * N, where, mlc_load<LANE, N>(x), mask);
  mlc_store(y + 15 * N, mlc_where(mask, mlc_load<LANE, N>(x), mlc_iota<LANE, N>()));
  mlc_store_mask((bool*)(y + 16 * N), mlc_not_mask(mask));
  mlc_store(y + 17 * N, mlc_load_strided<LANE, N>(x, 2));
  mlc_store(y + 18 * N, mlc_load_masked<LANE>(x, n, mask, mlc_broadcast<LANE, N>((LANE)7)));
  mlc_store(y + 19 * N, mlc_load_masked<LANE>(x, 1ul << 50, mlc_not_mask(mask) & mask, mlc_iota<LANE, N>()));
  auto v = mlc_load<LANE, N>(x);
  LANE results[] = {mlc_reduce_add(v), mlc_reduce_mul(v), mlc_reduce_max(v), mlc_reduce_min(v)};
  for (int i = 0; i < 4; i++) reduced[i] = results[i];
  reduced[4] = mlc_any(mask);
  reduced[5] = mlc_all(mask);
}
"""


def expected_access(x: Array, index: Array, flags: Array, width: int, n: int, y: Array) -> Array:
    """What ACCESS leaves in y."""
    w, lanes = width, np.arange(width)
    y = y.copy()
    y[:w] = np.where(lanes < n, x[:w], 0)
    y[w : w + n] = x[:n]
    y[2 * w : 3 * w] = x[lanes * 3]
    y[3 * w : 5 * w : 2] = x[:w]
    y[5 * w : 6 * w] = x[index]
    y[6 * w : 10 * w][index] = x[:w]
    y[10 * w : 11 * w] = np.where(flags, x[index], 7)
    y[11 * w : 15 * w][index[flags]] = x[:w][flags]
    y[15 * w : 16 * w] = np.where(flags, x[:w], lanes)
    y.view(np.bool_)[16 * w * x.itemsize :][:w] = ~flags
    y[17 * w : 18 * w] = x[lanes * 2]
    y[18 * w : 19 * w] = np.where(flags, x[n + lanes], 7)
    y[19 * w :] = lanes
    return y


@pytest.mark.parametrize("gathers", ["", "-DMLC_GATHERS"])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtypes", [("f32", "f64"), ("i8", "u8", "i16"), ("i32", "i64")], ids="-".join)
def test_memory_access_touches_what_it_must(
    dtypes: tuple[str, ...], machine: str, gathers: str, tmp_path: Path
) -> None:
    widths = ("1", "2", "4", "8", "16")
    body = "".join(text(ACCESS, DTYPE=d, WIDTH=w, LANE=CPP[d]) for d in dtypes for w in widths)
    library = build(tmp_path, ["memory.h"], body, machine, *[gathers][: bool(gathers)])
    seed, rng = seeded()
    for dtype in dtypes:
        for width in map(int, widths):
            where = f"{dtype} x {width} on {machine}, seed {seed}"
            index, flags = rng.permutation(4 * width)[:width], rng.integers(0, 2, width).astype(np.bool_)
            for past, n in enumerate({0, 1, width // 2, width - 1, width}, 1):
                # So many elements past the start: no access may rest on alignment.
                x = rng.integers(1, 3, 64 * width + past).astype(NUMPY[dtype])[past:]
                y, reduced = np.full(20 * width, 9, NUMPY[dtype]), np.zeros(6, NUMPY[dtype])
                expected = expected_access(x, index, flags, width, n, y)
                call(library[f"access_{dtype}_{width}"], x, index, flags, y, reduced, n)
                assert np.array_equal(y, expected), f"{where}, n = {n}"
                head = x[:width]
                exact = [head.sum(), head.prod(), head.max(), head.min(), flags.any(), flags.all()]
                assert np.array_equal(reduced, np.array(exact).astype(NUMPY[dtype])), f"reductions, {where}"


RESIZE = """
extern "C" void resize_FROM_INTO_WIDTH(const SOURCE* x, TARGET* y) {
  mlc_store(y, mlc_cast<TARGET>(mlc_load<SOURCE, WIDTH>(x)));
}
"""


@pytest.mark.parametrize("machine", MACHINES)
def test_integers_keep_their_low_bits_at_every_width(machine: str, tmp_path: Path) -> None:
    types = ("i8", "u8", "i16", "i32", "i64")
    cases = [(a, b, w) for a in types for b in types if a != b for w in (4, 8, 16, 32)]
    body = "".join(
        text(RESIZE, FROM=a, INTO=b, SOURCE=CPP[a], TARGET=CPP[b], WIDTH=str(width)) for a, b, width in cases
    )
    library = build(tmp_path, ["memory.h"], body, machine)
    seed, rng = seeded()
    for a, b, width in cases:
        x, y = rng.permutation(integers(a, rng))[:width].copy(), np.zeros(width, NUMPY[b])
        call(library[f"resize_{a}_{b}_{width}"], x, y)
        assert np.array_equal(y, x.astype(NUMPY[b])), f"{a} to {b} x {width} on {machine}, seed {seed}"


STREAM = """
extern "C" void stream_WIDTH(const float* x, const mlc_bf16* b, float* y, mlc_bf16* z, long count, long owned) {
  if (owned)
    for (long i = 0; i < count; i += WIDTH) {
      mlc_store_owned(y + i, mlc_load<float, WIDTH>(x + i) + mlc_load_as<float, WIDTH>(b + i), 1l << 40);
      mlc_store_as_owned(z + i, mlc_load_as<float, WIDTH>(b + i), 4096);
    }
  else for (long i = 0; i < count; i += WIDTH) {
    mlc_store_past(y + i, mlc_load_ahead<float, WIDTH>(x + i, 4096) + mlc_load_as_ahead<float, WIDTH>(b + i, 1l << 40));
    mlc_store_past(&z[i].bits, mlc_load_ahead<unsigned short, WIDTH>(&b[i].bits, 64));
  }
  mlc_fence();
}
"""


@pytest.mark.parametrize("machine", MACHINES)
def test_streams_load_and_store_what_others_do(machine: str, tmp_path: Path) -> None:
    widths = ("1", "4", "8", "16", "32")
    library = build(tmp_path, ["memory.h"], "".join(text(STREAM, WIDTH=w) for w in widths), machine)
    seed, rng = seeded()
    for width in widths:
        for offset, owned in itertools.product((0, 1, 4), (0, 1)):  # elements from an aligned address
            x, b = rng.standard_normal(256 + offset).astype(np.float32), values("bf16", rng, 256)
            b &= np.uint16(0xBFFF)  # finite
            y, z = (np.zeros(300, t) for t in (np.float32, np.uint16))
            y, z = (a[-a.ctypes.data % 64 // a.itemsize + offset :][:256] for a in (y, z))
            call(library[f"stream_{width}"], x[offset:], b[:256], y, z, 256, owned)
            expected = torch.from_numpy(x[offset:]) + as_torch(b[:256], "bf16").float()
            assert same(torch.from_numpy(y.copy()), expected), f"{width} lanes on {machine}, seed {seed}"
            assert np.array_equal(z, b[:256]), f"bf16, {width} lanes on {machine}, seed {seed}"


SPECIAL = """
extern "C" void reduce_WIDTH(const float* x, float* y) {
  auto v = mlc_load<float, WIDTH>(x);
  y[0] = mlc_reduce_max(v), y[1] = mlc_reduce_min(v), y[2] = mlc_reduce_add(v);
}
"""


def test_reductions_keep_nan_and_add_by_halves(tmp_path: Path) -> None:
    widths = ("2", "4", "8", "16")
    library = build(tmp_path, ["memory.h"], "".join(text(SPECIAL, WIDTH=w) for w in widths), "native")
    seed, rng = seeded()
    for width in map(int, widths):
        x, y = rng.standard_normal(width).astype(np.float32), np.zeros(3, np.float32)
        call(library[f"reduce_{width}"], x, y)
        halves = x
        while halves.size > 1:
            halves = halves[: halves.size // 2] + halves[halves.size // 2 :]
        assert np.array_equal(y, [x.max(), x.min(), halves[0]]), f"{width} lanes, seed {seed}"
        for at in range(width):
            poisoned = x.copy()
            poisoned[at] = np.nan
            call(library[f"reduce_{width}"], poisoned, y)
            assert np.isnan(y).all(), f"NaN in lane {at} of {width}, seed {seed}"


PARTIAL = """
extern "C" void partial_DTYPE_WIDTH(LANE* p, long n) {
  mlc_store_n(p, mlc_load_n<LANE, WIDTH>(p, n) + (LANE)1, n);
}
"""


# Elements at distances that are known when compiling, at the ends of a page.
AT = """
extern "C" void at_DTYPE_NAME(const LANE* p, LANE* y) { mlc_store(y, mlc_load_at<LANE, PLACES>(p)); }
"""


def distances(rng: np.random.Generator) -> list[list[int]]:
    """Pairs, duplicates, two runs that are far apart in turn, one run that is short, thirds, and any."""
    out = []
    for width in (4, 8, 16):
        lanes = np.arange(width)
        out += [lanes // 2 * 2, lanes // 2, (lanes + 1) % 2 * 50 + (lanes + 1) // 2, lanes * 0, lanes // (width // 2)]
        out += [lanes // 3 + lanes % 3 * 7, width - 1 - lanes, rng.integers(0, 60, width)]
        out += [rng.integers(0, width + width // 2, width) for _ in range(3)]
    return [[int(x) - min(map(int, places)) for x in places] for places in out]


@pytest.mark.parametrize("machine", MACHINES)
def test_elements_at_known_distances_are_loaded_from_between_them(machine: str, tmp_path: Path) -> None:
    seed, rng = seeded()
    found, dtypes = distances(rng), ("f32", "f64", "i64", "i16", "u8")
    body = "".join(
        text(AT, DTYPE=d, NAME=str(n), LANE=CPP[d], PLACES=", ".join(map(str, places)))
        for d in dtypes
        for n, places in enumerate(found)
    )
    library = build(tmp_path, ["memory.h"], body, machine)
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    pages = mmap.mmap(-1, 3 * page)
    memory = np.frombuffer(pages, np.uint8)
    for neighbour in (0, 2 * page):  # any access to these pages ends the process
        assert libc.mprotect(ctypes.c_void_p(memory.ctypes.data + neighbour), page, 0) == 0
    for dtype in dtypes:
        middle = memory[page : 2 * page].view(NUMPY[dtype])
        middle[:] = rng.integers(0, 100, middle.size).astype(NUMPY[dtype])
        for n, places in enumerate(found):
            out = np.zeros(len(places), NUMPY[dtype])
            for start in (0, middle.size - 1 - max(places)):
                call(library[f"at_{dtype}_{n}"], middle[start:], out)
                assert np.array_equal(out, middle[start:][places]), f"{dtype}, {places}, {machine}, seed {seed}"


# Elements STRIDES apart: what lies before the first and behind the last of them is not read.
STRIDES = (2, 3, 4, -1)
SPACED = """
extern "C" void spaced_DTYPE_WIDTH(const LANE* p, LANE* y) {
  constexpr long N = WIDTH;
  mlc_store(y, mlc_load_strided<LANE, WIDTH>(p, 2));
  mlc_store(y + N, mlc_load_strided<LANE, WIDTH>(p, 3));
  mlc_store(y + 2 * N, mlc_load_strided<LANE, WIDTH>(p, 4));
  mlc_store(y + 3 * N, mlc_load_strided<LANE, WIDTH>(p + N - 1, -1));
}
extern "C" void last_DTYPE_WIDTH(const LANE* end, LANE* y) {
  constexpr long N = WIDTH;
  mlc_store(y, mlc_load_strided<LANE, WIDTH>(end - (N - 1) * 2, 2));
  mlc_store(y + N, mlc_load_strided<LANE, WIDTH>(end - (N - 1) * 3, 3));
  mlc_store(y + 2 * N, mlc_load_strided<LANE, WIDTH>(end - (N - 1) * 4, 4));
  mlc_store(y + 3 * N, mlc_load_strided<LANE, WIDTH>(end, -1));
}
"""


@pytest.mark.parametrize("machine", MACHINES)
def test_access_of_some_elements_stays_on_their_page(machine: str, tmp_path: Path) -> None:
    dtypes, widths = ("f32", "f64", "i64", "i32", "i16", "u8"), ("2", "4", "8", "16")
    body = "".join(text(PARTIAL + SPACED, DTYPE=d, WIDTH=w, LANE=CPP[d]) for d in dtypes for w in widths)
    library = build(tmp_path, ["memory.h"], body, machine)
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    pages = mmap.mmap(-1, 3 * page)
    memory = np.frombuffer(pages, np.uint8)
    middle = memory[page : 2 * page]
    for neighbour in (0, 2 * page):  # any access to these pages ends the process
        assert libc.mprotect(ctypes.c_void_p(memory.ctypes.data + neighbour), page, 0) == 0
    for dtype in dtypes:
        for width in map(int, widths):
            for n in range(width):
                last = middle.view(NUMPY[dtype])[page // np.dtype(NUMPY[dtype]).itemsize - n :]
                last[:] = 3
                # For n = 0 the address itself is that of the page that may not be touched.
                end = ctypes.c_void_p(memory.ctypes.data + 2 * page - last.nbytes)
                library[f"partial_{dtype}_{width}"](end, ctypes.c_long(n))
                assert (last == 4).all(), f"{dtype} x {width}, n = {n}"
            size = np.dtype(NUMPY[dtype]).itemsize
            whole, found = middle.view(NUMPY[dtype]), np.zeros((4, width), NUMPY[dtype])
            whole[:] = np.arange(page // size).astype(NUMPY[dtype])
            call(library[f"spaced_{dtype}_{width}"], whole, found)
            firsts = [whole[: (width - 1) * by + 1 : by] if by > 0 else whole[:width][::-1] for by in STRIDES]
            assert np.array_equal(found, firsts), f"{dtype} x {width}"
            call(library[f"last_{dtype}_{width}"], whole[-1:], found)
            lasts = [whole[-1 - (width - 1) * by :: by] if by > 0 else whole[: -width - 1 : -1] for by in STRIDES]
            assert np.array_equal(found, lasts), f"{dtype} x {width}"
