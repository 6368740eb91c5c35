"""The native launcher of GPU programs, against a driver in C whose kernels are functions of the CPU."""

from __future__ import annotations

import ctypes
import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from compiler.errors import InvalidData
from compiler.runtime import build, extension, faults, gpu, gpu_native
from compiler.runtime.gpu_native import Functions
from compiler.runtime.launcher import Buffer, Launcher, Plan
from compiler.runtime.launches import Buffer as Memory
from compiler.runtime.launches import Flag, Launch, LaunchPlan, Map, Size
from compiler.runtime.packs import Pack
from compiler.tests.fake_gpu import FakeDriver
from compiler.tests.meaning import fresh_seed

N, SIGHTS, KEPT, PAYS = 100, 3, 8, 8  # all but the first as in gpu_launch.c
CPU = torch.device("cpu")

if extension.tensor_offset() is None or not extension.torch_functions()[0]:
    pytest.skip("this torch has no C ABI", allow_module_level=True)


class NativeDriver(FakeDriver):
    """Hands out the functions of fake_cuda.c."""

    def __init__(self, cache: Path) -> None:
        super().__init__({})
        source = Path(__file__).with_name("fake_cuda.c").read_text()
        self.library = ctypes.CDLL(str(build.build(source, gpu_native.FLAGS, cache=cache)))
        for name in (
            "launched", "encoded", "captured", "replayed", "dropped", "refuse", "user_captures", "cleared",
            "overlapping", "moved", "immovable", "uncaptured",
        ):  # fmt: skip
            self.variable(name).value = 0

    def variable(self, name: str) -> ctypes.c_int64:
        """A counter or switch of fake_cuda.c."""
        return ctypes.c_int64.in_dll(self.library, name)

    def count(self, name: str) -> int:
        return self.variable(name).value

    def function(self, module: int, name: str) -> int:
        return ctypes.addressof(ctypes.c_char.in_dll(self.library, f"kernel_{name}"))

    def native(self) -> Functions | None:
        def address(name: str) -> int:
            return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0

        return Functions(address("stream"), tuple(map(address, gpu_native.DRIVER_FUNCTIONS)), context=6, side=9)


@pytest.fixture
def seed() -> int:
    seed = fresh_seed()
    torch.manual_seed(seed)
    return seed


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def driver(cache: Path, tmp_path: Path) -> NativeDriver:
    return NativeDriver(cache)


def vector(name: str) -> Buffer:
    return Buffer(name, "f32", (N,), (1,))


def memory(*names: str) -> tuple[Memory, ...]:
    return tuple(Memory(name, 4 * N) for name in names)


def add(x: int, y: int, z: int) -> Launch:
    return Launch("add", (1, 1, 1), (128, 1, 1), (x, y, z, Size(N)))


PLAN = Plan((vector("x"), vector("y")), (vector("z"),))
ONE = LaunchPlan(memory("x", "y"), memory("z"), (add(0, 1, 2),))
CHAIN = LaunchPlan(
    memory("x", "y"),
    memory("z"),
    (add(0, 0, 3), Launch("twice", (1, 1, 1), (128, 1, 1), (3, 4)), add(4, 1, 2)),
    memory("t0", "t1"),
    (0, 512),
    1024,
)


def load(driver: NativeDriver, cache: Path, launches: LaunchPlan = ONE, plan: Plan = PLAN, **options: Any) -> Launcher:
    call = gpu.load(b"", plan, launches, device=CPU, driver=driver, cache=cache, **options)
    assert type(call).__name__ == "Launcher", "the native launcher is used"
    return call


def test_values_constants_and_temporaries(driver: NativeDriver, cache: Path, seed: int) -> None:
    x, y = torch.randn(2, 128)[:, :N]
    for launches, expected in ((ONE, x + y), (CHAIN, 4 * x + y)):
        assert torch.allclose(load(driver, cache, launches)(x, y)[0], expected), f"seed {seed}"
        assert torch.allclose(load(driver, cache, launches, constants={0: x})(y)[0], expected), f"seed {seed}"
        assert torch.allclose(load(driver, cache, launches, constants={1: y})(x)[0], expected), f"seed {seed}"
    assert driver.count("launched") == 3 + 3 * 3


