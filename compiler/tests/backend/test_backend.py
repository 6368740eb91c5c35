"""`torch.compile(f, backend="mlcomp")`: small models in the shapes of known ones against eager; what it refuses."""

import os
import re
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.convert_frame import compile_lock

from compiler import backend, pass_order, pipeline
from compiler.backend import CacheWarning, FallbackWarning, SpecialisationWarning
from compiler.errors import CompilerError, ToolchainError
from compiler.execution import named
from compiler.ir import aten, aten_text
from compiler.runtime import build
from compiler.tests import opaque as _opaque  # noqa: F401
from compiler.tests.backend.agreement import agree, compiled, seeded
from compiler.tests.backend.models import MODELS, gpt2, tokens

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("name", MODELS)
def test_models_agree_with_eager(name: str) -> None:
    seed = seeded()
    model, sample = MODELS[name]
    agree(model().eval(), (sample(),), seed=seed, fullgraph=True)


def test_a_model_in_16_bit() -> None:
    seeded()
    model = gpt2().eval().to(torch.bfloat16)
    ids = tokens()
    with torch.no_grad():
        ours, exact = compiled(model, fullgraph=True)(ids), model.double()(ids)
    assert ours.dtype is torch.bfloat16
    torch.testing.assert_close(ours.double(), exact, rtol=0.1, atol=0.1)


def test_transformer_layers_of_torch() -> None:
    seed = seeded()
    layer = nn.TransformerEncoderLayer(16, 2, 24, activation="gelu", batch_first=True, norm_first=True).eval()
    agree(layer, (torch.randn(2, 5, 16),), seed=seed)
    absent = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]).bool()
    agree(lambda x: layer(x, src_key_padding_mask=absent), (torch.randn(2, 5, 16),), seed=seed)


def test_tensors_that_a_function_makes() -> None:
    def f(x: Tensor) -> Tensor:
        return F.cosine_similarity(x, torch.tensor([1.0, 2.0, 3.0]), dim=-1) * torch.tensor(2.0)

    agree(f, (torch.randn(4, 3),))


def test_buffers_and_updates_of_them() -> None:
    class Counting(nn.Module):
        scale: Tensor
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.randn(3))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * self.scale + self.calls

    module, x = Counting(), torch.randn(2, 3)
    own = compiled(module)
    for n in (1, 2):
        torch.testing.assert_close(own(x), x * module.scale + n)


# Results --------------------------------------------------------------------------------------------------------------


def test_results_of_every_kind() -> None:
    def f(x: Tensor) -> dict[str, Any]:
        y = x + 1
        return {"same": (y, y, y.t()), "input": [x, x[1:], x.view(-1)], "rest": (None, 3, x.shape[0]), "sum": x.sum()}

    agree(f, (torch.randn(3, 4),))


def test_results_that_are_inputs_keep_their_memory() -> None:
    x = torch.randn(3, 4)
    own = compiled(lambda x: (x, x.t(), x + 1))
    same, view, _ = own(x)
    assert same.data_ptr() == view.data_ptr() == x.data_ptr()


def test_nothing_to_compute() -> None:
    agree(lambda x: x.t(), (torch.randn(2, 3),))
    agree(lambda x: None, (torch.randn(2, 3),))
    agree(lambda x: x.relu() + 1, (torch.randn(0, 3),))


def test_updates_in_place() -> None:
    agree(lambda x: (x * 2).add_(1).clamp_(max=0), (torch.randn(5),))
    x = torch.randn(5)
    wanted = x * 2
    compiled(lambda x: x.mul_(2))(x)
    assert torch.equal(x, wanted)


# Training -------------------------------------------------------------------------------------------------------------


def gradients(model: nn.Module, run: Callable[..., Any], x: Tensor, weight: Tensor) -> list[Tensor]:
    model.zero_grad()
    x = x.detach().requires_grad_(True)
    (run(x) * weight).sum().backward()
    return [p.grad.clone() for p in (*model.parameters(), x) if p.grad is not None]


def test_gradients() -> None:
    seed = seeded()
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3), nn.Softmax(-1))
    x, weight = torch.randn(4, 6), torch.randn(4, 3)
    wanted = gradients(model, model, x, weight)
    made = gradients(model, compiled(model), x, weight)
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5, msg=lambda text: f"{text}\nseed {seed}")


def test_gradients_of_images() -> None:
    seed = seeded()
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(6, 6, 3, dilation=2, padding=2, groups=3, bias=False), nn.ReplicationPad2d(1), nn.AvgPool2d(2, 1, 1),
        nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2), nn.AdaptiveMaxPool2d(5),
        nn.AdaptiveAvgPool2d(3),
    )  # fmt: skip
    x, weight = torch.randn(2, 4, 17, 14), torch.randn(2, 4, 3, 3)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    wanted = gradients(model, model, x, weight)
    after = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    made = gradients(model, torch.compile(model, backend="mlcomp", options={"fallback": False}), x, weight)
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5, msg=lambda text: f"{text}\nseed {seed}")
    torch.testing.assert_close(model.state_dict(), after)  # BatchNorm's statistics


