"""Bench rows from fake systems on a fake clock: what a row holds, what is refused, what is doubted."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import compiler
from conformance import rows
from conformance.bench import benchmark, roofline
from conformance.bench.benchmark import InvalidBenchmark, Settings, Subject
from conformance.judge import device, systems
from conformance.judge.systems import BuiltFunction, Function
from conformance.rows import RaceResult
from conformance.shapes import cases, toml_values
from conformance.shapes.cases import Arg, BenchCase

INPUTS = (torch.arange(6.0).reshape(2, 3),)


class Stage:
    """Fake systems whose calls take the time that the test says, on the clock that they turn."""

    def __init__(self, **microseconds: float) -> None:
        self.microseconds = microseconds
        self.now = 0
        self.broken: dict[str, Exception] = {}
        self.alone = False
        self.calls_while_alone = 0

    def clock(self) -> int:
        return self.now

    def build(self, name: str, function: Function, inputs: Sequence[torch.Tensor], target: str) -> BuiltFunction:
        if name in self.broken:
            raise self.broken[name]

        def call(*arguments: torch.Tensor) -> object:
            self.now += int(self.microseconds[name] * 1000)
            self.calls_while_alone += self.alone
            return function(*arguments)

        return BuiltFunction(name, call, 0.25, 1, "d1") if name == systems.OURS else BuiltFunction(name, call)

    def quiet(self) -> AbstractContextManager[None]:
        stage = self

        class Alone(AbstractContextManager[None]):
            def __enter__(self) -> None:
                stage.alone = True

            def __exit__(self, *_: object) -> None:
                stage.alone = False

        return Alone()

    def measure(self, function: Function = torch.relu, **settings: Any) -> RaceResult:
        chosen = Settings(**settings)
        vs = [name for name in self.microseconds if name != systems.OURS]
        return benchmark.measure(subject(function), vs, chosen, self.quiet, close, self.build, self.clock)


def subject(function: Function, inputs: tuple[torch.Tensor, ...] = INPUTS) -> Subject:
    return Subject(function, inputs, lambda: function(*[x.double() for x in inputs]))


def close(ours: object, eager: object, reference: Callable[[], object]) -> tuple[bool, float, str]:
    error = float((ours - reference()).abs().max())  # type: ignore[operator]
    return error < 1e-5, error / 1e-5, f"off by {error:.3g}"


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose roofline for the inputs here, 48 bytes, is 1 us."""
    limits = roofline.Limits(((1 << 20, 48e6),), 1e12)
    monkeypatch.setattr(roofline, "limits", lambda threads, dtype: limits)


def test_a_row_holds_what_the_reports_need() -> None:
    row = Stage(mlcomp=10, eager=30, compile=20).measure()
    assert (row.ours_us, row.eager_us, row.compile_us) == pytest.approx((10, 30, 20))
    assert row.speedup == pytest.approx(2) and row.ci == pytest.approx([2, 2])
    assert row.verdict == "FASTER" and row.best == "compile"
    assert row.roofline == pytest.approx(0.1)
    assert (row.compile_seconds, row.kernels, row.digest) == (0.25, 1, "d1")
    assert not row.message.startswith("suspect") and row.message == ""
    assert set(row.samples) == {"ours", "eager", "compile"} and len(row.samples["ours"]) == 20
    assert rows.from_json(RaceResult, json.loads(json.dumps(rows.to_json(row)))) == row


@pytest.mark.parametrize(("eager", "compiled", "verdict"), [(8, 20, "SLOWER"), (10.1, 9.9, "SAME")])
def test_the_rival_is_the_best_of_pytorch(eager: float, compiled: float, verdict: str) -> None:
    row = Stage(mlcomp=10, eager=eager, compile=compiled).measure()
    assert row.verdict == verdict and row.speedup == pytest.approx(min(eager, compiled) / 10)


def test_only_the_race_holds_the_machine() -> None:
    stage = Stage(mlcomp=500, eager=500)
    row = stage.measure()
    warm_up, calibration = 2 * 1, 2 * 2
    assert stage.calls_while_alone == len(row.samples["ours"]) * sum(row.repeats.values()) + warm_up + calibration
    assert not stage.alone


