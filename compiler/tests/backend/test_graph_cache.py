"""A graph that a process before has compiled is traced again only if something that tracing depends on is another."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch import config as functorch

from compiler import backend
from compiler.backend import graph_cache
from compiler.errors import ToolchainError
from compiler.execution import stored
from compiler.runtime import build, store

Function = Callable[..., Any]


class Traced(Exception):
    """AOTAutograd was called."""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache of the test's own, in a process that has compiled nothing."""
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path))
    torch.compiler.reset()
    yield tmp_path
    torch.compiler.reset()


def compiled(f: Function, *inputs: Any, grad: bool = False, **how: Any) -> Any:
    """What the function gives in a process that has not compiled it; without gradients, unless they are asked for."""
    torch.compiler.reset()
    with torch.set_grad_enabled(grad):
        return torch.compile(f, backend="mlcomp", **how)(*inputs)


def again(f: Function, *inputs: Any, grad: bool = False, **how: Any) -> Any:
    """The same where tracing raises."""

    def refuse(*_: Any) -> Function:
        raise Traced

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "_trace_and_compile", refuse)
        return compiled(f, *inputs, grad=grad, **how)


def is_kept(f: Function, *inputs: Any, grad: bool = False, **how: Any) -> bool:
    """Whether a later process need not trace."""
    try:
        again(f, *inputs, grad=grad, **how)
    except torch._dynamo.exc.BackendCompilerFailed as problem:
        assert isinstance(problem.inner_exception, Traced)
        return False
    return True


def scores(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x @ w, -1) * 2


def given() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 8), torch.randn(8, 4)


# What is kept --------------------------------------------------------------------------------------------------------


def several(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x @ w
    z = y.exp()
    return z.mT, y.sum(), z, y.sum()


def with_constants(x: Tensor, w: Tensor) -> Tensor:
    return x @ w + torch.tensor([1.0, -2.5, float("inf"), 0.0]) * torch.tensor([], dtype=torch.int8).sum()


def of_methods(x: Tensor, w: Tensor) -> Tensor:
    y = F.max_pool2d(x[None, None, 1:, ..., ::2], 2)
    return y.to(torch.float64).flatten(1).mul(w.sum())


@pytest.mark.parametrize("f", [scores, several, with_constants, of_methods])
def test_a_graph_is_traced_once(f: Function) -> None:
    inputs = given()
    compiled(f, *inputs)
    other = given()
    ours, theirs = again(f, *other), f(*other)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    many = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
    assert all(a.stride() == b.stride() for a, b in many)


def test_results_share_memory_as_in_eager() -> None:
    x = torch.randn(5, 7)
    compiled(lambda x: (y := x.exp(), y.mT), x)
    whole, turned = again(lambda x: (y := x.exp(), y.mT), x)
    whole.zero_()
    assert not turned.any()


def test_so_is_that_of_a_module() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)).eval()
    x = torch.randn(3, 8)
    compiled(model, x)
    same = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)).eval()
    torch.testing.assert_close(again(same, x), same(x), rtol=1e-4, atol=1e-5)


def appended(cache: Tensor, at: Tensor, x: Tensor) -> Tensor:
    cache.index_copy_(0, at, x)
    return cache.sum(-1)


def test_inputs_are_updated_and_autograd_told() -> None:
    at, x = torch.tensor([2]), torch.randn(1, 7)
    compiled(appended, torch.randn(4, 7), at, x)
    ours = torch.randn(4, 7)
    theirs = ours.clone()
    version = ours._version
    made = again(appended, ours, at, x)
    torch.testing.assert_close(made, appended(theirs, at, x))
    torch.testing.assert_close(ours, theirs)
    assert ours._version > version


