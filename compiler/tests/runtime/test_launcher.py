"""Calling kernels: every launcher gives the same outputs, refuses the same arguments, and owns its memory."""

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compiler.errors import CompilerError, ToolchainError
from compiler.runtime import build, detect, extension, launcher
from compiler.runtime.launcher import Buffer, Plan
from compiler.runtime.packs import Pack

HEAD = """
static void body(void** buffers, const long long* sizes, int threads);
extern "C" __attribute__((visibility("default")))
int mlc_entry(void** buffers, const long long* sizes, int threads) {
  body(buffers, sizes, threads);
  return 0;
}
void body(void** buffers, const long long* sizes, int threads) {
"""
# out = x * w + 1 by way of a temporary; sizes[0] elements, strides sizes[1] of x.
SCALE = f"""{HEAD}
  const float *x = (const float*)buffers[0], *w = (const float*)buffers[1];
  float *out = (float*)buffers[2], *t = (float*)buffers[3];
  for (long long i = 0; i < sizes[0]; i++) t[i] = x[i * sizes[1]] * w[i];
  for (long long i = 0; i < sizes[0]; i++) out[i] = t[i] + 1;
}}"""
THREADS = f"{HEAD} *(long long*)buffers[0] = threads; }}"

ROUTES = ("abi", "attributes", "ctypes")
Load = Callable[..., launcher.Launcher]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=ROUTES)
def load(request: pytest.FixtureRequest, cache: Path) -> Iterator[Load]:
    """`launcher.load` of a source, by each of the routes from Python to a kernel."""
    module = extension.load(cache)
    if request.param == "abi" and not extension.torch_functions()[0]:
        pytest.skip("this torch has no C ABI that could be verified")
    extension.connect(module, abi=request.param == "abi")

    def of(source: str, plan: Plan, **options: Any) -> launcher.Launcher:
        native = request.param != "ctypes"
        return launcher.load(build.build(source, cache=cache), plan, cache=cache, native=native, **options)

    yield of
    extension.connect(module)


@pytest.fixture
def seed() -> int:
    number = random.randrange(2**32)
    torch.manual_seed(number)
    return number


def f32(name: str, *shape: int) -> Buffer:
    return Buffer(name, "f32", shape, torch.empty(shape, device="meta").stride())


def scale(n: int, stride: int = 1) -> Plan:
    x = Buffer("x", "f32", (n,), (stride,))
    return Plan((x, f32("w", n)), (f32("out", n),), temporaries=(64,), arena=64 + 4 * n, sizes=(n, stride))


@pytest.mark.parametrize("n", [0, 1, 7, 1000, 100_000])
def test_inputs_outputs_and_temporaries_reach_the_kernel(load: Load, seed: int, n: int) -> None:
    call = load(SCALE, scale(n))
    x, w = torch.randn(n), torch.randn(n)
    for _ in range(3):
        (out,) = call(x, w)
        assert torch.allclose(out, x * w + 1), f"seed {seed}"
        assert type(out) is torch.Tensor and out.dtype is torch.float32 and out.shape == (n,)


def test_outputs_are_fresh_and_outlive_the_launcher(load: Load, seed: int) -> None:
    call = load(SCALE, scale(100))
    x, w = torch.randn(100), torch.randn(100)
    (first,), (second,) = call(x, w), call(-x, w)
    del call
    gc.collect()
    assert torch.allclose(first, x * w + 1) and torch.allclose(second, -x * w + 1), f"seed {seed}"


def test_outputs_take_their_strides_and_dtypes(load: Load) -> None:
    plan = Plan(
        (), (Buffer("a", "bf16", (2, 3), (1, 2)), Buffer("b", "bool", (0, 4), (4, 1)), Buffer("c", "i64", (), ()))
    )
    a, b, c = load(HEAD + "}", plan)()
    assert (a.dtype, a.shape, a.stride()) == (torch.bfloat16, (2, 3), (1, 2))
    assert (b.dtype, b.shape) == (torch.bool, (0, 4)) and (c.dtype, c.shape) == (torch.int64, ())


# Of three inputs, the last two are in a pack, in the other order; so are the first and last of three outputs.
PACKS = Plan(
    (f32("x", 3), f32("y", 2), Buffer("z", "f32", (2, 2), (1, 3))), (f32("a", 3), f32("b", 3), f32("c", 2)),
    packed_inputs=(Pack(10, ((1, 8), (2, 1))),), packed_outputs=(Pack(8, ((0, 0), (2, 6))),),
)  # fmt: skip
# a = x + 1, b = 2 x, c = y + the diagonal of z.
PIECES = f"""{HEAD}
  const float *x = (const float*)buffers[0], *y = (const float*)buffers[1], *z = (const float*)buffers[2];
  float *a = (float*)buffers[3], *b = (float*)buffers[4], *c = (float*)buffers[5];
  for (int i = 0; i < 3; i++) a[i] = x[i] + 1, b[i] = 2 * x[i];
  for (int i = 0; i < 2; i++) c[i] = y[i] + z[4 * i];
}}"""


