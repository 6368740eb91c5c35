"""Contractions scheduled for the CPU: every size, layout and epilogue keeps its meaning down to C++."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from compiler import pipeline
from compiler.interpret import kernel as kernel_interpreter
from compiler.interpret import tensor as tensor_interpreter
from compiler.interpret import tile as tile_interpreter
from compiler.ir import kernel_text, tensor_text, tile
from compiler.ir.expr import static
from compiler.ir.tensor import Tensor
from compiler.passes.tile import steps
from compiler.schedule.space.cpu.blocking import Matmul as Sizes
from compiler.schedule.space.cpu.blocking import Operand, space
from compiler.schedule.steps import ScheduleError, parse
from compiler.targets import cpu
from compiler.targets.target import Target
from compiler.tests import run_kernel, snippet
from compiler.tests.cpp_library import runs_here
from compiler.tests.meaning import fresh_seed

# Caches so small that few rows already make many blocks.
TINY = cpu.target(("avx2", "fma", "sse2"), cores=2, l1=1024, l2=8192, name="cpu:avx2")
TARGETS = {"tiny": TINY, "avx2": cpu.AVX2, "avx512": cpu.AVX512, "baseline": cpu.BASELINE}
WIDTH = {"tiny": "x86-64-v3", "avx2": "x86-64-v3", "avx512": "native", "baseline": "x86-64"}
EPILOGUES = {
    "none": "",
    "bias": "y[i: {m}, j: {n}]: f32 = c[i, j] + e[j]",
    "relu": "y[i: {m}, j: {n}]: f32 = max(c[i, j] + e[j], 0.0)",
    "residual": "y[i: {m}, j: {n}]: f32 = c[i, j] * 2.0 + r[i, j]",
    "mask": "y[i: {m}, j: {n}]: f32 = (c[i, j] if j <= i else -1000.0) + e[j]",
    "narrow": "y[i: {m}, j: {n}]: bf16 = bf16(c[i, j])",
}


@dataclass(frozen=True)
class Matmul:
    m: int
    n: int
    k: int
    left: str = "mk"
    right: str = "kn"
    dtype: str = "f32"
    batch: int = 0
    epilogue: str = "none"

    @property
    def text(self) -> str:
        """The program in Tensor IR."""
        size = {"m": self.m, "n": self.n, "k": self.k}
        head, extra = (f"{self.batch}, ", "h, ") if self.batch else ("", "")
        total = "f32" if self.dtype in ("bf16", "f16") else self.dtype

        def operand(name: str, axes: str) -> tuple[str, str]:
            var = {"m": "i", "n": "j", "k": "l"}
            load = f"{name}[{extra}{', '.join(var[x] for x in axes)}]"
            kind = f"{self.dtype}[{head}{', '.join(str(size[x]) for x in axes)}]"
            return f"{name}: {kind}", load if total == self.dtype else f"{total}({load})"

        (a, left), (b, right) = operand("a", self.left), operand("b", self.right)
        axes = (f"h: {self.batch}, " if self.batch else "") + f"i: {self.m}, j: {self.n}"
        after = EPILOGUES[self.epilogue].format(m=self.m, n=self.n)
        result = "y" if after else "c"
        kind = "bf16" if self.epilogue == "narrow" else total
        return (
            f"def f({a}, {b}, e: f32[{self.n}], r: f32[{self.m}, {self.n}]):\n"
            f'    with kernel("product"):\n'
            f"        c[{axes}]: {total} = sum({left} * {right} for l in range({self.k}))\n"
            f"        {after or 'pass'}\n"
            f"    result({result}, {kind}[{head}{self.m}, {self.n}])\n"
        ).replace("        pass\n", "")


def arrays(program: Any, seed: int) -> list[Any]:
    """Small integers: whatever the order of a sum, its value is exact. Elements are alike along axes without stride."""
    rng = np.random.default_rng(seed)
    wide = {"f64": np.float64, "f16": np.float16}

    def made(t: Tensor) -> Any:
        shape = list(map(static, t.shape))
        own = [1 if static(step) == 0 else n for n, step in zip(shape, t.strides, strict=True)]
        return np.broadcast_to(rng.integers(-3, 4, own), shape).astype(wide.get(t.dtype.name, np.float32))

    return [made(t) for t in program.inputs]


def check(p: Matmul | str, target: str, native: bool = False) -> pipeline.Lowering:
    """Interpreted as Tensor, Tile and Kernel IR, and run as C++ if asked, it gives the same numbers."""
    text = p if isinstance(p, str) else p.text
    made = pipeline.lower(tensor_text.parse(text), TARGETS[target], source="tensor", until="kernel")
    seed = fresh_seed()
    given = arrays(made.stages["tensor"], seed)
    want = tensor_interpreter.run(made.stages["tensor"], given)[0]
    results = {
        "tile": tile_interpreter.run(made.stages["tile"], given)[0],
        "kernel": kernel_interpreter.run(made.stages["kernel"], given)[0],
    }
    if native:
        results["cpp"] = run_kernel.run(made.stages["kernel"], given, WIDTH[target], threads=2)[0]
    for stage, got in results.items():
        said = f"{p} on {target} as {stage}, seed {seed}:\n{made.show('tile')}"
        assert np.array_equal(np.asarray(got).reshape(want.shape), want), said
    return made


def instructions(made: pipeline.Lowering) -> list[tile.Mma]:
    return [n for k in made.stages["tile"].kernels for s in k.body for n in s.walk() if isinstance(n, tile.Mma)]


SIZES = [(33, 17, 65), (1, 40, 24), (40, 1, 24), (1, 33, 300), (8, 48, 16), (7, 100, 9), (64, 64, 64), (5, 3, 4)]


@pytest.mark.parametrize("target", ["tiny", "avx512"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("right", ["kn", "nk"])
@pytest.mark.parametrize("left", ["mk", "km"])
def test_sizes_and_layouts(size: tuple[int, int, int], left: str, right: str, target: str) -> None:
    assert instructions(check(Matmul(*size, left, right), target))


@pytest.mark.parametrize("size", [(150, 70, 40), (130, 100, 9), (101, 200, 300)], ids=str)
@pytest.mark.parametrize("right", ["kn", "nk"])
@pytest.mark.parametrize("left", ["mk", "km"])
def test_strips_of_many_rows(size: tuple[int, int, int], left: str, right: str) -> None:
    p = Matmul(*size, left, right, batch=2 if size[2] == 9 else 0)
    assert instructions(check(p, "tiny", native=shutil.which("g++") is not None and runs_here(WIDTH["tiny"])))


def test_strips_leave_known_rests_to_the_instruction() -> None:
    made = check(Matmul(101, 200, 40, epilogue="relu"), "tiny")
    calls = re.findall(r'"mlc_fma_block", \[([^]]*)\], min.*min.*min', made.show("kernel"))
    assert calls and not any("-1" in call for call in calls), made.show("kernel")


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(epilogue: str) -> None:
    made = check(Matmul(19, 37, 40, right="nk", epilogue=epilogue), "tiny")
    assert len(made.stages["tile"].kernels) == 1
    assert instructions(made)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
@pytest.mark.parametrize("right", ["kn", "nk"])
def test_types(dtype: str, right: str) -> None:
    assert instructions(check(Matmul(11, 35, 50, right=right, dtype=dtype, batch=3), "tiny"))


def test_what_is_no_product_of_tiles_is_left_alone() -> None:
    for p in (Matmul(0, 4, 8), Matmul(4, 0, 8), Matmul(4, 4, 0), Matmul(1, 1, 9), Matmul(4, 4, 1)):
        assert not instructions(check(p, "avx2"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_drawn_products_run_as_text() -> None:
    rng = np.random.default_rng(fresh_seed())
    for target in ("tiny", "avx512", "baseline"):
        for _ in range(3 if runs_here(WIDTH[target]) else 0):
            m, n, k = (int(rng.choice([1, 2, 7, 8, 33, 64, 100])) for _ in range(3))
            words = (str(rng.choice(["mk", "km"])), str(rng.choice(["kn", "nk"])))
            kind = str(rng.choice(["f32", "f32", "f64", "bf16", "f16"]))
            last = str(rng.choice(list(EPILOGUES))) if kind == "f32" else "none"
            batch = int(rng.choice([0, 3])) if last == "none" else 0
            check(Matmul(m, n, k + 3, *words, kind, batch, last), target, native=True)


LINEAR = """def f(x: f32[3, 5, 40], w: f32[36, 40], e: f32[36]):
    with kernel("linear"):
        c[b: 3, i: 5, j: 36]: f32 = sum(x[b, i, l] * w[j, l] for l in range(40))
        y[b: 3, i: 5, j: 36]: f32 = c[b, i, j] + e[j]
    result(y, f32[3, 5, 36])