def test_running_statistics_are_updated() -> None:
    models = [nn.BatchNorm1d(6), nn.BatchNorm1d(6)]
    x = torch.randn(8, 6)
    compiled(nn.BatchNorm1d(6), x)
    torch.testing.assert_close(again(models[0], x), models[1](x).detach())
    for ours, theirs in zip(models[0].buffers(), models[1].buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore")
def test_updates_of_what_inputs_share_are_not_kept() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return a.add_(1) @ b.mT

    def parts() -> tuple[Tensor, Tensor]:
        x = torch.ones(6, 8)
        return x[1:], x[:-1]

    torch.testing.assert_close(compiled(f, *parts()), f(*parts()))
    assert not is_kept(f, *parts())


def test_each_graph_of_a_function_is_kept() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x.exp()
        torch._dynamo.graph_break()
        return y.sum(-1) + 1

    x = torch.randn(4, 9)
    compiled(broken, x)
    torch.testing.assert_close(again(broken, x), broken(x))


@pytest.mark.parametrize("grad", [False, True])
def test_what_needs_no_gradient_gets_none(grad: bool) -> None:
    """With gradients enabled too, inference is what a graph of inputs without them is for."""
    inputs = given()
    compiled(scores, *inputs, grad=grad)
    made = again(scores, *inputs, grad=grad)
    assert not made.requires_grad
    torch.testing.assert_close(made, scores(*inputs))


def test_arguments_that_are_refused_are_traced_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = given()
    compiled(scores, *inputs)

    def refuse(*_: Any) -> Any:
        raise ValueError("other strides")

    def launched(*given: Any) -> Any:
        launches.append(launch(*given))
        return launches[0] if len(launches) > 1 else refuse

    launch, launches = backend._build_launch, list[Any]()
    monkeypatch.setattr(backend, "_build_launch", launched)
    made = compiled(scores, *inputs)
    assert len(launches) == 2
    torch.testing.assert_close(made, scores(*inputs))


def test_what_can_no_longer_be_built_runs_in_eager(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later process has no compiler, and finds programs without their kernels."""
    inputs = given()
    compiled(scores, *inputs)
    for library in folder.rglob("*.so"):
        library.unlink()

    def missing(*_: Any, **__: Any) -> Any:
        raise ToolchainError("the C++ compiler g++ is missing")

    monkeypatch.setattr(build, "build", missing)
    with pytest.warns(backend.FallbackWarning, match=r"g\+\+ is missing"):
        torch.testing.assert_close(compiled(scores, *inputs), scores(*inputs))


_SCRIPT = """
import torch
from compiler import backend

def f(x, w):
    return torch.softmax(x @ w, -1) + torch.tensor([1.0, 2.0])

traced = backend._trace_and_compile
backend._trace_and_compile = lambda *given: print("traced") or traced(*given)
with torch.no_grad():
    torch.compile(f, backend="mlcomp")(torch.ones(3, 4), torch.ones(4, 2))
"""


def test_another_process_finds_it(folder: Path) -> None:
    def run(seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, "-c", _SCRIPT], env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert [run("1"), run("2")] == ["traced\n", ""]


# What is not ---------------------------------------------------------------------------------------------------------


def gives_a_view(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x @ w, x[1:]


@torch.library.custom_op("mlcomp_tests::kept_twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("f", [gives_a_view, lambda x, w: torch.rand_like(x) @ w, lambda x, w: twice(x) @ w])
def test_what_is_no_program_by_itself_is_not_kept(f: Function) -> None:
    inputs = given()
    compiled(f, *inputs)
    assert not is_kept(f, *inputs)


def test_training_is_not_kept() -> None:
    x, w = given()
    w.requires_grad_()
    compiled(scores, x, w, grad=True)
    assert not is_kept(scores, x, w, grad=True)


def test_sizes_that_vary_are_not_kept() -> None:
    compiled(scores, *given(), dynamic=True)
    assert not is_kept(scores, *given(), dynamic=True)


def test_complex_numbers_are_not_kept() -> None:
    x = torch.randn(4, 4, dtype=torch.complex64)
    compiled(lambda x: (x * x).real, x)
    assert not is_kept(lambda x: (x * x).real, x)


@pytest.mark.parametrize("how", [{"options": {"quantize": "int8-weight-only"}}, {"mode": "max-autotune"}])
@pytest.mark.filterwarnings("ignore")
def test_what_depends_on_values_or_times_is_not_kept(how: dict[str, Any]) -> None:
    model, x = nn.Linear(64, 64), torch.randn(3, 64)
    compiled(model, x, **how)
    assert not is_kept(model, x, **how)


def test_modes_are_not_known() -> None:
    compiled(scores, *given())
    with torch.device("meta"):
        assert graph_cache.entry_path(torch.fx.symbolic_trace(scores), given(), "") is None


# What is another -----------------------------------------------------------------------------------------------------


def others(x: Tensor, w: Tensor) -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Calls each of which differs from that of `scores` in one thing."""
    return {
        "call": (lambda x, w: torch.log_softmax(x @ w, -1) * 2, (x, w)),
        "method": (lambda x, w: (x @ w).softmax(-1) * 2, (x, w)),
        "axis": (lambda x, w: torch.softmax(x @ w, 0) * 2, (x, w)),
        "number": (lambda x, w: torch.softmax(x @ w, -1) * 3, (x, w)),
        "type of a number": (lambda x, w: torch.softmax(x @ w, -1) * 2.0, (x, w)),
        "truth": (lambda x, w: torch.softmax(x @ w, -1) * True, (x, w)),
        "keyword": (lambda x, w: torch.softmax(x @ w, -1, dtype=torch.float64) * 2, (x, w)),
        "order": (lambda x, w: 2 * torch.softmax(x @ w, -1), (x, w)),
        "result": (lambda x, w: ((y := torch.softmax(x @ w, -1)) * 2, y), (x, w)),
        "argument": (lambda x, w: torch.softmax(w.mT @ x.mT, -1) * 2, (x, w)),
        "dtype": (scores, (x.double(), w.double())),
        "shape": (scores, (x[:5].clone(), w)),
        "strides": (scores, (x, w.mT.contiguous().mT)),
        "offset": (scores, (torch.randn(7, 8)[1:], w)),
        "memory": (scores, (x.flatten()[:48].view(6, 8), w)),
        "overlap": (scores, (x[:1].expand(6, 8), w)),
        "sharing": (scores, (torch.randn(80)[:48].view(6, 8), w)),
        "gradient": (scores, (x, w.clone().requires_grad_())),
        "parameter": (scores, (x, nn.Parameter(w.clone(), requires_grad=False))),
    }


@pytest.mark.parametrize("what", sorted(others(*given())))
def test_another_call_is_traced(what: str) -> None:
    inputs = given()
    compiled(scores, *inputs)
    assert is_kept(scores, *inputs)
    f, own = others(*inputs)[what]
    assert not is_kept(f, *own)
    made, expected = compiled(f, *own), f(*own)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again(f, *own), expected, rtol=1e-4, atol=1e-5)


def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch._decomp.decomposition_table, torch.ops.aten.softmax.int, scores)


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "sources": lambda patch: patch.setattr(stored, "sources", lambda: "other"),
    "version of torch": lambda patch: patch.setattr(torch, "__version__", "0.0"),
    "commit of torch": lambda patch: patch.setattr(torch.version, "git_version", "0"),
    "decompositions": _table,
    "registered": lambda patch: torch.library._impls.add("aten/softmax.int/CPU"),
    "attention": lambda patch: torch.backends.cuda.enable_flash_sdp(not torch._C._get_flash_sdp_enabled()),
    "type of floats": lambda patch: torch.set_default_dtype(torch.float64),
    "precision": lambda patch: torch.set_float32_matmul_precision("high"),
    "deterministic": lambda patch: torch.use_deterministic_algorithms(True),
    "onednn": lambda patch: torch._C._set_mkldnn_enabled(not torch._C._get_mkldnn_enabled()),
}


