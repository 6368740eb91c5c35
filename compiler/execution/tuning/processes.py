"""Processes that build and race candidates: they answer requests, and a crash or a hang is an answer as well."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from compiler.errors import CompilerError

Answer = Mapping[str, Any]
_MAX_QUOTED = 300  # characters quoted from a lost process


class Process:
    """A process started at the first request, and again after it was lost; `begin` is repeated then.

    It sees only `gpu`, an entry of CUDA_VISIBLE_DEVICES, unless that is empty.
    """

    def __init__(self, target: str, cache: Path, gpu: str = "") -> None:
        self.target, self.cache, self.gpu = target, cache, gpu
        self.first: Mapping[str, Any] | None = None
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, so that its imports overlap other work."""
        if self._running is None:
            self._start()

    def begin(self, seconds: float, **request: Any) -> Answer:
        """Send `begin` now, and to each process that replaces a lost one."""
        self.first = {"do": "begin", **request}
        return self._ask(self.first, seconds)

    def ask(self, do: str, seconds: float, **request: Any) -> Answer:
        """The answer of the process. It has `failed`, with the reason, if it crashed or took longer than `seconds`."""
        if self._running is None and self.first is not None and "failed" in (failure := self._ask(self.first, seconds)):
            return failure
        return self._ask({"do": do, **request}, seconds)

    def _ask(self, request: Mapping[str, Any], seconds: float) -> Answer:
        process = self._running or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = self._read_line(process, seconds)
        except BrokenPipeError:
            line = b""
        if line is None:
            self.close()
            return {"failed": f"did not end within {seconds:.0f} s"}
        if not line.endswith(b"\n"):
            return {"failed": self._describe_loss(process)}
        answer: Answer = json.loads(line)
        if answer.get("lost"):  # a failed kernel may have made the GPU unusable for the process
            self.close()
        return answer

    def _read_line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        """A line of its answer, incomplete if the process ended; None after a timeout."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        return process.stdout.readline()

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        overrides = {"PYTHONPATH": path} | ({"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu else {})
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # for as long as the process
        # A session of its own: a terminal's Ctrl-C reaches this process, which ends it.
        self._running = subprocess.Popen(
            [sys.executable, "-P", "-m", "compiler.execution.tuning.worker", self.target, str(self.cache)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env={**os.environ, **overrides},
            start_new_session=True,
        )  # fmt: skip
        return self._running

    def _describe_loss(self, process: subprocess.Popen[bytes]) -> str:
        self._running = None
        process.wait()
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - _MAX_QUOTED))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        status = self._end(process)
        if status < 0:
            return f"crashed: {signal.Signals(-status).name}"
        return f"the process ended with status {status}: {lines[-1] if lines else 'without a word'}"[:_MAX_QUOTED]

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """The exit status of a process that has ended; its files are closed."""
        status = process.wait()
        for file in (process.stdin, process.stdout, self._stderr):
            with contextlib.suppress(BrokenPipeError):
                file.close()  # type: ignore[union-attr]
        return status

    def close(self) -> None:
        """Kill the process and those that it has started."""
        process, self._running = self._running, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            self._end(process)


class Builders:
    """Processes that build in parallel, one per core."""

    def __init__(self, target: str, cache: Path, count: int) -> None:
        self._free: SimpleQueue[Process] = SimpleQueue()
        self._all = [Process(target, cache) for _ in range(count)]
        for p in self._all:
            self._free.put(p)
        self._threads = ThreadPoolExecutor(count)

    def start(self, seconds: float) -> None:
        """Start all, so that they import PyTorch concurrently, and wait for the first. CompilerError if it fails."""
        for p in self._all:
            p.start()
        answer = self.ask("ready", seconds)
        if "failed" in answer:
            raise CompilerError(f"a process that builds candidates cannot be started: {answer['failed']}")

    def build(self, program: str, schedules: Sequence[str], seconds: float) -> list[Answer]:
        """Build a kernel with each of the schedules; an answer for each."""
        return list(self._threads.map(lambda s: self.ask("build", seconds, program=program, schedule=s), schedules))

    def ask(self, do: str, seconds: float, **request: Any) -> Answer:
        """Ask a free process."""
        process = self._free.get()
        try:
            return process.ask(do, seconds, **request)
        finally:
            self._free.put(process)

    def close(self) -> None:
        for p in self._all:
            p.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