def test_a_rival_that_fails_is_skipped_in_sight() -> None:
    stage = Stage(mlcomp=10, eager=30, compile=20)
    stage.broken["compile"] = RuntimeError("no C++ compiler\nmore lines")
    row = stage.measure()
    assert row.skipped == {"compile": "RuntimeError: no C++ compiler more lines"}
    assert row.compile_us is None and row.speedup == pytest.approx(3)


def test_eager_always_races() -> None:
    assert Stage(mlcomp=10, eager=30, inductor=20).measure().eager_us == pytest.approx(30)


def test_a_case_that_eager_cannot_run_says_so() -> None:
    def bad(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    with pytest.raises(
        InvalidBenchmark, match="eager itself fails: RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    ):
        Stage(mlcomp=10, eager=30).measure(bad)


@pytest.mark.parametrize(
    ("times", "said"),
    [({"mlcomp": 10, "eager": 200}, "20.0x over eager"), ({"mlcomp": 0.5, "eager": 1}, "200% of what this machine")],
)
def test_too_good_to_be_true_is_suspect(times: dict[str, float], said: str) -> None:
    row = Stage(**times).measure()
    assert row.message.startswith("suspect") and said in row.message


def test_a_little_above_the_roofline_is_remarked_not_suspect() -> None:
    row = RaceResult(speedup=1.0, roofline=1.04, best="eager")
    assert benchmark.suspicions(row, 1.0) == []
    assert "106% of the roofline" in benchmark.suspicions(replace(row, roofline=1.06), 1.0)[0]
    message = Stage(mlcomp=0.92, eager=1).measure().message
    assert "109% of the roofline" in message and not message.startswith("suspect")


def test_work_on_other_threads_is_suspect() -> None:
    row = RaceResult(speedup=1.0, roofline=0.5, best="eager")
    assert benchmark.suspicions(row, 1.0) == []
    assert "other threads" in benchmark.suspicions(row, 1.9)[0]


def wrong_once() -> Function:
    calls = iter(range(100))
    return lambda x: torch.relu(x) + (next(calls) > 0)


def static_output() -> Function:
    buffer = torch.empty(2, 3)
    return lambda x: torch.clamp(x, min=0, out=buffer)


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (lambda: lambda x: x.clamp(min=1), "wrong result: off by 1"),
        (wrong_once, "two runs on the same inputs gave different results"),
        (static_output, "returned the same memory"),
        (lambda: torch.relu_, "changed its inputs"),
    ],
)
def test_an_executable_that_misbehaves_is_not_timed(ours: Callable[[], Function], said: str) -> None:
    inputs = (torch.tensor([[-1.0, 0, 2], [3, 4, 5]]),)
    with pytest.raises(InvalidBenchmark, match=said):
        benchmark.check(ours(), subject(torch.relu, inputs), close)


def test_who_replaces_a_clock_is_not_timed() -> None:
    def hurried(x: torch.Tensor) -> torch.Tensor:
        time.thread_time_ns = lambda: 0
        return torch.relu(x)

    before = time.thread_time_ns
    with pytest.raises(InvalidBenchmark, match=r"time\.thread_time_ns was replaced"):
        Stage(ours=1, eager=2).measure(hurried)
    assert time.thread_time_ns is before


def test_views_of_inputs_and_nan_are_no_offence() -> None:
    nan = torch.tensor([float("nan"), 1.0])

    def flip(x: torch.Tensor) -> torch.Tensor:
        return x.view(2, 1)

    benchmark.check(flip, subject(flip, (nan,)), lambda *_: (True, 0.0, ""))


def bench_case(**changes: Any) -> BenchCase:
    row: dict[str, Any] = {
        "id": "linear[f32]", "file": "ops/linear.toml", "line": 1, "suite": "ops", "op": "linear", "dims": {},
        "expr": "F.linear(x, w)", "args": (Arg("x", (2, 8), "f32"), Arg("w", (4, 8), "f32", constant=True)),
        "params": {}, "consts": {}, "dtype": "f32", "layout": "contig", "distribution": "normal",
        "targets": ("cpu",), "tier": "smoke", "vs": ("eager",), "budget": {"cpu": {"min_speedup": 1.5}},
    }  # fmt: skip
    return BenchCase(**(row | changes))