"""
HEADS = """def f(q: f32[2, 9, 24], k: f32[2, 11, 24]):
    with kernel("scores"):
        s[b: 2, h: 3, i: 9, j: 11]: f32 = sum(q[b, i, h * 8 + d] * k[b, j, h * 8 + d] for d in range(8))
    result(s, f32[2, 3, 9, 11])
"""
CONV = """def f(x: f32[2, 3, 10, 11], w: f32[5, 3, 3, 3]):
    with kernel("conv"):
        o[n: 2, f: 5, y: 10, x1: 11]: f32 = sum((x[n, c, y + r - 1, x1 + s - 1]
            if (y + r >= 1) & (y + r < 11) & (x1 + s >= 1) & (x1 + s < 12) else 0.0) * w[f, c, r, s]
            for c in range(3) for r in range(3) for s in range(3))
    result(o, f32[2, 5, 10, 11])
"""
# Images of so few pixels that several fill a vector.
IMAGES = """def f(x: f32[7, 5, 2, 3], w: f32[9, 5, 3, 3]):
    with kernel("conv"):
        o[n: 7, f: 9, y: 2, x1: 3]: f32 = sum((x[n, c, y + r - 1, x1 + s - 1]
            if (y + r >= 1) & (y + r < 3) & (x1 + s >= 1) & (x1 + s < 4) else 0.0) * w[f, c, r, s]
            for c in range(5) for r in range(3) for s in range(3))
    result(o, f32[7, 9, 2, 3])
