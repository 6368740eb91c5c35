"""Processes that call functions: results in order, what is raised, and what becomes of those that are killed."""

import math
import operator
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
import torch

from compiler import capture, pipeline, target
from compiler.passes import equal_kernels
from compiler.runtime import detect, workers

SELF = "/proc/self"  # a link to the number of the process that reads it


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(detect, "usable_cores", lambda: workers.MIN_CORES)
    workers.stop()
    yield
    workers.stop()


def ended(pid: str) -> bool:
    """Within some seconds."""
    until = time.monotonic() + 30
    while Path("/proc", pid).exists() and time.monotonic() < until:
        time.sleep(0.02)
    return not Path("/proc", pid).exists()


def test_results_come_in_order_from_other_processes() -> None:
    assert workers.each(math.sqrt, [n * n for n in range(40)]) == list(range(40))
    found = set(workers.each(os.readlink, [SELF] * 40))
    assert str(os.getpid()) not in found and 1 <= len(found) <= workers.MIN_CORES
    workers.stop()
    assert all(map(ended, found))


def test_few_tasks_and_few_cores_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(os.getpid())
    assert workers.each(os.readlink, [SELF] * (workers.MIN_TASKS - 1)) == [here] * (workers.MIN_TASKS - 1)
    monkeypatch.setattr(detect, "usable_cores", lambda: workers.MIN_CORES - 1)
    assert set(workers.each(os.readlink, [SELF] * 20)) == {here}


def test_what_a_function_raises_is_raised_and_the_next_call_works() -> None:
    with pytest.raises(ValueError, match=r"domain|nonnegative"):
        workers.each(math.sqrt, [*range(20), -1])
    with pytest.raises(TypeError, match="bad operand"):
        workers.each(operator.neg, [*range(20), "text"])
    assert workers.each(math.sqrt, [4.0] * 20) == [2.0] * 20


def test_what_no_other_process_can_do_is_done_here() -> None:
    def local(n: int) -> int:
        return n + 1

    assert workers.each(local, range(20)) == list(range(1, 21))


def test_processes_that_are_killed_are_done_without() -> None:
    for pid in set(workers.each(os.readlink, [SELF] * 40)):
        os.kill(int(pid), signal.SIGKILL)
    assert workers.each(math.sqrt, [4.0] * 20) == [2.0] * 20


def test_a_forked_process_has_its_own() -> None:
    before = set(workers.each(os.readlink, [SELF] * 40))
    read, write = os.pipe()
    child = os.fork()
    if not child:
        after = set(workers.each(os.readlink, [SELF] * 40))
        os.write(write, b"apart" if not before & after else b"shared")
        workers.stop()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"apart" and workers.each(math.sqrt, [4.0] * 20) == [2.0] * 20


def test_one_task_goes_to_a_process_that_has_begun_and_waits_for_no_other() -> None:
    here = str(os.getpid())
    assert workers.run_task(os.readlink, SELF) == here
    workers.start(workers.MIN_CALLS)
    assert workers.run_task(os.readlink, SELF) != here
    busy = [workers._idle_workers.get() for _ in workers._all_workers]
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(workers.run_task, os.readlink, SELF)
        assert not wait([waiting], 3 * workers._POLL).done
        for worker in busy:
            workers._idle_workers.put(worker)
        assert waiting.result() != here
    with pytest.raises(ValueError, match=r"domain|nonnegative"):
        workers.run_task(math.sqrt, -1)


def test_who_waits_for_a_process_that_ends_does_it_here() -> None:
    workers.start(workers.MIN_CALLS)
    for worker in [workers._idle_workers.get() for _ in workers._all_workers]:
        worker.close()
        workers._all_workers.remove(worker)
    assert workers.run_task(os.readlink, SELF) == str(os.getpid())


def test_kernels_are_lowered_alike_in_any_process() -> None:
    def function(*inputs: torch.Tensor) -> list[torch.Tensor]:
        return [torch.softmax(x, -1) @ x.t() for x in inputs]

    inputs = [torch.randn(8, 16 + n) for n in range(workers.MIN_TASKS)]
    program, machine = capture(function, inputs).program, target("cpu:avx2")
    asked: list[int] = []

    def each(called, tasks):  # type: ignore[no-untyped-def]
        asked.append(len(tasks))
        return workers.each(called, tasks)

    ours = pipeline.lower(program, machine, each=each)
    equal_kernels._known.clear()
    theirs = pipeline.lower(program, machine)
    assert asked[0] >= workers.MIN_TASKS and ours.stages == theirs.stages and ours.schedules == theirs.schedules