class Odd(torch.autograd.Function):
    """A function that is compiled with a gradient that is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return torch.ops.tests.opaque(ctx.saved_tensors[0]) * gradient


def test_a_backward_pass_that_runs_in_eager_says_so() -> None:
    wanted = torch.rand(3, 5).requires_grad_()
    made = wanted.detach().clone().requires_grad_()
    apply: Any = Odd.apply
    right = torch.autograd.grad(apply(wanted).sum(), wanted)
    with pytest.warns(FallbackWarning, match=r"tests\.opaque\.default"):
        torch.testing.assert_close(torch.autograd.grad(compiled(apply)(made).sum(), made), right)


# Refusals -------------------------------------------------------------------------------------------------------------


def unsupported(x: Tensor) -> Tensor:
    made: torch.Tensor = torch.ops.tests.opaque(x) + 1
    return made


def test_the_fallback_is_seen() -> None:
    x = torch.rand(3, 3) + 1
    with pytest.warns(FallbackWarning, match=r"2 of 2 calls .* in eager.*tests\.opaque\.default\(f32\[3, 3\]\)"):
        made = compiled(unsupported)(x)
    torch.testing.assert_close(made, unsupported(x))


def test_a_graph_that_cannot_be_traced_runs_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise TypeError("cond must be a bool")

    monkeypatch.setattr(backend, "aot_module_simplified", fails)
    x = torch.rand(2, 3)
    with pytest.warns(
        FallbackWarning, match="2 of 2 calls .* the graph cannot be traced: TypeError: cond must be a bool"
    ):
        made = torch.compile(lambda x: x.exp().sin(), backend="mlcomp")(x)
    torch.testing.assert_close(made, x.exp().sin())
    with pytest.raises(Exception, match="cond must be a bool"):
        torch.compile(lambda x: x.exp().sin(), backend="mlcomp", options={"fallback": "error"})(x)


def test_without_the_fallback_it_is_an_error() -> None:
    for meaning in (False, "error"):
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"Unsupported: unsupported: tests\.opaque"):
            compiled(unsupported, options={"fallback": meaning})(torch.eye(3))
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="must be 'eager' or 'error', not 'eagre'"):
        compiled(unsupported, options={"fallback": "eagre"})(torch.eye(3))


def test_an_op_that_is_refused_in_a_graph_of_numbers_is_named() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"Unsupported: .*aten\.linalg_inv_ex"):
        compiled(lambda a: torch.linalg.tensorinv(a, ind=2), options={"fallback": "error"})(
            torch.eye(24).view(4, 6, 8, 3)
        )


def test_whatever_fails_in_the_compiler_is_named_and_runs_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(program: Any, *_: object) -> Any:
        raise KeyError("a table without an entry")

    monkeypatch.setattr(pass_order, "compose", broken)

    def f(x: Tensor) -> Tensor:
        return torch.relu(x) * 2 + 1.25

    x = torch.randn(3, 5)
    with pytest.warns(
        FallbackWarning, match=r"3 of 3 calls .* in eager: KeyError: 'a table without an entry', in pass compose"
    ):
        assert torch.equal(compiled(f)(x), f(x))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="KeyError: 'a table without an entry'"):
        compiled(f, options={"fallback": False})(x)
    torch._dynamo.reset()
    with pytest.warns(SpecialisationWarning, match="KeyError"), pytest.warns(FallbackWarning, match="KeyError"):
        torch.testing.assert_close(compiled(f, dynamic=True)(x), f(x))


def test_without_a_compiler_models_run_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise ToolchainError("the C++ compiler g++ is missing")

    monkeypatch.setattr(build, "build", missing)
    x = torch.randn(3)
    with pytest.warns(FallbackWarning, match=r"in eager: the C\+\+ compiler g\+\+ is missing \(2 calls\)$"):
        assert torch.equal(compiled(lambda x: torch.relu(x) * 7)(x), torch.relu(x) * 7)


@pytest.mark.parametrize("kind", ["a file", "under a file"])
def test_a_cache_that_cannot_be_used(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning, and kernels in a folder of this process."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path / "file" / ("" if kind == "a file" else "below")))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        agree(lambda x: torch.relu(x) * 3 + 0.375, (torch.randn(3, 5),))
        agree(lambda x: torch.relu(x) * 5 + 0.625, (torch.randn(3, 5),))
    assert [w.category for w in said] == [CacheWarning]
    assert re.search(r"temporary folder: cannot use the kernel cache folder", str(said[0].message))


# Threads --------------------------------------------------------------------------------------------------------------

THREADS = 4


def in_threads(work: Callable[[int], None]) -> None:
    """Run `work` of each number in a thread of its own, all at once; raise what the first of them raised."""
    together = threading.Barrier(THREADS)

    def begin(n: int) -> None:
        together.wait()
        work(n)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(begin, n) for n in range(THREADS)]:
            done.result()


def test_threads_compile_different_functions_at_once() -> None:
    def work(n: int) -> None:
        model = nn.Sequential(nn.Linear(6, 5 + n), nn.GELU(), nn.LayerNorm(5 + n))
        x, weight = torch.randn(4, 6), torch.randn(4, 5 + n)
        wanted = gradients(model, model, x, weight)
        torch.testing.assert_close(gradients(model, compiled(model), x, weight), wanted, rtol=1e-4, atol=1e-5)

    seeded()
    in_threads(work)


def test_threads_compile_the_same_function_at_once() -> None:
    def f(x: Tensor) -> Tensor:
        return (x * 2).sum(-1).exp() + x.mean()

    def work(n: int) -> None:
        x = torch.randn(2 + n, 6)
        torch.testing.assert_close(own(x), f(x), rtol=1e-4, atol=1e-5)

    own = compiled(f)
    seeded()
    in_threads(work)


@pytest.mark.filterwarnings("ignore")
def test_no_thread_traces_while_another_compiles_for_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled at a call, as sizes decide, is under the lock under which Dynamo traces."""
    made, free = backend._specialise, []

    def specialised(*given: Any) -> Any:
        other = threading.Thread(target=lambda: free.append(compile_lock.acquire(blocking=False)))
        other.start()
        other.join()
        return made(*given)

    monkeypatch.setattr(backend, "_specialise", specialised)
    agree(
        lambda x: nn.functional.interpolate(x[None, None], (3, 3), mode="bilinear", antialias=True),
        *((torch.randn(n, 8),) for n in (4, 5, 7)),
    )
    assert free and not any(free)