"""
# Sums over several images, which begin with zeros.
WEIGHTS = """def f(g: f32[3, 8, 6, 5], x: f32[3, 4, 6, 5]):
    with kernel("conv"):
        w[f: 8, c: 4, r: 3, s: 3]: f32 = sum(g[n, f, y, x1] * (x[n, c, y + r - 1, x1 + s - 1]
            if (y + r >= 1) & (y + r < 7) & (x1 + s >= 1) & (x1 + s < 6) else 0.0)
            for n in range(3) for y in range(6) for x1 in range(5))
    result(w, f32[8, 4, 3, 3])
"""
GROUPS = """def f(q: f32[2, 6, 4, 8], k: f32[2, 3, 11, 8]):
    with kernel("scores"):
        s[b: 2, h: 6, i: 4, j: 11]: f32 = sum(q[b, h, i, d] * k[b, h // 2, j, d] for d in range(8))
    result(s, f32[2, 6, 4, 11])
"""
ROUNDED = """def f(a: f32[9, 20], b: bf16[20, 33]):
    with kernel("product"):
        c[i: 9, j: 33]: f32 = sum(f32(bf16(a[i, l])) * f32(b[l, j]) for l in range(20))
    result(c, f32[9, 33])
"""
PROMOTED = """def f(a: f32[9, 20], b: f64[20, 33]):
    with kernel("product"):
        c[i: 9, j: 33]: f64 = sum(f64(a[i, l]) * b[l, j] for l in range(20))
    result(c, f64[9, 33])
"""
SQUARE = """def f(x: f32[20, 30]):
    with kernel("gram"):
        s[i: 20, j: 20]: f32 = sum(x[i, l] * x[j, l] for l in range(30))
    result(s, f32[20: 1, 20: 20])
"""
TRANSPOSED = """def f(a: f32[20: 1, 30: 20], b: f32[30: 1, 18: 30]):
    with kernel("product"):
        c[i: 20, j: 18]: f32 = sum(a[i, l] * b[l, j] for l in range(30))
    result(c, f32[20, 18])
"""
# Zeros before and after an operand along each of its axes, that of the batch included.
PADDED = """def f(x: f32[2, 9, 20], y: f32[3, 29, 17]):
    with kernel("product"):
        c[b: 4, i: 12, j: 18]: f32 = sum((x[b - 1, i - 2, l - 3] if (b >= 1) & (b < 3) & (i >= 2) & (i < 11)
            & (l >= 3) & (l < 23) else 0.0) * (y[b, l, j - 1] if (b < 3) & (j >= 1) else 0.0) for l in range(29))
    result(c, f32[4, 12, 18])
"""


@pytest.mark.parametrize("target", ["tiny", "avx512"])
@pytest.mark.parametrize(
    "text",
    [LINEAR, HEADS, GROUPS, CONV, IMAGES, WEIGHTS, ROUNDED, PROMOTED, SQUARE, TRANSPOSED, PADDED],
    ids=["linear", "heads", "groups", "conv", "images", "weights", "rounded", "promoted", "gram", "strides", "padded"],
)
def test_other_contractions(text: str, target: str) -> None:
    assert instructions(check(text, target))


def test_images_of_few_pixels_are_columns_together() -> None:
    lowering = pipeline.lower(tensor_text.parse(IMAGES), cpu.AVX512, source="tensor", until="tile")
    text = lowering.show("tile")
    assert "for ny" in text or "nyx1" in text, text
    masked = pipeline.lower(tensor_text.parse(WEIGHTS), cpu.AVX512, source="tensor", until="tile").show("tile")
    assert "masked=1" in masked, masked


NEST = """
for i in serial(4):
    for j in serial(6):
        c: f32 = 0.0
        for l in serial(8, reduce):
            c += a[i, l] * b[l, j]
        y[i, j] = c
"""
DISTRIBUTED = 'distribute("c", ("i", "j"), into=("i", "j"))'
REFUSED = {
    "distribute over a sum": (DISTRIBUTED.replace("j", "l"), "l is not the only statement of i"),
    "distribute what begins elsewhere": (DISTRIBUTED.replace('"c"', '"d"'), "d does not begin inside j"),
    "pack what is not there": (
        DISTRIBUTED + '\npack("x", "x_tile", ("l", "j"), into=("l_x_tile", "j_x_tile"))',
        "has a factor from x over these",
    ),
    "pack over too little": (
        DISTRIBUTED + '\npack("b", "b_tile", ("i", "j"), into=("i_b_tile", "j_b_tile"))',
        "has a factor from b over these",
    ),
    "tensorize in another order": (
        DISTRIBUTED + '\ntensorize(("j", "i", "l"), "x")',
        "i is not the only statement of j",
    ),
    "tensorize before there is a sum of its own": (
        'tensorize(("i", "j", "l"), "x")',
        "l is not the only statement of j",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_illegal_steps_say_why(name: str) -> None:
    text, why = REFUSED[name]
    program = snippet.program(NEST)
    with pytest.raises(ScheduleError, match=why):
        steps.apply(program, program.kernels[0], parse(text))


def test_blocks_follow_from_the_caches() -> None:
    """What must be near fits where it must be; few rows are read as they lie, in rows that are long."""
    rows = Operand(True, "k", 4, False)
    for target in TARGETS.values():
        for m, n, k in [(2048, 2048, 2048), (32, 5632, 2048), (1, 2048, 2048), (3, 70, 10), (500, 20, 9000)]:
            for b in (Operand(True, "n", n * 4, False), rows, Operand(False, "n", n * 4, False)):
                made = space(Sizes(m, n, k, 1, rows, b, "f32", 4, "f32", 4), target)[0]
                assert 1 <= made.m <= m and 1 <= made.n <= n and 1 <= made.k <= k
                assert made.pack_b or b.direct
                assert made.row.m <= m
                near = 4 * (made.k * made.n if made.pack_b else 0), 4 * made.m * made.n
                assert max(near) <= target.l2 or made.m == made.row.m or made.n == made.row.n, (made, target.name)
                assert not made.strips or sum(near) <= target.l2 or made.n == made.row.n, (made, target.name)
    one = space(Sizes(1, 2048, 2048, 1, rows, Operand(True, "n", 8192, False), "f32", 4, "f32", 4), cpu.AVX512)[0]
    assert not one.pack_b and one.n == 2048


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_blocks_for_cores_keep_inner_loops_whole(target: Target) -> None:
    """Pixels of an image are packed by vectors along its rows, which no block of them cuts through."""
    pixels = Operand(False, "n", 4, False, unit=28, k_unit=9)
    sizes = Sizes(128, 28 * 28, 64 * 9, 1, Operand(True, "k", 4, False), pixels, "f32", 4, "f32", 4)
    for cores in (1, 2, 3, 8):
        made = space(sizes, target.replace(cores=cores))[0]
        assert made.n % 28 == 0, made
        assert made.m < sizes.m or sizes.n > made.n or cores == 1, made


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_cores_have_about_as_many_blocks_each(target: Target) -> None:
    """Three blocks of rows for two cores would leave one of them idle for a quarter of the time."""
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    for cores in (2, 3, 8, 12, 16):
        m, n = (int(x) for x in rng.integers(400, 2000, 2))
        text = Matmul(m, n, 512).text
        made = pipeline.lower(tensor_text.parse(text), target.replace(cores=cores), source="tensor", until="kernel")
        blocks = [int(x) for x in re.findall(r"range\(0, (\d+), 1, parallel", kernel_text.show(made.stages["kernel"]))]
        assert blocks, (seed, text)
        shares = [-(-x // cores) * cores / x for x in blocks]
        assert max(shares) <= 1.2, (seed, m, n, cores, blocks)


def test_blocks_of_long_inner_loops_are_parts_of_the_innermost() -> None:
    """Channels of a pixel lie in one place of the window, so that those of all filters are a block of the weights."""
    filters = Operand(False, "k", 4, False, k_unit=3 * 256, dense=True, k_last=256, within=256)
    pixels = Operand(False, "k", 4, False, unit=14, k_unit=3 * 256, k_last=256)
    for m, n in ((14 * 14, 256), (7 * 7, 512)):
        made = space(Sizes(m, n, 9 * 256, 1, pixels, filters, "f32", 4, "f32", 4), cpu.AVX2)[0]
        assert made.k == 256 and not made.flat, made


@pytest.mark.parametrize("m,function", [(16, "mlc_dot_block"), (48, "mlc_dot_block"), (128, "mlc_interleaved_block"),
                                        (512, "mlc_interleaved_block")])  # fmt: skip
def test_weights_that_many_rows_come_by_are_laid_out_in_pairs(m: int, function: str) -> None:
    """Dot products read them from memory for every block of rows; for few rows, laying them out takes longer."""
    machine = cpu.target((*cpu.PAIRS, "avx2", "fma", "sse2"), cores=2, l1=48 << 10, l2=1 << 20)
    rows = Operand(True, "k", 2, False)
    first = space(Sizes(m, 5632, 2048, 1, rows, rows, "f32", 4, "bf16", 2), machine)[0]
    assert first.row.function == function


def test_pairs_are_packed_where_memory_has_another_type() -> None:
    """Weights of a byte widen to bf16, but only dot products and panels of single elements convert as they load."""
    machine = cpu.target((*cpu.PAIRS, "avx2", "fma", "sse2"), l1=48 << 10, l2=1 << 20)
    rows, octets = Operand(True, "k", 2, False), Operand(True, "k", 1, False, converted=True)
    for a, b in ((rows, octets), (octets, rows)):
        made = [x for x in space(Sizes(512, 640, 256, 1, a, b, "f32", 4, "bf16", 2), machine) if x.row.stores]
        assert made and all(x.pack_a >= a.converted and x.pack_b >= b.converted for x in made), made


@pytest.mark.parametrize("cores", [2, 3, 8])
def test_strips_that_cores_share_unevenly_are_not_blocks_of_their_own(cores: int) -> None:
    """B is packed for each block that a core takes, which is of more rows than an instruction has."""
    machine = cpu.AVX512.replace(cores=cores, l1=48 << 10, l2=1 << 20)
    rows, pixels = Operand(True, "m", 1024, False), Operand(True, "n", 3136, False, dense=True)
    first = space(Sizes(256, 784, 128, 1, rows, pixels, "f32", 4, "f32", 4), machine)[0]
    assert first.strips and first.pack_b and first.m >= 4 * first.row.m, first


@pytest.mark.parametrize(("vendor", "packs"), [("", True), ("GenuineIntel", False)])
@pytest.mark.parametrize("m", [32, 128])
def test_a_large_matrix_is_packed_where_that_is_cheap(m: int, vendor: str, packs: bool) -> None:
    """With 32 rows only in panels of two vectors, which the narrow matrix asks for."""
    machine = cpu.target(cpu.AVX512.features, cores=2, l1=48 << 10, l2=2 << 20, vendor=vendor)
    rows, columns = Operand(True, "k", 4, False), Operand(True, "n", 1024, False)
    assert space(Sizes(m, 256, 2048, 1, rows, columns, "f32", 4, "f32", 4), machine)[0].pack_b == packs
