"""Run items in this process's child, and return their rows."""

import functools
import json
import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from conformance import rows
from conformance.fuzz import asked
from conformance.fuzz.asked import OUTCOMES_PREFIX
from conformance.history.baseline import Baseline, find
from conformance.history.revisions import TextRequest
from conformance.isolation import lock, scratch
from conformance.isolation.executor import GIB, Executor, Reply, Status
from conformance.judge import sanitizer
from conformance.report import environment, replies
from conformance.run.settings import Settings
from conformance.shapes.cases import BYTES, KINDS, STAGES, BenchCase, Case, to_json
from conformance.shapes.toml_values import line_below

EXPLAIN_SECONDS = 60.0
MOST_TOGETHER = 16  # cases whose texts are built together
NATIVE_STAGES = (STAGES[0], *KINDS.values(), "mlir", "triton")  # stages run by PyTorch or natively, not interpreted
MEMORY, MEMORY_SHARE = 8 * GIB, 0.8  # limit of a child, and of all children as a share of the machine's memory
CHECK_SECONDS, WATCHED_SECONDS, BENCH_SECONDS, GATE_SECONDS, SELFTEST_SECONDS = 120.0, 600.0, 300.0, 1200.0, 3600.0
FUZZ_SECONDS, REDUCE_SECONDS = 300.0, 60.0
FILES_SECONDS = 60.0


