"""Index arithmetic as CUDA text: 32 bits where they are certainly enough, and only there."""

import pytest

from compiler.ir import kernel as k
from compiler.ir import kernel_text
from compiler.render import cuda

# threads of a block, blocks of the grid, elements of x, an index of x; what stands in the brackets
PLACES = [
    (256, 16, 4096, "i * 256 + t", "i * 256 + t"),
    (256, 16, 4096, "(i * 256 + t) // 3", "mlc_quotient(i * 256 + t, 3)"),
    (256, 16, 4096, "(i * 256 + t) % 7", "mlc_rest(i * 256 + t, 7)"),
    (256, 16, 4096, "max(t - 3, 0)", "mlc_max(t - 3, 0)"),
    (256, 16, 4096, "(t - 5) // 2 + 3", "mlc_index_floordiv(t - 5, 2) + 3"),
    (256, 16, 4096, "min(max(p[t], 0), 15) * 16 + t", "(int)mlc_min(mlc_max(p[t], 0l), 15l) * 16 + t"),
    (256, 16, 4096, "p[t] + t", "mlc_add(p[t], (long)t)"),
    # beyond 2**31 elements, or on the way there
    (256, 2**24, 2**32, "i * 256 + t", "(long)i * 256 + t"),
    (256, 2**24, 4096, "(i * 256 + t) // 2**20", "(int)mlc_quotient((long)i * 256 + t, 1048576l)"),
    (256, 2**16, 2**32, "i * 65536 + t * 256", "(long)i * 65536 + t * 256"),
    (256, 16, 2**40, "i * 2**33 + t", "i * 8589934592l + t"),
]


def _text(threads: int, blocks: int, size: int, place: str) -> str:
    source = f"""
def f(x: f32[{size}], p: i64[{size}], *, y: f32[{threads}]):
    with function("f", [x, p, y], writes=[y], grid=[{blocks}], block=[{threads}, 1, 1]):
        i: i64 = block.x
        t: i64 = thread.x
        y[t] = x[{place.replace("2**20", str(2**20)).replace("2**33", str(2**33))}]
"""
    program = kernel_text.parse(source)
    k.verify(program)
    return cuda.render(program, target="sm_90a")


@pytest.mark.parametrize(("threads", "blocks", "size", "place", "shown"), PLACES, ids=[p[3] for p in PLACES])
def test_place(threads: int, blocks: int, size: int, place: str, shown: str) -> None:
    text = _text(threads, blocks, size, place)
    assert f"y[t] = x[{shown}];" in text
    assert "const int t = (int)threadIdx.x;" in text


def test_counters_of_unknown_size_keep_their_width() -> None:
    source = """
def f(n: size, x: f32[n], *, y: f32[n]):
    with function("f", [x, y], writes=[y], grid=[4], block=[32, 1, 1]):
        for i in range(thread.x, n, 32):
            y[i] = x[i]
"""
    text = cuda.render(kernel_text.parse(source), target="sm_90a")
    assert "for (long i = (int)threadIdx.x; i < n; i += 32) {" in text


def test_a_variable_that_changes_keeps_its_width() -> None:
    source = """
def f(*, y: i64[32]):
    with function("f", [y], writes=[y], grid=[1], block=[32, 1, 1]):
        best: i64 = 0
        best = best + thread.x
        y[thread.x] = best
"""
    text = cuda.render(kernel_text.parse(source), target="sm_90a")
    assert "long best = 0;" in text
    assert "best = best + (int)threadIdx.x;" in text


def test_data_is_of_its_own_type() -> None:
    """A sum of 64-bit elements is one, whatever is added."""
    source = """
def f(p: i64[32], *, y: i64[32]):
    with function("f", [p, y], writes=[y], grid=[1], block=[32, 1, 1]):
        y[thread.x] = max(p[thread.x], thread.x * 3)
"""
    text = cuda.render(kernel_text.parse(source), target="sm_90a")
    assert "mlc_max(p[(int)threadIdx.x], (long)((int)threadIdx.x * 3))" in text


@pytest.mark.parametrize("link", ["max({}, p[t])", "{} + p[t]", "({}) // 3"])
def test_deep_expressions_are_rendered_once(link: str) -> None:
    """Rendering an operand twice at each of 100 levels would not end."""
    value = "p[t]"
    for _ in range(100):
        value = link.format(value)
    source = f"""
def f(p: i64[32], *, y: i64[32]):
    with function("f", [p, y], writes=[y], grid=[1], block=[32, 1, 1]):
        t: i64 = thread.x
        y[t] = {value}
"""
    text = cuda.render(kernel_text.parse(source), target="sm_90a")
    assert max(text.count(function) for function in ("mlc_max(", "mlc_add(", "mlc_index_floordiv(")) == 100


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("t // (n - 3)", "mlc_index_floordiv((long)t, n - 3)"),
        ("(t - 7) % (n + 1)", "mlc_index_mod((long)(t - 7), n + 1)"),
        ("p[t] // (n - 3)", "mlc_floordiv(p[t], n - 3)"),
        ("p[t] % (n + 1)", "mlc_index_mod(p[t], n + 1)"),
        ("t // p[t]", "mlc_floordiv((long)t, p[t])"),
    ],
)
def test_only_data_divided_by_what_may_be_negative_can_overflow(value: str, written: str) -> None:
    source = f"""
def f(n: size[2, inf, 9], p: i64[32], *, y: i64[32]):
    with function("f", [p, y], writes=[y], grid=[1], block=[32, 1, 1]):
        t: i64 = thread.x
        y[t] = {value}
"""
    assert f"y[t] = {written};" in cuda.render(kernel_text.parse(source), target="sm_90a")