def test_pieces_of_packs_are_read_and_written(driver: NativeDriver, cache: Path, seed: int) -> None:
    """Of three arguments the first and last are in a pack, as are of three outputs the last two, one behind a gap."""
    padded = Buffer("p", "f32", (10, 10), (16, 1))
    plan = Plan(
        (vector("x"), vector("y"), vector("w")), (vector("z"), vector("u"), padded),
        packed_inputs=(Pack(256, ((0, 128), (2, 0))),), packed_outputs=(Pack(384, ((1, 256), (2, 0))),),
    )  # fmt: skip
    sums = (add(0, 1, 3), add(2, 3, 4), add(1, 1, 5))
    launches = LaunchPlan(memory("x", "y", "w"), (*memory("z", "u"), Memory("p", 4 * 154)), sums)
    call, given, y = load(driver, cache, launches, plan), torch.randn(256), torch.randn(N)
    z, made, rest = call(given, y, None)
    assert torch.allclose(z, given[128 : 128 + N] + y) and rest is None, f"seed {seed}"
    assert torch.allclose(made[256 : 256 + N], given[:N] + z) and torch.allclose(made[:N], 2 * y), f"seed {seed}"


@pytest.mark.parametrize("offset", [0, 1])
def test_written_arguments_are_results(driver: NativeDriver, cache: Path, offset: int, seed: int) -> None:
    """Result 1 is argument 1 with the sum in it, also if the kernels work on an aligned copy."""
    pack = Pack(256, ((0, 0), (1, 128)))
    plan = Plan(PLAN.inputs, (vector("z"), vector("u")), written=((1, 1),), packed_outputs=(pack,))
    launches = LaunchPlan(memory("x", "y"), memory("z", "u"), (add(0, 0, 2), add(0, 2, 3), add(0, 1, 1)))
    call = load(driver, cache, launches, plan)
    x, y = torch.randn(N), torch.randn(N + 8)[offset : offset + N]
    expected = x + y
    whole, written, within = call(x, y)
    assert written is y and torch.allclose(y, expected) and within is None, f"seed {seed}"
    assert torch.allclose(whole[:N], 2 * x) and torch.allclose(whole[128 : 128 + N], 3 * x), f"seed {seed}"


def test_a_written_argument_that_does_not_exist_is_refused(driver: NativeDriver, cache: Path) -> None:
    for written in (((3, 0),), ((1, 0), (0, 1))):
        with pytest.raises(ValueError, match="a written argument, or the result that it is, does not exist"):
            load(driver, cache, plan=Plan(PLAN.inputs, (vector("z"),), written=written))


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_what_starts_amid_sixteen_bytes_is_copied(driver: NativeDriver, cache: Path, offset: int, seed: int) -> None:
    x, y = torch.randn(N + 8)[offset : offset + N], torch.randn(N)
    assert torch.equal(load(driver, cache)(x, y)[0], x + y), f"seed {seed}"
    with pytest.raises(ValueError, match=r"argument 1 \(y\): expected f32\[100\] .* on cpu, got f32\[101\]"):
        load(driver, cache)(x, torch.randn(101))


def test_the_call_after_one_with_data_that_may_not_be_says_so(driver: NativeDriver, cache: Path) -> None:
    checked = Launch("bounded", (1, 1, 1), (128, 1, 1), (0, 1, Flag()))
    plan, good = Plan((vector("x"),), (vector("z"),)), torch.ones(N)
    for launches in ((checked,), (checked,) * gpu.GRAPHS_FROM):
        call = load(driver, cache, LaunchPlan(memory("x"), memory("z"), launches), plan)
        for _ in range(SIGHTS + 1):  # at the last a graph is replayed
            call(-good)
            with pytest.raises(InvalidData, match="an earlier call"):
                call(good)
            assert torch.equal(call(good)[0], good)


