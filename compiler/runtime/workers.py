"""Worker processes that call functions of this package, in parallel.

Python's GIL makes lowering of many kernels on several cores possible only in several processes. They import the package
but not PyTorch: they start in a third of a second and never see a GPU. They end with this process, or after a time
without tasks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from compiler.runtime import detect

T = TypeVar("T")
R = TypeVar("R")
ROOT = Path(__file__).parents[2]
MIN_CORES = 4  # with fewer, passing on results costs what is gained
MIN_TASKS = 6
MIN_CALLS = 64  # calls of a program, which become some tens of kernels
MAX_WORKERS = 12  # processes: more would wait for this one to read their results
RECURSION_LIMIT = 5_000  # recursion limit in a worker, whose stack has a fixed size
IDLE = 60.0  # seconds without tasks until they end
_POLL = 0.1  # seconds after which a thread that waits for a worker checks whether any are left
_SERVE = "import sys; sys.path.insert(0, sys.argv[1]); from compiler.runtime.workers import serve; serve()"


def each(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Map `function`, a module-level function of this package, over the tasks; in this process if that is as fast.

    Raises the exception of the first task that raises.
    """
    if len(tasks) < MIN_TASKS or detect.usable_cores() < MIN_CORES:
        return list(map(function, tasks))
    workers = _ensure_workers(min(detect.usable_cores(), MAX_WORKERS, len(tasks)))

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(functools.partial(run_task, function), tasks))


def start(calls: int) -> None:
    """Start the workers, without waiting for them, if a program of that many calls is about to be lowered."""
    if calls >= MIN_CALLS and detect.usable_cores() >= MIN_CORES:
        _ensure_workers(min(detect.usable_cores(), MAX_WORKERS))


def run_task(function: Callable[[T], R], task: T) -> R:
    """Run `function` on a task in the next free worker; in this process if there is no worker, or if it failed there.

    Threads that each wait for a worker do not contend for the GIL, and a compiler in a small process of its own does
    not contend for this process's memory.
    """
    while _all_workers:
        try:
            worker = _idle_workers.get(timeout=_POLL)
        except queue.Empty:
            continue
        try:
            answer = worker.call(function, task)
        finally:
            _idle_workers.put(worker)
        if answer is not None:
            return answer[0]
        break
    return function(task)


class _Worker:
    """A worker process; once it is lost, `call` returns None."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _SERVE, str(ROOT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
            )  # fmt: skip
        except OSError:  # such as a limit on processes: this process does the work
            return

    def call(self, function: Callable[[T], R], task: T) -> tuple[R] | None:
        """The result in a tuple; None if the function raised or the process is lost."""
        if self._process is None:
            return None
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            request = pickle.dumps((function, task), pickle.HIGHEST_PROTOCOL)
        except Exception:  # such as too deep a tree
            return None
        try:
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()
            answer: tuple[R] | None = pickle.load(self._process.stdout)
        except Exception:  # it was killed, or its answer is incomplete
            self.close()
            return None
        except BaseException:  # an interrupt: the answer would be taken for that of the next task
            self.close()
            raise
        return answer

    def close(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            process.wait()


_lock = threading.Lock()
_idle_workers: queue.Queue[_Worker] = queue.Queue()
_all_workers: list[_Worker] = []
_end_timers: list[threading.Timer] = []


def _ensure_workers(count: int) -> int:
    """Ensure at least `count` workers; return how many there are. They end after IDLE seconds without a call."""
    with _lock:
        while len(_all_workers) < count:
            _all_workers.append(_Worker())
            _idle_workers.put(_all_workers[-1])
        for timer in _end_timers:
            timer.cancel()
        _end_timers[:] = [threading.Timer(IDLE, stop)]
        _end_timers[0].daemon = True
        _end_timers[0].start()
        return len(_all_workers)


def stop() -> None:
    """End the idle workers."""
    with _lock:
        while True:
            try:
                worker = _idle_workers.get_nowait()
            except queue.Empty:
                return
            worker.close()
            _all_workers.remove(worker)


def _forget() -> None:
    """After a fork, the child must not use its parent's workers."""
    global _lock, _idle_workers
    _lock, _idle_workers = threading.Lock(), queue.Queue()
    _all_workers.clear()
    _end_timers.clear()


os.register_at_fork(after_in_child=_forget)


# ---- in a worker


def serve() -> None:
    """Answer calls until the input ends: a tuple of the result, or None for an exception."""
    sys.setrecursionlimit(RECURSION_LIMIT)
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not mix with answers
    while True:
        try:
            request: bytes = pickle.load(source)
        except EOFError:
            return
        sink.write(_answer(request))
        sink.flush()


def _answer(request: bytes) -> bytes:
    try:
        function, task = pickle.loads(request)
        return pickle.dumps((function(task),), pickle.HIGHEST_PROTOCOL)
    except Exception:  # the caller repeats the call, which raises there
        return pickle.dumps(None)
