"""Processes beside this one that call functions of this package: a function and its tasks in, the results in order out.

Python runs one thread at a time, so that many kernels are lowered on several cores only in several processes. These
know the package alone, not PyTorch: they begin in a third of a second, and never see a GPU. They end with this process,
or when nobody has had a task for some time.
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
FEWEST_CORES = 4  # with fewer, what results cost to be passed on takes back what is gained
FEWEST_TASKS = 6
MANY = 64  # calls of a program, which become some tens of kernels
MOST = 12  # processes: more wait for this one to read what they made
DEEP = 5_000  # recursion of trees in a worker, whose stack has a fixed size
IDLE = 60.0  # seconds until they end
_POLL = 0.1  # seconds after which who waits for a free one looks whether there are any left
_SERVE = "import sys; sys.path.insert(0, sys.argv[1]); from compiler.runtime.workers import serve; serve()"


def each(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """`function` of each task, a module-level function of this package; by this process alone where that is as fast.

    Raises what `function` raises for the first task for which it does.
    """
    if len(tasks) < FEWEST_TASKS or detect.usable_cores() < FEWEST_CORES:
        return list(map(function, tasks))
    workers = _started(min(detect.usable_cores(), MOST, len(tasks)))

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(functools.partial(one, function), tasks))


def start(calls: int) -> None:
    """Let the processes begin where a program of so many calls is about to be lowered; this does not wait for them."""
    if calls >= MANY and detect.usable_cores() >= FEWEST_CORES:
        _started(min(detect.usable_cores(), MOST))


def one(function: Callable[[T], R], task: T) -> R:
    """`function` of a task, by one of the processes as soon as one is free; by this one where none has begun.

    Threads that wait each for one of these do not wait for Python, and a compiler in a small process of its own does
    not wait for the memory of this one.
    """
    while _all:
        try:
            worker = _workers.get(timeout=_POLL)
        except queue.Empty:
            continue
        try:
            made = worker.call(function, task)
        finally:
            _workers.put(worker)
        if made is not None:
            return made[0]
        break
    return function(task)


class _Worker:
    """One of the processes; once it is lost it does nothing more."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _SERVE, str(ROOT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
            )  # fmt: skip
        except OSError:  # no more processes, say: this one does it
            return

    def call(self, function: Callable[[T], R], task: T) -> tuple[R] | None:
        """The result, or None where there is none: the function raises, or the process is lost."""
        if self._process is None:
            return None
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            asked = pickle.dumps((function, task), pickle.HIGHEST_PROTOCOL)
        except Exception:  # a tree too deep, say
            return None
        try:
            pickle.dump(asked, self._process.stdin)
            self._process.stdin.flush()
            made: tuple[R] | None = pickle.load(self._process.stdout)
        except Exception:  # it was killed, or what came of it is not whole
            self.close()
            return None
        except BaseException:  # an interrupt: its answer would be taken for that of the next task
            self.close()
            raise
        return made

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            process.wait()


_lock = threading.Lock()
_workers: queue.Queue[_Worker] = queue.Queue()
_all: list[_Worker] = []
_ends: list[threading.Timer] = []


def _started(count: int) -> int:
    """How many workers there are, at least so many; they end once nobody has asked for a while."""
    with _lock:
        while len(_all) < count:
            _all.append(_Worker())
            _workers.put(_all[-1])
        for timer in _ends:
            timer.cancel()
        _ends[:] = [threading.Timer(IDLE, stop)]
        _ends[0].daemon = True
        _ends[0].start()
        return len(_all)


def stop() -> None:
    """End the processes that are free."""
    with _lock:
        while True:
            try:
                worker = _workers.get_nowait()
            except queue.Empty:
                return
            worker.close()
            _all.remove(worker)


def _forget() -> None:
    """A process that was forked has no part in those of its parent."""
    global _lock, _workers
    _lock, _workers = threading.Lock(), queue.Queue()
    _all.clear()
    _ends.clear()


os.register_at_fork(after_in_child=_forget)


# ---- in a worker


def serve() -> None:
    """Answer calls until there are no more: a result alone in a tuple, or None for an exception."""
    sys.setrecursionlimit(DEEP)
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what else is printed is no answer
    while True:
        try:
            asked: bytes = pickle.load(source)
        except EOFError:
            return
        sink.write(_answer(asked))
        sink.flush()


def _answer(asked: bytes) -> bytes:
    try:
        function, task = pickle.loads(asked)
        return pickle.dumps((function(task),), pickle.HIGHEST_PROTOCOL)
    except Exception:  # whoever asked calls it again, to have it where it can be seen
        return pickle.dumps(None)