def test_a_context_is_made_current_and_given_back(driver: NativeDriver, cache: Path) -> None:
    call, x = load(driver, cache), torch.ones(N)
    before = driver.count("contexts_set")
    call(x, x)
    assert driver.count("contexts_set") == before + 2


class Direct:
    """CHAIN by the native entry on memory of the test's choice; but for `moves`, graphs keep their addresses."""

    def __init__(self, driver: NativeDriver, cache: Path, moves: bool = False) -> None:
        self.kernels = gpu.Kernels(driver, b"", CHAIN)
        functions = driver.native()
        assert functions is not None
        self.state, self.memory = gpu_native.lay_out(
            5, self.kernels.prepared, self.kernels.maps, self.kernels.table, functions, True
        )
        self.state.strays = 0 if moves else -1
        self.entry = gpu_native.await_build(cache)[1]

    def __call__(self, buffers: torch.Tensor | list[torch.Tensor]) -> int:
        pointers = (ctypes.c_void_p * 5)(*(row.data_ptr() for row in buffers))
        self.entry.mlc_gpu_entry(pointers, (ctypes.c_longlong * 1)(ctypes.addressof(self.state)), 0)
        x, y, z = buffers[:3]
        assert self.state.status or torch.allclose(z, 4 * x + y)
        return int(self.state.status)


def sets(n: int) -> list[torch.Tensor]:
    return [torch.randn(5, N) for _ in range(n)]


def test_graphs_come_at_the_third_sight_of_the_same_addresses(driver: NativeDriver, cache: Path, seed: int) -> None:
    call, kept = Direct(driver, cache), sets(3)
    for number in range(1, 6):
        for buffers in kept:
            call(buffers.normal_())
        counts = driver.count("captured"), driver.count("replayed")
        assert counts == (3 * (number >= SIGHTS), 3 * max(0, number + 1 - SIGHTS)), f"seed {seed}, round {number}"


def test_no_graph_is_launched_within_a_capture(driver: NativeDriver, cache: Path, seed: int) -> None:
    call, (buffers,) = Direct(driver, cache), sets(1)
    for _ in range(SIGHTS):
        call(buffers)
    assert driver.count("replayed") == 1
    driver.variable("user_captures").value = 1
    call(buffers.normal_())
    assert driver.count("replayed") == 1, f"seed {seed}"


def test_what_is_not_replayed_is_captured_ever_later(driver: NativeDriver, cache: Path, seed: int) -> None:
    call, many = Direct(driver, cache), sets(KEPT + 2)
    for buffers in many:
        for _ in range(SIGHTS):
            call(buffers.normal_())
    assert (driver.count("captured"), driver.count("dropped")) == (KEPT + 1, 1), f"seed {seed}"
    for _ in range(SIGHTS):
        call(many[-1].normal_())
    assert driver.count("captured") == KEPT + 2, f"seed {seed}"


def test_graphs_are_bounded_and_given_back(driver: NativeDriver, cache: Path, seed: int) -> None:
    call, many = Direct(driver, cache), sets(KEPT + 3)
    for buffers in many:
        for _ in range(SIGHTS + PAYS):
            call(buffers.normal_())
    assert (driver.count("captured"), driver.count("dropped")) == (KEPT + 3, 3)
    call(many[-1].normal_())
    assert driver.count("captured") == KEPT + 3, f"seed {seed}"
    for buffers in sets(3 * gpu_native.RECENT):
        call(buffers)
    assert driver.count("dropped") == KEPT + 3, "what has not been used for long is forgotten"
    for _ in range(SIGHTS):
        call(many[0])
    call.entry.mlc_gpu_close(ctypes.byref(call.state))
    assert driver.count("captured") == driver.count("dropped") == KEPT + 4


def test_one_graph_serves_addresses_that_have_none(driver: NativeDriver, cache: Path, seed: int) -> None:
    call, many = Direct(driver, cache, moves=True), sets(20)
    for number, buffers in enumerate(many, 1):
        assert call(buffers) == 0
        assert driver.count("replayed") == max(0, number + 1 - SIGHTS), f"seed {seed}"
    assert driver.count("captured") == 1
    assert driver.count("moved") == len(CHAIN.launches) * (len(many) - SIGHTS), f"seed {seed}"


