"""Shape files in; the digest of every emitted kernel text out, and what differs between two such records.

    python -m conformance.history.texts record before.zip            # every shape file, full tier, five targets
    python -m conformance.history.texts compare before.zip after.zip # exit status 1 where a text differs

A change that is to leave the emitted code as it is, such as a move or a rename, has an empty comparison. Nothing runs,
and nothing is compiled: texts are lowered only. Comments and the names of kernels do not count.
"""

import argparse
import contextlib
import difflib
import hashlib
import json
import multiprocessing
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

import compiler
from conformance.judge import subject
from conformance.judge.ladder import threads
from conformance.shapes.cases import Case, runs_on
from conformance.shapes.files import FOREIGN, benches, expand, find_shapes, load

TARGETS = ("cpu:avx2", "cpu:avx512", "sm_80", "sm_90a", "sm_120")
INDEX = "index.json"  # the entry of the archive that gives the digest of each case on each target
SHOWN = 3  # differences that are printed as texts
SEED = 0  # texts depend on shapes and types only
_COMMENT = re.compile(r"[ \t]*//[^\n]*|/\*.*?\*/", re.DOTALL)
_ATTRIBUTE = r"(?:\w+\([^)]*\) |__attribute__\(\([^;{]*?\)\) )*"
_KERNEL = re.compile(rf'^(?:extern "C" __global__|static) (?:void )?{_ATTRIBUTE}[^;{{=(]*?(\w+)\(', re.MULTILINE)
_WRAPPED = re.compile(r",\n[ \t]*")


def normal(text: str) -> str:
    """The text without its comments and empty lines, its kernels numbered instead of named, no line folded.

    >>> normal('// made by hand\\nstatic void add_3(float *x,\\n    int n) {  // one row\\n}\\n')
    'static void kernel0(float *x, int n) {\\n}'
    """
    text = _WRAPPED.sub(", ", _COMMENT.sub("", text))
    for number, name in enumerate(dict.fromkeys(_KERNEL.findall(text))):
        text = re.sub(rf"\b{re.escape(name)}\(", f"kernel{number}(", text)
    return "\n".join(line for line in text.splitlines() if line.strip())


def texts(case: Case, targets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The text of a case for each target, or what the compiler says where it makes none."""
    try:
        program = subject.prepare(case, SEED, blank=True).program
    except Exception as error:  # what torch says of a case that it cannot capture, too
        yield "capture", f"{type(error).__name__}: {error}"
        return
    for name in targets:
        if not runs_on(case, name):
            continue
        target = compiler.target(name)
        try:
            yield name, normal(compiler.lower(program, target).stages[compiler.stages(target)[-1]])
        except Exception as error:  # a refusal, or whatever a pass raises: it must stay the same
            yield name, f"{type(error).__name__}: {error}"


def digest(text: str) -> str:
    """What stands for a text in a record."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def record(paths: Iterable[Path], tier: str, targets: Sequence[str], jobs: int, every: int) -> dict[str, str]:
    """The text of each `every`-th case of the shape files and of their benchmarks, by target and case."""
    cases = [case for path in paths for case in _cases(path, tier)][::every]
    asked = [(case, targets) for case in cases]
    made: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        found: Iterable[dict[str, str]] = map(_texts, asked)
        if jobs > 1:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(jobs))
            found = pool.imap_unordered(_texts, asked, chunksize=8)
        for number, some in enumerate(found, 1):
            made |= some
            if sys.stderr.isatty():
                print(f"\r{number} of {len(cases)} cases", end="", file=sys.stderr)
    return made


def _cases(path: Path, tier: str) -> Iterator[Case]:
    file = load(path, tier)
    found = {case.id: case for case in (*expand(file, tier), *benches(file, tier))}
    yield from found.values()


def _texts(job: tuple[Case, Sequence[str]]) -> dict[str, str]:
    case, targets = job
    with threads(1), torch.no_grad():
        return {f"{name} {case.id}": text for name, text in texts(case, targets)}


def write(made: dict[str, str], path: Path) -> None:
    """An archive of the texts, each once, and of the digest of each case."""
    digests = {key: digest(text) for key, text in sorted(made.items())}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(INDEX, json.dumps(digests, indent=0))
        for name, text in {digests[key]: text for key, text in made.items()}.items():
            archive.writestr(name, text)


def compare(before: Path, after: Path, shown: int = SHOWN) -> tuple[str, ...]:
    """What differs, a line a case, and after them the first few differences in full; cases of one side do not count."""
    with zipfile.ZipFile(before) as old, zipfile.ZipFile(after) as new:
        a, b = (json.loads(archive.read(INDEX)) for archive in (old, new))
        differ = [key for key in a if key in b and a[key] != b[key]]
        lines = [*differ]
        for key in differ[:shown]:
            one, other = (archive.read(side[key]).decode().splitlines() for archive, side in ((old, a), (new, b)))
            lines += ["", *difflib.unified_diff(one, other, f"before {key}", f"after {key}", lineterm="", n=2)]
        return tuple(lines)


def main(arguments: Sequence[str]) -> int:
    """Record, or compare: 0 where nothing differs."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.history.texts", description=(__doc__ or "").split("\n\n")[0]
    )
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record", help="lower every case and keep the texts")
    recording.add_argument("archive", type=Path)
    recording.add_argument("shapes", type=Path, nargs="*", help="shape files and folders of them; those of this copy")
    recording.add_argument("--tier", default="full")
    recording.add_argument("--targets", default=",".join(TARGETS))
    recording.add_argument("--every", type=int, default=1, help="of the cases in their order, each N-th")
    recording.add_argument("-n", "--jobs", type=int, default=os.cpu_count() or 1)
    comparing = actions.add_parser("compare", help="what differs between two records")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--shown", type=int, default=SHOWN, help="differences that are printed in full")
    given = parser.parse_args(arguments)
    if given.action == "compare":
        lines = compare(given.before, given.after, given.shown)
        print("\n".join(lines) if lines else "nothing differs")
        return 1 if lines else 0
    made = record(_files(given.shapes), given.tier, given.targets.split(","), given.jobs, given.every)
    write(made, given.archive)
    print(f"{len(made)} texts, {len(set(made.values()))} of them different, in {given.archive}")
    return 0


def _files(named: Sequence[Path]) -> list[Path]:
    found = [
        p for path in named or [find_shapes()] for p in (sorted(path.rglob("*.toml")) if path.is_dir() else [path])
    ]
    return [path for path in found if path.name not in FOREIGN]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
