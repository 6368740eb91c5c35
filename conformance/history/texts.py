"""Record the emitted texts of all cases of shape files, and compare two records.

    python -m conformance.history.texts record before.zip            # every shape file, full tier, five targets
    python -m conformance.history.texts compare before.zip after.zip # exit status 1 if a text differs

For a change that should not alter the emitted code, such as a move or a rename, the comparison should be empty. Cases
are only lowered, not built or run. Kernel names and comments are ignored, except the head of a text, which states how
its kernels are launched. The included headers are recorded as well.
"""

import argparse
import contextlib
import difflib
import hashlib
import itertools
import json
import multiprocessing
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import compiler
from conformance.bench.emitted import normalise, pack_headers
from conformance.shapes.cases import TIERS, Case, runs_on
from conformance.shapes.files import benches, expand, find_shapes, load, shape_files

TARGETS = ("cpu:avx2", "cpu:avx512", "sm_80", "sm_90a", "sm_120")
INDEX = "index.json"  # the entry of the archive that maps each case and target to a digest
SHOWN = 3  # differences that are printed in full
LEAST_CASES = 20  # fewest cases per process
SEED = 0  # texts depend on shapes and types only
HEADERS = "headers"  # key, in place of a case, of the headers of a kind of target


def case_texts(case: Case, targets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each target with the text of a case, or with the error message if the case is not captured or lowered."""
    from conformance.judge import subject  # noqa: PLC0415 - imports torch, which reading records does not need

    names = [name for name in targets if runs_on(case, name)]
    try:
        program = subject.prepare(case, SEED, blank=True).program
    except Exception as error:  # under the keys of its texts, so that a case that can no longer be captured differs
        yield from ((name, f"{type(error).__name__}: {error}") for name in names)
        return
    for name in names:
        target = compiler.target(name)
        if hasattr(compiler, "forget_kernels"):  # some revisions lack it
            compiler.forget_kernels()
        try:
            yield name, normalise(compiler.lower(program, target).stages[compiler.stages(target)[-1]])
        except Exception as error:  # a refusal or an error of a pass must stay the same as well
            yield name, f"{type(error).__name__}: {error}"


def digest(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def record(
    paths: Iterable[Path],
    tier: str,
    targets: Sequence[str],
    jobs: int,
    interval: int = 1,
    only: Sequence[str] = (),
    timed: bool = False,
) -> dict[str, str]:
    """Return the texts of every `interval`-th case and benchmark of the shape files, by "target case-id".

    `only` selects cases by id, from all tiers; `timed` selects the benchmarks.
    """
    cases = cases_by_id(paths, only) if only else [case for path in paths for case in _cases(path, tier, timed)]
    work = [(case, targets) for case in cases[::interval]]
    recorded = {f"{name} {HEADERS}": text for name, text in _headers(targets)}
    with contextlib.ExitStack() as stack:
        results: Iterable[dict[str, str]] = map(_texts_of_job, work)
        if min(jobs, len(work) // LEAST_CASES) > 1:  # starting a process takes as long as several cases
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(jobs))
            results = pool.imap(_texts_of_job, work, chunksize=8)
        for number, texts_of_case in enumerate(results, 1):
            recorded |= texts_of_case
            if sys.stderr.isatty():
                print(f"\r{number} of {len(work)} cases", end="", file=sys.stderr)
    return recorded


def cases_by_id(paths: Iterable[Path], only: Sequence[str]) -> list[Case]:
    """Return the cases with these ids, from all tiers."""
    return [case for path in paths for case in _cases(path, TIERS[-1]) if case.id in only]


def _headers(targets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each kind of target with its headers as one text; none for revisions without `compiler.headers`."""
    kinds = {compiler.target(name).kind: name for name in targets} if hasattr(compiler, "headers") else {}
    for kind, name in kinds.items():
        yield kind, pack_headers(compiler.headers(compiler.target(name)))


def _cases(path: Path, tier: str, timed: bool = False) -> Iterator[Case]:
    file = load(path, tier)
    by_id = {case.id: case for case in (*(() if timed else expand(file, tier)), *benches(file, tier))}
    yield from by_id.values()


def _texts_of_job(job: tuple[Case, Sequence[str]]) -> dict[str, str]:
    import torch  # noqa: PLC0415

    case, targets = job
    torch.set_num_threads(1)
    with torch.no_grad():
        return {f"{name} {case.id}": text for name, text in case_texts(case, targets)}


def write(recorded: dict[str, str], path: Path) -> None:
    """Write an archive with each distinct text once, and an index of digests by case."""
    digests = {key: digest(text) for key, text in sorted(recorded.items())}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(INDEX, json.dumps(digests, indent=0))
        for name, text in {digests[key]: text for key, text in recorded.items()}.items():
            archive.writestr(name, text)


@dataclass(frozen=True)
class Record:
    """The contents of an archive: digests by "target case-id", and texts by their digests."""

    digests: Mapping[str, str]
    texts: Mapping[str, str]

    def text_of(self, key: str) -> str:
        """Return the text of the key "target case-id"."""
        return self.texts[self.digests[key]]

    def get(self, key: str) -> str | None:
        """Return the text of a key, or None."""
        return self.text_of(key) if key in self.digests else None


def read(path: Path) -> Record:
    """Read an archive made by `write`."""
    with zipfile.ZipFile(path) as archive:
        digests = json.loads(archive.read(INDEX))
        return Record(digests, {name: archive.read(name).decode() for name in set(digests.values())})


def compare(before: Record, after: Record, shown: int = SHOWN) -> tuple[str, ...]:
    """Return a line for each case of both records that differs, then the first `shown` distinct differences in full."""
    differing = [
        key for key, text_digest in before.digests.items() if after.digests.get(key, text_digest) != text_digest
    ]
    lines = [*differing]
    changes: set[tuple[str, ...]] = set()
    for key in differing:
        a, b = before.text_of(key).splitlines(), after.text_of(key).splitlines()
        change = difflib.unified_diff(a, b, f"before {key}", f"after {key}", lineterm="", n=2)
        title = tuple(itertools.islice(change, 2))
        body = tuple(change)
        if body not in changes and len(changes) < shown:
            lines += ["", *title, *body]
        changes.add(body)
    if len(changes) > shown:
        lines += ["", f"and {len(changes) - shown} other differences"]
    return tuple(lines)


def main(arguments: Sequence[str]) -> int:
    """Run the command `record` or `compare`; returns 1 if texts differ."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.history.texts", description=(__doc__ or "").split("\n\n")[0]
    )
    actions = parser.add_subparsers(dest="action", required=True)
    record_parser = actions.add_parser("record", help="lower every case and keep the texts")
    record_parser.add_argument("archive", type=Path)
    record_parser.add_argument(
        "shapes", type=Path, nargs="*", help="shape files and folders of them; those of this copy"
    )
    record_parser.add_argument("--tier", default="full")
    record_parser.add_argument("--targets", default=",".join(TARGETS))
    record_parser.add_argument("--every", type=int, default=1, help="of the cases in their order, each N-th")
    record_parser.add_argument("--only", action="append", default=[], metavar="CASE", help="of all cases, this one")
    record_parser.add_argument("--timed", action="store_true", help="benchmarks alone")
    record_parser.add_argument("-n", "--jobs", type=int, default=os.cpu_count() or 1)
    compare_parser = actions.add_parser("compare", help="what differs between two records")
    compare_parser.add_argument("before", type=Path)
    compare_parser.add_argument("after", type=Path)
    compare_parser.add_argument("--shown", type=int, default=SHOWN, help="differences that are printed in full")
    options = parser.parse_args(arguments)
    if options.action == "compare":
        lines = compare(read(options.before), read(options.after), options.shown)
        print("\n".join(lines) if lines else "nothing differs")
        return 1 if lines else 0
    recorded = record(
        shape_files(options.shapes or [find_shapes()]),
        options.tier,
        options.targets.split(","),
        options.jobs,
        options.every,
        options.only,
        options.timed,
    )
    write(recorded, options.archive)
    print(f"{len(recorded)} texts, {len(set(recorded.values()))} of them different, in {options.archive}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
