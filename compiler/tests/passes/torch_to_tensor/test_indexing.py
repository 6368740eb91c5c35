"""Gathers, scatters and masks: the Tensor program gives what eager gives, and never leaves a tensor."""

import numpy as np
import pytest
import torch

from compiler import frontend
from compiler.errors import InvalidData
from compiler.interpret import tensor as interpret
from compiler.passes.torch_to_tensor import lower
from compiler.tests.eager import check, expressions


def inputs() -> dict[str, torch.Tensor]:
    whole = torch.randint(-3, 4, (5, 4, 6)).float()
    return {
        "x": torch.randn(5, 4, 6), "w": whole, "y": torch.randn(5, 7), "h": torch.randn(5, 7).bfloat16(),
        "n": torch.randint(-9, 10, (5, 7)), "b": torch.rand(5, 7) > 0.5, "mask": torch.rand(5) > 0.5,
        "s": torch.tensor(2.5), "v": torch.randn(7), "z": torch.zeros(0, dtype=torch.int64),
        "i": torch.randint(0, 3, (3,)), "j": torch.randint(0, 4, (3,)), "neg": torch.randint(-4, 4, (2, 3)),
        "distinct": torch.randperm(5)[:4], "columns": torch.randperm(7)[:4],
        "i32": torch.randint(0, 5, (9,), dtype=torch.int32),
        "zero": torch.tensor(2), "g": torch.randint(0, 4, (4, 3, 2)), "p": torch.randint(0, 5, (5, 7)),
        "q": torch.stack([torch.randperm(5) for _ in range(4)], 1)[:3], "src": torch.randn(6, 7),
        "many": torch.randn(9, 7),
        "i2": torch.randint(0, 7, (2, 5)),
    }  # fmt: skip


