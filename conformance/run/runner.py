"""Run items in this process's child, and return their rows."""

import functools
import json
import math
import os
import re
import shlex
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
TOGETHER = 16  # cases whose texts are built together
NATIVE = (STAGES[0], *KINDS.values(), "mlir", "triton")  # stages run by PyTorch or natively, not interpreted
MEMORY, MEMORY_SHARE = 8 * GIB, 0.8  # limit of a child, and of all children as a share of the machine's memory
CHECK_SECONDS, WATCHED_SECONDS, BENCH_SECONDS, GATE_SECONDS, SELFTEST_SECONDS = 120.0, 600.0, 300.0, 1200.0, 3600.0
FUZZ_SECONDS, REDUCE_SECONDS = 120.0, 60.0
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
        self.ahead: set[str] = set()  # cases whose texts were built ahead, or tried to be
        self.stderr = os.dup(2)  # pytest's capturing replaces the descriptor while items run
        self.executor = Executor(preload, memory, environment=limits, waits=self._say_what_for)
        self.logs = scratch.make() if settings.sanitizers else None
        self.watched = {
            tool: Executor(
                preload,
                memory,
                under=sanitizer.command(tool, self._log(tool)),
                environment=limits | sanitizer.ENVIRONMENT,
                waits=self._say_what_for,
            )
            for tool in settings.sanitizers
        }

    def start(self) -> None:
        """Start the child, which imports its modules while this process continues."""
        for executor in self.watched.values() or (self.executor,):
            executor.start()

    @functools.cached_property
    def baseline(self) -> Baseline | None:
        """The baseline that benchmarks are raced against, or None; raises BaselineError."""
        settings = self.settings
        if settings.baseline is None:
            return None
        lowered = TextRequest(self.shapes, settings.targets, settings.tier, timed=True)
        return find(settings.baseline, settings.baselines(self.device), self.folder, lowered)

    def _say_what_for(self) -> None:
        """Print which process holds the machine lock, unless it belongs to this run."""
        if line := lock.waiting_message(self.executor.machine):
            os.write(self.stderr, f"\n{line}\n".encode())

    def close(self) -> None:
        """End the child."""
        for executor in (self.executor, *self.watched.values()):
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
        known = replies.describe(case, target, replies.shown_path(path, self.folder))
        known = replace(known, command=self.command(known, isinstance(case, BenchCase)))
        limit = self.settings.timeout or case.timeout
        refusal = None
        if needed := _beyond(case, self.executor.memory):
            line = line_below(case.file, case.line, "args")
            where = f"{known.file}:{line}: case {case.id.partition('[')[0]!r}"
            refusal = Reply(Status.RAISED, None, f"{where}: {needed}")
        if isinstance(case, BenchCase):
            stored = self.baseline.stored(known) if self.baseline else None
            options = self._bench_options(target) | {"stored": asdict(stored) if stored else None}
            reply = refusal or self._call("bench", to_json(case), options, timeout=limit or BENCH_SECONDS)
            return replies.bench(known, case.family, reply)
        if refusal is not None:
            return replies.check(known, refusal)
        options = self._check_options(known)
        if case.large:
            options["stages"] = [stage for stage in options["stages"] if stage in NATIVE]
        if self.watched:
            return replies.joined([self._watch(tool, known, case, options, limit) for tool in self.watched])
        if target.startswith("mlir") and "mlir" in options["stages"] and not self.settings.backend:
            self._build_ahead([case, *following()], options)
        reply = self._call("check", to_json(case), options, timeout=limit or CHECK_SECONDS)
        return self._keep(replies.check(known, reply), case, options)

    def _build_ahead(self, found: Sequence[Case], options: Mapping[str, Any]) -> None:
        """Build the texts of the first case and the next ones together, except those that were tried before.

        A case that crashes the child here does so again when it is checked on its own, and only then fails.
        """
        keys = [f"{options['target']} {case.file}::{case.id}" for case in found]
        if keys[0] in self.ahead:
            return
        some = [n for n, case in enumerate(found) if keys[n] not in self.ahead and _is_usual(case)][:TOGETHER]
        self.ahead |= {keys[n] for n in (0, *some)}
        if len(some) > 1:
            self._call("ahead", [to_json(found[n]) for n in some], options, timeout=CHECK_SECONDS)

    def _watch(
        self, tool: str, known: rows.Item, case: Case, options: Mapping[str, Any], limit: float | None
    ) -> rows.Check:
        """Run a case under a sanitizer and return its row."""
        function, log = self.settings.function("check"), {"tool": tool, "log": str(self._log(tool))}
        reply = self.watched[tool].call(
            function, to_json(case), {**options, "sanitizer": log}, timeout=limit or WATCHED_SECONDS, hold="shared"
        )
        return self._keep(replies.check(known, reply), case, options)

    def _log(self, tool: str) -> Path:
        assert self.logs is not None
        return self.logs.folder / f"{tool}.txt"

    def fitness(self) -> rows.Fitness:
        """Run the fitness check of the machine."""
        options = self._bench_options(self.settings.targets[0])
        return replies.fitness(self._call("fitness", options, timeout=self.settings.timeout or BENCH_SECONDS))

    def explain_unknown(self) -> str | None:
        """Return an error message for an unknown backend among the settings; None if torch knows all."""
        for name in self.settings.foreign:
            reply = self._call("explain_unknown", name, timeout=EXPLAIN_SECONDS)
            if reply.value or reply.message:
                return str(reply.value or f"{reply.message}\n{reply.output}")
        return None

    def gate(self, found: Sequence[Case], path: Path) -> rows.Gate:
        """Compile a file's cases for GPUs and return the row."""
        options = {"seed": self.settings.seed, "threads": self.threads, "architectures": self.settings.architectures}
        limit = self.settings.timeout or GATE_SECONDS
        reply = self._call("gate", [to_json(case) for case in found], options, timeout=limit)
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
        made = source.get("program") or (str(folder / asked.PROGRAM_FILE) if source.get("entry") else "")
        more = ["--mlcomp-fuzz-what", ",".join(what)] if what != asked.DEFAULT else []
        command = self._again(["--mlcomp-fuzz-only", made or str(index)], target, more)
        known = rows.Fuzz(index=index, seed=seed, target=target, command=command)
        limit = self.settings.timeout or FUZZ_SECONDS
        reply = self._call("fuzz", seed, index, options, timeout=limit)
        if reply.status in (Status.CRASH, Status.TIMEOUT):
            alone = self._call("eager", seed, index, options, timeout=limit)
            if alone.status is reply.status:
                return replies.lost_by_torch(known, alone)
            again = self._call("fuzz", seed, index, {**options, "lost": True}, timeout=limit)
            return self._reduced(replies.fuzz(known, reply, again), options)
        row = replies.fuzz(known, reply)
        return self._reduced(row, options) if row.verdict == "fail" else row

    def _reduced(self, row: rows.Fuzz, options: Mapping[str, Any]) -> rows.Fuzz:
        """Reduce the failing program of a row; a trial that loses the process counts if the finding did so, too."""
        if row.kind in ("timeout", "internal"):
            return row
        more = {**options, "kind": row.kind, "stage": row.first_bad_stage, "seconds": REDUCE_SECONDS, "outcomes": ""}
        start = time.monotonic()
        while True:
            reply = self._call("reduce", row.seed, row.index, more, timeout=2 * REDUCE_SECONDS)
            lost = reply.status in (Status.CRASH, Status.TIMEOUT) and reply.at.startswith(OUTCOMES_PREFIX)
            if not lost or time.monotonic() - start > 2 * REDUCE_SECONDS:
                return replies.reduced(row, reply)
            more["outcomes"] = reply.at.removeprefix(OUTCOMES_PREFIX) + ("+" if str(reply.status) == row.kind else "-")

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
        command = self._again([*words, "--mlcomp-samples", str(settings.samples)], target)
        known = rows.OpInfo(name=name, dtype=dtype, target=target, command=command, source=database)
        limit = settings.timeout or FUZZ_SECONDS
        return replies.opinfo(known, self._call(database, name, dtype, options, timeout=limit))

    def command(self, known: rows.Item, bench: bool) -> str:
        """Return the command that repeats an item with the same data."""
        settings, name = self.settings, rows.name(known, bench=bench)
        more = ["--mlcomp-bench", settings.bench] if bench else []
        more += ["--mlcomp-backend", settings.backend] if settings.backend else []
        more += ["--mlcomp-sanitizer", ",".join(settings.sanitizers)] if settings.sanitizers else []
        return self._again([f"{known.file}::{name}"], known.target, more)

    def _again(self, what: Sequence[str], target: str, more: Sequence[str] = ()) -> str:
        where = ["--mlcomp-target", target] if target != "cpu" else []
        return shlex.join(["pytest", "--mlcomp", *what, "--mlcomp-seed", str(self.settings.seed), *where, *more])

    def _call(self, kind: str, *arguments: Any, timeout: float) -> Reply:
        hold = "exclusive" if kind in ("bench", "fitness") else "shared"
        return self.executor.call(self.settings.function(kind), *arguments, timeout=timeout, hold=hold)

    def _keep(self, row: rows.Check, case: Case, options: Mapping[str, Any]) -> rows.Check:
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
            said = f"{row.detail}\n(its files could not be written to {folder}: {error.strerror})"
            return replace(row, detail=said)
        if not self.settings.backend:
            lost = rows.to_json(row, ("verdict", "first_bad_stage", "first_bad_pass", "detail"))
            self._call("check", to_json(case), {**options, "lost": lost}, timeout=FILES_SECONDS)
        return replace(row, repro=str(folder))

    def _check_options(self, known: rows.Item) -> dict[str, Any]:
        folder = re.sub(r"[^\w.+-]+", "_", rows.name(known, bench=False)).strip("_")
        return {
            "target": known.target,
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


def _is_usual(case: Case) -> bool:
    """Return whether a case is small and judged stage by stage."""
    return not case.large and case.entry == "export"


def _beyond(case: Case, memory: int) -> str:
    """Return a message if the case's arguments need more than `memory` bytes, else ""."""
    needed = sum(BYTES[arg.dtype] * math.prod(arg.shape) for arg in case.args if not arg.layout.startswith("expanded"))
    if needed <= memory:
        return ""
    return f"args: they take {needed / GIB:.1f} GiB, and a checking process may use {memory / GIB:.1f} GiB"
