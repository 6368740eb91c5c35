"""Pointwise ops: the Tensor program of each expression gives what eager gives, on ordinary and special values."""

import pytest
import torch
import torch.nn.functional as F  # noqa: F401 - of what is evaluated

from compiler import frontend
from compiler.errors import CompilerError
from compiler.passes.torch_to_tensor.lower import lower
from compiler.tests.eager import check, expressions, words

nan, inf = float("nan"), float("inf")

UNARY = words("""abs neg sign sgn square positive exp exp2 expm1 sqrt rsqrt log log2 log10 log1p sin cos tan atan sinh
    cosh tanh asinh erf erfc lgamma ceil floor trunc round frac reciprocal sigmoid rad2deg deg2rad relu isnan isinf
    isfinite isposinf isneginf signbit logical_not nan_to_num""")
INTEGER = words("""abs neg sign square exp sigmoid ceil floor trunc round relu isnan isinf isfinite logical_not
    bitwise_not""")
ACTIVATIONS = words("""silu mish relu6 selu elu celu leaky_relu hardswish hardsigmoid hardtanh hardshrink softshrink
    softplus softsign logsigmoid tanhshrink""")
ARITHMETIC = words("add sub mul div fmod remainder floor_divide lt le gt ge eq ne")
OF_TENSORS = words("maximum minimum fmax fmin logical_and logical_or logical_xor")
OF_FLOATS = words("atan2 hypot logaddexp")


def inputs() -> dict[str, torch.Tensor]:
    x = torch.randn(3, 4, 5)
    i = torch.randint(-9, 10, (3, 4, 5))
    special = torch.tensor([nan, inf, -inf, -0.0, 0.0, 1, -1, 0.5, -0.5, 2.5, -2.5, 1e-30, 30, -30, 3.7, -3.2])
    return {
        "x": x, "y": torch.randn(3, 1, 5), "z": torch.randn(4, 1), "p": x.abs() + 0.1, "h": x.bfloat16(),
        "g": x.half(), "d": x.double(), "i": i, "j": torch.where(i == 0, 3, i).roll(1), "b": i > 0,
        "c": i < 3, "u": i.abs().to(torch.uint8), "s": special, "s1": special.reshape(-1, 1), "n": torch.tensor(0.1),
        "tenth": torch.tensor([0.1, -2, 3]).bfloat16(), "zero": torch.zeros(0, 3), "w": torch.randn(4),
        "wide": torch.randn(3, 1).expand(3, 4), "part": torch.randn(6, 8)[::2, 1::3], "turned": torch.randn(6, 8).t(),
    }  # fmt: skip


EXPRESSIONS = """
    torch.asin(x.tanh())
    torch.acos(x.tanh())
    torch.atanh(x.tanh() * 0.9)
    torch.acosh(p + 1)
    F.gelu(x)
    F.gelu(h)
    F.gelu(s, approximate="tanh")
    F.elu(s, 0.3)
    F.celu(s, 0.3)
    F.leaky_relu(s, 0.2)
    F.hardtanh(s, -2, 0.5)
    F.softplus(s, 2, 5)
    F.threshold(s, 0.1, 20)
    F.prelu(x, w)
    torch.logit(x.sigmoid())
    torch.logit(s, 0.2)
    torch.nan_to_num(s, 1.0, 2.0, 3.0)
    torch.round(x * 100, decimals=2)
    torch.heaviside(s, s1)
    torch.add(x, y, alpha=2)
    torch.add(i, i, alpha=3)
    torch.sub(x, y, alpha=0.5)
    torch.rsub(x, 3, alpha=2)
    3 - x
    2 / p
    b + c
    b * c
    u + 200
    u * u * u
    h * 0.1 + 1
    x / 3
    i / 3
    x + i
    x * d
    x + n
    h + n
    i + 0.5
    i * True
    torch.div(x, y, rounding_mode=None)
    torch.div(x, y, rounding_mode="floor")
    torch.div(x, y, rounding_mode="trunc")
    torch.div(i, j, rounding_mode="floor")
    torch.div(i, j, rounding_mode="trunc")
    torch.div(i, 3, rounding_mode="floor")
    torch.div(s, s1, rounding_mode="floor")
    torch.xlogy(x, p)
    torch.xlogy(s, s1)
    torch.pow(p, x)
    torch.pow(p, i)
    2 ** x
    i ** 2.0
    i.abs() ** 0.5
    x.clamp(-1, 1)
    s.clamp(min=0)
    s.clamp(max=0)
    x.clamp(2, 1)
    i.clamp(-1, 2.5)
    x.clamp(y, y + 1)
    torch.clamp(x, min=y)
    torch.clamp_max(h, 0.1)
    torch.where(b, x, y)
    torch.where(b, x, 0.0)
    torch.where(b, 1, 0)
    torch.where(b, h, i)
    torch.lerp(x, y, 0.3)
    torch.lerp(x, y, z)
    torch.addcmul(x, y, z, value=0.5)
    torch.addcdiv(x, y, z, value=2)
    i & j
    i | 5
    i ^ j
    b & c
    ~b
    u ^ 7
    i << 2
    i << i.abs()
    i >> i
    u >> 2
    x.bfloat16().float() * 3
    x.half().float() + 1
    x.type_as(i)
    x.double() + x * 2
    tenth == 0.1
    tenth < n
    torch.remainder(-tenth, 0.1)
    torch.remainder(-tenth, n)
    (x, x + 1, x)
    torch.max(x, y)
    x.clone().detach().contiguous()
    zero * 2 + 1
    n * 2
    wide + 1
    part * 2
    turned - 1
"""