def test_pieces_of_packs_are_read_and_written(load: Load, seed: int) -> None:
    call, x, given = load(PIECES, PACKS), torch.randn(3), torch.randn(10)
    for pack in (given, torch.cat([torch.zeros(5), given])[5:]):
        made, b, within = call(x, pack, None)
        assert within is None and (made.shape, made.stride(), made.storage_offset()) == ((8,), (1,), 0)
        assert torch.equal(made[:3], x + 1) and torch.equal(b, 2 * x), f"seed {seed}"
        assert torch.allclose(made[6:], given[8:] + given[1:6:4]), f"seed {seed}"


@pytest.mark.parametrize(
    "wrong", ["a tensor for a piece", "no pack", "a short pack", "another type", "every second element"]
)
def test_what_is_no_pack_is_refused(load: Load, wrong: str) -> None:
    pack, piece = torch.zeros(10), None
    arguments: dict[str, tuple[Any, Any]] = {
        "a tensor for a piece": (pack, torch.zeros(2, 2)), "no pack": (piece, piece),
        "a short pack": (pack[1:], piece), "another type": (pack.double(), piece),
        "every second element": (torch.zeros(20)[::2], piece),
    }  # fmt: skip
    with pytest.raises((TypeError, ValueError), match=r"argument [12]"):
        load(PIECES, PACKS)(torch.zeros(3), *arguments[wrong])


def test_a_pack_precedes_its_pieces(cache: Path) -> None:
    with pytest.raises(ValueError, match="pack 2 comes after its part 1"):
        plan = replace(PACKS, packed_inputs=(Pack(10, ((2, 1), (1, 8))),))
        launcher.load(build.build(PIECES, cache=cache), plan, cache=cache)


@pytest.mark.parametrize("dtype", launcher.DTYPES)
def test_every_dtype_goes_in_and_out(load: Load, dtype: str) -> None:
    size = launcher.DTYPES[dtype].itemsize
    copy = HEAD + f"__builtin_memcpy(buffers[1], buffers[0], {3 * size}); }}"
    call = load(copy, Plan((Buffer("x", dtype, (3,), (1,)),), (Buffer("y", dtype, (3,), (1,)),)))
    x = torch.tensor([0, 1, 3]).to(launcher.DTYPES[dtype])
    (y,) = call(x)
    assert torch.equal(x, y)


def test_strided_and_offset_inputs(load: Load, seed: int) -> None:
    call = load(SCALE, scale(10, stride=3))
    base, w = torch.randn(40), torch.randn(12)[2:]
    x = base[5:35:3]
    (out,) = call(x, w)
    assert torch.allclose(out, x * w + 1), f"seed {seed}"


def test_strides_of_axes_that_are_not_stepped_along_do_not_matter(load: Load) -> None:
    call = load(HEAD + "}", Plan((f32("x", 1, 5), f32("y", 0, 3)), ()))
    assert call(torch.zeros(5, 1).T, torch.zeros(3, 0).T) == ()
    assert call(torch.zeros(5, 7)[:, :5][1:2], torch.zeros(0, 3)) == ()


