"""Run jobs in a process each: they compile concurrently, then take turns on the device to be timed."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch

SECONDS = 900  # time limit of a process between two rows

Row = list[object]
# Called by a job when it has compiled: waits until all jobs have, then returns the lock that guards the device.
Turn = Callable[[], Any]


class Job(Protocol):
    """The work of one process, as a value that can be pickled."""

    @property
    def name(self) -> str: ...


Work = Callable[[Any, Turn], Iterator[tuple[str, Row]]]


def parser(
    package: str, description: str | None, verb: str, models: Collection[str], timed: str, rivals: Collection[str]
) -> argparse.ArgumentParser:
    """Return the argument parser shared by the commands that run models: names, device, size, seed and rivals.

    `verb` and `timed` complete the help texts; `models` are the names of models, `rivals` those of contestants.
    """
    argument_parser = argparse.ArgumentParser(prog=f"python -m {package}", description=description)
    argument_parser.add_argument(
        "names", nargs="*", metavar="MODEL", help=f"models to {verb}: {', '.join(models)} (default: all)"
    )
    argument_parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    argument_parser.add_argument("--full", action="store_true", help="use the usual model sizes instead of small ones")
    argument_parser.add_argument("--seed", type=int, default=0)
    argument_parser.add_argument(
        "--race", nargs="*", metavar="RIVAL", choices=tuple(rivals),
        help=f"time {timed} against these of {', '.join(rivals)} (default: the first three)",
    )  # fmt: skip
    return argument_parser


def parse(
    parser: argparse.ArgumentParser, words: Sequence[str] | None, models: Collection[str], rivals: Collection[str]
) -> argparse.Namespace:
    """Parse the arguments, with all models by default; an unknown model or a missing GPU is a usage error."""
    options = parser.parse_args(words)
    if unknown := set(options.names) - set(models):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(models)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: there is no GPU")
    options.names = options.names or list(models)
    options.race = () if options.race is None else tuple(options.race or list(rivals)[:3])
    return options


def run(jobs: Sequence[Job], work: Work) -> list[dict[str, Row]]:
    """Run the jobs; return for each its rows by kind. A row of the kind `problem` says what went wrong.

    `work(job, turn)` must be a module-level function, as it is pickled. It yields pairs of kind and row, and must time
    within `with turn():`.
    """
    context = multiprocessing.get_context("spawn")
    ready, lock = context.Barrier(len(jobs)), context.Lock()
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(lambda job: _run_job(job, work, ready, lock), jobs))


def _run_job(job: Job, work: Work, ready: Any, lock: Any) -> dict[str, Row]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_rows, args=(sender, job, work, ready, lock))
    child.start()
    sender.close()
    rows: dict[str, Row] = {}
    try:
        while receiver.poll(SECONDS):
            kind, row = receiver.recv()
            rows[kind] = row
            print(*row, sep="  ", file=sys.stderr)
        rows["problem"] = [job.name, "it did not end in time"]
    except EOFError:
        child.join()
        if child.exitcode:
            rows["problem"] = [job.name, f"its process ended with {child.exitcode}"]
    child.kill()
    return rows


def _send_rows(sender: Any, job: Job, work: Work, ready: Any, lock: Any) -> None:
    """Main function of a job's process: send its rows, or the error that ended it.

    A job that never asked for its turn joins the barrier at its end, so that the others do not wait for it.
    """
    has_waited = False

    def turn() -> Any:
        nonlocal has_waited
        has_waited = True
        ready.wait(SECONDS)
        return lock

    try:
        for row in work(job, turn):
            sender.send(row)
    except Exception as problem:
        sender.send(("problem", [job.name, f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:300]]))
    if not has_waited:
        ready.wait(SECONDS)
