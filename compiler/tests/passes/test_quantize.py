"""Products with weights become products with integers: the text of what the pass makes, and what it leaves alone."""

import pytest

from compiler.errors import CompilerError
from compiler.ir import aten, aten_text
from compiler.passes.quantize import MODES, Quantized, quantize

LINEAR = """
def f(x: bf16[4, 64], w: constant(bf16[8, 64]), b: bf16[8]):
    y: bf16[4, 8] = aten.linear.default(x, w, b)
    return y
"""


def test_rows_are_scaled_behind_the_product() -> None:
    made, how = quantize(aten_text.parse(LINEAR), "int8-weight-only", ["w"])
    assert how == (Quantized("w", False, "w_int8", "w_scale", 8, 64),)
    assert aten_text.show(made) == (
        "def f(x: bf16[4, 64], b: bf16[8], w_int8: constant(i8[8, 64]), w_scale: constant(f32[8])):\n"
        "    to: bf16[8, 64] = aten.to.dtype(w_int8, bf16)\n"
        "    linear: bf16[4, 8] = aten.linear.default(x, to)\n"
        "    mul: f32[4, 8] = aten.mul.Tensor(linear, w_scale)\n"
        "    add: f32[4, 8] = aten.add.Tensor(mul, b)\n"
        "    y: bf16[4, 8] = aten.to.dtype(add, bf16)\n"
        "    return y\n"
    )


@pytest.mark.parametrize("mode", MODES)
def test_weights_are_found_whichever_way_round_they_are(mode: str) -> None:
    program = aten_text.parse("""
def f(x: f32[2, 4, 64], w: f32[8, 64], v: f32[64, 8], b: f32[8], z: f32[4, 64]):
    y: f32[2, 4, 8] = aten.linear.default(x, w)
    t: f32[64:1, 8:64] = aten.t.default(w)
    u: f32[4, 8] = aten.addmm.default(b, z, t)
    r: f32[2, 4, 8] = aten.matmul.default(x, v)
    p: f32[4, 8] = aten.mm.default(z, t)
    return y, u, r, p
""")
    made, how = quantize(program, mode, ["w", "v"])
    aten.verify(made)
    assert [(q.weight, q.across) for q in how] == [("w", False), ("v", True)], "each weight once"
    assert not {"w", "v", "t"} & set(aten.types(made)), "nothing reads what was quantized"


@pytest.mark.parametrize(
    "line",
    ["y: f32[4, 8] = aten.addmm.default(b, x, t, alpha=2)", "y: f32[4, 8] = aten.mm.default(x, o)",
     "y: f32[64, 8] = aten.mul.Tensor(t, b)"],
)  # fmt: skip
def test_other_calls_stay(line: str) -> None:
    program = aten_text.parse(f"""
def f(x: f32[4, 64], w: f32[8, 64], b: f32[8], o: f32[64, 8]):
    t: f32[64:1, 8:64] = aten.t.default(w)
    {line}
    return y
""")
    assert quantize(program, "int8-weight-only", ["w"])[0].calls[-1] is program.calls[-1]


def test_short_groups_and_unknown_modes_are_none() -> None:
    program = aten_text.parse(LINEAR.replace("64", "80"))
    assert quantize(program, "int4-weight-only", ["w"]) == (program, ())
    with pytest.raises(CompilerError, match="quantize is one of int8-weight-only"):
        quantize(program, "int2", ["w"])
