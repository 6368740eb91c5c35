"""What no stage accepts: a program and the words of the refusal."""

import pytest

from compiler.ir.stages import IRS

TENSOR = "def f(x: f32[4, 6], n: i64[4]):\n    with kernel('k'):\n        {}\n    result(y, f32[4])\n"
LOOP = "def f(x: f32[4, 6], *, y: f32[4]):\n    with kernel('k', [x, y], writes=[y]):\n        {}\n"
# A line of a program of each stage, and what is said of it.
REFUSED = {
    "tensor": [
        ("y[i: 4]: f32 = x[i]", "x is f32 of rank 2, loaded as f32 of rank 1"),
        ("y[i: 4]: f32 = x[i, k]", "k is not defined here"),
        ("y[i: 4]: f32 = z[i]", "z is not a buffer here"),
        ("y[i: 4]: f64 = x[i, 0]", "y is declared f64 but its value is f32"),
        ("y[i: 4]: f32 = x[i, 0] + n[i]", "the types differ"),
        ("y[i: 4]: f32 = sum(x[i, i] for i in range(6))", "an axis name occurs twice"),
        ("y[i: 4]: f32 = median(x[i, k] for k in range(6))", "'median' is not a reduction"),
        ("y[i: 4]: f32 = scan(sum, k, x[i, 0])", "scans along k, which is not its axis"),
        ("y[i: 4, j: 6]: f32 = x[i, j]", "output y is"),
        ("x[i: 4]: f32 = 1.0", "x is defined twice"),
        ("y[i: 4]: f32 = sqrt(n[i])", "sqrt is not defined for i64"),
        ("y[i: 4]: f32 = x[i, 0.5]", "an index of x is not i64"),
    ],
    "loop": [
        ("y[0] = x[0, k]", "k is not defined here"),
        ("x[0, 0] = 1.0", "stores to x, which is not among its writes"),
        ("y[0] = 1", "stored i64 at rank 1"),
        ("y[0, 0] = 1.0", "stored f32 at rank 2"),
        ("for i in parallel(4):\n            for i in reduce(6):\n                pass", "i is bound twice"),
        (
            "s: f32 = 0.0\n        for i in parallel(4):\n            s += x[i, 0]\n        y[0] = s",
            "a parallel loop accumulates into s",
        ),
        ("t = 1.0\n        t += 2.0", "t is not a mutable scalar"),
        ("for i in forever(4):\n            pass", "not a statement"),
    ],
    "tile": [
        ("for i in threads(4):\n            pass", "not a statement"),
        ("for i in blocks(4, reduce):\n            pass", "the reduce loop i cannot be spread over blocks"),
        (
            "for i in vector(4, lanes=8):\n            pass",
            "vector takes width, unroll, ahead, past, rolled, owned, again, masked, not lanes",
        ),
        ("for i in vector(4, scan):\n            pass", "the scan loop i cannot be bound to vector"),
        ("for i in serial(4, sideways):\n            pass", "unknown kind 'sideways'"),
        ('copy(y[0: +4], x[0: +4, 0: +2], "plain")', "copy of (4, 2) to (4,)"),
        ('copy(y[0: +4], x[0: +4, 0], "teleport")', "by 'teleport'"),
        ('t = local(bf16[4])\n        copy(y[0: +4], t[0: +4], "plain")', "changes the type"),
        ('copy(x[0: +4, 0], y[0: +4], "plain")', "stores to x, which is not among its writes"),
        (
            'c = local(f32[4, 4])\n        mma("m", c[0: +4, 0: +4], x[0: +4, 0: +6], x[0: +4, 0: +6], "mk", "kn")',
            "expected kn with",
        ),
        ("x = local(f32[4])", "x is bound twice"),
        ('with stage("copy"):\n            y[0] = 1.0', "'copy' is not the role of all that is in its stage"),
        ('with stage("rest"):\n            pass', "'rest' is not the role of all that is in its stage"),
        ("t = shared(f32[16], lanes(16, threads=4, vector=2))", "t in shared memory has 1 slots and the layout"),
        ("t = registers(f32[16], slots=2)", "t in registers memory has 2 slots"),
        (
            "t = registers(f32[8, 4], fragment((4, 8), [4 @ (1, 0)], [8 @ (0, 1)], unit=8))",
            "laid out as a tile of (4, 8)",
        ),
        ("t = registers(f32[8], fragment((8, 1), [4 @ (2, 0)], [], unit=1))", "its 8 rows are not those that threads"),
        ("t = registers(f32[8], fragment((8, 1), [8 @ (1, 1)], [], unit=1))", "a digit goes along one axis"),
        (
            "c = local(f32[4, 4])\n        "
            'mma("m", c[0: +4, 0: +4], x[0: +4, 0: +6], x[0: +6, 0: +4], "mk", "kn", grid=(3, 1))',
            "in a grid of (3, 1) do not divide c",
        ),
    ],
}
CACHED = "def f(x: f32[4], *, y: f32[4]):\n    with kernel('k', [x, y], writes=[y], {}):\n        pass\n"

