"""A case and a target in; its row out, after a run in the warm child that this process owns."""

import re
import shlex
from pathlib import Path
from typing import Any

from conformance import environment, rows
from conformance.cases import BenchCase, Case, to_json
from conformance.executor import Executor
from conformance.settings import Settings

CHECK_SECONDS, BENCH_SECONDS, SELFTEST_SECONDS = 120.0, 300.0, 3600.0


class Runner:
    """One process's child with the options that its calls share."""

    def __init__(self, settings: Settings, folder: Path, threads: int) -> None:
        self.settings = settings
        self.folder = folder  # where the user is: paths are shown relative to it
        self.threads = threads
        self.device = environment.device(settings.targets, settings.backend)
        self.executor = Executor(preload=[settings.function("check").partition(":")[0]])

    def start(self) -> None:
        """Let the child import what it needs while this process goes on."""
        self.executor.start()

    def close(self) -> None:
        """End the child."""
        self.executor.close()

    def run(self, case: Case, target: str, path: Path) -> rows.Row:
        """The row of one case."""
        known = rows.describe(case, target, rows.shown_path(path, self.folder))
        known["command"] = self.command(known)
        if isinstance(case, BenchCase):
            options, kind, seconds, make = self._bench_options(target), "bench", BENCH_SECONDS, rows.bench_row
        else:
            options, kind, seconds, make = self._check_options(known), "check", CHECK_SECONDS, rows.check_row
        timeout = self.settings.timeout or case.timeout or seconds
        hold = "exclusive" if kind == "bench" else "shared"
        return make(
            known, self.executor.call(self.settings.function(kind), to_json(case), options, timeout=timeout, hold=hold)
        )

    def selftest(self) -> rows.Row:
        """The counts of the self-test."""
        options = {"target": self.settings.targets[0], "seed": self.settings.seed, "threads": self.threads}
        timeout = self.settings.timeout or SELFTEST_SECONDS
        return rows.selftest_row(
            self.executor.call(self.settings.function("selftest"), options, timeout=timeout, hold="shared")
        )

    def command(self, known: rows.Row) -> str:
        """The line that runs one item again with the same data."""
        settings = self.settings
        words = ["pytest", "--mlcomp", f"{known['file']}::{rows.item_name(known)}", "--mlcomp-seed", str(settings.seed)]
        words += ["--mlcomp-target", known["target"]] if known["target"] != "cpu" else []
        words += ["--mlcomp-bench", settings.bench] if known["kind"] == "bench" else []
        words += ["--mlcomp-backend", settings.backend] if settings.backend else []
        return shlex.join(words)

    def _check_options(self, known: rows.Row) -> dict[str, Any]:
        folder = re.sub(r"[^\w.+-]+", "_", rows.item_name(known)).strip("_")
        return {
            "target": known["target"],
            "stages": list(self.settings.stages),
            "seed": self.settings.seed,
            "backend": self.settings.backend,
            "first_diff": self.settings.first_diff,
            "threads": self.threads,
            "dump": str(self.settings.report / self.device / "repro" / folder),
        }

    def _bench_options(self, target: str) -> dict[str, Any]:
        return {
            "target": target,
            "threads": 1,
            "mode": self.settings.bench,
            "vs": self.settings.vs,
            "seed": self.settings.seed,
            "system": self.settings.backend or "mlcomp",
        }
