"""Scaled dot product attention, in every form that torch has: values and logsumexps are those of f64, in one kernel."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import compiler
from compiler import frontend
from compiler.errors import Unsupported
from compiler.execution import executable
from compiler.tests.eager import check, expressions
from compiler.tests.meaning import fresh_seed

inf = float("inf")


def attention() -> dict[str, torch.Tensor]:
    mask = torch.rand(6, 7) > 0.5
    mask[2] = False
    return {
        "q": torch.randn(2, 4, 6, 8), "k": torch.randn(2, 4, 7, 8), "v": torch.randn(2, 4, 7, 3),
        "k2": torch.randn(2, 2, 7, 8), "v2": torch.randn(2, 2, 7, 3), "k1": torch.randn(2, 1, 7, 8),
        "v1": torch.randn(2, 1, 7, 3), "mask": mask, "added": torch.randn(2, 1, 6, 7),
        "gone": torch.where(mask, 0.0, -inf), "q3": torch.randn(4, 6, 8), "q2": torch.randn(6, 8),
    }  # fmt: skip


ATTENTION = """
    F.scaled_dot_product_attention(q, k, v)
    F.scaled_dot_product_attention(q, k, v, is_causal=True)
    F.scaled_dot_product_attention(k, q, q, is_causal=True)
    F.scaled_dot_product_attention(q, k, v, scale=0.3)
    F.scaled_dot_product_attention(q, k, v, mask)
    F.scaled_dot_product_attention(q, k, v, added)
    F.scaled_dot_product_attention(q, k, v, gone)
    F.scaled_dot_product_attention(q, k2, v2, is_causal=True, enable_gqa=True)
    F.scaled_dot_product_attention(q, k1, v1, enable_gqa=True)
    F.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    F.scaled_dot_product_attention(q3, q3, q3)
    F.scaled_dot_product_attention(q2, q2, q2, is_causal=True)