@pytest.fixture
def as_it_was() -> Iterator[None]:
    """Torch is set afterwards as it was before."""
    flash, floats, precision = (
        torch._C._get_flash_sdp_enabled(), torch.get_default_dtype(), torch.get_float32_matmul_precision(),
    )  # fmt: skip
    strict, onednn = torch.are_deterministic_algorithms_enabled(), torch._C._get_mkldnn_enabled()
    yield
    torch.backends.cuda.enable_flash_sdp(flash)
    torch.set_default_dtype(floats)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(strict)
    torch._C._set_mkldnn_enabled(onednn)
    torch.library._impls.discard("aten/softmax.int/CPU")


@pytest.mark.usefixtures("as_it_was")
@pytest.mark.parametrize("what", sorted(CHANGES))
def test_so_is_a_call_under_other_circumstances(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = given()
    compiled(scores, *inputs)
    assert is_kept(scores, *inputs)
    CHANGES[what](monkeypatch)
    assert not is_kept(scores, *inputs)


def test_so_is_one_with_another_configuration() -> None:
    inputs = given()
    compiled(scores, *inputs)
    with functorch.patch(functionalize_rng_ops=True):
        assert not is_kept(scores, *inputs)
    assert is_kept(scores, *inputs)


def test_so_is_one_under_autocast() -> None:
    inputs = given()
    compiled(scores, *inputs)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_kept(scores, *inputs)
        compiled(scores, *inputs)
    with torch.autocast("cpu", torch.float16):
        assert not is_kept(scores, *inputs)


def test_so_is_one_with_gradients() -> None:
    inputs = given()
    compiled(scores, *inputs)
    assert not is_kept(scores, *inputs, grad=True)


@pytest.mark.parametrize(
    "options", [{"target": "cpu:baseline"}, {"fallback": "error"}, {"check_indices": "sync"}, {"memory_limit": 1 << 30}]
)
def test_so_is_one_with_other_options(options: dict[str, Any]) -> None:
    inputs = given()
    compiled(scores, *inputs)
    assert not is_kept(scores, *inputs, options=options)
    compiled(scores, *inputs, options=options)
    assert is_kept(scores, *inputs, options=options)


def test_a_function_in_the_place_of_one_of_torch_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph may call what a user has put into torch's namespace."""

    def graph() -> torch.fx.GraphModule:
        made = torch.fx.Graph()
        made.output((made.call_function(F.relu, (made.placeholder("x"),)),))
        return torch.fx.GraphModule({}, made)

    x = (torch.randn(3),)
    with torch._guards.tracing(torch._guards.TracingContext(None)):
        assert graph_cache.entry_path(graph(), x, "") is not None
        monkeypatch.setattr(F, "relu", lambda x: x)
        assert graph_cache.entry_path(graph(), x, "") is None


# What was tampered with ----------------------------------------------------------------------------------------------


def entries(folder: Path) -> list[Path]:
    return [p for p in (folder / store.FORMAT).rglob("*.json") if b'"picked"' in p.read_bytes()]


@pytest.mark.parametrize("how", ["a bit", "no seal", "another's"])
def test_what_was_tampered_with_is_traced_anew(how: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    inputs = given()
    compiled(scores, *inputs)
    (path,) = entries(folder)
    content = path.read_bytes()
    if how == "another's":
        compiled(lambda x, w: torch.softmax(x @ w, -1) * 3, *inputs)
        (other,) = set(entries(folder)) - {path}
        path.write_bytes(other.read_bytes())
    else:
        path.write_bytes(
            content[: content.rindex(b"\n//")] if how == "no seal" else content.replace(b"softmax", b"sigmoid")
        )
    with caplog.at_level(logging.WARNING, "mlcomp"):
        assert not is_kept(scores, *inputs)
    assert "damaged or forged" in caplog.text
    torch.testing.assert_close(compiled(scores, *inputs), scores(*inputs))
    assert is_kept(scores, *inputs)
    assert entries(folder)
