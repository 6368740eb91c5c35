"""Graphs of which not all can be compiled: what can is, in the largest regions, and all of it does what eager does."""

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from compiler import backend, pass_order
from compiler.backend import FallbackWarning, Report, mlcomp
from compiler.errors import CompilerError
from compiler.passes.tensor.compose import compose
from compiler.tests import opaque as _opaque  # noqa: F401
from compiler.tests.backend.test_backend_results import placed
from compiler.tests.meaning import fresh_seed

Function = Callable[..., Any]
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(seed := fresh_seed())
    print("seed", seed)
    yield


def explained(f: Function, *inputs: Any) -> Report:
    (report,) = backend.explain(f, inputs, {})
    return report


def agree(f: Function, *calls: tuple[Any, ...], loose: float = 1e-4, **options: Any) -> None:
    """Under the same seed, values of results and arguments, and where they lie, are those of eager."""
    own = torch.compile(f, backend=mlcomp, fullgraph=True, **options)
    for inputs in calls:
        found = []
        for run in (own, f):
            torch.manual_seed(7)
            copies = [x.clone() if isinstance(x, Tensor) else x for x in inputs]
            made = [x for x in pytree.tree_leaves(run(*copies)) if isinstance(x, Tensor)]
            given = [x for x in copies if isinstance(x, Tensor)]
            found.append((made, given))
        torch.testing.assert_close(found[0], found[1], rtol=loose, atol=loose)
        assert placed([*found[0][1], *found[0][0]]) == placed([*found[1][1], *found[1][0]])


# What no rule is for: `opaque`, `i0`; two regions around each.


def between(x: Tensor, w: Tensor) -> Tensor:
    y = torch.relu(x @ w) + 1
    out: torch.Tensor = torch.ops.tests.opaque(y).mul(2).sin().softmax(-1)
    return out


def views(x: Tensor) -> Any:
    y = (x * 2).abs() + 1
    z = torch.ops.tests.opaque(y.t())
    w = z.exp() * 2 + y.t()
    return y, y.t(), y[1:], z, z[::2].sin() + 1, w.t(), w.t()[1:], x.t(), x[1:]


def written(x: Tensor) -> Any:
    y = torch.ops.tests.opaque(x.abs() + 1)
    x.mul_(2).add_(y.sin().mul(3))
    y[1:].add_(x[1:].cos())
    return y, y[0], x


def given_twice(x: Tensor) -> Any:
    y = torch.ops.tests.opaque(x.exp() + 1)
    return y, y, (y + 1).sin(), y


def several_parts(x: Tensor) -> Any:
    y = x.sin() * 2
    values, places = torch.sort(torch.ops.tests.opaque(y.abs() + 1), dim=-1)
    return values * 2 + y, places + 1, y.cos() * values.mean()


def no_tensor(x: Tensor) -> Any:
    return torch.ops.tests.opaque(x), 3, None, x.shape[0]


def spectrum(x: Tensor) -> Any:
    """Complex numbers lie between the regions, and are a result."""
    y = torch.fft.fft(torch.fft.fft((x * 2).sin(), dim=-1), dim=-2)
    return y, (y.real * 2).softmax(-1), y.imag


def sizes(x: Tensor) -> Any:
    y = (x.abs() * 2 + x.shape[0]).reshape(-1)
    return torch.ops.tests.opaque(y).view(x.shape).sin() * x.shape[1], y.numel()