class Runner:
    """The child of one pytest process, and the options that its calls share."""

    def __init__(self, settings: Settings, folder: Path, workers: int, shapes: Sequence[Path] = ()) -> None:
        self.settings = settings
        self.shapes = tuple(shapes)  # the shape files of this run
        self.folder = folder  # the invocation folder: paths are shown relative to it
        self.threads = max(1, len(os.sched_getaffinity(0)) // workers)
        self.device = environment.device(settings.targets, settings.variant)
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        memory = min(MEMORY, int(MEMORY_SHARE * installed / workers))
        preload = [settings.function("check").partition(":")[0]]
        # Otherwise NumPy's matrix products would use every core in each of the workers.
        limits = {"OPENBLAS_NUM_THREADS": str(self.threads)}
        self.tried_ahead: set[str] = set()  # cases whose texts were built ahead, or tried to be
        self.stderr = os.dup(2)  # pytest's capturing replaces the descriptor while items run
        self.executor = Executor(preload, memory, environment=limits, waits=self._report_lock_holder)
        self.logs = scratch.make() if settings.sanitizers else None
        self.sanitizer_executors = {
            tool: Executor(
                preload,
                memory,
                under=sanitizer.command(tool, self._log(tool)),
                environment=limits | sanitizer.ENVIRONMENT,
                waits=self._report_lock_holder,
            )
            for tool in settings.sanitizers
        }

    def start(self) -> None:
        """Start the child, which imports its modules while this process continues."""
        for executor in self.sanitizer_executors.values() or (self.executor,):
            executor.start()

    @functools.cached_property
    def baseline(self) -> Baseline | None:
        """The baseline that benchmarks are raced against, or None; raises BaselineError."""
        settings = self.settings
        if settings.baseline is None:
            return None
        request = TextRequest(self.shapes, settings.targets, settings.tier, timed=True)
        return find(settings.baseline, settings.baselines(self.device), self.folder, request)

    def _report_lock_holder(self) -> None:
        """Print which process holds the machine lock, unless it belongs to this run."""
        if line := lock.waiting_message(self.executor.machine):
            os.write(self.stderr, f"\n{line}\n".encode())

    def close(self) -> None:
        """End the child."""
        for executor in (self.executor, *self.sanitizer_executors.values()):
            executor.close()
        if self.stderr >= 0:
            os.close(self.stderr)
            self.stderr = -1
        if self.logs is not None:
            self.logs.close()

    def run(
        self, case: Case, target: str, path: Path, following: Callable[[], Sequence[Case]] = lambda: ()
    ) -> rows.Check | rows.Bench:
        """Run one case and return its row; `following` returns the next cases on this target, to be built together."""
        item = replies.describe(case, target, replies.shown_path(path, self.folder))
        item = replace(item, command=self.command(item, isinstance(case, BenchCase)))
        limit = self.settings.timeout or case.timeout
        refusal = None
        if complaint := _memory_complaint(case, self.executor.memory):
            line = line_below(case.file, case.line, "args")
            place = f"{item.file}:{line}: case {case.id.partition('[')[0]!r}"
            refusal = Reply(Status.RAISED, None, f"{place}: {complaint}")
        if isinstance(case, BenchCase):
            stored = self.baseline.stored(item) if self.baseline else None
            options = self._bench_options(target) | {"stored": asdict(stored) if stored else None}
            reply = refusal or self._call("bench", to_json(case), options, timeout=limit or BENCH_SECONDS)
            return replies.bench(item, case.family, reply)
        if refusal is not None:
            return replies.check(item, refusal)
        options = self._check_options(item)
        if case.large:
            options["stages"] = [stage for stage in options["stages"] if stage in NATIVE_STAGES]
        if self.sanitizer_executors:
            return replies.join_checks(
                [self._run_under_sanitizer(tool, item, case, options, limit) for tool in self.sanitizer_executors]
            )
        if target.startswith("mlir") and "mlir" in options["stages"] and not self.settings.backend:
            self._build_ahead([case, *following()], options)
        reply = self._call("check", to_json(case), options, timeout=limit or CHECK_SECONDS)
        return self._with_repro(replies.check(item, reply), case, options)

    def _build_ahead(self, cases: Sequence[Case], options: Mapping[str, Any]) -> None:
        """Build the texts of the first case and the next ones together, except those that were tried before.

        A case that crashes the child here does so again when it is checked on its own, and only then fails.
        """
        keys = [f"{options['target']} {case.file}::{case.id}" for case in cases]
        if keys[0] in self.tried_ahead:
            return
        untried = [n for n, case in enumerate(cases) if keys[n] not in self.tried_ahead and _is_small_and_staged(case)][
            :MOST_TOGETHER
        ]
        self.tried_ahead |= {keys[n] for n in (0, *untried)}
        if len(untried) > 1:
            self._call("ahead", [to_json(cases[n]) for n in untried], options, timeout=CHECK_SECONDS)

    def _run_under_sanitizer(
        self, tool: str, item: rows.Item, case: Case, options: Mapping[str, Any], limit: float | None
    ) -> rows.Check:
        """Run a case under a sanitizer and return its row."""
        function, log = self.settings.function("check"), {"tool": tool, "log": str(self._log(tool))}
        reply = self.sanitizer_executors[tool].call(
            function, to_json(case), {**options, "sanitizer": log}, timeout=limit or WATCHED_SECONDS, hold="shared"
        )
        return self._with_repro(replies.check(item, reply), case, options)

    def _log(self, tool: str) -> Path:
        assert self.logs is not None
        return self.logs.folder / f"{tool}.txt"

    def fitness(self) -> rows.Fitness:
        """Run the fitness check of the machine."""
        options = self._bench_options(self.settings.targets[0])
        return replies.fitness(self._call("fitness", options, timeout=self.settings.timeout or BENCH_SECONDS))

    def explain_unknown(self) -> str | None:
        """Return an error message for an unknown backend among the settings; None if torch knows all."""
        for name in self.settings.foreign_backends:
            reply = self._call("explain_unknown", name, timeout=EXPLAIN_SECONDS)
            if reply.value or reply.message:
                return str(reply.value or f"{reply.message}\n{reply.output}")
        return None

    def gate(self, cases: Sequence[Case], path: Path) -> rows.Gate:
        """Compile a file's cases for GPUs and return the row."""
        options = {"seed": self.settings.seed, "threads": self.threads, "architectures": self.settings.architectures}
        limit = self.settings.timeout or GATE_SECONDS
        reply = self._call("gate", [to_json(case) for case in cases], options, timeout=limit)
        return replies.gate(replies.shown_path(path, self.folder), reply)

    def selftest(self) -> rows.SelfTest:
        """Run the self-test and return its row."""
        options = {"targets": self.settings.targets, "seed": self.settings.seed, "threads": self.threads}
        return replies.selftest(self._call("selftest", options, timeout=self.settings.timeout or SELFTEST_SECONDS))

    def fuzz(self, index: int, target: str) -> rows.Fuzz:
        """Check one random program and return its row, reduced if it fails."""
        seed = self.settings.seed
        folder = self.settings.reports(self.device) / "repro" / f"random-{seed}.{index}-{target.replace(':', '_')}"
        what = self.settings.fuzz.what
        source = self.settings.fuzz.options(seed, index)
        options = {"target": target, "threads": self.threads, "dump": str(folder), "what": what, **source}
        program_file = source.get("program") or (str(folder / asked.PROGRAM_FILE) if source.get("entry") else "")
        what_options = ["--mlcomp-fuzz-what", ",".join(what)] if what != asked.DEFAULT else []
        command = self._repeat_command(["--mlcomp-fuzz-only", program_file or str(index)], target, what_options)
        unchecked = rows.Fuzz(index=index, seed=seed, target=target, command=command)
        limit = self.settings.timeout or FUZZ_SECONDS
        reply = self._call("fuzz", seed, index, options, timeout=limit)
        if reply.status in (Status.CRASH, Status.TIMEOUT):
            eager_reply = self._call("eager", seed, index, options, timeout=limit)
            if eager_reply.status is reply.status:
                shutil.rmtree(folder, ignore_errors=True)  # it may have been written before the process was lost
                return replies.lost_by_torch(unchecked, eager_reply)
            unchecked = replies.with_text(unchecked, eager_reply)
            second_reply = self._call("fuzz", seed, index, {**options, "lost": True}, timeout=limit)
            return self._reduce(replies.fuzz(unchecked, reply, second_reply), options)
        row = replies.fuzz(unchecked, reply)
        return self._reduce(row, options) if row.verdict == "fail" else row

    def _reduce(self, row: rows.Fuzz, options: Mapping[str, Any]) -> rows.Fuzz:
        """Reduce the failing program of a row; a trial that loses the process counts if the finding did so, too."""
        if row.kind in ("timeout", "internal"):
            return row
        reduce_options = {
            **options,
            "kind": row.kind,
            "stage": row.first_bad_stage,
            "seconds": REDUCE_SECONDS,
            "outcomes": "",
        }
        start = time.monotonic()
        while True:
            reply = self._call("reduce", row.seed, row.index, reduce_options, timeout=2 * REDUCE_SECONDS)
            is_lost = reply.status in (Status.CRASH, Status.TIMEOUT) and reply.at.startswith(OUTCOMES_PREFIX)
            if not is_lost or time.monotonic() - start > 2 * REDUCE_SECONDS:
                return replies.with_reduced(row, reply)
            reduce_options["outcomes"] = reply.at.removeprefix(OUTCOMES_PREFIX) + (
                "+" if str(reply.status) == row.kind else "-"
            )

    def entries(self, database: str) -> list[tuple[str, str]]:
        """Return the names and dtypes of a database's entries, which are listed by the child."""
        reply = self._call(f"{database}_entries", timeout=FUZZ_SECONDS)
        if reply.status is not Status.DONE:
            raise pytest.UsageError(f"--mlcomp-{database}: {reply.message}\n{reply.output}")
        return [(name, kind) for name, kind in reply.value]

    def entry(self, database: str, name: str, dtype: str, target: str) -> rows.OpInfo:
        """Check an entry of a database and return its row."""
        settings = self.settings
        options = {"target": target, "threads": self.threads, "seed": settings.seed, "samples": settings.samples}
        words = [f"--mlcomp-{database}", "--mlcomp-ops", f"^{re.escape(name)}:{re.escape(dtype)}$"]
        command = self._repeat_command([*words, "--mlcomp-samples", str(settings.samples)], target)
        unchecked = rows.OpInfo(name=name, dtype=dtype, target=target, command=command, source=database)
        limit = settings.timeout or FUZZ_SECONDS
        return replies.opinfo(unchecked, self._call(database, name, dtype, options, timeout=limit))

    def command(self, item: rows.Item, bench: bool) -> str:
        """Return the command that repeats an item with the same data."""
        settings, name = self.settings, rows.name(item, bench=bench)
        options = ["--mlcomp-bench", settings.bench] if bench else []
        options += ["--mlcomp-redraw", str(settings.redraw)] if bench and settings.redraw is not None else []
        options += ["--mlcomp-backend", settings.backend] if settings.backend else []
        options += ["--mlcomp-sanitizer", ",".join(settings.sanitizers)] if settings.sanitizers else []
        return self._repeat_command([f"{item.file}::{name}"], item.target, options)

    def _repeat_command(self, what: Sequence[str], target: str, options: Sequence[str] = ()) -> str:
        target_options = ["--mlcomp-target", target] if target != "cpu" else []
        return shlex.join(
            ["pytest", "--mlcomp", *what, "--mlcomp-seed", str(self.settings.seed), *target_options, *options]
        )

    def _call(self, kind: str, *arguments: Any, timeout: float) -> Reply:
        hold = "exclusive" if kind in ("bench", "fitness") else "shared"
        return self.executor.call(self.settings.function(kind), *arguments, timeout=timeout, hold=hold)

    def _with_repro(self, row: rows.Check, case: Case, options: Mapping[str, Any]) -> rows.Check:
        """If a case lost its process, write what is known about it, and let a new process write the rest of the repro
        folder without running any stage."""
        if row.verdict not in ("crash", "timeout"):
            return row
        folder = Path(options["dump"])
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "case.json").write_text(json.dumps(to_json(case), indent=1), encoding="utf-8")
            (folder / "lost.txt").write_text(f"{row.command}\n{row.detail}\n", encoding="utf-8")
        except OSError as error:
            detail = f"{row.detail}\n(its files could not be written to {folder}: {error.strerror})"
            return replace(row, detail=detail)
        if not self.settings.backend:
            lost = rows.to_json(row, ("verdict", "first_bad_stage", "first_bad_pass", "detail"))
            self._call("check", to_json(case), {**options, "lost": lost}, timeout=FILES_SECONDS)
        return replace(row, repro=str(folder))

    def _check_options(self, item: rows.Item) -> dict[str, Any]:
        folder = re.sub(r"[^\w.+-]+", "_", rows.name(item, bench=False)).strip("_")
        return {
            "target": item.target,
            "stages": list(self.settings.stages),
            "seed": self.settings.seed,
            "backend": self.settings.backend,
            "threads": self.threads,
            "dump": str(self.settings.reports(self.device) / "repro" / folder),
            "texts": True,
        }

    def _bench_options(self, target: str) -> dict[str, Any]:
        return {
            "target": target,
            "threads": 1,
            "mode": self.settings.bench,
            "vs": self.settings.vs,
            "seed": self.settings.seed,
            "system": self.settings.backend or "mlcomp",
            "min_effect": self.settings.min_effect,
        }


def _is_small_and_staged(case: Case) -> bool:
    """Return whether a case is small and judged stage by stage."""
    return not case.large and case.entry == "export"


def _memory_complaint(case: Case, memory: int) -> str:
    """Return a message if the case's arguments need more than `memory` bytes, else ""."""
    bytes_needed = sum(
        BYTES[arg.dtype] * math.prod(arg.shape) for arg in case.args if not arg.layout.startswith("expanded")
    )
    if bytes_needed <= memory:
        return ""
    return f"args: they take {bytes_needed / GIB:.1f} GiB, and a checking process may use {memory / GIB:.1f} GiB"
