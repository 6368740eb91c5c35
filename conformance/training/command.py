"""`python -m conformance.training [MODEL ...]`: train whole models through the backend; check losses, measure times.

Each model is trained for some steps on one batch: in eager, in f64, and under `torch.compile(backend="mlcomp")` with no
fallback to eager. Its losses may be four times as far from f64 as eager's. With `--race` a step (forward, on GPUs under
autocast to bf16; backward; AdamW) is timed against PyTorch's modes in paired rounds. Models are compiled concurrently,
each in its own process, and timed one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from conformance.bench import apart, duel
from conformance.report import tables
from conformance.training import curves, steps
from conformance.training.models import MODELS

MOST_ERROR = 4.0  # tolerance in units of eager's error: eager's curve is only one sample of the error


@dataclass(frozen=True)
class Job:
    """The work on one model."""

    name: str
    steps: int
    seed: int
    device: str
    full: bool
    rivals: tuple[str, ...]


def curve(job: Job) -> list[object]:
    """Return a row: the first and last loss, the largest errors of ours and eager, and the verdict."""
    size = MODELS[job.name].full if job.full else MODELS[job.name].small
    losses = curves.train(job.name, size, job.steps, job.seed, job.device)
    verdict = "right" if losses.our_error <= MOST_ERROR * losses.eager_error else "WRONG"
    first, last = float(losses.exact[0]), float(losses.exact[-1])
    return [job.name, f"{first:.4f} to {last:.4f}", f"{losses.our_error:.2g}", f"{losses.eager_error:.2g}", verdict]


def times(job: Job, turn: apart.Turn) -> list[object]:
    """Return a row: milliseconds per step, and the fastest rival's time over our fastest mode's with its interval."""
    size = MODELS[job.name].full if job.full else MODELS[job.name].small
    torch.manual_seed(job.seed)
    dtype = torch.bfloat16 if job.device == "cuda" else None
    calls = steps.contestants(job.name, size, job.device, dtype, job.rivals)
    with turn():
        samples = steps.race(calls, job.seed)
    quickest = duel.fastest(samples, job.rivals)
    ours = list(steps.our_modes(job.device))
    measured = duel.ratio(samples, quickest, duel.fastest(samples, ours))
    each = [f"{samples.median(name) * 1e3:.3f}" for name in (*ours, *job.rivals)]
    return [job.name, *each, f"{measured.median:.3f} [{measured.low:.3f}, {measured.high:.3f}]"]


def work(job: Job, turn: apart.Turn) -> Iterator[tuple[str, apart.Row]]:
    """Yield the row of a model's loss curve, and that of its race."""
    if job.steps:
        yield "curve", curve(job)
    if job.rivals:
        yield "times", times(job, turn)


def main(words: Sequence[str] | None = None) -> int:
    """Train the chosen models and print tables; returns 1 if losses are wrong or anything fails."""
    parser = apart.parser("conformance.training", __doc__, "train", MODELS, "steps", steps.RIVALS)
    parser.add_argument("--steps", type=int, default=200, help="number of steps whose losses are compared; 0 for none")
    options = apart.parse(parser, words, MODELS, steps.RIVALS)
    jobs = [Job(n, options.steps, options.seed, options.device, options.full, options.race) for n in options.names]
    results = apart.run(jobs, work)
    heads = {
        "curve": ["model", "loss", "ours from f64", "eager from f64", ""],
        "times": [
            "model",
            *(f"{mode_name}, ms" for mode_name in steps.our_modes(options.device)),
            *options.race,
            "of the quickest",
        ],
        "problem": ["model", "problem"],
    }
    print("\n\n".join(tables.table(rows, heads[k]) for k in heads if (rows := [f[k] for f in results if f.get(k)])))
    return int(any("problem" in f or f.get("curve", [""])[-1] == "WRONG" for f in results))
