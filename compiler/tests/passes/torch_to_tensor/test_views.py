"""Views, joins, padding and new tensors: the Tensor program gives what eager gives, for every rank, type and layout."""

import pytest
import torch

from compiler import frontend
from compiler.errors import Unsupported
from compiler.ir import tensor, tensor_text
from compiler.passes.torch_to_tensor import lower
from compiler.tests.eager import check, expressions


def inputs() -> dict[str, torch.Tensor]:
    x = torch.randn(3, 4, 5)
    i = torch.randint(-9, 10, (3, 4))
    return {
        "x": x, "y": torch.randn(4, 6), "v": torch.randn(7), "s": torch.tensor(2.5), "z": torch.zeros(0, 4),
        "h": torch.randn(4, 6).bfloat16(), "g": torch.randn(4, 6).half(), "i": i, "b": i > 0, "u": i.to(torch.uint8),
        "one": torch.randn(1, 5, 1, 3), "image": torch.randn(2, 3, 6, 5), "part": torch.randn(3, 2, 5),
        "across": torch.randn(5, 4, 3).transpose(0, 2), "far": torch.randn(6, 12)[1::2, ::3], "row": torch.randn(1, 4),
        "big": torch.randn(2, 3, 2, 2, 3, 2),
    }  # fmt: skip


VIEWS = """
    x.view(12, 5), x.view(-1), x.view(3, 2, 2, 5), x.reshape(4, 3, 5), x.reshape(2, -1), x.view(3, 1, 4, 1, 5)
    x.view_as(x), x.ravel(), x.unflatten(1, (2, -1)), x.flatten(0, 1), s.reshape(1, 1), s.view(-1), s.flatten()
    across.reshape(12, 5), across.reshape(4, 15), far.reshape(-1), across.contiguous(), far.clone()
    big.reshape(6, 4, 6), big.reshape(12, 12), big.permute(5, 0, 3, 2, 4, 1), big.flatten(1, 4)
    z.reshape(4, 0), z.reshape(2, 0, 7), z.permute(1, 0), z.view(-1, 2, 2), z[:, 1], z.flip(0), z.unbind(1)
    x.permute(2, 0, 1), x.permute(-1, 0, 1), x.permute(0, 1, 2), x.transpose(0, -1), x.mT, y.T, y.t(), v.t(), s.t()
    x.movedim(0, -1), x.movedim((0, 1), (-1, 0)), x.swapaxes(0, 1), x.mH, s.transpose(0, 0)
    one.squeeze(), one.squeeze(0), one.squeeze(1), one.squeeze((0, -2)), s.squeeze(), s.unsqueeze(0), x.unsqueeze(-2)
    x[::2], x[1:3], x[-2:], x[:, :-1], x[..., 1::3], x[5:], x[:, 3:1], x[-9:9], x[1], x[-1, :, 2], x[None, ..., 1]
    v[0], v[2:5], x.narrow(1, -2, 2), x.select(-1, -5), torch.select(y, 0, 3), b[1:, ::2], u[::3]
    x.split(2, 1), x.split([1, 3], 1)[1], x.chunk(3, -1), x.chunk(2), x.tensor_split(3, 2), x.tensor_split((1, -1), 2)
    x.unbind(), x.unbind(-1)[2], torch.unsafe_chunk(y, 2, 1), torch.unsafe_split(y, 3), y.hsplit(2), v.split(3)[2]
    v.unfold(0, 3, 2), x.unfold(1, 2, 1), s.unfold(0, 1, 1)
    x.diagonal(), x.diagonal(1, 1, 2), x.diagonal(-2, 0, -1), x.diagonal(0, 2, 0), y.diag(), v.diag(), v.diag(-1)
    torch.diag_embed(y), torch.diag_embed(y, 2), torch.diag_embed(y, -1, 0, 1), torch.diag_embed(i, 0, 2, 0)
    x.tril(), x.triu(1), y.tril(-2), y.triu(-1), b.tril(), i.triu(), h.tril(1), z.tril()
    row.expand(3, 4), row.expand(2, -1, 4), s.expand(2, 3), row.expand(0, 4), row.expand_as(y[:, :4]), s.expand(0)
    torch.broadcast_to(v, (2, 7)), torch.broadcast_tensors(row, y[:, :1], s), torch.atleast_2d(v)
    y.repeat(2, 3), y.repeat(2, 1, 1), v.repeat(3), s.repeat(2), y.repeat(0, 1), torch.tile(y, (2,)), s.tile((2, 2))
    y.repeat_interleave(2), y.repeat_interleave(3, 0), y.repeat_interleave(2, -1)
    x.flip(0), x.flip(-1, 0), x.flip(()), x.rot90(), x.rot90(-1, (1, 2)), y.fliplr(), y.flipud()
    x.roll(2), x.roll(-3, 1), x.roll((1, -2), (0, 2)), x.roll((1, 1), (0, 0)), v.roll(9, 0), z.roll(1, 0), i.roll(5)
    torch.slice_scatter(x, part, 1, 1, 3)
    torch.slice_scatter(x, part, 1, 0, 4, 2)
    torch.slice_scatter(h, y[:2], 0, 2)
    torch.select_scatter(x, y[:3, :4] * 2, 2, -1)
    torch.diagonal_scatter(y, v[:4], 2), torch.diagonal_scatter(y, v[:3], -1), torch.diagonal_scatter(y, v[:4])
    h.view(24), h.permute(1, 0), h[::2], g.flip(0), g.reshape(6, 4), b.T, u.view(-1), h.repeat(2, 1), h.triu()
    x.view(torch.float32), i.t().view(torch.int64), b.view(torch.bool), h.view(torch.bfloat16) * 2
    x.detach(), x.clone(), x[:2].contiguous() + 1, x.permute(2, 1, 0).reshape(-1) * 2
"""

