"""Kernel IR prints as text that reads back as the same program, and says where text is wrong."""

import pytest

from compiler.ir import kernel, kernel_text
from compiler.ir import kernel as k
from compiler.ir.dtype import bf16, boolean, f32, i8, i64
from compiler.ir.expr import Cast, Const, Load, Size, Var, const, op
from compiler.ir.tensor import Tensor, row_major
from compiler.ir.text import TextError
from compiler.tests.kernel_samples import SAMPLES


@pytest.mark.parametrize("name", SAMPLES)
def test_the_text_of_a_sample_is_its_own_fixed_point(name: str) -> None:
    program = kernel_text.parse(SAMPLES[name])
    kernel.verify(program)
    assert kernel_text.show(program).strip() == SAMPLES[name].strip()
    assert kernel_text.parse(kernel_text.show(program)) is program


def everything() -> k.Program:
    """A program with each statement and expression that no sample has."""
    x, y = (Tensor(n, f32, (Size("n"),), row_major((Size("n"),))) for n in "xy")
    h = Tensor("h", bf16, (const(8),), (const(1),))
    i, lanes = Var("i"), Var("v", f32.replace(lanes=4))
    body = (
        k.Comment('it\'s "quoted"\nover two lines'),
        k.Array("s", i8, 32, "shared", 128),
        k.Declare("v", k.Broadcast(Const(float("nan"), f32), 4)),
        k.Declare("b", k.Broadcast(Const(True, boolean), 4)),
        k.Assign("v", op("where", Var("b", boolean.replace(lanes=4)), lanes, Const(-2.5, f32.replace(lanes=4)))),
        k.For("i", const(0), Size("n"), 1, (k.Store("h", i, Cast(Load("x", (i,), f32), bf16)),), "unroll"),
        k.If(
            op("lt", k.Builtin("thread.x"), 4),
            (k.Barrier("block"),),
            (k.Store("y", const(0), const(0.0, f32), "prod"),),
        ),
        k.Store("y", const(0), const(1.0, f32), "min"),
        k.Call("mlc_panel", (6, "float"), (k.Address("x", Size("n") - 3), const(2), k.Address("y", const(0))), ("y",)),
        k.Declare("any", k.Across("or", op("lt", lanes, lanes))),
        k.Declare("there", k.Peer("y", const(1), const(3), f32)),
        k.Store("y", op("neg", Size("n")), const(float("-inf"), f32)),
        k.If(const(False, boolean), ()),
    )
    f = k.Function("f", (x, y, h), ("y", "h"), body, (Size("n"), const(2)), (32, 4), ("aten.a", "b"), "one\ntwo")
    f = f.replace(cluster=4, exchanged=("h",))
    return k.Program("all", (x,), (y,), (h,), (f,), (Size("n"),), ("h",))


def test_every_construct_survives_the_round_trip() -> None:
    program = everything()
    assert kernel_text.parse(kernel_text.show(program)) is program


def test_nothing_at_all_survives_too() -> None:
    empty = k.Program("empty", (), (), (), ())
    assert kernel_text.parse(kernel_text.show(empty)) is empty


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("v: f32x8 = x[0]", "line 3, column 9: v is declared f32x8 but its value is f32"),
        ("v = w", "w is not defined here"),
        ("y[0] = x[0, f64x4]", "x has elements of type f32"),
        ("y[0] = x[0, f33x4]", "f33x4 is not a type"),
        ("y[0] = gather(z, 0)", "gather is neither an operation nor a type"),
        ("y[0] = update(mean, 1.0)", "mean is not a reduction"),
        ("y[0] = across(mean, x[0, f32x8])", "mean is not a reduction"),
        ("while True: pass", "not a statement"),
        ("y[0] = broadcast(1.0, 8) + 1", "the types differ"),
    ],
)
def test_wrong_text_is_refused_with_its_place(line: str, message: str) -> None:
    text = f"def f(x: f32[8], *, y: f32[8]):\n    with function('f', [x, y], writes=[y]):\n        {line}\n"
    with pytest.raises(TextError, match=r"line 3") as caught:
        kernel_text.parse(text)
    assert message in str(caught.value)


def test_a_parameter_must_be_a_tensor_of_the_program() -> None:
    with pytest.raises(TextError, match=r"'z' is not a tensor of this program"):
        kernel_text.parse("def f(x: f32[8]):\n    with function('f', [x, z], writes=[]):\n        pass\n")


def test_indices_are_i64() -> None:
    program = kernel_text.parse(SAMPLES["pointwise"])
    loop = program.functions[0].body[0]
    assert isinstance(loop, k.For) and loop.start.dtype is i64