"""


@pytest.mark.parametrize("expression", expressions(ATTENTION))
def test_attention(expression: str) -> None:
    check(expression, attention)


# The forms that AOTAutograd hands over --------------------------------------------------------------------------------

ops = torch.ops.aten
SCALE = 0.3


def flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Any:
    return ops._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=SCALE)[:2]


def efficient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Any:
    return ops._scaled_dot_product_efficient_attention(q, k, v, mask, True, 0.0, causal, scale=SCALE)[:2]


def cudnn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Any:
    return ops._scaled_dot_product_cudnn_attention(q, k, v, mask, True, 0.0, causal, False, scale=SCALE)[:2]


def overrideable(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Any:
    return ops._scaled_dot_product_fused_attention_overrideable(q, k, v, mask, 0.0, causal, scale=SCALE)[:2]


def for_cpu(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Any:
    return ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=SCALE)


Form = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], Any]
FORMS: tuple[Form, ...] = (flash, efficient, cudnn, overrideable, for_cpu)


def captured(form: Form, inputs: list[Tensor | None], causal: bool) -> frontend.Captured:
    """What a form is on a GPU, which need not be there: only its shapes are asked for."""
    with FakeTensorMode():
        where = "cpu" if form is for_cpu else "cuda"
        fakes = [None if x is None else torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=where)
                 for x in inputs]  # fmt: skip
        graph = make_fx(lambda q, k, v, mask: form(q, k, v, mask, causal))(*fakes)
    graph.graph.eliminate_dead_code()
    return frontend.from_graph(graph)


def exact(form: Form, inputs: list[Tensor | None], seen: Tensor) -> tuple[Tensor, Tensor]:
    """In f64; `seen` says which keys each query may attend to. The logsumexp of one that sees none differs by form."""
    query, key, value, mask = (x if x is None or x.dtype is torch.bool else x.double() for x in inputs)
    assert query is not None and key is not None and value is not None
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = (query @ key.mT * SCALE).masked_fill(~seen, -inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -inf) if mask.dtype is torch.bool else scores + mask
    total = scores.logsumexp(-1)
    values = scores.sub(total.nan_to_num(neginf=0).unsqueeze(-1)).exp() @ value
    return values, total.masked_fill(total == -inf, 0 if form is for_cpu else inf)


def agree(form: Form, inputs: list[Tensor | None], target: str, causal: bool = False) -> None:
    query, key = inputs[0], inputs[1]
    assert query is not None and key is not None
    program = captured(form, inputs, causal).program
    lowering = compiler.lower(program, compiler.target(target))
    made = executable.execute(lowering, "cuda" if target != "cpu" else "cpp", [x for x in inputs if x is not None])
    rows, columns = query.shape[-2], key.shape[-2]
    ahead = columns - rows if form is flash else 0
    seen = torch.ones(rows, columns, dtype=torch.bool).tril(ahead) if causal else torch.ones(rows, columns).bool()
    wanted, total = exact(form, inputs, seen)
    loose = 1e-4 if query.dtype is torch.float32 else 0.03
    torch.testing.assert_close(made[0].double(), wanted, rtol=loose, atol=loose)
    found = made[1].double().flatten(2)
    torch.testing.assert_close(found[..., :rows], total, rtol=loose, atol=loose)
    assert bool((found[..., rows:] == inf).all())


def operands(rows: int, columns: int, heads: int, groups: int, size: int, dtype: torch.dtype) -> list[Tensor | None]:
    shapes = (2, heads, rows, size), (2, groups, columns, size), (2, groups, columns, size)
    return [torch.randn(s).to(dtype) for s in shapes] + [None]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("target", "dtype"), [("cpu", torch.float32), ("sm_90a", torch.bfloat16)], ids=["cpu", "gpu"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_forms(form: Form, target: str, dtype: torch.dtype, causal: bool) -> None:
    torch.manual_seed(seed := fresh_seed())
    print("seed", seed)
    agree(form, operands(40, 72, 2, 2, 16, dtype), target, causal)


@pytest.mark.parametrize("form", [flash, cudnn, for_cpu], ids=lambda f: f.__name__)
def test_several_heads_share_a_key(form: Form) -> None:
    torch.manual_seed(seed := fresh_seed())
    print("seed", seed)
    agree(form, operands(33, 33, 4, 2, 24, torch.float32), "sm_80", True)


@pytest.mark.parametrize("form", [efficient, cudnn, overrideable, for_cpu], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", ["added", "seen", "of keys"])
def test_masks(form: Form, kind: str) -> None:
    """Those that hide all keys from a query too; a row of them may lie further apart than it is long."""
    torch.manual_seed(seed := fresh_seed())
    print("seed", seed)
    inputs = operands(20, 30, 2, 2, 8, torch.float32)
    seen = torch.rand(2, 1, 20, 30) > 0.4
    seen[:, :, 3] = False
    added = torch.where(seen, torch.randn(2, 1, 20, 30), -inf)
    padded = torch.nn.functional.pad(added, (0, 2))[..., :30].expand(2, 2, 20, 30)
    inputs[3] = {"added": padded, "seen": seen, "of keys": added[:, :, :1].expand(2, 2, 20, 30)}[kind]
    agree(form, inputs, "cpu")
    if form is cudnn:
        agree(form, inputs, "sm_90a")


def test_the_logsumexp_of_a_query_that_sees_no_key_is_what_eager_makes_it() -> None:
    query, key, value, _ = operands(20, 30, 2, 2, 8, torch.float32)
    assert query is not None and key is not None and value is not None
    mask = torch.zeros(2, 1, 20, 30)
    mask[:, :, 3] = -inf
    wanted = for_cpu(query, key, value, mask, False)
    program = captured(for_cpu, [query, key, value, mask], False).program
    made = executable.execute(compiler.lower(program, compiler.target("cpu")), "cpp", [query, key, value, mask])
    torch.testing.assert_close(made, wanted)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("queries", [128, 100])
def test_the_logsumexp_comes_from_the_same_kernel(form: Form, queries: int) -> None:
    """One that is padded, of `efficient`, is padded by a kernel of its own."""
    program = captured(form, operands(queries, 128, 2, 2, 64, torch.bfloat16), True).program
    lowering = compiler.lower(program, compiler.target("sm_90a"))
    names = [k.name for k in lowering.stages["tile"].kernels]
    assert [n.partition("_")[0] for n in names] == ["attention"] * (1 + (form is efficient and queries == 100)), names
    steps = [str(s) for k in names for s in lowering.schedules[k].steps]
    assert any(s.startswith("Online") for s in steps), steps


def test_dropout_is_refused() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Any:
        return ops._scaled_dot_product_flash_attention(q, k, v, 0.5, causal)[0]

    program = captured(f, operands(8, 8, 1, 1, 8, torch.bfloat16), False).program
    with pytest.raises(Unsupported, match="dropout is random"):
        compiler.lower(program, compiler.target("cpu"))