def test_constant_arguments_are_weights_and_the_reference_is_in_f64() -> None:
    prepared = benchmark.prepare(bench_case(), 3)
    assert [list(x.shape) for x in prepared.inputs] == [[2, 8]]
    assert [list(w.shape) for w in prepared.weights] == [[4, 8]]
    wide = prepared.reference()
    assert isinstance(wide, torch.Tensor) and wide.dtype == torch.float64
    assert torch.allclose(wide.float(), prepared.function(*prepared.inputs), atol=1e-5)  # type: ignore[arg-type]
    assert roofline.work(prepared.function, prepared.inputs, prepared.weights).bytes == (16 + 32 + 8) * f32


def test_a_module_case_has_its_reference_in_f64() -> None:
    args, init = (Arg("x", (2, 8), "bf16"),), {"in_features": 8, "out_features": 4}
    case = bench_case(expr="module(x)", module="torch.nn:Linear", init=init, args=args, dtype="bf16")
    prepared = benchmark.prepare(case, 3)
    wide, narrow = prepared.reference(), prepared.function(*prepared.inputs)
    assert isinstance(wide, torch.Tensor) and wide.dtype == torch.float64
    assert isinstance(narrow, torch.Tensor) and torch.allclose(wide.to(torch.bfloat16), narrow, atol=0.05, rtol=0.05)
    assert len(prepared.weights) == 2


@pytest.fixture
def fake_run(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(mlcomp=10, eager=20)

    def measure(subject: Subject, vs: Sequence[str], settings: Settings, *_: object) -> RaceResult:
        names = [systems.OURS, *vs]
        assert set(names) == set(stage.microseconds) and settings.target == "cpu"
        return bench_measure(subject, vs, settings, stage.quiet, close, stage.build, stage.clock)

    bench_measure = benchmark.measure
    monkeypatch.setattr(benchmark, "measure", measure)
    return stage


def test_a_case_comes_as_json_and_leaves_as_a_row(fake_run: Stage) -> None:
    row = benchmark.run(json.loads(json.dumps(cases.to_json(bench_case()))), {"target": "cpu", "seed": 5})
    assert row.verdict == "FASTER" and row.budget[0].verdict == "met"
    assert rows.from_json(RaceResult, json.loads(json.dumps(rows.to_json(row)))) == row


def test_a_case_that_is_refused_leaves_a_row_without_times(fake_run: Stage) -> None:
    fake_run.broken["mlcomp"] = compiler.Unsupported("aten.linear.default", (), "not yet")
    row = benchmark.run(cases.to_json(bench_case()), {"target": "cpu"})
    assert row.verdict == "unsupported" and row.speedup is None and "aten.linear" in row.message
    assert torch.get_num_threads() >= 1 and not fake_run.alone


def test_an_emulator_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "runs_on_local_gpu", lambda target: False)
    row = benchmark.run(cases.to_json(bench_case()), {"target": "sm_120"})
    assert row.verdict == "fail" and row.message == "no GPU of this machine runs code for sm_120"


def test_errors_become_rows() -> None:
    assert benchmark.failure(InvalidBenchmark("wrong result")).verdict == "fail"
    row = benchmark.failure(compiler.Unsupported("aten.svd.default", (), "no lowering"))
    assert row.verdict == "unsupported" and "aten.svd.default" in row.message
    assert row.ours_us is None and benchmark.failure(ValueError("x\ny")).message == "ValueError: x y"