EXPRESSIONS = """
    torch.gather(x, 1, g), torch.gather(x, 0, g), torch.gather(x, -1, g), torch.gather(h, 1, p), torch.gather(n, 0, p)
    torch.gather(s, 0, torch.tensor(0)), torch.gather(s, 0, torch.tensor([0, 0])), torch.gather(y, 1, p[:0])
    torch.take_along_dim(y, p, 1), torch.take_along_dim(y, p[:1], 1)
    torch.take_along_dim(y[:1], p, 1), torch.take_along_dim(y, i2)
    torch.take(x, neg * 9), torch.take(v, zero), torch.take(y, z)
    torch.index_select(x, 0, i), torch.index_select(x, -1, i32)
    torch.index_select(x, 1, z), torch.index_select(h, 0, zero)
    torch.index_select(v, 0, i), torch.index_select(s, 0, zero - 2), n.index_select(1, i)
    F.embedding(neg.abs(), y), F.embedding(i32, y, padding_idx=1), F.embedding(z, y), F.embedding(zero, h)
    x[i], x[i, j], x[:, j], x[i[:, None], j], x[..., j], x[1:, i, ::2], x[i, :, j]
    x[:, i, j], x[i, None, j], x[neg], x[:, neg]
    x[neg, neg], x[neg, :, neg], x[[0, 2, -1]], x[:, [1, 1]], x[z], x[i, 1], x[:, i32 % 4]
    b[i], h[i], n[i, j], x[neg][0], x[i - 3, j - 4], v[i], v[i[:, None]], x[i.to(int32), j]
    torch.index_put(y, (distinct, columns), v[:4])
    torch.index_put(y, (distinct,), s)
    torch.ops.aten.index_put(y, [None, columns], s)
    torch.index_put(y, (i,), many[:3], accumulate=True)
    torch.index_put(y, (distinct - 5, columns), s, accumulate=True)
    torch.index_put(n, (i, j), n[0, :3], accumulate=True)
    torch.index_put(h, (distinct,), h[:4] * 2), torch.index_put(y, (z,), s)
    torch.index_put(y, (b,), s), torch.index_put(y, (mask,), s), torch.index_put(y, (b,), s, accumulate=True)
    torch.ops.aten.index_put(x, [None, None, distinct], s), torch.ops.aten.index_put(x, [None, distinct % 4], x, True)
    torch.scatter(y, 0, q, src), torch.scatter(y, 0, q, 1.5), torch.scatter(n, 0, q, 3), torch.scatter(b, 0, q, True)
    torch.scatter(s, 0, torch.tensor(0), s + 1), torch.scatter(y, 0, q[:0], src), torch.scatter(h, 0, q, 0.1)
    torch.scatter(y, 1, p, 2.0), torch.zeros(5, 7).scatter(1, i2.T, 1.0)
    torch.scatter(y, 0, q, src, reduce="add")
    torch.scatter(y, 0, q, 2.0, reduce="multiply")
    torch.scatter(y, 0, q, 2.0, reduce="add")
    torch.scatter_add(y, 0, p, src), torch.scatter_add(y, 1, p, src)
    torch.scatter_add(n, 0, p, n), torch.scatter_add(h, 0, p, h)
    *(torch.scatter_reduce(y, 0, p, src, r) for r in ("sum", "prod", "amax", "amin", "mean"))
    *(torch.scatter_reduce(y, 1, i2.T, src, r, include_self=False) for r in ("sum", "prod", "amax", "amin", "mean"))
    *(torch.scatter_reduce(n, 1, i2.T, n, r, include_self=k) for r in ("sum", "amax", "mean") for k in (True, False))
    torch.index_add(y, 0, i32, many)
    torch.index_add(y, 1, i, y[:, :3], alpha=2)
    torch.index_add(n, 0, i, n[:3], alpha=-2)
    torch.index_add(v, 0, i, v[:3]), torch.index_add(h, 0, i, h[:3])
    torch.index_add(y, 0, z, y[:0]), torch.index_add(s, 0, zero - 2, s)
    torch.index_copy(y, 0, distinct, src[:4])
    torch.index_copy(v, 0, columns, v[:4])
    torch.index_copy(x, 1, distinct[:0], x[:, :0])
    torch.index_fill(y, 0, i, 2.0), torch.index_fill(y, 1, i - 3, -1)
    torch.index_fill(n, 0, zero, 3), torch.index_fill(y, 0, i, s)
    torch.masked_fill(y, b, 2.5), torch.masked_fill(y, b, s), torch.masked_fill(n, b, 3)
    torch.masked_fill(h, b, 0.1), y.masked_fill(b[0], -inf)
    torch.masked_fill(v, b, 1.0), y.masked_fill(mask[:, None], 0)
    torch.masked_fill(b, b, False), h.masked_fill(b, -1e38)
    torch.put(y, i2, torch.arange(10.0).view(2, 5) * 0 + s), torch.put(y, i2 - 35, y[:2, :5], accumulate=True)
"""


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning")
@pytest.mark.parametrize("expression", expressions(EXPRESSIONS))
def test_agrees_with_eager(expression: str) -> None:
    check(f"({expression},)", inputs)


OUTSIDE = """
    x[i]
    torch.gather(x, 0, i[:, None])
    torch.index_select(x, 1, i)
    torch.take(x, i)
    F.embedding(i, x)
    torch.scatter(x, 0, i[:, None], 1.0)
    torch.index_add(x, 0, i, x[:3])
    torch.index_put(x, (i,), x[:3])
    F.nll_loss(x[:3], i)
    F.one_hot(i, 3)
"""


@pytest.mark.parametrize("expression", expressions(OUTSIDE))
def test_an_index_out_of_range_is_refused(expression: str) -> None:
    function = eval(f"lambda x, i: {expression}", {"torch": torch, "F": torch.nn.functional})
    captured = frontend.capture(function, (torch.randn(4, 5), torch.tensor([0, 1, 2])))
    program = lower.lower(captured.program)
    given = {"x": np.ones((4, 5), np.float32), "i": np.array([-(10**12), 99, 10**15])}
    with pytest.raises(InvalidData):
        interpret.run(program, [given[t.name] for t in program.inputs])
