"""The emulator's own surface: what kernels see of a launch, what is refused and how, caches, limits, forks."""

import os
from pathlib import Path

import numpy as np
import pytest

from compiler.errors import CacheError, CompilerError, ToolchainError
from compiler.runtime import build as builder
from compiler.runtime import detect
from compiler.runtime.emulator import emulator
from compiler.runtime.launches import Buffer, Launch, LaunchPlan, Map, Size
from compiler.tests.emulator_bodies import INCLUDE, MODES, PRELUDE, clean, run


@MODES
@pytest.mark.parametrize("synchronizes", [True, False])
def test_where_a_thread_is(check: bool, synchronizes: bool) -> None:
    body = """
    const long block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const long thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    y[block * 24 + thread] = 1000 * block + thread;
    """
    values = clean(run(body, 5 * 2 * 3 * 24, (5, 2, 3), (4, 3, 2), check, synchronizes=synchronizes))
    assert np.array_equal(values, [1000 * (i // 24) + i % 24 for i in range(720)])


@MODES
@pytest.mark.parametrize("count", [0, 5, 6, 7, 12])
def test_many_arguments(check: bool, count: int) -> None:
    sizes = tuple((-1) ** i * (1 << (4 * i + 3)) for i in range(count))
    body = "".join(f"y[{i}] = a{i};\n" for i in range(count)) + f"y[{count}] = 42;"
    parameters = "".join(f", long a{i}" for i in range(count))
    assert list(clean(run(body, count + 1, block=(1, 1, 1), check=check, sizes=sizes, parameters=parameters))) == [
        *sizes,
        42,
    ]


@MODES
def test_static_and_dynamic_shared_memory(check: bool) -> None:
    body = """
    MLC_DYNAMIC_SHARED(memory);
    MLC_SHARED(long, a, 32, 64);
    MLC_SHARED(long, b, 32, 1024);
    long* const dynamic = (long*)memory;
    const unsigned t = threadIdx.x;
    a[t] = t, b[t] = 2 * t, dynamic[t] = 3 * t;
    mlc_block_barrier();
    y[t] = 10000 * a[31 - t] + 100 * b[31 - t] + dynamic[31 - t];
    if (t == 0) y[32] = ((unsigned long)memory | (unsigned long)b) & 1023;
    """
    values = clean(run(body, 33, check=check, shared=256))
    assert np.array_equal(values, [*((10000 + 200 + 3) * (31 - t) for t in range(32)), 0])


@MODES
def test_shuffles_and_votes(check: bool) -> None:
    body = """
    const int t = threadIdx.x;
    const unsigned all = 0xffffffffu;
    y[t] = __shfl_sync(all, t, 5, 8);
    y[32 + t] = __shfl_up_sync(all, t, 3, 16);
    y[64 + t] = __shfl_down_sync(all, t, 3, 16);
    y[96 + t] = __shfl_xor_sync(all, t, 17);
    y[128 + t] = __ballot_sync(all, t % 3 == 0);
    y[160 + t] = 2 * __any_sync(all, t == 9) + __all_sync(all, t < 31);
    if (t < 8) y[192 + t] = __shfl_xor_sync(0xffu, t, 1); else y[192 + t] = __reduce_max_sync(0xffffff00u, t);
    """
    lanes = np.arange(32)
    values = clean(run(body, 224, check=check)).reshape(7, 32)
    assert np.array_equal(values[0], lanes // 8 * 8 + 5)
    assert np.array_equal(values[1], np.where(lanes % 16 >= 3, lanes - 3, lanes))
    assert np.array_equal(values[2], np.where(lanes % 16 + 3 < 16, lanes + 3, lanes))
    assert np.array_equal(values[3], lanes ^ 17)
    assert set(values[4]) == {sum(1 << t for t in range(32) if t % 3 == 0)}
    assert set(values[5]) == {2}
    assert np.array_equal(values[6], [*(t ^ 1 for t in range(8)), *[31] * 24])


@MODES
def test_atomics(check: bool) -> None:
    clear = "if (blockIdx.x == 0) y[threadIdx.x] = threadIdx.x == 2 ? 1000 : 0;"
    body = """
    atomicAdd(&y[0], 2L);
    atomicMax(&y[1], (long)(threadIdx.x + 100 * blockIdx.x));
    atomicMin(&y[2], (long)(threadIdx.x + 3));
    atomicAdd((float*)&y[3], 0.5f);
    if (atomicCAS(&y[4], 0L, 1L) == 0) atomicAdd(&y[5], 1L);
    """
    source = PRELUDE + "".join(
        f'extern "C" __global__ void {name}(long* y) {{\n{text}\n}}\n'
        for name, text in (("clear", clear), ("kernel", body))
    )
    path = emulator.build(source, INCLUDE, check)
    y = np.zeros(6, np.int64)
    launches = (Launch("clear", (1, 1, 1), (6, 1, 1), (0,)), Launch("kernel", (9, 1, 1), (64, 1, 1), (0,)))
    outcome = emulator.run(path, LaunchPlan((), (Buffer("y", y.nbytes),), launches), [y], check)
    assert not outcome.reports
    assert [*y[:3], *y[3:4].view(np.float32)[:1], *y[4:]] == [2 * 9 * 64, 863, 3, 0.5 * 9 * 64, 1, 1]


def test_blocks_run_on_several_cores() -> None:
    body = "long sum = 0;\nfor (long i = 0; i < 100; i++) sum += i * (long)blockIdx.x;\ny[blockIdx.x] = sum;"
    for threads in (1, 2, 3):
        values = clean(run(body, 50, (50, 1, 1), (1, 1, 1), threads=threads))
        assert np.array_equal(values, 4950 * np.arange(50))


def test_a_deadlock_ends_the_launch_in_both_modes() -> None:
    for check in (False, True):
        outcome, _ = run(
            "if (threadIdx.x != 3) mlc_warp_barrier(); else mlc_block_barrier();\ny[threadIdx.x] = 1;", 32, check=check
        )
        assert not outcome.complete
        assert {r.kind for r in outcome.reports} == {"deadlock"}
        assert {r.line for r in outcome.reports} == ({3} if check else {0})
        assert any("fffffff7 of ffffffff" in r.note for r in outcome.reports)
    assert list(clean(run("y[threadIdx.x] = 5;", 32))) == [5] * 32, "the machine goes on"


def test_a_loop_that_never_ends_is_stopped() -> None:
    outcome, _ = run(
        "volatile long* z = y;\nwhile (true) z[0] = z[0] + 1;", 1, block=(1, 1, 1), check=True, timeout=0.05
    )
    assert not outcome.complete
    assert "time limit" in {r.kind for r in outcome.reports}
    outcome, _ = run("while (true) mlc_block_barrier();", 1, timeout=0.05)
    assert "time limit" in {r.kind for r in outcome.reports}


@pytest.mark.parametrize(("more", "kinds"), [(232, []), (240, ["registers"])])
def test_registers_of_warpgroups(more: int, kinds: list[str]) -> None:
    body = f"""#include "mlc/registers.cuh"
extern "C" __global__ void __launch_bounds__(384, 1) kernel(long* y) {{
    if (threadIdx.x < 128) {{
        mlc_registers_decrease<40>();
    }} else {{
        mlc_registers_increase<{more}>();
    }}
    y[threadIdx.x] = 1;
}}
"""
    plan = LaunchPlan((), (Buffer("y", 384 * 8),), (Launch("kernel", (1, 1, 1), (384, 1, 1), (0,)),))
    for check in (False, True):
        outcome = emulator.run(emulator.build(body, INCLUDE, check), plan, [np.zeros(384, np.int64)], check)
        assert [r.kind for r in outcome.reports] == kinds


@MODES
@pytest.mark.parametrize(("count", "shared", "fits"), [(6144, 0, True), (6145, 0, False), (6144, 180 << 10, False)])
def test_room_for_static_arrays(check: bool, count: int, shared: int, fits: bool) -> None:
    body = f"MLC_SHARED(long, s, {count}, 16);\ns[threadIdx.x] = threadIdx.x;\ny[threadIdx.x] = s[threadIdx.x];"
    outcome, _ = run(body, 32, check=check, shared=shared)
    assert {r.kind for r in outcome.reports} == (set() if fits else {"shared memory"})


def checked(body: str, headers: tuple[str, ...], inputs: int = 8) -> set[str]:
    """Kinds of findings in one warp, with an input x of so many integers and an output y of 32."""
    includes = "".join(f'#include "mlc/{name}.cuh"\n' for name in headers)
    source = f'{includes}extern "C" __global__ void kernel(const long* x, long* y) {{\n{body}\n}}\n'
    plan = LaunchPlan(
        (Buffer("x", 8 * inputs),), (Buffer("y", 256),), (Launch("kernel", (1, 1, 1), (32, 1, 1), (0, 1), 65536),)
    )
    memory = [np.zeros(inputs, np.int64), np.zeros(32, np.int64)]
    return {r.kind for r in emulator.run(emulator.build(source, INCLUDE, True), plan, memory, True).reports}


def test_constant_loads() -> None:
    load = "long mine;\nmlc_load_once<8>(&mine, {});\ny[threadIdx.x] = mine;"
    assert checked(load.format("x"), ("streaming",)) == set()
    written = "y[threadIdx.x] = 1;\nmlc_warp_barrier();\n"
    assert checked(written + load.format("y + 31 - threadIdx.x"), ("streaming",)) == {"constant written", "race"}
    shared = "MLC_SHARED(long, s, 32, 16);\ns[threadIdx.x] = 1;\n"
    assert checked(shared + load.format("s + threadIdx.x"), ("streaming",)) == {"shared address"}
    stored = shared + "mlc_store_global<2>(s, x);"
    assert checked(stored, ("memory",)) == {"shared address"}


def test_the_warp_s_index_is_asked_for_by_whole_warps() -> None:
    assert checked("y[threadIdx.x] = mlc_warp_index();", ("places",)) == set()
    assert checked("if (threadIdx.x < 7) y[threadIdx.x] = mlc_warp_index();", ("places",)) & {
        "deadlock",
        "divergent collective",
    }


@pytest.mark.parametrize(("fence", "kinds"), [("_all", set()), ("", {"missing proxy fence"})])
def test_fences_of_global_memory(fence: str, kinds: set[str]) -> None:
    body = f"""
    MLC_DYNAMIC_SHARED(s);
    y[threadIdx.x] = 1;
    ((long*)s)[threadIdx.x] = 2;
    mlc_fence_async{fence}();
    mlc_block_barrier();
    if (threadIdx.x == 0) {{
        mlc_bulk_store(y, s, 256);
        mlc_bulk_commit();
        mlc_bulk_wait<0>();
    }}
    """
    assert checked(body, ("tma",)) == kinds


def test_bytes_that_nobody_expects() -> None:
    body = """
    MLC_DYNAMIC_SHARED(s);
    MLC_SHARED(unsigned long, full, 1, 8);
    if (threadIdx.x == 0) {
        mlc_mbarrier_init(full, 1);
        mlc_mbarrier_fence_init();
        for (int i = 0; i < 17; i++) mlc_bulk_load(s, x, 65536, full);
        mlc_mbarrier_wait(full, 0);
    }
    """
    assert "mbarrier" in checked(body, ("tma",), 8192)


def test_a_launch_that_says_it_does_not_synchronize_must_not() -> None:
    for check in (False, True):
        outcome, _ = run("mlc_block_barrier();\ny[threadIdx.x] = 1;", 32, check=check, synchronizes=False)
        assert [r.kind for r in outcome.reports] == ["misdeclared kernel"]


@pytest.mark.parametrize(
    ("wait", "found"),
    [
        ("mlc_wait_dependencies();", False),
        ("if (threadIdx.x == 0) mlc_wait_dependencies();\nmlc_block_barrier();", False),
        ("if (threadIdx.x == 0) mlc_wait_dependencies();", True),
        ("", True),
    ],
)
def test_launches_that_overlap(wait: str, found: bool) -> None:
    source = f"""#include "mlc/launch.cuh"
extern "C" __global__ void first(long* t) {{
    t[threadIdx.x] = 2 * threadIdx.x;
}}
extern "C" __global__ void second(const long* t, long* y) {{
    {wait}
    y[threadIdx.x] = t[31 - threadIdx.x];  // here
}}
"""
    path = emulator.build(source, INCLUDE, check=True)
    y = np.zeros(32, np.int64)
    first = Launch("first", (1, 1, 1), (32, 1, 1), (1,))
    second = Launch("second", (1, 1, 1), (32, 1, 1), (1, 0), overlaps=True)
    plan = LaunchPlan((), (Buffer("y", y.nbytes),), (first, second), (Buffer("t", y.nbytes),), (0,), y.nbytes)
    outcome = emulator.run(path, plan, [y], check=True)
    assert {r.kind for r in outcome.reports} == ({"launch dependency"} if found else set())
    here = next(i for i, line in enumerate(source.splitlines(), 1) if "// here" in line)
    assert all(r.line == here for r in outcome.reports)
    assert np.array_equal(y, 62 - 2 * np.arange(32))


def test_no_other_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(CompilerError, match="riscv64"):
        emulator.build(PRELUDE, INCLUDE)


def test_an_empty_grid_runs_nothing() -> None:
    assert list(clean(run("y[0] = 1;", 1, (0, 1, 1), (1, 1, 1)))) == [-7]


def test_a_report_in_words() -> None:
    outcome, _ = run("y[threadIdx.x / 2] = 1;", 32, check=True)
    (found,) = outcome.reports
    assert str(found).startswith(
        "race at y+0 (8 bytes), kernel line 3, block (0, 0, 0) thread 1, against thread 0 line 3"
    )
    assert "write after write" in str(found)


def test_outputs_come_back_after_a_finding() -> None:
    outcome, values = run("y[threadIdx.x] = 5;\nif (threadIdx.x == 9) y[99] = 1;", 32, check=True)
    assert [r.kind for r in outcome.reports] == ["out of bounds"]
    assert list(values[:9]) == [5] * 9


def test_a_place_in_a_device_function() -> None:
    source = """#include "mlc/memory.cuh"
extern "C" __global__ void kernel(float* y) {
    float a[4] = {};
    mlc_store<4>(y + 1, a);
}
"""
    path = emulator.build(source, INCLUDE, check=True)
    y = np.zeros(8, np.float32)
    plan = LaunchPlan((), (Buffer("y", 32),), (Launch("kernel", (1, 1, 1), (1, 1, 1), (0,)),))
    (found,) = emulator.run(path, plan, [y], check=True).reports
    assert (found.kind, found.line, found.header.split(":")[0]) == ("misaligned", 4, "memory.cuh")


def test_misalignment_of_an_input_is_kept() -> None:
    body = "const float4 v = x[0];\ny[0] = v.x + v.w;"
    source = f'{PRELUDE}extern "C" __global__ void kernel(const float4* x, float* y) {{\n{body}\n}}\n'
    path = emulator.build(source, INCLUDE, check=True)
    plan = LaunchPlan((Buffer("x", 16),), (Buffer("y", 4),), (Launch("kernel", (1, 1, 1), (1, 1, 1), (0, 1)),))
    memory, y = np.zeros(64, np.uint8), np.zeros(1, np.float32)
    start = -memory.ctypes.data % 16
    for shift, kinds in ((0, []), (4, ["misaligned"])):
        outcome = emulator.run(path, plan, [memory[start + shift : start + shift + 16], y], check=True)
        assert [r.kind for r in outcome.reports] == kinds


def test_runs_in_a_forked_process() -> None:
    clean(run("y[threadIdx.x] = 1;", 32, (8, 1, 1)))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            outcome, values = run("mlc_block_barrier();\ny[threadIdx.x] = 3;", 32, (8, 1, 1), seed=9)
            status = 0 if outcome.complete and set(values) == {3} else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (Launch("kernel", (1, 1, 1), (1025, 1, 1), (0,)), "blocks are at most"),
        (Launch("kernel", (1, 1, 1), (1, 1, 65), (0,)), "blocks are at most"),
        (Launch("kernel", (1, 1, 1), (64, 32, 1), (0,)), "at most 1024 threads, not 2048"),
        (Launch("kernel", (1, 65536, 1), (32, 1, 1), (0,)), "grids are at most"),
        (Launch("kernel", (3, 1, 1), (32, 1, 1), (0,), cluster=(2, 1, 1)), "divide the grid"),
        (Launch("kernel", (32, 1, 1), (32, 1, 1), (0,), cluster=(32, 1, 1)), "at most 16 blocks, not 32"),
        (Launch("kernel", (1, 1, 1), (32, 1, 1), (0,), shared=228 << 10), "232448 bytes of shared memory"),
        (Launch("kernel", (1, 1, 1), (32, 1, 1), (0, *[Size(1)] * 512)), "take at most 4096 bytes"),
        (Launch("kernel", (2, 1, 1), (32, 1, 1), (0,), cluster=(2, 1, 1)), r"its text says \(1, 1, 1\)"),
        (Launch("pairs", (2, 1, 1), (32, 1, 1), (0,)), r"its text says \(2, 1, 1\)"),
        (Launch("pairs", (2, 1, 1), (96, 1, 1), (0,), cluster=(2, 1, 1)), "96 threads, and its text allows 64"),
        (Launch("colonel", (1, 1, 1), (32, 1, 1), (0,)), "no kernel colonel"),
        (Launch("kernel", (1, 1, 1), (32, 1, 1), (Map(0, "f32", (512,), (4,), (512,)),)), "1 to 256 elements"),
        (Launch("kernel", (1, 1, 1), (32, 1, 1), (Map(0, "f32", (9, 2), (4, 36), (8, 2)),)), "multiples of 16 bytes"),
        (Launch("kernel", (1, 1, 1), (32, 1, 1), (Map(0, "f32", (64,), (4,), (64,), 128),)), "fits in the swizzle"),
        (Launch("kernel", (1, 1, 1), (32, 1, 1), (Map(1, "f32", (64,), (4,), (64,)),)), "y does not lie at a multiple"),
    ],
)
def test_what_a_gpu_would_refuse(launch: Launch, words: str) -> None:
    source = f"""{PRELUDE}#include "mlc/cluster.cuh"
extern "C" __global__ void kernel(long* y) {{ y[0] = 1; }}
extern "C" __global__ void MLC_CLUSTER(2, 1, 1) __launch_bounds__(64, 1) pairs(long* y) {{ y[0] = 1; }}
"""
    path = emulator.build(source, INCLUDE)
    plan = LaunchPlan((Buffer("x", 8),), (Buffer("y", 8),), (launch,))
    memory = np.zeros(64, np.uint8)
    start = -memory.ctypes.data % 16
    with pytest.raises(CompilerError, match=words):
        emulator.run(path, plan, [memory[start : start + 8], memory[start + 24 : start + 32]])


def test_mistakes_of_the_caller() -> None:
    path = emulator.build(f'{PRELUDE}extern "C" __global__ void kernel(long* y) {{ y[0] = 1; }}\n', INCLUDE)
    plan = LaunchPlan((), (Buffer("y", 8),), (Launch("kernel", (1, 1, 1), (1, 1, 1), (0,)),))
    y = np.zeros(4, np.int64)
    with pytest.raises(CompilerError, match="1 inputs and outputs, and 2 arrays"):
        emulator.run(path, plan, [y, y])
    with pytest.raises(CompilerError, match="contiguous and have 8 bytes"):
        emulator.run(path, plan, [y.view(np.int32)[:1]])
    with pytest.raises(CompilerError, match="not built for check mode"):
        emulator.run(path, plan, [y], check=True)


def test_a_text_that_is_refused() -> None:
    with pytest.raises(ToolchainError, match="was not declared in this scope"):
        emulator.build(f'{PRELUDE}extern "C" __global__ void kernel(long* y) {{ y[0] = z; }}\n', INCLUDE)


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for function in (builder._machine, detect.toolchain):
        function.cache_clear()
    try:
        with pytest.raises(ToolchainError, match="install one"):
            emulator.build(f"{PRELUDE}// nothing\n", INCLUDE, cache=tmp_path)
    finally:
        monkeypatch.undo()
        for function in (builder._machine, detect.toolchain):
            function.cache_clear()


def test_a_cache_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(CacheError, match="choose another folder"):
        emulator.build(f"{PRELUDE}// nothing\n", INCLUDE, cache=tmp_path / "cache")


def test_a_cache_may_be_moved_and_repairs_itself(tmp_path: Path) -> None:
    source = f'{PRELUDE}extern "C" __global__ void kernel(long* y) {{ y[0] = 6; }}\n'
    plan = LaunchPlan((), (Buffer("y", 8),), (Launch("kernel", (1, 1, 1), (1, 1, 1), (0,)),))
    first = emulator.build(source, INCLUDE, cache=tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    y = np.zeros(1, np.int64)
    emulator.run(tmp_path / "b" / first.relative_to(tmp_path / "a"), plan, [y])
    assert y[0] == 6
    machine = emulator.runtime(False, tmp_path / "c")
    machine.write_bytes(machine.read_bytes()[:1000])
    builder._built.clear()
    emulator.run(emulator.build(source, INCLUDE, cache=tmp_path / "c"), plan, [y])
