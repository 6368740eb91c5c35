"""Reductions, scans and normalisations: the Tensor program gives what eager gives, also for NaN and no elements."""

import pytest
import torch

from compiler.tests.eager import check, expressions, words

nan, inf = float("nan"), float("inf")

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom")


def inputs() -> dict[str, torch.Tensor]:
    x = torch.randn(3, 4, 5)
    special = x.clone()
    special[0, 1, 2], special[1, 2, :], special[2, :, 1] = nan, inf, -inf
    rows = torch.tensor([[-inf, -inf, -inf], [inf, 1, 2], [inf, -inf, 0], [nan, 1, 2], [-inf, 0, 1]])
    i = torch.randint(-9, 10, (3, 4, 5))
    return {
        "x": x, "h": x.bfloat16(), "g": x.half(), "d": x.double(), "i": i, "b": i > 0, "u": i.abs().to(torch.uint8),
        "n": special, "r": rows, "z": torch.zeros(0, 3), "s": torch.tensor(2.5),
        "t": torch.randint(0, 3, (4, 6)).float(), "w": torch.randn(5), "v": torch.randn(5), "w2": torch.randn(4, 5),
        "c": torch.randn(2, 6, 3, 4),
        "mean": torch.randn(6), "var": torch.rand(6) + 0.1, "gain": torch.randn(6), "shift": torch.randn(6),
        "mixed": torch.tensor([1.0, nan, 3, nan, -inf, 3, 3]),
    }  # fmt: skip


EXPRESSIONS = """
    x.sum((0, 2))
    x.sum((0, -2), keepdim=True, dtype=float64)
    x.sum(())
    x.sum(1, dtype=bfloat16)
    x.mean((0, 1))
    x.mean(1, dtype=float64)
    z.mean()
    x.prod(1, True, dtype=float64)
    x.amax((0, -1), keepdim=True)
    i.amin((0, 1))
    b.any((0, 1))
    b.all((0, 1), keepdim=True)
    u.any(0)
    x.var(0, correction=0)
    x.var(0, correction=1.5)
    x.var(0, correction=1000)
    x.std((1, 2), correction=0, keepdim=True)
    x.std(unbiased=False)
    x.var(-1, unbiased=False)
    (x + 1000).var(-1)
    torch.var_mean(x, -1, keepdim=True)
    torch.std_mean(x)
    torch.var_mean(torch.cat([x[:1] * inf, x]), 0)
    x.norm()
    torch.norm(x, p=1, dim=1)
    torch.norm(x, p="fro", dim=(1, 2))
    torch.linalg.matrix_norm(x)
    x.logsumexp((0, 1), keepdim=True)
    i.logsumexp(0)
    r.logsumexp(1)
    F.softmax(r, 1)
    F.log_softmax(r, 1)
    F.softmax(h, -1, dtype=float32)
    F.softmax(x, 0, dtype=bfloat16)
    F.log_softmax(x, 1, dtype=float64)
    F.softmin(x, 1)
    F.softmax(s, 0)
    tuple(mixed.cummax(0))
    tuple(mixed.cummin(0))
    tuple(t.cummax(0)) + tuple(t.cummin(1))
    b.cumsum(1)
    h.cumsum(1, dtype=float32)
    s.cumsum(0)
    tuple(s.cummax(0))
    F.layer_norm(x, (5,), w, v)
    F.layer_norm(x, (4, 5), w2, eps=1e-2)
    F.layer_norm(h, (5,), w.bfloat16())
    torch.native_layer_norm(x, (5,), None, None, 1e-5)
    F.rms_norm(x * 1e-3, (5,))
    F.rms_norm(h * 1e-3, (5,))
    F.rms_norm(g * 1e-3, (5,))
    F.rms_norm(d * 1e-3, (5,))
    F.rms_norm(x, (4, 5), w2, 1e-2)
    F.group_norm(c, 3, gain, shift)
    F.group_norm(c.half(), 2)
    F.group_norm(torch.sum(c, (2, 3)), 1)
    F.batch_norm(c, mean, var, gain, shift)
    F.batch_norm(c, mean, var, eps=0.1)
    F.batch_norm(c, None, None, training=True)
    F.instance_norm(c, weight=gain, bias=shift)
    F.instance_norm(c, mean, var, use_input_stats=False)
"""


@pytest.mark.parametrize("of", words("x i b u h d n z s"))
def test_folds(of: str) -> None:
    """Sum, product and truth, of all and along each end, with the reduced dimension kept or not."""
    dims = ["0", "-1"] if of != "s" else ["0"]
    for name in words("sum prod any all"):
        forms = ["", *dims, *(f"{d}, keepdim=True" for d in dims)]
        check(f"({', '.join(f'{of}.{name}({form})' for form in forms)},)", inputs)


@pytest.mark.parametrize("of", words("x i u h n s t"))
def test_extremes_and_their_places(of: str) -> None:
    forms = [f"{of}.{name}()" for name in words("amax amin max min argmax argmin")]
    forms += [f"{of}.{name}(-1)" for name in words("argmax argmin")]
    forms += [f"{of}.{name}(0, keepdim=True)" for name in words("argmax argmin")] + [f"{of}.argmax(keepdim=True)"]
    forms += [f"*{of}.{name}(-1)" for name in words("max min")] + [f"*{of}.max(0, keepdim=True)"]
    check(f"({', '.join(forms)},)", inputs)


@pytest.mark.parametrize("of", words("x h d n z s"))
def test_moments(of: str) -> None:
    check(f"({of}.mean(), {of}.var(), {of}.std(), {of}.mean(0), {of}.var(0))", inputs)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 2.5, 0.5, -1, "inf", "-inf"])
def test_norms(order: float | str) -> None:
    forms = [f"torch.linalg.vector_norm({of}, {order}{tail})" for of in "xhn" for tail in ("", ", (0, -1), True")]
    check(f"({', '.join(forms)})", inputs)


@pytest.mark.parametrize("of", words("x i b h n z s"))
def test_scans(of: str) -> None:
    forms = [f"{of}.{name}({d})" for name in words("cumsum cumprod") for d in (0, -1)]
    forms += [f"*{of}.{name}({d})" for name in words("cummax cummin") for d in (0, -1)]
    check(f"({', '.join(forms)})", inputs)


@pytest.mark.parametrize("expression", expressions(EXPRESSIONS))
def test_expressions(expression: str) -> None:
    check(expression, inputs)
