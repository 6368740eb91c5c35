"""Programs on a GPU: packing, temporaries, graphs and tensor maps, on a fake driver and on a GPU where there is one."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compiler.errors import CompilerError, InvalidData
from compiler.runtime import device, faults, gpu, launcher, tensor_map
from compiler.runtime.cubin import build_cubin
from compiler.runtime.gpu_graph import MAX_GRAPHS, MAX_REMEMBERED, MIN_REPLAYS, MIN_SIGHTS, Replays
from compiler.runtime.launcher import Buffer, Launcher, Plan
from compiler.runtime.launches import Buffer as Memory
from compiler.runtime.launches import Flag, Launch, LaunchPlan, Map, Size
from compiler.tests.fake_gpu import FakeDriver, Kernel, f32, word
from compiler.tests.meaning import fresh_seed

CPU = torch.device("cpu")
N = 100


@pytest.fixture
def seed() -> int:
    seed = fresh_seed()
    torch.manual_seed(seed)
    return seed


def vector(name: str, n: int = N) -> Buffer:
    return Buffer(name, "f32", (n,), (1,))


def memory(*names: str, size: int = 4 * N) -> tuple[Memory, ...]:
    return tuple(Memory(name, size) for name in names)


def add(x: int, y: int, out: int, n: int) -> None:
    f32(out, word(n))[:] = f32(x, word(n)) + f32(y, word(n))


def twice(x: int, out: int) -> None:
    f32(out, N)[:] = 2 * f32(x, N)


KERNELS: dict[str, tuple[int, Kernel]] = {"add": (4, add), "twice": (2, twice)}


def driver() -> FakeDriver:
    return FakeDriver(KERNELS)


ADD = Launch("add", (1, 1, 1), (128, 1, 1), (0, 1, 2, Size(N)))
ONE = LaunchPlan(memory("x", "y"), memory("z"), (ADD,))
# t0 = x + x, t1 = 2 t0, z = t1 + y: two temporaries in one arena
CHAIN = LaunchPlan(
    memory("x", "y"),
    memory("z"),
    (
        Launch("add", (1, 1, 1), (128, 1, 1), (0, 0, 3, Size(N))),
        Launch("twice", (1, 1, 1), (128, 1, 1), (3, 4)),
        Launch("add", (1, 1, 1), (128, 1, 1), (4, 1, 2, Size(N))),
    ),
    memory("t0", "t1"),
    (0, 512),
    1024,
)
PLAN = Plan((vector("x"), vector("y")), (vector("z"),))


def load(fake: FakeDriver, launches: LaunchPlan = ONE, plan: Plan = PLAN, **options: Any) -> Launcher:
    return gpu.load(b"image", plan, launches, device=CPU, driver=fake, **options)


def test_a_call_launches_and_returns_fresh_outputs(seed: int) -> None:
    fake = driver()
    call = load(fake)
    for _ in range(3):
        x, y = torch.randn(2, N)
        (z,) = call(x, y)
        assert torch.equal(z, x + y), f"seed {seed}"
    assert fake.asked("launch") == [("launch", 1, (1, 1, 1), (128, 1, 1), 0, 0)] * 3


def test_temporaries_lie_in_one_arena(seed: int) -> None:
    call = load(driver(), CHAIN)
    x, y = torch.randn(2, N)
    assert torch.allclose(call(x, y)[0], 4 * x + y), f"seed {seed}"


def test_what_launches_find_zero_is_kept_for_each_stream() -> None:
    seen = []

    def count(tickets: int, out: int) -> None:
        held = np.ctypeslib.as_array((ctypes.c_int32 * 1).from_address(word(tickets)))
        f32(out, N)[:] = held[0]
        seen.append(word(tickets))
        held[0] += 1

    fake = FakeDriver({"count": (2, count)})
    launch = Launch("count", (1, 1, 1), (128, 1, 1), (2, 0))
    launches = LaunchPlan((), memory("z"), (launch,), memory("t", "n", size=512), (0, 512), 1024, 1)
    call = load(fake, launches, Plan((), (vector("z"),), (0, 512), 1024, zeros=1))
    assert [int(call()[0][0]) for _ in range(3)] == [0, 1, 2], "a launch that leaves other than zero is found out"
    assert len(set(seen)) == 1


def test_constants_are_bound_once(seed: int) -> None:
    x, y = torch.randn(2, N)
    call = load(driver(), constants={1: y})
    assert torch.equal(call(x)[0], x + y), f"seed {seed}"
    with pytest.raises(TypeError, match="expected 1 arguments, got 2"):
        call(x, y)
    with pytest.raises(ValueError, match="constant 7: the kernel has inputs 0 to 1"):
        load(driver(), constants={7: y})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.zeros(N + 1), r"argument 1 \(y\): expected f32\[100\] with strides \(1,\) on cpu, got f32\[101\]"),
        (torch.zeros(2 * N)[::2], r"strides \(2,\)"),
        (torch.zeros(N, dtype=torch.float64), r"got f64\[100\]"),
        (torch.zeros(N, device="meta"), r"on meta"),
        ([1.0], r"got list; pass a tensor"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(wrong: object, message: str) -> None:
    fake = driver()
    with pytest.raises((TypeError, ValueError), match=message):
        load(fake)(torch.zeros(N), wrong)
    assert not fake.asked("launch")


def test_subclasses_and_negated_views_are_read_right() -> None:
    call = load(driver())
    x = torch.nn.Parameter(torch.arange(float(N)))
    negated = torch.complex(torch.zeros(N), torch.ones(N)).conj().imag
    assert negated.is_neg()
    assert torch.equal(call(x, negated.contiguous())[0], x.detach() - 1)
    plan = Plan((vector("x"), Buffer("y", "f32", (N,), (2,))), (vector("z"),))

    def strided(x: int, y: int, out: int, n: int) -> None:
        f32(out, N)[:] = f32(x, N) + f32(y, 2 * N)[::2]

    call = load(FakeDriver({"add": (4, strided)}), plan=plan)
    with pytest.raises(ValueError, match="strides"):
        call(x, negated)  # resolving it makes it dense
    assert torch.equal(call(x, torch.ones(2 * N)[::2])[0], x.detach() + 1)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_what_starts_amid_sixteen_bytes_is_copied_with_its_strides(offset: int, seed: int) -> None:
    aligned = []

    def note(x: int, y: int, out: int, n: int) -> None:
        aligned.append((word(x) | word(y) | word(out)) % launcher.ALIGNMENT == 0)
        add(x, y, out, n)

    call = load(FakeDriver({"add": (4, note)}))
    x, y = torch.randn(N + 8)[offset : offset + N], torch.randn(N)
    assert torch.equal(call(x, y)[0], x + y), f"seed {seed}"
    assert load(FakeDriver({"add": (4, note)}), constants={0: x})(y)[0].equal(x + y)
    assert aligned == [True, True]
    wide = torch.randn(1 + 4 * 7)[1:].as_strided((4, 3), (7, 2))
    assert launcher.aligned(wide).stride() == (7, 2) and launcher.aligned(wide).equal(wide)
    assert launcher.aligned(wide).data_ptr() % launcher.ALIGNMENT == 0


def test_large_shared_memory_and_clusters_are_asked_for() -> None:
    fake = driver()
    big = Launch("add", (16, 1, 1), (128, 1, 1), ADD.args, 200 << 10, (16, 1, 1))
    small = Launch("add", (2, 1, 1), (128, 1, 1), ADD.args, 48 << 10, (2, 1, 1))
    load(fake, LaunchPlan(ONE.inputs, ONE.outputs, (small, big, small)))
    assert fake.asked("allow") == [
        ("allow", 1, device.MAX_DYNAMIC_SHARED, 48 << 10),
        ("allow", 1, device.MAX_DYNAMIC_SHARED, 200 << 10),
        ("allow", 1, device.ANY_CLUSTER, 1),
    ]


def bounded(x: int, out: int, failed: int) -> None:
    """Complains about numbers below 0."""
    f32(out, N)[:] = f32(x, N)
    if (f32(x, N) < 0).any():
        ctypes.c_int.from_address(word(failed)).value = 1


CHECKED = LaunchPlan(memory("x"), memory("z"), (Launch("bounded", (1, 1, 1), (128, 1, 1), (0, 1, Flag())),))


def test_data_that_a_kernel_does_not_approve_of_is_told_by_the_next_call_or_at_once() -> None:
    plan, good, bad = Plan((vector("x"),), (vector("z"),)), torch.ones(N), -torch.ones(N)
    late = load(FakeDriver({"bounded": (3, bounded)}), CHECKED, plan)
    late(bad)
    with pytest.raises(InvalidData, match="an earlier call of this function was given an index"):
        late(good)
    assert torch.equal(late(good)[0], good)

    def refuse(*arguments: object) -> None:
        raise IndexError(f"{len(arguments)} argument")

    at_once = load(FakeDriver({"bounded": (3, bounded)}), CHECKED, plan, invalid=refuse)
    with pytest.raises(IndexError, match="1 argument"):
        at_once(bad)
    assert torch.equal(at_once(good)[0], good)


def test_a_kernel_that_waits_itself_may_overlap() -> None:
    fake, (z, x, y) = driver(), torch.rand(3, N)
    launches = LaunchPlan(ONE.inputs, ONE.outputs, (ADD, replace(ADD, overlaps=True)))
    (z,) = load(fake, launches)(x, y)
    assert torch.allclose(z, x + y)
    assert [entry[6:] for entry in fake.asked("launch")] == [(), ("overlaps",)]


def test_an_empty_grid_launches_nothing() -> None:
    fake = driver()
    empty = Plan((vector("x", 0), vector("y", 0)), (vector("z", 0),))
    launch = Launch("add", (0, 1, 1), (128, 1, 1), ADD.args)
    (z,) = load(fake, LaunchPlan(ONE.inputs, ONE.outputs, (launch,)), empty)(torch.empty(0), torch.empty(0))
    assert z.shape == (0,) and not fake.asked("launch")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": (1025, 1, 1)}, r"kernel add cannot be launched .* blocks are at most \(1024, 1024, 64\)"),
        ({"block": (64, 32, 1)}, "at most 1024 threads, not 2048"),
        ({"grid": (1, 70000, 1)}, "grids are at most"),
        ({"cluster": (2, 1, 1)}, "clusters divide the grid"),
        ({"args": (0, 1, 3)}, "buffers are numbered 0 to 2"),
        ({"shared": 228 << 10}, "no GPU has more than 232448 bytes"),
    ],
)
def test_what_no_gpu_launches_is_refused_with_the_reason(change: dict[str, Any], message: str) -> None:
    launch = Launch(**{"kernel": "add", "grid": (1, 1, 1), "block": (128, 1, 1), "args": ADD.args} | change)
    with pytest.raises(CompilerError, match=message):
        load(driver(), LaunchPlan(ONE.inputs, ONE.outputs, (launch,)))


def test_plans_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match="different inputs or outputs"):
        load(driver(), plan=Plan((vector("x"),), (vector("z"),)))


def test_plans_share_a_module_until_none_is_left() -> None:
    fake = driver()
    module = gpu.Module(fake, b"image")
    plans = [gpu.Kernels(fake, module, x) for x in (ONE, CHAIN)]
    assert len(fake.asked("load")) == 1
    del module, plans[0]
    gc.collect()
    assert not fake.asked("unload")
    plans.clear()
    gc.collect()
    assert fake.asked("unload") == [("unload", 1000)]


def test_each_image_of_a_module_is_given_back_and_there_is_at_least_one() -> None:
    fake = driver()
    kernels = gpu.Kernels(fake, gpu.Module(fake, b"one", b"other"), CHAIN)
    assert len(fake.asked("load")) == 2 and len(kernels) == 3
    del kernels
    gc.collect()
    assert len(fake.asked("unload")) == 2
    with pytest.raises(ValueError, match="at least one image"):
        gpu.Module(fake)


def test_a_dropped_program_gives_its_module_back() -> None:
    fake = driver()
    call = load(fake, CHAIN, graphs_from=1)
    x = torch.zeros(N)
    outputs = [call(x, x) for _ in range(4)]
    del call, outputs
    gc.collect()
    assert fake.asked("unload") == [("unload", 1000)] and not fake.graphs


def test_threads_share_a_program(seed: int) -> None:
    call, wrong = load(driver(), CHAIN), []

    def work(k: int) -> None:
        x = torch.full((N,), float(k))
        for _ in range(30):
            if not call(x, x)[0].eq(5 * k).all():
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, f"seed {seed}"


def test_run_once_takes_all_buffers_as_they_are(seed: int) -> None:
    x, y, z, t0, t1 = torch.randn(5, N)
    gpu.run_once(b"image", CHAIN, [t.clone() for t in (x, y)] + [z, t0, t1], driver())
    assert torch.allclose(z, 4 * x + y) and torch.equal(t0, 2 * x), f"seed {seed}"


# ---- graphs


def test_the_same_addresses_are_replayed_and_others_are_not(seed: int) -> None:
    fake = driver()
    kernels = gpu.Kernels(fake, b"image", CHAIN)
    buffers = [torch.randn(N) for _ in range(5)]
    others = [torch.randn(N) for _ in range(5)]
    for number in range(6):
        for set_ in (buffers, others):
            set_[0].normal_()
            kernels.run(tuple(b.data_ptr() for b in set_), 0, graphs=True)
            assert torch.allclose(set_[2], 4 * set_[0] + set_[1]), f"seed {seed}, run {number}"
    assert len(fake.asked("capture")) == 2
    assert len(fake.asked("replay")) == 2 * (6 - MIN_SIGHTS + 1)


def test_few_launches_make_no_graph() -> None:
    fake = driver()
    kernels = [load(fake, CHAIN, graphs_from=n) for n in (3, 4)]
    x = torch.zeros(N)
    for call in kernels:
        kept = [call(x, x) for _ in range(2 * MIN_SIGHTS)]
        del kept
    assert len(fake.asked("launch")) >= 3 * 2 * MIN_SIGHTS


class CountingDriver(FakeDriver):
    """Captures without launches."""

    def capture(self, enqueue: Callable[[int], None]) -> int:
        self._note("capture")
        self.graphs[graph := 500 + len(self.asked("capture"))] = []
        return graph


def test_graphs_are_few_and_the_least_used_goes_first() -> None:
    fake = CountingDriver({})
    replays = Replays(fake)
    direct: list[int] = []
    for key in range(MAX_GRAPHS + 1):
        for _ in range(MIN_SIGHTS):
            replays.run((key,), 0, direct.append)
        replays.run((0,), 0, direct.append)
    assert len(fake.graphs) == MAX_GRAPHS and fake.asked("drop") == [("drop", 502)]
    replays.close()
    assert not fake.graphs


def test_graphs_that_were_hardly_replayed_have_others_captured_later() -> None:
    fake = CountingDriver({})
    replays = Replays(fake)
    direct: list[int] = []
    for key in range(MAX_GRAPHS + 2):
        for _ in range(MIN_SIGHTS):
            replays.run((key,), 0, direct.append)
    assert len(fake.asked("capture")) == MAX_GRAPHS + 1
    for _ in range(MIN_REPLAYS + MIN_SIGHTS):
        replays.run((MAX_GRAPHS + 1,), 0, direct.append)
    assert len(fake.asked("capture")) == MAX_GRAPHS + 2


def test_addresses_that_never_come_back_are_forgotten() -> None:
    replays = Replays(CountingDriver({}))
    direct: list[int] = []
    for key in range(3 * MAX_REMEMBERED):
        replays.run((key,), 0, direct.append)
    assert len(direct) == 3 * MAX_REMEMBERED and len(replays._sights) <= MAX_REMEMBERED


# ---- tensor maps

TILE = Map(0, "f32", (32, 64), (4, 128), (32, 8), 128)


def test_a_map_is_encoded_once_for_each_address() -> None:
    fake, seen = driver(), []
    argument = tensor_map.Argument(TILE, fake.encode)
    for address in (4096, 4096, 8192, 4096, 8192):
        argument.point(address)
        seen.append(word(argument.address))
    assert seen == [4096, 4096, 8192, 4096, 8192]
    assert [entry[1] for entry in fake.asked("encode")] == [4096, 8192]
    for address in range(0, 16 * 3 * tensor_map.MAX_CACHED, 16):
        argument.point(address + 65536)
    assert len(argument._encodings) <= tensor_map.MAX_CACHED


def test_a_map_follows_its_buffer_through_calls() -> None:
    seen = []

    def note(x: int, out: int) -> None:
        seen.append(word(x) == x_now.data_ptr())  # the map itself is the argument

    fake = FakeDriver({"move": (2, note)})
    plan = LaunchPlan(memory("x", size=8192), memory("z"), (Launch("move", (1, 1, 1), (128, 1, 1), (TILE, 1)),))
    call = load(fake, plan, Plan((Buffer("x", "f32", (64, 32), (32, 1)),), (vector("z"),)))
    kept = [torch.zeros(64, 32) for _ in range(3)]
    for x_now in (*kept, kept[0]):
        call(x_now)
    assert seen == [True] * 4 and len(fake.asked("encode")) == 3


def test_a_map_over_an_unaligned_tensor_is_refused() -> None:
    with pytest.raises(CompilerError, match="is not aligned to 16 bytes"):
        tensor_map.Argument(TILE, driver().encode).point(4104)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Map(0, "c64", (32,), (8,), (32,)), "c64 is none of"),
        (Map(0, "f32", (32, 64), (4,), (32, 8)), "for 1 to 5 axes"),
        (Map(0, "f32", (8,) * 6, (4,) * 6, (8,) * 6), "for 1 to 5 axes"),
        (Map(0, "f32", (32, 64), (4, 120), (32, 8)), "outer strides are multiples of 16"),
        (Map(0, "f32", (32, 64), (8, 128), (32, 8)), "innermost elements are adjacent"),
        (Map(0, "f32", (32, 64), (4, 128), (30, 8)), "a row of the box is a multiple of 16 bytes"),
        (Map(0, "f32", (64, 64), (4, 256), (64, 8), 128), "fits in the swizzle"),
        (Map(0, "f32", (32, 64), (4, 128), (32, 257)), "1 to 256 elements"),
        (Map(0, "f32", (32, 64), (4, 128), (32, 8), 48), "0, 32, 64 or 128"),
        (Map(0, "f32", (32, 0), (4, 128), (32, 8)), r"1 to 2\^32"),
    ],
)
def test_a_map_that_the_copy_engine_cannot_serve_is_refused(wrong: Map, message: str) -> None:
    with pytest.raises(CompilerError, match=message):
        tensor_map.encoding(wrong)


# ---- errors and waiting


@pytest.mark.parametrize(
    ("error", "kind", "lost"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered\nmore"), faults.IllegalAddress, True),
        (RuntimeError("CUDA error: misaligned address"), faults.MisalignedAddress, True),
        (RuntimeError("CUDA error: device-side assert triggered"), faults.Trapped, True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), faults.OutOfMemory, False),
        (faults.fault(715), faults.IllegalInstruction, True),
        (faults.Hang(1.0), faults.Hang, True),
    ],
)
def test_exceptions_about_the_gpu_become_typed(error: Exception, kind: type, lost: bool) -> None:
    with pytest.raises(faults.DeviceError) as caught, faults.device_errors("adding"):
        raise error
    assert type(caught.value) is kind and caught.value.lost is lost


def test_numbers_of_other_libraries_are_read() -> None:
    class Theirs(RuntimeError):
        status = 700

    said = r"adding: the GPU found .* CUDA error 700 \(oh\); this process"
    with pytest.raises(faults.IllegalAddress, match=said), faults.device_errors("adding"):
        raise Theirs("oh")
    with pytest.raises(ZeroDivisionError), faults.device_errors("adding"):
        _ = 1 / 0


def test_a_refused_launch_names_the_error() -> None:
    fake = FakeDriver(KERNELS, refuse={"launch": 701})
    with pytest.raises(faults.OutOfResources, match="cannot hold a block"):
        load(fake)(torch.zeros(N), torch.zeros(N))
    with pytest.raises(faults.DeviceError, match="looking for kernel add"):
        load(FakeDriver({}))


def test_waiting_ends_with_the_work_or_with_patience() -> None:
    answers: Iterator[bool] = iter([False] * 5 + [True])
    gpu.wait(lambda: next(answers), 10.0)
    with pytest.raises(faults.Hang, match=r"softmax: the GPU did not finish in time.*waited 0\.01 s"):
        gpu.wait(lambda: False, 0.01, "softmax")


def test_without_a_gpu_it_says_what_is_missing() -> None:
    if not device.unavailable_reason():
        pytest.skip("there is a GPU")
    assert device.devices() == ()
    with pytest.raises(CompilerError, match=r"no GPU to run on: .*install a CUDA build of torch and CuPy"):
        gpu.load(b"", PLAN, ONE)


# ---- on a GPU

real = pytest.mark.skipif(bool(device.unavailable_reason()), reason="no GPU: " + device.unavailable_reason())
TEXT = """\
extern "C" __global__ void add(const float* x, const float* y, float* z, long n) {
  long i = blockIdx.x * 128L + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}
extern "C" __global__ void twice(const float* x, float* z) {
  if (threadIdx.x < 100) z[threadIdx.x] = 2 * x[threadIdx.x];
}
"""


@real
def test_on_a_gpu(seed: int, tmp_path: Path) -> None:
    place = torch.device("cuda", 0)
    arch = device.architecture(device.devices()[0].capability, ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"))
    assert arch is not None
    made = build_cubin(TEXT, arch, cache=tmp_path)
    for launches, factor in ((ONE, 1), (CHAIN, 4)):
        call = gpu.load(made, PLAN, launches, graphs_from=1)
        for n in range(3 * MIN_SIGHTS):
            x, y = torch.randn(2, N + 28, device=place)[:, :N]
            (z,) = call(x, y)
            gpu.synchronize(10.0)
            assert torch.allclose(z, factor * x + y), f"seed {seed}, call {n}"