def test_threads_lower_at_once() -> None:
    """Equal nodes are one object, and long programs are walked deeply, whatever other threads do."""

    def work(n: int) -> None:
        for length in [150] if n == 0 else [3, 4] * 15:
            texts.add((length, pipeline.lower(long_program(length), named.target("cpu:avx2")).show("cpp")))

    texts: set[tuple[int, str]] = set()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        in_threads(work)
    finally:
        sys.setswitchinterval(interval)
    assert len(texts) == 3


def long_program(length: int) -> aten.Program:
    lines = [f"    y{k}: f32[7] = aten.mul.Tensor({f'y{k - 1}' if k else 'x'}, {k}.5)" for k in range(length)]
    return aten_text.parse("\n".join(["def f(x: f32[7]):", *lines, f"    return y{length - 1}"]))


@pytest.mark.parametrize("given", [{"mode": "reduce-overhead"}, {"options": {"mode": "reduce-overhead"}}])
def test_a_mode_for_less_overhead_changes_no_result(given: dict[str, Any]) -> None:
    x = torch.randn(3, 5)
    assert torch.equal(compiled(lambda x: x.relu() + 1, **given)(x), x.relu() + 1)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"options": {"targget": "cpu"}}, "has no option targget"),
        ({"options": {"target": "tpu"}}, "unknown target 'tpu'"),
        ({"mode": "fast"}, "has no mode 'fast': .* the modes default, reduce-overhead, max-autotune"),
        ({"options": {"mode": "fast"}}, "has no mode 'fast'"),
    ],
)
def test_unknown_options(given: dict[str, Any], problem: str) -> None:
    x = torch.randn(3)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=problem) as refusal:
        compiled(lambda x: torch.relu(x), **given)(x)
    assert isinstance(refusal.value.inner_exception, CompilerError)


def test_a_target_that_this_machine_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "missing", lambda wanted: ("avx512f",))
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"cannot run code for cpu:avx512: .* no avx512f"):
        compiled(lambda x: x.relu(), options={"target": "cpu:avx512"})(torch.randn(3))


def test_threads_look_the_backend_up_at_once() -> None:
    """Torch takes a backend that two threads load at once for two of one name."""
    code = """
        import threading
        import torch
        from torch._dynamo.backends.registry import lookup_backend
        lookup_backend("eager")
        together, found = threading.Barrier(4), []
        def work():
            together.wait()
            found.append(torch.compile(torch.relu, backend="mlcomp")(torch.ones(3)).sum().item())
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        print(found)
    """
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True)
    assert run.stdout.strip() == "[3.0, 3.0, 3.0, 3.0]", run.stderr


def test_the_entry_point_names_the_backend(tmp_path: Path) -> None:
    """Found by its name alone, as an installed package has it."""
    info = tmp_path / "backend_of_mlcomp-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: backend-of-mlcomp\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\nmlcomp = compiler.backend:mlcomp\n")
    code = """
        import sys, torch
        assert "compiler" not in sys.modules
        f = torch.compile(lambda x: torch.relu(x) * 2, backend="mlcomp", options={"fallback": False})
        print(f(torch.tensor([-1.0, 3.0])).tolist())
    """
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])}
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert run.stdout.strip() == "[0.0, 6.0]", run.stderr
