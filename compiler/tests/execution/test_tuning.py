"""Searches on this CPU: what is stored is used by equal kernels, and named where it does not apply."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import subprocess
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from compiler import pipeline
from compiler.errors import CompilerError
from compiler.execution import executable, expression, gpu_programs, named
from compiler.execution.tuning import command, fit, measure, replay, shelf, tables, verify
from compiler.execution.tuning import tune as search_of
from compiler.execution.tuning.processes import Process
from compiler.execution.tuning.tables import Head, Trial
from compiler.ir import loop_text
from compiler.ir.isomorphism import key
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.pipeline import Lowering
from compiler.runtime import detect
from compiler.schedule import records, steps
from compiler.schedule.records import Record, RecordError, Stored
from compiler.targets.target import Target
from compiler.tests.meaning import fresh_seed

CODE = "torch.softmax(torch.randn(6, 40), -1)"


def record(code: str, number: int = 1) -> tuple[Record, str]:
    """A record of a kernel's schedule of that number in its space, and the heuristic's schedule."""
    machine = named.target("cpu")
    captured = expression.capture(code, 0)[2]
    ((key, program),) = search_of.kernels(captured.program, machine).items()
    some = list(itertools.islice(search_of.without_hints(program, machine), number + 1))
    schedule, first = steps.show(some[number].schedule), steps.show(some[0].schedule)
    device = gpu_programs.device_of(machine)
    text = loop_text.show(program)
    return Record(key, program.name, machine.name, device, text, schedule, 1e-6, (1.1, 1.0, 1.2), {}, code), first


def test_what_is_stored_is_taken_for_kernels_that_are_the_same_but_for_names(tmp_path: Path) -> None:
    kept, first = record(CODE)
    shelf.store_records(tmp_path, [kept])
    x = torch.randn(6, 40)
    made = executable.compile(lambda given: F.softmax(given, dim=1), [x], cache=tmp_path)
    torch.testing.assert_close(made(x), torch.softmax(x, -1))
    (applied,) = (steps.show(s) for s in made.lowering.schedules.values())
    assert applied == kept.schedule != first


def test_what_does_not_apply_is_named_and_not_used(tmp_path: Path) -> None:
    kept, first = record(CODE)
    shelf.store_records(tmp_path, [replace(kept, schedule='bind("nowhere", blocks)\n')])
    x = torch.randn(6, 40)
    with pytest.warns(UserWarning, match="its stored schedule does not apply, tune it again: .*nowhere"):
        made = executable.compile(lambda x: torch.softmax(x, -1), [x], cache=tmp_path)
    assert [steps.show(s) for s in made.lowering.schedules.values()] == [first]
    torch.testing.assert_close(made(x), torch.softmax(x, -1))


@pytest.mark.parametrize("path", sorted(shelf.SHIPPED.glob("*.jsonl")), ids=lambda p: p.stem)
def test_schedules_that_are_shipped_are_of_their_kernels_and_apply(path: Path) -> None:
    shipped = shelf.read(path)
    assert path.read_text(encoding="utf-8") == records.show(shipped)
    assert [r.name for r in shipped if key(loop_text.parse(r.program)) != r.key] == []
    seed = fresh_seed()
    for one in random.Random(seed).sample(shipped, 3):
        program = loop_to_tile(loop_text.parse(one.program))
        lowered = pipeline.lower(program, named.target(one.target), {one.kernel().name: one.steps()}, source="tile")
        assert steps.show(lowered.schedules[one.kernel().name]) == one.schedule, seed


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    kept, _ = record(CODE)
    shelf.store_records(tmp_path, [kept])
    path = shelf.path_of(tmp_path, kept.device)
    path.write_text(f"<<<<<<< ours\n{path.read_text()}")
    with pytest.raises(RecordError, match="line 1: a conflict of a merge"):
        executable.compile(lambda x: torch.softmax(x, -1), [torch.randn(6, 40)], cache=tmp_path)


def test_what_a_search_found_until_an_interrupt_is_checked_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path))
    monkeypatch.setattr(detect, "usable_cores", lambda: 1)
    heard: list[str] = []
    began, bench = [], search_of.started_bench

    @contextmanager
    def seen(target: Target, cache: Path) -> Iterator[search_of.Bench]:
        with bench(target, cache) as at:
            began.append(at)
            yield at

    monkeypatch.setattr(search_of, "started_bench", seen)

    def interrupt(text: str) -> None:
        heard.append(text)
        if len(heard) == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert began[0].stop.wait(30)

    wish = command.Wish(command.limits("quick", None, 6), "random", fresh_seed(), interrupt, CODE)
    (found,) = command.tune_expression(CODE, "cpu", wish)
    assert (found.problem, found.tried, found.interrupted) == ("", 5, True)
    assert found.record is not None
    assert heard[0].startswith("softmax_6x40_f32: 5 of 6 tried, best ")
    assert heard[1].endswith("interrupted; the best so far is raced and kept")
    (path,) = (tmp_path / "tune").glob("*.jsonl")
    (table,) = tables.read_all(path)
    assert 0 in table.trials
    x = torch.randn(6, 40)
    made = executable.compile(lambda x: torch.softmax(x, -1), [x])
    assert [steps.show(s) for s in made.lowering.schedules.values()] == [found.record.schedule]
    assert command.tune_missing(made.captured, named.target("cpu"), tmp_path) == []


@pytest.mark.parametrize("stored", ["the ninth of its space", 'bind("nowhere", blocks)\n'])
def test_a_search_also_times_the_schedule_that_is_stored(stored: str, tmp_path: Path) -> None:
    kept, first = record(CODE, 8)
    kept = replace(kept, schedule=stored) if "nowhere" in stored else kept
    shelf.store_records(tmp_path, [kept])
    machine, program = named.target("cpu"), loop_text.parse(kept.program)
    with search_of.started_bench(machine, tmp_path) as bench, bench.lane() as lane:
        found = search_of.tune(program, lane, search_of.Effort(2, 10.0, 2), "top")
    ((table,),) = (tables.read_all(p) for p in (tmp_path / "tune").glob("*.jsonl"))
    assert (found.problem, len(table.trials), table.head.schedules[0]) == ("", 2, first)
    assert [*table.trials] == ([0, 1] if "nowhere" in stored else [0, table.head.schedules.index(kept.schedule)])


def test_a_lost_process_is_an_answer_and_another_takes_its_place(tmp_path: Path) -> None:
    process = Process("cpu", tmp_path)
    try:
        assert process.ask("ready", 0.0)["failed"] == "did not end within 0 s"
        assert process.ask("ready", 60.0) == {}
        assert process._running is not None
        os.kill(process._running.pid, signal.SIGKILL)
        assert process.ask("ready", 60.0)["failed"] == "crashed: SIGKILL"
    finally:
        process.close()


def test_a_process_may_see_one_gpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environments: list[dict[str, str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *args, env, **more: environments.append(env))
    Process("cpu", tmp_path, "5").start()
    Process("cpu", tmp_path).start()
    one, every = (env.get("CUDA_VISIBLE_DEVICES") for env in environments)
    assert (one, every) == ("5", os.environ.get("CUDA_VISIBLE_DEVICES"))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_contestant_keeps_the_code_that_its_graph_launches(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        capture_begin = capture_end = replay = lambda self: None

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(measure, "_capturing", lambda: None)
    x = torch.randn(4)
    call = lambda x: (x + 1,)  # noqa: E731
    alive = weakref.ref(call)
    made = measure.contestant(call, [[x], [x]], kind)
    del call
    gc.collect()
    made.run()
    assert alive() is not None


@pytest.mark.parametrize(
    ("visible", "found"), [("", ("0", "2")), ("4,3,6", ("4", "6")), ("GPU-a,GPU-b,GPU-c", ("GPU-a", "GPU-c"))]
)
def test_kernels_are_timed_on_gpus_of_one_name(
    visible: str, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["NVIDIA H200", "NVIDIA T4", "NVIDIA H200"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(gpu_programs, "device_of", lambda target: names[0])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)
    assert gpu_programs.equal_gpus(named.target("sm_90a")) == found
    assert gpu_programs.equal_gpus(named.target("cpu")) == ()


def test_a_schedule_that_computes_something_else_is_refused_with_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, _ = record(CODE)
    _, inputs, captured = expression.capture(CODE, 0)
    machine = named.target("cpu")
    assert command.find_problem(captured.program, machine, kept, inputs) == ""
    execute = executable.execute
    broken: list[Lowering] = []

    def wrong(lowering: Lowering, stage: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
        factor = 1.01 if stage == "kernel" and lowering is (broken or [lowering])[0] else 1
        broken.append(lowering)
        return [x * factor for x in execute(lowering, stage, given)]

    monkeypatch.setattr(executable, "execute", wrong)
    assert command.find_problem(captured.program, machine, kept, inputs).startswith("stage kernel: ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_part_of_a_sum_that_is_missing_is_seen_and_another_order_is_not(dtype: torch.dtype) -> None:
    torch.manual_seed(fresh_seed())
    a, b = torch.randn(64, 512, dtype=dtype), torch.randn(512, 64, dtype=dtype)
    whole, inputs = (a @ b,), [a, b]
    other = ((a.float()[:, :200] @ b.float()[:200] + a.float()[:, 200:] @ b.float()[200:]).to(dtype),)
    assert measure.describe_difference(other, whole, inputs) == ""
    assert "are wrong" in measure.describe_difference(((a[:, :-16] @ b[:-16]),), whole, inputs)
    assert "are wrong" in measure.describe_difference(
        (whole[0].where(whole[0] != whole[0][3, 4], torch.nan),), whole, inputs
    )


def table(times: list[float]) -> tables.Table:
    texts = [f'bind("i", vector, width=8, unroll={n + 1})\n' for n in range(len(times))]
    costs = [float(n + 1) for n in range(len(times))]
    head = Head("key", "add", "cpu", "a CPU", "pointwise", "", costs, texts)
    return tables.Table(head, {n: Trial(n, t * 1e-6, t) for n, t in enumerate(times)})


def test_a_table_goes_on_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    whole, path = table([1.0, 0.5, 2.0]), tmp_path / "t.jsonl"
    tables.append(path, tables.begin(path, whole.head), [*whole.trials.values(), Trial(3, failed="spills 8 bytes")])
    text = path.read_text()
    path.write_text(text[:-9])
    begun = tables.begin(path, whole.head)
    assert begun == whole
    assert path.read_text() == "".join(text.splitlines(keepends=True)[:4])
    assert tables.begin(path, replace(whole.head, costs=[3.0])).trials == {}
    path.write_text("nonsense\n")
    with pytest.raises(CompilerError, match="line 1: no table of candidates"):
        tables.read_all(path)


def test_a_replay_says_how_soon_the_best_is_found_and_how_well_estimates_rank(tmp_path: Path) -> None:
    path, times = tmp_path / "t.jsonl", [1.0, 0.9, 1.2, 0.5, 1.4, 1.5, 1.6, 1.7]
    whole = table(times)
    tables.append(path, tables.begin(path, whole.head), list(whole.trials.values()))
    assert replay.run(*replay.recorded(whole), "top", 0)[:4] == [0.5, 0.5 / 0.9, 0.5 / 0.9, 1.0]
    page, picture = replay.report([tmp_path], tmp_path / "out")
    assert "| top | 0.500 | 1.000 |" in page.read_text()
    assert picture.read_text().startswith("<svg")
    assert "| cpu pointwise | 1 | now | 0.58 | 0.83 | 0.83 | 0.71 |" in fit.report([path])


def test_costs_are_fitted_to_times_and_kernels_that_no_fit_has_seen_are_judged() -> None:
    """Two costs of three decide times: the fit finds how they relate, also where some times are far off."""
    rng = np.random.default_rng(fresh_seed())
    target = named.target("sm_90a")
    base = dict(target.costs)
    true = base | {"latency": 1.6 * base["latency"], "fill": 0.7 * base["fill"]}

    def kernel(n: int) -> fit.Recorded:
        parts = rng.uniform(0.2, 2.0, (120, 2))

        def price(row: np.ndarray, of: Target) -> float:
            c = dict(of.costs)
            return float(row[0] * c["latency"] + row[1] * c["fill"] + 500)

        prices = tuple(partial(price, row) for row in parts)
        times = np.log([p(target.replace(costs=tuple(true.items()))) for p in prices]) + rng.normal(0, 0.01, 120)
        times[:2] += 1.0
        return fit.Recorded(f"k{n}", "rows", "sm_90a", times, 0.03, times, True, prices)

    some = [kernel(n) for n in range(6)]
    names = fit.relevant_costs(some)
    assert names == ["latency", "fill"]
    found = fit.fitted(some, names)
    assert found["latency"] / found["fill"] == pytest.approx(true["latency"] / true["fill"], rel=0.1)
    unseen = fit.cross_validated(some, names)
    assert unseen.keys() == {r.name for r in some}
    rho, gamma = fit.ranks(some[0], fit.estimates(some[0], unseen["k0"]))
    assert rho > 0.8 and gamma > 0.8


def test_the_digest_of_a_kernel_does_not_depend_on_names() -> None:
    machine = named.target("cpu")

    def keys(code: str) -> set[str]:
        return set(search_of.kernels(expression.capture(code, 0)[2].program, machine))

    assert keys(CODE) == keys("F.softmax(torch.rand(6, 40), dim=1)")
    assert not keys(CODE) & keys("torch.softmax(torch.randn(6, 41), -1)")
    stored = Stored((record(CODE)[0],))
    assert not pipeline.lower(
        expression.capture("torch.randn(3).exp()", 0)[2].program, machine, stored=stored
    ).fallbacks


def test_verifying_names_records_of_kernels_that_are_no_more() -> None:
    kept, _ = record(CODE)
    nowhere = search_of.Bench(named.target("cpu"), kept.device, Path(), None, None, None)  # type: ignore[arg-type]

    def problem(**changed: str) -> str:
        return verify._verify_record(replace(kept, **changed), nowhere).problem  # type: ignore[arg-type]

    assert problem(key="other") == "its digest is not that of its kernel: the line was changed"
    assert problem(code="torch.randn(3).exp()") == "torch.randn(3).exp() has no such kernel any more"
    assert problem(program="def f(").startswith("this version cannot read it: ")
    assert problem(schedule="nothing()").startswith("this version cannot read it: ")