@pytest.mark.parametrize(
    ("error", "words", "argument"),
    [
        (TypeError, "got list; pass a tensor", [1.0]),
        (TypeError, "got NoneType; pass a tensor", None),
        (TypeError, r"got f64\[6\]", torch.zeros(6, dtype=torch.float64)),
        (TypeError, r"got torch.complex64\[6\]", torch.zeros(6, dtype=torch.complex64)),
        (ValueError, r"got f32\[7\]", torch.zeros(7)),
        (ValueError, r"got f32\[2, 3\]", torch.zeros(2, 3)),
        (ValueError, r"got f32\[\]", torch.zeros(())),
        (ValueError, r"with strides \(2,\)", torch.zeros(12)[::2]),
        (ValueError, "on meta", torch.zeros(6, device="meta")),
        (ValueError, "layout torch.sparse_coo", torch.zeros(6).to_sparse()),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_what_the_kernel_was_not_compiled_for_is_refused(
    load: Load, error: type[Exception], words: str, argument: object
) -> None:
    call = load(SCALE, scale(6))
    with pytest.raises(error, match=rf"argument 1 \(w\): expected f32\[6\] with strides \(1,\) on cpu, {'.*'}{words}"):
        call(torch.zeros(6), argument)
    assert call(torch.zeros(6), torch.ones(6))[0].tolist() == [1.0] * 6, "a refusal leaves the launcher usable"


def test_count_and_keywords_are_checked(load: Load) -> None:
    call = load(SCALE, scale(6))
    with pytest.raises(TypeError, match="expected 2 arguments, got 1"):
        call(torch.zeros(6))
    with pytest.raises(TypeError):
        call(torch.zeros(6), w=torch.zeros(6))


def test_parameters_and_plain_subclasses_are_tensors(load: Load, seed: int) -> None:
    class Mine(torch.Tensor):
        pass

    x, w = torch.randn(6), torch.randn(6)
    with torch.no_grad():
        (out,) = load(SCALE, scale(6))(torch.nn.Parameter(x), w.as_subclass(Mine))
    assert torch.allclose(out, x * w + 1), f"seed {seed}"


def test_wrappers_without_memory_are_refused(load: Load) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415  # slow to import, for one test

    call = load(SCALE, scale(6))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.zeros(6))
    with pytest.raises(TypeError, match="FakeTensor, which has no memory"):
        call(fake, torch.zeros(6))
    with pytest.raises(TypeError, match=r"argument 0 \(x\)"):
        torch.vmap(lambda x: call(x, torch.zeros(6))[0])(torch.zeros(3, 6))


def test_a_freed_storage_is_refused(load: Load) -> None:
    x = torch.zeros(6)
    x.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="storage was freed"):
        load(SCALE, scale(6))(x, torch.zeros(6))


def test_a_lazily_negated_view_is_not_read_as_it_lies(load: Load, seed: int) -> None:
    x = torch.randn(6, dtype=torch.complex64).conj().imag
    assert x.is_neg() and x.stride() == (2,)
    with pytest.raises(ValueError, match="strides"):
        load(SCALE, scale(6, stride=2))(x, torch.ones(6))
    (out,) = load(SCALE, scale(6))(x.resolve_neg(), torch.ones(6))
    assert torch.allclose(out, x + 1), f"seed {seed}"


def test_constants_are_bound_and_kept(load: Load, seed: int) -> None:
    x, w = torch.randn(6), torch.randn(6)
    weight = torch.nn.Parameter(w.clone())
    call = load(SCALE, scale(6), constants={1: weight})
    weight.data = torch.zeros(1)
    del weight
    gc.collect()
    _ = [torch.full((6,), 9.0) for _ in range(50)]  # likely to land where the weight lay, had it been freed
    assert torch.allclose(call(x)[0], x * w + 1), f"seed {seed}"
    first = load(SCALE, scale(6), constants={0: x})
    assert torch.allclose(first(w)[0], x * w + 1), f"seed {seed}"
    with pytest.raises(TypeError, match=r"argument 0 \(w\)"):
        first(None)


def test_wrong_constants_are_refused(load: Load) -> None:
    with pytest.raises(ValueError, match="constant 5: the kernel has inputs 0 to 1"):
        load(SCALE, scale(6), constants={5: torch.zeros(6)})
    with pytest.raises(ValueError, match=r"\(w\): expected f32\[6\].*got f32\[7\]"):
        load(SCALE, scale(6), constants={1: torch.zeros(7)})


def test_threads_follow_torch_unless_said_otherwise(load: Load) -> None:
    plan = Plan((), (Buffer("threads", "i64", (), ()),))
    before = torch.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            assert load(THREADS, plan)()[0].item() == n
            assert load(THREADS, plan, threads=3)()[0].item() == 3
    finally:
        torch.set_num_threads(before)


def test_many_threads_share_a_launcher(load: Load, seed: int) -> None:
    n = 50_000  # large enough for the call to release the GIL, so that arenas are asked for while one is in use
    call = load(SCALE, scale(n))
    w, wrong = torch.randn(n), []

    def work(k: int) -> None:
        x = torch.full((n,), float(k))
        for _ in range(50):
            if not torch.allclose(call(x, w)[0], x * w + 1):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, f"seed {seed}"


def test_a_dropped_launcher_frees_its_constants(load: Load) -> None:
    array = np.zeros(6, np.float32)
    before = sys.getrefcount(array)
    call = load(SCALE, scale(6), constants={1: torch.from_numpy(array)})
    call(torch.zeros(6))
    assert sys.getrefcount(array) > before
    del call
    gc.collect()
    assert sys.getrefcount(array) == before


