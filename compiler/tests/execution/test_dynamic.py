"""Programs with symbolic sizes, from PyTorch to running code: one compilation serves every size, at every stage."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import compiler
from compiler.ir.sizes import SizeError
from compiler.tests.called import placed
from compiler.tests.eager import TOLERANCE

N = Dim("n", min=1, max=300)
Make = Callable[[int], list[torch.Tensor]]


def rows(width: int, *others: int) -> Make:
    return lambda n: [torch.randn(n, width), *(torch.randn(k) for k in others)]


# name: the function, its inputs at a size, and which of their axes vary
CASES: dict[str, tuple[Callable[..., Any], Make, Any]] = {
    "pointwise": (lambda x, b: F.relu(x + b), rows(64, 64), ({0: N}, None)),
    "softmax": (lambda x: F.softmax(x, -1), lambda n: [torch.randn(5, n)], ({1: N},)),
    "norm": (lambda x, w: F.rms_norm(x, (40,), w), rows(40, 40), ({0: N}, None)),
    "transpose": (lambda x: x.t().contiguous(), rows(50), ({0: N},)),
    "heads": (
        lambda x: F.gelu(x.view(2, x.shape[1], 4, 8).transpose(1, 2).reshape(8, -1)),
        lambda n: [torch.randn(2, n, 32)], ({1: N},),
    ),
    "join": (lambda x, y: torch.cat([x, y], 0).var(0), lambda n: [torch.randn(n, 9), torch.randn(4, 9)],
             ({0: N}, None)),
    "place": (lambda x: x.argmax(), lambda n: [torch.randn(n, n + 1, 3)], ({0: N, 1: Dim("m", min=2, max=301)},)),
    "linear": (lambda x, w: F.silu(F.linear(x, w)) / x.shape[0], lambda n: [torch.randn(n, 24), torch.randn(32, 24)],
               ({0: N}, None)),
}  # fmt: skip


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("name", CASES)
def test_every_stage_at_several_sizes(name: str, target: str) -> None:
    function, make, shapes = CASES[name]
    captured = compiler.capture(function, make(33), dynamic_shapes=shapes)
    lowering = compiler.lower(captured.program, compiler.target(target))
    for stage in compiler.stages(lowering.target)[:-1]:
        ir = compiler.IRS[stage]
        assert ir.parse(lowering.show(stage)) is lowering.stages[stage]
    for n in (1, 2, 45):
        inputs = make(n)
        for stage in compiler.stages(lowering.target):
            check(compiler.execute(lowering, stage, inputs), function(*inputs), f"{stage} at {n}")


def test_an_op_that_needs_a_number_is_refused_by_name() -> None:
    captured = compiler.capture(
        lambda x: torch.ops.aten._upsample_bilinear2d_aa(x[None, None], [3, 3], False),
        [torch.randn(9, 5)],
        dynamic_shapes=({0: N},),
    )
    with pytest.raises(compiler.Unsupported, match=r"aten._upsample_bilinear2d_aa.*f32\[1, 1, s0, 5\].*must be known"):
        compiler.lower(captured.program, compiler.target("cpu"))


def check(got: Sequence[torch.Tensor], want: Any, where: str) -> None:
    wanted = list(want) if isinstance(want, tuple | list) else [want]
    for a, b in zip(got, wanted, strict=True):
        tolerance = TOLERANCE.get(b.dtype, 0.0)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda m: f"{where}: {m}")


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_one_compilation_serves_all_sizes(target: str) -> None:
    function, make, shapes = CASES["pointwise"]
    where = compiler.target(target)
    fast = compiler.compile(function, placed(make(40), where), where, dynamic_shapes=shapes)
    assert "const long s0" in fast.source or "long s0" in fast.source
    for n in (1, 7, 300, 7):
        inputs = make(n)
        check([fast(*placed(inputs, where)).cpu()], function(*inputs), f"at {n}")


def test_sizes_beyond_the_range_and_shapes_that_do_not_agree_are_refused() -> None:
    function, make, shapes = CASES["pointwise"]
    fast = compiler.compile(function, make(40), dynamic_shapes={"x": shapes[0]})
    for inputs, match in (
        (make(301), "s0 is 301, but it was compiled for sizes from 1 to 300"),
        ([torch.randn(4, 63), torch.randn(64)], r"input x has shape \[4, 63\], expected \[4, 64\]"),
        ([torch.randn(0, 64), torch.randn(64)], "s0 is 0"),
        ([torch.randn(4, 64).t().contiguous().t(), torch.randn(64)], "strides"),
    ):
        with pytest.raises((SizeError, ValueError), match=match):
            fast(*inputs)
    with pytest.raises(TypeError, match="expected 2 arguments"):
        fast(torch.randn(4, 64))
    with pytest.raises(compiler.CompilerError, match="dynamic_shapes names y"):
        compiler.compile(function, make(40), dynamic_shapes={"y": {0: N}})


@pytest.mark.parametrize(("rows", "depth", "step"), [(4096, 64, "Raster"), (32, 2048, "SplitReduction")])
def test_a_schedule_for_the_size_to_expect_is_right_at_others(rows: int, depth: int, step: str) -> None:
    """With tensor instructions, whose tiles reach beyond what is there."""
    example = [torch.empty(rows, depth).bfloat16(), torch.empty(1024, depth).bfloat16()]
    captured = compiler.capture(F.linear, example, dynamic_shapes=({0: Dim("m", min=1)}, None))
    lowering = compiler.lower(captured.program, compiler.target("sm_80"))
    (schedule,) = (str(s) for s in lowering.schedules.values())
    assert step in schedule and "Tensorize" in schedule
    for m in (1, 65):
        x, w = (torch.randint(-2, 3, shape).bfloat16() for shape in ((m, depth), (1024, depth)))
        for stage in ("kernel", "cuda"):
            assert torch.equal(compiler.execute(lowering, stage, [x, w])[0], F.linear(x, w)), (stage, m)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_any_number_of_keys_is_one_kernel(causal: bool) -> None:
    def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    shapes = ({2: N},) * 3
    captured = compiler.capture(attended, [torch.empty(1, 2, 128, 64).bfloat16()] * 3, dynamic_shapes=shapes)
    lowering = compiler.lower(captured.program, compiler.target("sm_90a"))
    assert len(lowering.stages["kernel"].functions) == 1
    for n in (1, 65, 130):
        inputs = [torch.randn(1, 2, n, 64).bfloat16() for _ in range(3)]
        for stage in ("kernel", "cuda"):
            check(compiler.execute(lowering, stage, inputs), attended(*inputs), f"{stage} at {n}")


class Language(nn.Module):
    """A layer of a language model, with rotary positions."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.features = heads, width // heads
        self.embedding, self.norm = nn.Embedding(50, width), nn.RMSNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 50, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, (batch, length) = self.embedding(tokens), tokens.shape
        parts = self.mixed(self.norm(x)).view(batch, length, 3, self.heads, self.features)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        at = torch.arange(length)[:, None] / 100 ** (torch.arange(self.features) / self.features)
        q, k = (t * at.cos() + t.flip(-1) * at.sin() for t in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        made: torch.Tensor = self.out(x + mixed)
        return made


def test_a_language_model_of_any_batch_and_length() -> None:
    model = Language().eval()
    shapes = {"tokens": {0: Dim("batch", min=1, max=64), 1: Dim("length", min=2, max=512)}}
    with torch.no_grad():
        fast = compiler.compile(model, [torch.randint(50, (2, 17))], dynamic_shapes=shapes)
        for batch, length in ((1, 2), (3, 40), (2, 17)):
            tokens = torch.randint(50, (batch, length))
            check([fast(tokens)], model(tokens), f"{batch} x {length}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_sums_of_few_results_are_multiplied_by_tiles(dtype: torch.dtype) -> None:
    """Where its length is known, such a sum is split among blocks; otherwise it takes tensor instructions as well."""

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    long = [torch.randn(256, 4096, dtype=dtype), torch.randn(4096, 256, dtype=dtype)]
    depth = Dim("k")
    captured = compiler.capture(product, long, dynamic_shapes=({1: depth}, {0: depth}))
    (steps,) = (s.steps for s in compiler.lower(captured.program, compiler.target("sm_90a")).schedules.values())
    names = [type(step).__name__ for step in steps]
    assert "Tensorize" in names and "SplitReduction" not in names, steps
    made = compiler.compile(captured, target="sm_90a")
    for k in (2, 100, 257):
        x, w = torch.randint(-4, 5, (256, k)).to(dtype), torch.randint(-4, 5, (k, 256)).to(dtype)
        assert torch.equal(made(x, w), (x.double() @ w.double()).to(dtype)), k


def test_grids_of_any_size_have_a_block_for_each_tile() -> None:
    """Where the size is known, so many tiles are made by fewer blocks, each one tile after another."""

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    many = [torch.randn(4096, 64, dtype=torch.bfloat16), torch.randn(64, 4096, dtype=torch.bfloat16)]
    target = compiler.target("sm_90a")
    (known,) = compiler.lower(compiler.capture(product, many).program, target).schedules.values()
    captured = compiler.capture(product, many, dynamic_shapes=({0: Dim("m")}, None))
    (steps,) = (s.steps for s in compiler.lower(captured.program, target).schedules.values())
    kinds = [{type(step).__name__ for step in some} for some in (known.steps, steps)]
    assert [{"Persist", "Tensorize"} & some for some in kinds] == [{"Persist", "Tensorize"}, {"Tensorize"}]
    made = compiler.compile(captured, target=target)
    for m in (2, 130):
        x, w = torch.randint(-4, 5, (m, 64)).bfloat16(), torch.randint(-4, 5, (64, 4096)).bfloat16()
        assert torch.equal(made(x, w), (x.double() @ w.double()).bfloat16()), m