JOINS = """
    torch.cat([y, y]), torch.cat([y, h], 1), torch.cat([y[:1], y, y[:0]], 0)
    torch.cat([x, part], 1), torch.cat([y], -1)
    torch.cat([i, u]), torch.cat([i, b, y[:, :4]]), torch.cat([h, h * 2]), torch.cat([h, g]), torch.cat([z, y[:, :4]])
    torch.cat([torch.zeros(0), y], 1), torch.cat([torch.zeros(0), y]), torch.cat([z, z]), torch.cat([u, h[:3, :4]])
    torch.cat([v[k : k + 1] for k in range(7)]), torch.cat([b, b], 1), torch.cat([h.float() * 2, y])
    torch.stack([y, y * 2]), torch.stack([y, y, y], -1)
    torch.stack([s, s + 1]), torch.stack([z, z]), torch.stack([h, h])
    torch.hstack([v, v]), torch.vstack([y, y]), torch.dstack([y, y])
    torch.column_stack([v, v]), torch.stack([i, i], 1)
    F.pad(y, (1, 2)), F.pad(x, (1, 0, 2, 3), value=-1.5)
    F.pad(x, (0, 0, 0, 0, 2, 1)), F.pad(v, (-1, 2)), F.pad(v, (-2, -3))
    F.pad(x, (1, -2, -1, 1)), F.pad(i, (2, 1), value=3), F.pad(b, (2, 1), value=True), F.pad(h, (1, 1), value=0.1)
    F.pad(z, (0, 0, 1, 1), value=2), F.pad(y, (0, 0)), F.pad(v, (-7, 0))
    F.pad(u, (1, 1)), F.pad(g, (0, 1), value=inf)
    F.pad(x, (1, 2), mode="reflect"), F.pad(y, (0, 4), mode="reflect")
    F.pad(image, (1, 2, 3, 0), mode="reflect")
    F.pad(image[None], (1, 2, 3, 0, 1, 2), mode="reflect"), F.pad(image[None], (1, 2, 3, 0, 9, 2), mode="replicate")
    F.pad(x, (9, 2), mode="replicate")
    F.pad(image, (1, 2, -3, 7), mode="replicate")
    F.pad(h, (1, 2), mode="replicate")
    F.pad(x, (5, 2), mode="circular"), F.pad(image, (1, 2, 3, 6), mode="circular")
    F.pad(image, (-1, 2, 3, -2), mode="circular")
    F.pad(image[None], (1, 2, 3, 0, 3, 2), mode="circular")
"""