@pytest.mark.parametrize(
    ("rules", "verdicts"),
    [
        ({"min_speedup": 2.0, "min_speedup_eager": 3.5, "min_speedup_compile": 1.9}, ["met", "missed", "met"]),
        ({"min_roofline": 0.2, "max_compile_s": 0.5, "max_kernels": 0}, ["missed", "met", "missed"]),
    ],
)
def test_budgets_are_judged_by_the_interval(rules: dict[str, float], verdicts: list[str]) -> None:
    row = Stage(mlcomp=10, eager=30, compile=20).measure()
    assert [rule.verdict for rule in benchmark.judge_budget({"cpu": rules, "cuda": rules}, "cpu", row)] == verdicts
    row = replace(row, ci=(1.8, 2.2))
    assert benchmark.judge_budget({"*": {"min_speedup": 2.0}}, "cpu", row)[0].verdict == "unproven"


def test_every_budget_that_a_shape_file_may_set_is_judged() -> None:
    row = Stage(mlcomp=10, eager=30, compile=20).measure()
    judged = benchmark.judge_budget({"cpu": dict.fromkeys(toml_values.BUDGETS, 1.0)}, "cpu", row)
    assert [rule.name for rule in judged] == list(toml_values.BUDGETS)


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(ValueError, match="'slow'; use one of quick, full"):
        Settings(mode="slow")


def test_an_unknown_system_is_named() -> None:
    assert systems.explain_unknown("compile") is None and systems.explain_unknown("aot_eager") is None
    with pytest.raises(ValueError, match="no system 'nonesuch'; known are mlcomp, eager, compile"):
        systems.build("nonesuch", torch.relu, INPUTS, "cpu")


def test_a_rival_that_is_not_installed_is_left_out() -> None:
    contest = benchmark.assemble(subject(torch.relu), ("elsewhere",), Settings(), systems.build)
    assert dict(contest.skipped) == {"elsewhere": "not installed on this machine"}


def test_ours_leaves_nothing_to_eager() -> None:
    with pytest.raises(Exception, match=r"aten\._linalg_eigh"):
        systems.build_through_torch(systems.OURS, lambda x: torch.linalg.eigvalsh(x @ x.mT), INPUTS)


def test_a_backend_runs_and_one_that_is_never_called_is_no_contestant() -> None:
    built = systems.build("aot_eager", lambda x: torch.relu(x) + 1, INPUTS, "cpu")
    assert torch.equal(built.call(*INPUTS), torch.relu(INPUTS[0]) + 1)  # type: ignore[arg-type]
    with pytest.raises(systems.NotCompiled, match="never called the backend of 'aot_eager'"):
        systems.build("aot_eager", lambda x: 3, INPUTS, "cpu")


def test_attention_gets_its_best_backend_and_others_none() -> None:
    query = torch.randn(1, 2, 8, 16)

    def attend(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    with systems.best_attention(attend, (query,)) as name:
        assert name in ("flash_attention", "efficient_attention", "math")
    with systems.best_attention(torch.relu, (query,)) as name:
        assert name is None


f32 = 4  # bytes


@pytest.mark.parametrize(
    ("function", "inputs", "reads", "writes", "flops"),
    [
        (lambda x: torch.softmax(x, -1), (torch.ones(8, 16),), 128, 128, 0),
        (lambda x: x + 1, (torch.ones(8, 1).expand(8, 16),), 8, 128, 0),
        (lambda x: x[:, :4] * 2, (torch.ones(8, 16),), 32, 32, 0),
        (lambda x, y: x @ y, (torch.ones(8, 16), torch.ones(16, 4)), 192, 32, 2 * 8 * 16 * 4),
        (lambda x, y: x + y, (torch.ones(8),) * 2, 8, 8, 0),
    ],
)
def test_work_counts_what_cannot_be_avoided(
    function: Function, inputs: tuple[torch.Tensor, ...], reads: int, writes: int, flops: int
) -> None:
    assert roofline.work(function, inputs) == roofline.Work((reads + writes) * f32, flops)


def test_a_gather_reads_its_rows_and_not_its_table() -> None:
    table, rows = torch.ones(1000, 16), torch.tensor([3, 5])
    needed = roofline.work(lambda w, i: torch.nn.functional.embedding(i, w), (table, rows))
    assert needed.bytes == 2 * 8 + 2 * (2 * 16 * f32)


def test_a_causal_mask_halves_the_flops() -> None:
    query = torch.ones(1, 2, 8, 16)

    def attend(causal: bool) -> Function:
        return lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=causal)

    full, causal = (roofline.work(attend(flag), (query,)).flops for flag in (False, True))
    assert full == 2 * (2 * 2 * 8 * 8 * 16) == 2 * causal