def test_only_launches_on_what_moved_are_pointed_elsewhere(driver: NativeDriver, cache: Path, seed: int) -> None:
    call, first, outputs = Direct(driver, cache, moves=True), sets(1)[0], sets(8)
    kept = []
    for output in outputs:  # z alone lies elsewhere each time: the last launch writes it
        rows = [*first[:2], output[2], *first[3:]]
        assert call(rows) == 0
        kept.append((output[2].clone(), output[2]))
    assert all(torch.equal(a, b) for a, b in kept), f"seed {seed}"
    assert driver.count("moved") == len(outputs) - SIGHTS


def test_addresses_that_come_again_have_a_graph_of_their_own(driver: NativeDriver, cache: Path, seed: int) -> None:
    call, kept = Direct(driver, cache, moves=True), sets(2)
    for _ in range(SIGHTS + 5):
        for buffers in kept:
            call(buffers.normal_())
    assert driver.count("captured") == 3
    before = driver.count("moved")
    for buffers in kept:
        call(buffers.normal_())
    assert driver.count("moved") == before, f"seed {seed}"


@pytest.mark.parametrize("when", ["capture", "move"])
def test_where_no_graph_can_be_moved_launches_are_enqueued(
    driver: NativeDriver, cache: Path, when: str, seed: int
) -> None:
    call, many = Direct(driver, cache, moves=True), sets(12)
    for buffers in many[: SIGHTS + (when == "move") - 1]:
        call(buffers)
    driver.variable("uncaptured" if when == "capture" else "immovable").value = 1
    for buffers in many:
        assert call(buffers) == 0, f"seed {seed}"
    assert driver.count("replayed") == (when == "move")
    assert driver.count("captured") == driver.count("dropped") == 1


def test_a_dropped_program_gives_all_back(driver: NativeDriver, cache: Path) -> None:
    call, x = load(driver, cache, CHAIN, graphs_from=1), torch.ones(N)
    for _ in range(20):
        call(x, x)
    held = [call(x, x) for _ in range(20)]  # all outputs lie elsewhere
    del held
    del call
    gc.collect()
    assert driver.count("captured") == driver.count("dropped") and driver.asked("unload")


def test_a_failed_capture_is_told_and_leaves_no_graph(driver: NativeDriver, cache: Path, seed: int) -> None:
    call, (buffers,) = Direct(driver, cache), sets(1)
    for _ in range(SIGHTS - 1):
        call(buffers)
    driver.variable("refuse").value = 701
    assert call(buffers) == 701
    driver.variable("refuse").value = 0
    assert call(buffers) == 0, f"seed {seed}"


def test_kernels_that_wait_themselves_may_overlap(driver: NativeDriver, cache: Path, seed: int) -> None:
    x, y = torch.rand(2, N)
    launches = replace(CHAIN, launches=(CHAIN.launches[0], *(replace(x, overlaps=True) for x in CHAIN.launches[1:])))
    call = load(driver, cache, launches, graphs_from=1)
    for _ in range(SIGHTS + 2):
        assert torch.allclose(call(x, y)[0], 4 * x + y), f"seed {seed}"
    assert driver.count("overlapping") > 0
    assert 2 * driver.count("launched") == 3 * driver.count("overlapping")


def test_few_launches_make_no_graph(driver: NativeDriver, cache: Path) -> None:
    call, x = load(driver, cache, CHAIN, graphs_from=4), torch.ones(N)
    for _ in range(4 * SIGHTS):
        call(x, x)
    assert driver.count("captured") == 0