PROGRAMS: dict[str, Function] = {
    f.__name__: f for f in (views, written, given_twice, several_parts, no_tensor, spectrum, sizes)
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_regions_do_what_eager_does(name: str, dynamic: bool) -> None:
    agree(PROGRAMS[name], *((torch.randn(n, 6),) for n in ((5, 7, 8) if dynamic else (5,))), dynamic=dynamic)


def test_the_largest_regions_are_compiled_and_the_rest_is_named_once() -> None:
    x, w = torch.randn(5, 4), torch.randn(4, 6)
    report = explained(between, x, w)
    assert report.calls == 7 and [r.calls for r in report.regions] == [3, 3]
    assert [k for r in report.regions for k in r.kernels] == [
        "matmul_relu_add_5x6x4_f32", "mul_sin_softmax_5x6_f32",
    ]  # fmt: skip
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        agree(between, (x, w))
    (warning,) = [w for w in said if w.category is FallbackWarning]
    assert str(warning.message) == (
        "mlcomp runs 1 of 7 calls of a graph in eager: unsupported: tests.opaque.default(f32[5, 6]): no "
        "lowering for this op"
    )


@pytest.mark.parametrize(
    ("apart", "warned"),
    [(torch.ops.tests.opaque, [FallbackWarning]), (lambda x: x.view(torch.int32), [])],  # a view costs nothing
    ids=["no rule", "other types"],
)
def test_sizes_that_vary_are_no_reason_to_compile_again(apart: Function, warned: list[type]) -> None:
    """A graph that is cut is compiled once for all sizes, as one that is not.

    What `apart` sees is exact: one bit of it may change all of a sine of its bits.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        agree(
            lambda x: apart(x.abs() + 1).sin() * 2,
            *((torch.randn(n, 4),) for n in (5, 9, 3)),
            dynamic=True,
        )
    assert [w.category for w in said if issubclass(w.category, UserWarning)] == warned


def test_what_has_nothing_to_fuse_runs_in_eager() -> None:
    report = explained(lambda x: torch.ops.tests.opaque(x.t() * 2)[1:].sin().t(), torch.randn(3, 4))
    assert report.calls == 3 and not report.regions


RANDOM: dict[str, Function] = {
    "rand": lambda x: torch.rand_like(x) * 2 + x.sin(),
    "randn": lambda x: torch.randn(3, 4) * 2 + torch.randn_like(x),
    "randint": lambda x: torch.randint(0, 9, (3, 4)) * 2 + x,
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) * 2 + x.exp().bernoulli_(0.3),
    "dropout": lambda x: F.dropout((x * 2).sin(), 0.4) * 3 + F.alpha_dropout(x, 0.2, True),
    "dropout of features": lambda x: F.dropout1d(x[None].expand(8, -1, -1) * 2, 0.5) + 1,
    "multinomial": lambda x: torch.multinomial((x * 2).exp() + 1, 2, True) * 2 + 1,
    "normal": lambda x: torch.normal(x.sin(), 2.0) * 2 + x.clone().normal_().abs(),
    "uniform": lambda x: x.clone().uniform_(2, 3) * 2 + x.clone().exponential_(),
    "rrelu": lambda x: F.rrelu(x * 2, training=True) + 1,
    "gumbel": lambda x: F.gumbel_softmax(x * 2, 0.5) + 1,
    "permutation": lambda x: torch.randperm(4) * 2 + x,
    "attention": lambda x: F.scaled_dot_product_attention(x[None] * 2, x[None], x[None].sin(), dropout_p=0.5) + 1,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_those_of_eager(name: str) -> None:
    agree(RANDOM[name], (torch.randn(3, 4),))


@pytest.mark.filterwarnings("ignore")
def test_random_numbers_are_drawn_in_the_order_of_the_program() -> None:
    """Each draw would fit before or after the regions around it."""

    def f(x: Tensor) -> Any:
        y = x.sin() * 2
        a = torch.rand_like(y)
        b = torch.rand(3, 4)
        z = (b * 3).cos() + 1
        c = torch.rand_like(torch.ops.tests.opaque(z))
        d = torch.rand(3, 4)
        return a * 2 + 1, z, c * 2 + d, torch.rand(3, 4)

    agree(f, (torch.randn(3, 4),))


@torch.library.custom_op("mlcomp_tests::noisy", mutates_args=())
def noisy(x: Tensor) -> Tensor:
    """It draws random numbers and does not say so."""
    return torch.add(x, torch.rand_like(x))


@noisy.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def again(x: Tensor) -> Tensor:
    """The backward pass draws the same numbers again."""
    made: Tensor = checkpoint(lambda x: F.dropout(F.dropout(x * 2, 0.5).sin() + 1, 0.5), x.exp(), use_reentrant=False)
    return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("part", "grad"), [(again, True), (lambda x: noisy(noisy(x.exp()).sin() + 1), False)])
def test_so_are_those_of_calls_that_do_not_say_that_they_draw_any(part: Function, grad: bool) -> None:
    """Another call that draws would fit before."""
    x, found = torch.randn(30), []

    def f(x: Tensor) -> Tensor:
        y: Tensor = part(x)
        return y + F.dropout(x, 0.5)

    for run in (torch.compile(f, backend=mlcomp), f):
        torch.manual_seed(3)
        leaf = x.clone().requires_grad_(grad)
        made = run(leaf)
        slopes = torch.autograd.grad(made.sum(), leaf) if grad else ()
        found.append((made.detach(), slopes, torch.rand(2)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_only_the_draws_that_a_checkpoint_repeats_are_left_to_eager() -> None:
    x = torch.randn(30, requires_grad=True)

    def f(x: Tensor) -> Any:
        return checkpoint(lambda x: torch.rand_like(x) * x.sin(), x, use_reentrant=False)

    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for run in (torch.compile(f, backend=mlcomp), f):
            torch.manual_seed(3)
            found.append(torch.autograd.grad(run(x).sum(), x)[0])
    torch.testing.assert_close(found[0], found[1])
    told = [str(w.message) for w in caught if w.category is FallbackWarning]
    assert told and all(re.search("unsupported: .*rand_like", one) for one in told), told


@pytest.mark.filterwarnings("ignore")
def test_gradients_through_regions() -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.ops.tests.opaque(x.exp() + 1).sin() * 2
        return F.dropout(y, 0.5) * x.cos() + torch.lgamma(x.abs() + 1)

    found = []
    x = torch.randn(3, 5)
    for run in (torch.compile(f, backend=mlcomp), f):
        torch.manual_seed(3)
        leaf = x.clone().requires_grad_()
        found.append(torch.autograd.grad(run(leaf).square().sum(), leaf))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_a_region_that_fails_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(program: Any, *_: object) -> Any:
        if any("erf" in str(g.origin) for g in program.groups):
            raise KeyError("a table without an entry")
        return compose(program)

    monkeypatch.setattr(pass_order, "compose", broken)

    def f(x: Tensor) -> Tensor:
        for _ in range(4):
            x = x.sin() * 2 + x.cos()
        x = torch.erf(x)
        for _ in range(4):
            x = x.sin() * 2 + x.cos()
        return x

    report = explained(f, x := torch.randn(3, 4))
    ((reason, count),) = report.eager.items()
    assert "KeyError" in reason and "this is a bug in mlcomp" in reason
    assert count <= 4 and count + sum(r.calls for r in report.regions) == report.calls == 33
    with pytest.warns(FallbackWarning, match="KeyError"):
        agree(f, (x,))


def test_tensors_of_two_devices() -> None:
    """What is elsewhere runs in eager."""
    report = explained(lambda x: (x * 2).sin().to("meta") + torch.ones(3, 4, device="meta"), torch.randn(3, 4))
    assert [r.calls for r in report.regions] == [2] and all("device" in why for why in report.eager)


FORMS: dict[str, Function] = {
    "flash": lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0],
    "efficient": lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True)[0],
    "cudnn": lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True)[0],
    "overrideable": lambda q, k, v: aten._scaled_dot_product_fused_attention_overrideable(
        q, k, v, None, 0.0, True
    )[0],
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_forward_passes_give_what_only_dropout_needs(name: str, dynamic: bool) -> None:
    """The state of a generator, lengths, nothing at all: the graph of a forward pass has them among its results."""
    options: Any = {"backend": mlcomp, "options": {"fallback": "error"}}
    own = torch.compile(lambda *x: FORMS[name](*x) * 2, **options)
    for length in (40, 33) if dynamic else (40,):
        q, k, v = (torch.randn(2, 2, length, 16, requires_grad=True) for _ in range(3))
        for x in (q, k, v) if dynamic else ():
            torch._dynamo.mark_dynamic(x, 2)
        torch.testing.assert_close(own(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2)


def test_options_that_make_no_sense() -> None:
    with pytest.raises(CompilerError, match="fallback must be 'eager' or 'error', not 'no'"):
        backend.explain(between, [torch.ones(2, 2)] * 2, {"fallback": "no"})


OF_ONE_TYPE: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...]]] = {
    "grid_sample": (lambda x, y: F.grid_sample(x, y, align_corners=False), (1, 1, 3, 3), (1, 2, 2, 2)),
    "volume": (lambda x, y: F.grid_sample(x, y, align_corners=False), (1, 1, 3, 3, 3), (1, 2, 2, 2, 3)),
    "cdist": (torch.cdist, (2, 3), (4, 3)),
    "cross": (torch.linalg.cross, (2, 3), (2, 3)),
    "embedding_bag": (
        lambda x, y: F.embedding_bag(torch.tensor([[0, 1]]), x, mode="sum", per_sample_weights=y), (3, 4), (1, 2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", OF_ONE_TYPE)
def test_floats_of_several_types_are_refused_where_eager_does(name: str, gradients: bool) -> None:
    f, *shapes = OF_ONE_TYPE[name]
    x, y = (torch.randn(shape, requires_grad=gradients) for shape in shapes)
    own = torch.compile(f, backend=mlcomp)
    for given in ((x, y.double()), (x.double(), y)):
        for run in (f, own):
            with pytest.raises(RuntimeError, match="type"):
                run(*given)
    torch.testing.assert_close(own(x, y), f(x, y))


REFUSED: dict[str, tuple[Function, Tensor, Tensor]] = {
    "product": (lambda x, y: x.sin() @ y, torch.ones(3, 3), torch.ones(3, 3).half()),
    "linear": (F.linear, torch.ones(2, 3).half(), torch.ones(4, 3)),
    "items": (lambda x, y: x.index_put((torch.tensor([0, 1]),), y), torch.ones(3), torch.ones(2).double()),
    "added rows": (lambda x, y: x.index_add(0, torch.tensor([0, 1]), y), torch.ones(3), torch.ones(2).long()),
    "chances": (F.binary_cross_entropy, torch.full((3,), 0.5), torch.ones(3).long()),
    "targets": (F.cross_entropy, torch.ones(2, 3), torch.tensor([0, 2], dtype=torch.int32)),
    "weights": (lambda x, y: F.nll_loss(x, torch.tensor([0, 2]), y), torch.ones(2, 3), torch.ones(3).double()),
    "rows": (lambda x, y: x.index_select(0, y), torch.ones(3), torch.tensor([0.0, 1.0])),
    "a scalar": (lambda x, y: x.index_select(0, y), torch.tensor(1.0), torch.tensor([0, 0])),
    "mask": (lambda x, y: x * (1 - y), torch.ones(2), torch.tensor([True, False])),
    "cross product": (torch.linalg.cross, torch.ones(2, 3), torch.ones(2, 3).long()),
    "gates": (lambda x, y: F.glu(x) + y, torch.ones(4).long(), torch.ones(2)),
    "likelihood": (lambda x, y: F.logsigmoid(x) + y, torch.ones(4).long(), torch.ones(4)),
    "running sum": (lambda x, y: x.logcumsumexp(0) + y, torch.ones(4).long(), torch.ones(4)),
    "no mask": (lambda x, y: x - y, torch.ones(2), torch.tensor([True, False])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_eager_refuses_are_refused(name: str) -> None:
    f, x, y = REFUSED[name]
    with pytest.raises(RuntimeError) as problem:
        f(x, y)
    with pytest.raises(RuntimeError, match=re.escape(str(problem.value).partition("(")[0])):
        torch.compile(f, backend=mlcomp)(x, y)