def test_attention_on_a_gpu_is_counted_with_fewer_heads_of_keys() -> None:
    query, key = (torch.empty(1, heads, 32, 64, device="meta", dtype=torch.bfloat16) for heads in (8, 2))
    ops = torch.ops.aten
    calls: tuple[Callable[[], object], ...] = (
        lambda: ops._scaled_dot_product_flash_attention(query, key, key, 0.0, True, False),
        lambda: ops._scaled_dot_product_efficient_attention(query, key, key, None, False, 0.0, True),
        lambda: ops._scaled_dot_product_cudnn_attention(query, key, key, None, False, 0.0, True, False),
    )
    for call in calls:
        with FlopCounterMode(display=False, custom_mapping=roofline._ATTENTION) as counter:
            call()
        assert counter.get_total_flops() == 8 * 32 * 32 * (64 + 64)


@pytest.mark.parametrize("causal_at", [4, 6])
def test_attention_counts_every_query_head_once(causal_at: int) -> None:
    shapes = ((1, 8, 16, 64), (1, 2, 32, 64), (1, 2, 32, 48))
    count = roofline._attention_flops(causal_at)
    whole = 2 * 8 * 16 * 32 * (64 + 48)
    before = (0.0,) * (causal_at - 3)
    assert count(*shapes, *before, False) == count(*shapes) == whole
    assert count(*shapes, *before, True) == count(*shapes, is_causal=True) == whole // 2


def test_a_coarse_clock_gives_a_rate() -> None:
    calls: list[None] = []
    least = roofline._least_seconds(lambda: calls.append(None), lambda: len(calls) // 50 * 0.001)
    assert least == pytest.approx(0.001 / 50, rel=0.3), "a tick of 1 ms every 50 calls"


def test_the_bound_is_the_slower_of_memory_and_arithmetic() -> None:
    limits = roofline.Limits(((1 << 10, 4e9), (1 << 20, 1e9)), 1e9)
    assert roofline.seconds(roofline.Work(1 << 10, 0), limits) == pytest.approx(1024 / 4e9)
    assert roofline.seconds(roofline.Work(1 << 30, 0), limits) == pytest.approx((1 << 30) / 1e9)
    assert limits.bandwidth_at(1 << 15) == pytest.approx(2.5e9), "half way between two powers of two"
    assert roofline.Limits(((1, 2e9), (4, 3e9)), 1e9).bandwidth_at(0) == 3e9, "a smaller set is never slower"
    assert roofline.seconds(roofline.Work(8, 10**9), limits) == pytest.approx(1.0)


def test_on_a_gpu_equals_race_in_graphs_by_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now, replayed = 0, set()

    def graphs(calls: dict[str, Function]) -> tuple[dict[str, Function], int]:
        def replay(name: str) -> Function:
            def call() -> None:
                nonlocal now
                now += 100_000
                replayed.add(name)

            return call

        return {name: replay(name) for name in calls}, 20

    monkeypatch.setattr(Settings, "where", "cpu")
    monkeypatch.setattr(Settings, "clock_name", "device")
    monkeypatch.setattr(device, "capture_graphs", graphs)
    monkeypatch.setattr(device, "clock", lambda: now)
    row = benchmark.fitness({"target": "cuda"})
    assert row.fit and replayed == {"add", "softmax", "matmul"}


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library's memory")
def test_freed_memory_serves_again_however_large() -> None:
    script = (
        "import resource, torch\nfrom conformance.bench import benchmark\nwith benchmark.reuse_memory():\n"
        "    faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for call in range(12): before = faults(); torch.ones(12 << 20)\n"
        "    print(faults() - before)"
    )
    root = Path(__file__).resolve().parents[3]
    said = subprocess.check_output([sys.executable, "-c", script], cwd=root, text=True, timeout=60)
    assert int(said) < 100, "48 MiB are 12288 pages, and glibc needs some calls to settle"