def test_a_map_is_encoded_when_its_tensor_moves(driver: NativeDriver, cache: Path, seed: int) -> None:
    tile = Map(0, "f32", (4, 25), (4, 16), (4, 5))
    launch = Launch("copy", (1, 1, 1), (128, 1, 1), (tile, 1))
    call = load(driver, cache, LaunchPlan(memory("x"), memory("z"), (launch,)), Plan((vector("x"),), (vector("z"),)))
    a, b = torch.randn(2, 128)[:, :N]
    for x in (a, a, b, b, a):
        assert torch.equal(call(x)[0], x), f"seed {seed}"
    assert driver.count("encoded") == 3


def count(driver: NativeDriver, cache: Path, resets: int) -> Launcher:
    """A call that gives where it found its counter, and what it was; with `resets` it is zero again after it."""
    launch = Launch("count", (1, 1, 1), (1, 1, 1), (2, 0, Size(resets)))
    plan = Plan((), (Buffer("z", "i32", (2,), (1,)),), (0, 64, 128), 192, zeros=2)
    sizes = Memory("t", 4), Memory("n", 4), Memory("m", 4)
    return load(driver, cache, LaunchPlan((), (Memory("z", 8),), (launch,), sizes, (0, 64, 128), 192, 2), plan)


def test_every_stream_and_capture_has_zeros_of_its_own(driver: NativeDriver, cache: Path) -> None:
    call = count(driver, cache, 1)
    seen: dict[tuple[int, int], int] = {}
    for stream, capture in [(1, 0), (2, 0), (1, 0), (1, 5), (2, 5), (1, 6), (1, 5), (2, 0)] * 2:
        driver.variable("stream_number").value = stream
        driver.variable("user_captures").value = int(capture > 0)
        driver.variable("capture_number").value = capture
        where, held = call()[0].tolist()
        assert held == 0
        assert seen.setdefault((0 if capture else stream, capture), where) == where
    assert len(set(seen.values())) == len(seen) == 4 and driver.count("cleared") == 0


def test_zeros_are_cleared_where_there_are_too_many_streams(driver: NativeDriver, cache: Path) -> None:
    call = count(driver, cache, 0)
    held = []
    for stream in range(gpu_native.SLOTS + 3):
        driver.variable("stream_number").value = stream
        held.append([int(call()[0][1]) for _ in range(2)])
    assert held == [[0, 1]] * gpu_native.SLOTS + [[0, 0]] * 3
    assert driver.count("cleared") == 6


@pytest.mark.parametrize(("code", "kind"), [(700, faults.IllegalAddress), (701, faults.OutOfResources)])
def test_a_refused_launch_raises_its_kind_and_costs_nothing(
    driver: NativeDriver, cache: Path, code: int, kind: type[faults.DeviceError]
) -> None:
    call, x = load(driver, cache, CHAIN, graphs_from=1), torch.ones(N)
    driver.variable("refuse").value = code
    for _ in range(2 * SIGHTS):
        with pytest.raises(kind, match="launching a program"):
            call(x, x)
    driver.variable("refuse").value = 0
    assert call(x, x)[0].eq(5).all()


def test_threads_share_a_program(driver: NativeDriver, cache: Path) -> None:
    call, wrong = load(driver, cache, CHAIN, graphs_from=1), []

    def work(k: int) -> None:
        x = torch.full((N,), float(k))
        for _ in range(100):
            if not call(x, x)[0].eq(5 * k).all():
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_without_a_compiler_calls_go_through_python(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_native, "await_build", lambda _: (None, None))
    driver = NativeDriver(cache)
    called = []
    monkeypatch.setattr(driver, "launch", lambda *arguments: called.append(arguments))
    call = gpu.load(b"", PLAN, ONE, device=CPU, driver=driver, cache=cache)
    call(torch.ones(N), torch.ones(N))
    assert len(called) == 1


def test_the_c_sources_agree_on_their_numbers() -> None:
    text = Path(gpu_native.__file__).with_name("gpu_launch.c").read_text()
    for name, value in (
        ("KEPT", KEPT), ("SIGHTS", SIGHTS), ("RECENT", gpu_native.RECENT), ("SLOTS", gpu_native.SLOTS),
    ):  # fmt: skip
        assert f"#define {name} {value} " in text