WRAPPED = """
    u * -2
    i + 2**63
    i - 2**63
    2**63 * i
    x + 2**63
    u + 300
    -300 - u
    u == -2
    u < 300
    u.clamp(-2, 30)
    u.clamp_min(-2)
    u // -2
    u % -3
    torch.fmod(u, -3)
    u | 300
    u << 9
    u * 2.5
    u.masked_fill(b, -1)
    torch.where(b, u, -1)
    torch.add(u, u, alpha=-2)
    torch.full_like(u, -1)
    i.int() * 2 ** 40
    i.int() == 2 ** 40
"""


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("of", ["s", "h"])
def test_unary(name: str, of: str) -> None:
    check(f"torch.{name}({of})", inputs)


@pytest.mark.parametrize("name", INTEGER)
def test_unary_of_integers(name: str) -> None:
    check(f"torch.{name}(i)", inputs)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    check(f"(F.{name}(s), F.{name}(g))", inputs)


@pytest.mark.parametrize("name", ARITHMETIC + OF_TENSORS + OF_FLOATS)
def test_binary(name: str) -> None:
    """Broadcast, on special values, in 16 bits, of mixed types and of scalars."""
    forms = ["(x, z)", "(s, s1)", "(h, n)"]
    forms += ["(i, j)", "(i, p)"] if name not in OF_FLOATS else []
    forms += ["(tenth, 0.1)", "(x, 0.1)", "(i, 3)", "(i, 0.3)"] if name in ARITHMETIC else []
    check(f"({', '.join(f'torch.{name}{form}' for form in forms)},)", inputs)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 7, -1, -2, 0.5, -0.5, 2.5, 1 / 3])
def test_powers(exponent: float) -> None:
    integer = f", i ** {exponent}" if isinstance(exponent, int) and exponent >= 0 else ""
    check(f"(s ** {exponent}, p ** {exponent}{integer})", inputs)


@pytest.mark.parametrize("name", ["int64", "int32", "int16", "int8", "uint8"])
def test_powers_of_integers(name: str) -> None:
    """They wrap; a negative exponent leaves what is whole of the fraction."""
    kind = getattr(torch, name)
    info = torch.iinfo(kind)

    def powers() -> dict[str, torch.Tensor]:
        base = torch.randint(-9, 10, (4, 7)).to(kind)
        base[0], base[1], base[2] = 1, -1, 0
        exponent = torch.randint(-9, 10, (7,)).to(kind)
        exponent[0], exponent[1], exponent[2] = info.max, info.min, 0
        return {"base": base, "exponent": exponent}

    check("(base ** exponent, torch.pow(-3, exponent), torch.pow(1, exponent), base ** 77, base ** 1)", powers)


@pytest.mark.parametrize("expression", expressions(WRAPPED))
def test_numbers_wrap_where_they_meet_a_tensor(expression: str) -> None:
    check(expression, inputs)


@pytest.mark.parametrize("expression", ["u.clamp(-2, 300)", "u.masked_fill(b, 300)", "u ** 300", "i ** -1"])
def test_numbers_that_torch_refuses(expression: str) -> None:
    given = inputs()
    with pytest.raises(CompilerError, match=r"300|integers"):
        lower(frontend.capture(eval(f"lambda u, b, i: {expression}"), [given["u"], given["b"], given["i"]]).program)


TYPES_REFUSED = """
    torch.heaviside(x, x.double())
    torch.heaviside(i, x)
    torch.sub(i, i, alpha=1.0)
    torch.add(i, i, alpha=True)
    torch.add(x, x, alpha=True)
    F.layer_norm(x, x.shape[-1:], x[0].double())
    F.layer_norm(x, x.shape[-1:], x[0].bfloat16())
    F.layer_norm(x.bfloat16(), x.shape[-1:], x[0], x[0].bfloat16())
    F.batch_norm(x, x[0], x[0].exp(), x[0].double())
    F.batch_norm(x, x[0].half(), x[0].half().exp())
    F.group_norm(x, 1, x[0].double())
    F.instance_norm(x[None], weight=x[:, 0].double())
"""


@pytest.mark.parametrize("expression", expressions(TYPES_REFUSED))
def test_types_that_torch_refuses(expression: str) -> None:
    x, i = torch.randn(4, 6), torch.randint(-9, 9, (4, 6))
    function = eval(f"lambda x, i: {expression}")
    with pytest.raises(RuntimeError):
        function(x, i)
    with pytest.raises(CompilerError):
        lower(frontend.capture(function, [x, i]).program)


@pytest.mark.parametrize("to", ["float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool"])
def test_conversions(to: str) -> None:
    check(f"((x.abs() * 50).to({to}), i.abs().to({to}), b.to({to}), p.to({to}).to(float32) * 3)", inputs)


@pytest.mark.parametrize("expression", expressions(EXPRESSIONS))
def test_expressions(expression: str) -> None:
    check(expression, inputs)