NEW = """
    torch.arange(5) + i[0, 0], v * torch.arange(3, 10), torch.arange(0, 10, 3)
    torch.arange(1.0, 2.0, 0.25), torch.arange(5, 0, -2)
    v + torch.arange(7, dtype=float16), torch.arange(0, 900, 3, dtype=bfloat16)
    torch.arange(7, dtype=uint8), torch.arange(0)
    torch.arange(0.5, 7, dtype=float64), torch.arange(2, 7.5), torch.arange(-3, 4, 2, dtype=int32)
    torch.zeros(2, 3) + s, torch.ones(0, 3), torch.ones((), dtype=int64), torch.zeros_like(x), torch.ones_like(b)
    torch.zeros_like(x, dtype=int64), torch.full((2, 3), 2.5), torch.full((2,), -1, dtype=int32), torch.full((), True)
    torch.full((3,), 0.1, dtype=bfloat16), torch.full_like(h, 0.1), torch.full_like(i, 3), torch.full_like(b, 1)
    x.new_full((2,), 3), h.new_zeros(2, 2), i.new_ones(3), x.new_tensor([1.0, 2.0])
    torch.scalar_tensor(2.5), s + torch.tensor([1, 2])
    torch.eye(3), torch.eye(3, 5), torch.eye(0), torch.eye(4, dtype=bool)
    torch.eye(2, dtype=float16), torch.fill(y, 3), torch.fill(h, s)
    torch.linspace(-1, 1, 9), torch.linspace(0, 5, 1), torch.linspace(3, 0, 4)
    torch.linspace(0, 1, 0), torch.linspace(0, 1, 2)
    F.one_hot(i.abs(), 10), F.one_hot(i[0, 0].abs(), 12), F.one_hot(i[:0], 3), torch.full((3, 3), -inf).triu(1)
    torch.meshgrid(v, s, indexing="ij"), torch.tril(torch.ones(4, 4, dtype=bool)), torch.empty(3).fill_(2) + s
"""


@pytest.mark.parametrize("expression", expressions(VIEWS + JOINS + NEW))
def test_agrees_with_eager(expression: str) -> None:
    check(f"({expression},)", inputs)


def test_empty_is_zeros() -> None:
    captured = frontend.capture(lambda x: (torch.empty_like(x) * 0, x.new_empty(2) * 0), (torch.randn(3),))
    tensor.verify(lower.lower(captured.program))


@pytest.mark.parametrize(
    ("shape", "to", "index"),
    [
        ((6, 20), (2, 3, 20), "x[i * 3 + j, k]"),
        ((2, 3, 20), (6, 20), "x[i // 3, i % 3, j]"),
        ((6, 20), (1, 6, 1, 20), "x[j, l]"),
        ((4, 6), (24,), "x[i // 6, i % 6]"),
        ((24,), (4, 6), "x[i * 6 + j]"),
        ((2, 6), (4, 3), "x[i // 2, i % 2 * 3 + j]"),
    ],
)
def test_reshape_has_the_simplest_index(shape: tuple[int, ...], to: tuple[int, ...], index: str) -> None:
    text = tensor_text.show(lower.lower(frontend.capture(lambda x: x.reshape(to), (torch.randn(shape),)).program))
    assert f" = {index}\n" in text


STRIDED = """
    y.as_strided((3, 3), (6, 2)), y.as_strided((5, 4), (4, 1), 0), y.as_strided((), ()), y.as_strided((0, 3), (3, 1))
    y.t().as_strided((3, 3), (1, 2)), (y + 1).as_strided((5, 3), (3, 1), 4), (y + 1).t().as_strided((5, 3), (3, 1), 4)
    (x * 2).as_strided((2, 4, 3), (20, 5, 2)), across.as_strided((3, 4), (1, 3)), s.as_strided((2, 2), (0, 0))
"""


@pytest.mark.parametrize("expression", expressions(STRIDED))
def test_strided_views(expression: str) -> None:
    check(f"({expression},)", inputs)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("y.as_strided((2, 2), (1, 1), 3)", "an offset into memory that an input is part of"),
        ("(y + 1)[1:].as_strided((2, 2), (1, 1), 0)", "an offset before the elements"),
        ("y.as_strided((5, 5), (6, 1))", "beyond the elements"),
        ("y[:, ::2].as_strided((2, 2), (2, 1))", "does not fill its memory"),
    ],
)
def test_views_of_memory_beside_a_tensor_are_refused(expression: str, why: str) -> None:
    with pytest.raises(Unsupported, match=rf"as_strided.*{why}"):
        lower.lower(frontend.capture(eval(f"lambda y: {expression}"), (torch.randn(4, 6),)).program)


def test_bits_are_not_looked_at_as_another_type() -> None:
    captured = frontend.capture(lambda x: x.view(torch.int32) + 1, (torch.randn(3),))
    with pytest.raises(Unsupported, match=r"view\.dtype\(f32\[3\], i32\): bits are not"):
        lower.lower(captured.program)


def test_fill_that_does_not_fit_is_refused() -> None:
    captured = frontend.capture(lambda x: torch.constant_pad_nd(x, (1, 1), 300), (torch.zeros(3, dtype=torch.uint8),))
    with pytest.raises(Unsupported, match=r"constant_pad_nd.*300 is not a value of type u8"):
        lower.lower(captured.program)