def test_many_buffers_and_large_outputs(load: Load, seed: int) -> None:
    n, m = 40, 1 << 21
    inputs = tuple(f32(f"x{i}", 2) for i in range(n))
    text = (
        f"{HEAD} float* out = (float*)buffers[{n}];"
        f"for (long long i = 0; i < {m}; i++) out[i] = *(float*)buffers[i % {n}]; }}"
    )
    call = load(text, Plan(inputs, (f32("out", m),)), huge=1)
    xs = [torch.randn(2) for _ in range(n)]
    (out,) = call(*xs)
    assert torch.equal(out[:n], torch.stack(xs)[:, 0]) and out[-1] == xs[(m - 1) % n][0], f"seed {seed}"


def test_references_are_neither_lost_nor_kept(load: Load) -> None:
    call = load(SCALE, scale(6))
    x, w = torch.zeros(6), torch.zeros(6)
    counts = sys.getrefcount(x), sys.getrefcount(w)
    for argument in (w, [1], torch.zeros(7)):
        for _ in range(20):
            try:
                (out,) = call(x, argument)
            except (TypeError, ValueError):
                continue
    assert (sys.getrefcount(x), sys.getrefcount(w)) == counts
    assert sys.getrefcount(out) == 2


def test_run_once_takes_arrays_tensors_and_addresses(cache: Path, seed: int) -> None:
    path = build.build(SCALE, cache=cache)
    x, w = torch.randn(5).numpy(), torch.randn(5)
    out, temporary = np.full(5, np.nan, np.float32), torch.empty(5)
    launcher.run_once(path, (x, w, out, temporary.data_ptr()), (5, 1))
    assert np.allclose(out, x * w.numpy() + 1), f"seed {seed}"
    launcher.run_once(build.build(HEAD + "}", cache=cache), ())


def test_a_file_that_is_no_kernel_is_named(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "k.so").write_bytes(b"no")
    with pytest.raises(CompilerError, match=r"cannot load the compiled kernel .*k\.so.*delete the file"):
        launcher.run_once(tmp_path / "k.so", ())
    with pytest.raises(CompilerError, match="has no function nothing"):
        launcher.run_once(build.build(HEAD + "}", cache=cache), (), name="nothing")


def test_without_python_headers_calls_go_through_ctypes_and_say_so_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(detect, "python_headers", lambda: None)
    extension.load.cache_clear()
    launcher._native.cache_clear()
    with pytest.raises(ToolchainError, match="apt-get install python3"):
        extension.load(cache)
    for _ in range(2):
        call = launcher.load(build.build(SCALE, cache=cache), scale(3), cache=cache)
        assert call(torch.ones(3), torch.ones(3))[0].tolist() == [2.0] * 3
    assert len(caplog.records) == 1 and "ctypes" in caplog.text
    monkeypatch.undo()
    extension.load.cache_clear()
    launcher._native.cache_clear()


def test_the_at_tensor_is_found_where_torch_has_the_abi() -> None:
    if not all(map(extension.function_address, extension.READERS)):
        pytest.skip("this torch has no C ABI")
    assert extension.tensor_offset() in range(8, torch.Tensor.__basicsize__, 8)


def test_a_torch_that_does_not_name_its_wrapper_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    offset = extension.tensor_offset()
    if not offset:
        pytest.skip("this torch has no C ABI")
    monkeypatch.delattr(torch._C._dynamo.guards, "_torchinductor_thp_variable_wrap", raising=False)
    assert extension.wrapper(offset)
    monkeypatch.setattr(extension, "WRAP", "no_such_function")
    assert extension.wrapper(offset) == 0


@pytest.mark.parametrize("offset", [0, 1])
def test_written_arguments_are_results(offset: int) -> None:
    """Result 0 is argument 1 with the sum in it, also if the kernel works on an aligned copy."""
    vector = [Buffer(name, "f32", (5,), (1,)) for name in "xyz"]
    plan = Plan(tuple(vector[:2]), tuple(vector[2:]), written=((0, 1),))
    aligned: list[bool] = []

    def add(inputs: list[torch.Tensor], outputs: tuple[torch.Tensor, ...]) -> None:
        x, y = inputs
        aligned.append(y.data_ptr() % launcher.ALIGNMENT == 0)
        outputs[0].copy_(y.add_(x))

    x, y = torch.ones(5), torch.arange(9.0)[offset : offset + 5]
    expected = x + y
    written, z = launcher.python_launcher(plan, {}, add, launcher.refuse_data)(x, y)
    assert written is y and torch.equal(y, expected) and torch.equal(z, expected) and aligned == [True]