CASES = [(stage, line, said) for stage, rows in REFUSED.items() for line, said in rows]


@pytest.mark.parametrize(("stage", "line", "said"), CASES, ids=[f"{s}-{said}" for s, _, said in CASES])
def test_refused(stage: str, line: str, said: str) -> None:
    text = (TENSOR if stage == "tensor" else LOOP).format(line)
    with pytest.raises(ValueError) as refusal:
        IRS[stage].verify(IRS[stage].parse(text))
    assert said in str(refusal.value)


def test_an_error_of_text_names_line_and_column() -> None:
    with pytest.raises(ValueError, match="line 3, column 24: z is not a buffer here"):
        IRS["tensor"].parse(TENSOR.format("y[i: 4]: f32 = z[i]"))
    with pytest.raises(ValueError, match="line 2, column"):
        IRS["loop"].parse("def f(x: f32[4]):\n    with kernel(:\n")


@pytest.mark.parametrize("said", ["once=[y]", "past=[x]", "once=[z]"])
def test_a_kernel_reads_once_what_it_only_reads_and_writes_past_the_caches_what_it_writes(said: str) -> None:
    with pytest.raises(ValueError, match="past the caches"):
        IRS["tile"].verify(IRS["tile"].parse(CACHED.format(said)))


VIEW = "def f(x: f32[4, 6], *, y: f32[4]):\n    with kernel('k', [view(x, {}), y], writes=[y]):\n        y[0] = 1.0\n"


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ("f32[5, 6]", "x is seen as 30 elements of f32, and has 24 of f32"),
        ("i32[24]", "x is seen as 24 elements of i32, and has 24 of f32"),
    ],
)
def test_no_kernel_sees_more_of_a_buffer_than_there_is(seen: str, said: str) -> None:
    IRS["loop"].verify(IRS["loop"].parse(VIEW.format("f32[3, 8]")))
    with pytest.raises(ValueError, match=said):
        IRS["loop"].verify(IRS["loop"].parse(VIEW.format(seen)))


@pytest.mark.parametrize("ir", ["loop", "tile", "kernel"])
def test_a_buffer_is_a_parameter_once(ir: str) -> None:
    text = VIEW.format("f32[4, 6]").replace("view(x, f32[4, 6])", "x, x")
    text = text.replace("kernel(", "function(") if ir == "kernel" else text
    with pytest.raises(ValueError, match="k: x is a parameter twice"):
        IRS[ir].verify(IRS[ir].parse(text))


TWICE = """def f(x: f32[4], *, y: f32[4], z: f32[4]):
    with kernel("k", [x, y], writes=[y]):
        y[0] = 1.0
    with kernel("k", [x, z], writes=[z]):
        z[0] = 1.0
"""


@pytest.mark.parametrize("ir", ["loop", "tile"])
def test_kernels_differ_in_name(ir: str) -> None:
    with pytest.raises(ValueError, match="f: several kernels are called k"):
        IRS[ir].verify(IRS[ir].parse(TWICE))
