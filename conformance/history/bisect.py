"""`mlcomp bisect`: find the commit that made a case wrong or slow, and in it the pass, schedule steps and kernels.

    mlcomp bisect shapes/mine.toml::scaled_tanh[...] --good v1 --bad HEAD --speed

Each commit is identified by the text that it emits for the case, which needs no execution. Only distinct texts are
built and judged, each once. A commit that cannot be judged is skipped, and named if the answer depends on it. The exit
status is 0 for an answer, 1 for none. With `--check` only the working tree is judged, with the exit statuses of
`git bisect run`: 0 good, 1 bad, 125 cannot be judged.
"""

import argparse
import contextlib
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.bench import emitted
from conformance.history import applications, revisions, texts
from conformance.history.culprit import Culprit, least_changes, least_kernels, parting
from conformance.history.revisions import NOW, Asked, Revision, RevisionError
from conformance.isolation import scratch
from conformance.isolation.executor import Executor, Status
from conformance.report import writer
from conformance.shapes.cases import Case, kind_of, to_json

TRIAL = "conformance.history.trial"
SECONDS = 300.0  # time limit of judging one text
ERROR = 0.01  # probability that any judgement of speed in a whole search is wrong
LEAST = 0.03  # the smallest slowdown that is searched for
GOOD, BAD, SKIP = "good", "bad", "skip"
LEVELS = ("commit", "pass", "step", "kernel")
CANNOT_TELL = 125  # tells `git bisect run` to skip the commit


class Inconclusive(Exception):
    """The search has no answer; the message says why."""


@dataclass
class Search:
    """The question and the mutable state of a search, which is saved in the file `state` after each judgement."""

    repo: Path
    file: Path
    case: Case
    target: str
    slow: bool
    seed: int
    state: Path
    child: Executor
    tell: Callable[[str], None]
    judged: dict[str, Any] = field(default_factory=dict)  # identity of a text -> (verdict, reason)
    probes: int = 1
    bar: float = 0.0
    reference: dict[str, Any] = field(default_factory=dict)  # the good text, with its headers

    @property
    def asked(self) -> Asked:
        """The request for the texts of the case on its target."""
        return Asked((self.file,), (self.target,), only=(self.case.id,))

    def text(self, at: Revision) -> tuple[str, dict[str, Any]]:
        """Return the identity of the text that a revision emits for the case, and the text with its headers.

        Raises Inconclusive if the revision emits none.
        """
        (record,) = revisions.records([at], self.asked, 1)
        text = record.get(f"{self.target} {self.case.id}") or record.get(f"capture {self.case.id}") or ""
        packed = record.get(f"{kind_of(self.target)} {texts.HEADERS}")
        if not text.startswith("// ") or packed is None:
            raise Inconclusive(text.splitlines()[0] if text else "emits nothing that can be built again")
        headers = emitted.unpacked(packed)
        return emitted.identity(text, headers), {"text": text, "headers": headers}

    def commit(self, name: str) -> str:
        """Judge a commit: GOOD, BAD, or SKIP if it cannot be judged."""
        try:
            return self.verdict(*self.text(revisions.find(self.repo, name)))
        except (Inconclusive, RevisionError):
            return SKIP

    def verdict(self, identity: str, text: dict[str, Any]) -> str:
        """Judge a text, or return the earlier verdict on the same identity."""
        if identity not in self.judged:
            self.judged[identity] = self._speed(text) if self.slow else self._value(text)
            self.keep()
        return str(self.judged[identity][0])

    def _value(self, text: dict[str, Any]) -> tuple[str, str]:
        reply = self.child.call(
            f"{TRIAL}:value", to_json(self.case), self.target, text, self.seed, timeout=SECONDS, hold="shared"
        )
        if reply.status in (Status.CRASH, Status.TIMEOUT):
            return BAD, f"{reply.status}: {reply.message}"
        if reply.status is Status.RAISED:
            return SKIP, reply.message
        return (BAD, str(reply.value)) if reply.value else (GOOD, "")

    def _speed(self, text: dict[str, Any]) -> tuple[str, str]:
        found = self.ratio(text, self.bar)
        if isinstance(found, str):
            return SKIP, found
        said = "{:.3f} of the time of the good one [{:.3f}, {:.3f}]".format(*found)
        return (BAD if found[1] > self.bar else GOOD if found[2] < self.bar else SKIP), said

    def ratio(self, text: dict[str, Any], bar: float) -> tuple[float, float, float] | str:
        """Return the time of a text over that of the good one with its interval, or the reason why there is none."""
        reply = self.child.call(
            f"{TRIAL}:speed", to_json(self.case), self.target, self.reference, text, self.seed, bar,
            1 - ERROR / self.probes, timeout=SECONDS, hold="exclusive",
        )  # fmt: skip
        return tuple(reply.value) if reply.status is Status.DONE else f"{reply.status}: {reply.message}"

    def keep(self) -> None:
        """Save the state, so that an interrupted search can continue."""
        known = {"judged": self.judged, "bar": self.bar, "reference": self.reference}
        writer.write(self.state.parent, {self.state.name: json.dumps(known, indent=1, sort_keys=True) + "\n"})


def commits(
    names: Sequence[str], judge: Callable[[str], str], tell: Callable[[str], None]
) -> tuple[int, int, list[int]]:
    """Bisect; return the indices of the last good and the first bad commit, and of skipped commits between them.

    The first commit must be good and the last one bad.
    """
    low, high = 0, len(names) - 1
    left_out: set[int] = set()
    while between := [n for n in range(low + 1, high) if n not in left_out]:
        n = min(between, key=lambda n: abs(2 * n - low - high))
        verdict = judge(names[n])
        tell(f"{names[n][:12]} is {verdict}; {len(between) - 1} commits left at most")
        if verdict == SKIP:
            left_out.add(n)
        elif verdict == GOOD:
            low = n
        else:
            high = n
    return low, high, sorted(left_out & set(range(low + 1, high)))


def begin(search: Search, good: Revision, bad: Revision) -> str:
    """Judge both ends and return what is wrong with the bad one.

    Raises Inconclusive if the ends emit the same code or are not as good and as bad as claimed.
    """
    revisions.records([good, bad], search.asked, 2)  # lower both concurrently
    first, text = search.text(good)
    last, other = search.text(bad)
    if first == last:
        raise Inconclusive(f"{good.name} and {bad.name} emit the same code for it: look outside of the compiler")
    search.reference = text
    if not search.slow:
        for name, wanted, identity, one in ((good.name, GOOD, first, text), (bad.name, BAD, last, other)):
            if search.verdict(identity, one) != wanted:
                raise Inconclusive(
                    f"{name} is {search.judged[identity][0]}, not {wanted}: {search.judged[identity][1]}"
                )
        return str(search.judged[last][1])
    if not search.bar:
        found = search.ratio(other, 1 + LEAST)
        if isinstance(found, str) or found[1] <= 1 + LEAST:
            said = (
                found
                if isinstance(found, str)
                else "its time is {:.3f} [{:.3f}, {:.3f}] of the good one's".format(*found)
            )
            raise Inconclusive(f"{bad.name} is not slower by {LEAST:.0%} for sure: {said}")
        search.bar = math.sqrt(found[0])  # the geometric mean of the good and the bad end
        search.judged |= {first: (GOOD, "the good one"), last: (BAD, "{:.3f} [{:.3f}, {:.3f}]".format(*found))}
        search.keep()
    return f"its time is {search.judged[last][1]} of that of the good one"


def inside(search: Search, good: Revision, bad: Revision, by: Sequence[str]) -> Culprit:
    """Find the first pass application in which two adjacent revisions differ, and the steps and kernels to blame."""
    before, after = _applications(search, (good, bad))
    found = parting(before, after)
    if "kernel" in by:
        found = found.with_kernels(_kernels(search, good, bad, after["kernels"]))
    if search.slow and "step" in by and before["schedules"] != after["schedules"]:

        def slow(steps: str) -> bool | None:
            if steps == after["schedules"]:
                return True
            (made,) = _applications(search, (bad,), steps)
            if made["error"]:
                return None
            headers = search.text(bad)[1]["headers"]
            text = {"text": made["text"], "headers": headers}
            return {GOOD: False, BAD: True}.get(search.verdict(emitted.identity(made["text"], headers), text))

        found = found.with_steps(least_changes(before["schedules"], after["schedules"], slow))
    return found.blaming(after.get("stage"), after.get("pass"))


def _kernels(search: Search, good: Revision, bad: Revision, names: Sequence[str]) -> list[str]:
    """Return the kernels that suffice to make the program wrong or slow, by their present names."""
    (_, text), (_, other) = search.text(good), search.text(bad)
    headers = other["headers"]
    if text["headers"] != headers:
        return []

    def worse(made: str) -> bool | None:
        one = {"text": made, "headers": headers}
        return {GOOD: False, BAD: True}.get(search.verdict(emitted.identity(made, headers), one))

    numbered = least_kernels(text["text"], other["text"], worse)
    found = []
    for name in numbered:  # kernelN of a normalised text, or a function for loops of a kernel
        of = re.fullmatch(r"kernel(\d+)", name)
        found.append(names[int(of[1])] if of else next((kernel for kernel in names if name.startswith(kernel)), name))
    return list(dict.fromkeys(found))


def _applications(search: Search, every: Sequence[Revision], steps: str = "") -> list[dict[str, Any]]:
    """Run `applications` with the compilers of some revisions concurrently, optionally with given schedules.

    In a search for a wrong value without given schedules, it also judges the stages of the last revision.
    """
    with contextlib.closing(scratch.make()) as own:
        given = own.folder / "steps"
        given.write_text(steps, encoding="utf-8")
        outs = [own.folder / f"{n}.json" for n in range(len(every))]
        started = []
        for at, out in zip(every, outs, strict=True):
            words = [str(search.file), search.case.id, search.target, str(out)]
            words += ["--steps", str(given)] if steps else []
            words += ["--judge", str(search.seed)] if out == outs[-1] and not steps and not search.slow else []
            started.append(revisions.start(at, own, applications.__name__, *words))
        for at, process in zip(every, started, strict=True):
            revisions.finished(process, f"running the passes of {at.name}")
        return [json.loads(out.read_text(encoding="utf-8")) for out in outs]


def answer(
    search: Search, names: Sequence[str], found: tuple[int, int, list[int]], what: str, by: Sequence[str]
) -> str:
    """Return the answer: the commit, what is wrong, and the pass, steps and kernels to blame."""
    low, high, unsure = found
    before, after = (revisions.find(search.repo, names[n]) for n in (low, high))
    lines = [
        f"{search.case.id} on {search.target} is {'slower' if search.slow else 'wrong'} since",
        f"  {revisions.subject(search.repo, after.commit) if after.commit else NOW}",
        f"({what})",
    ]
    if unsure:
        listed = ", ".join(names[n][:12] for n in unsure)
        lines.append(f"or since one of these before it, which could not be judged: {listed}")
    if {"pass", "step", "kernel"} & {*by}:
        lines.append(inside(search, before, after, by).said())
    else:
        lines.append(f"after {revisions.subject(search.repo, before.commit)}")
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Search and print the answer; returns the exit status."""
    given = _parser().parse_args(words)
    search = None
    try:
        search = _search(given)
        if given.check:
            return _check(search, given.good)
        names = revisions.between(search.repo, given.good, "HEAD" if given.bad == NOW else given.bad)
        names += [NOW] if given.bad == NOW else []
        search.probes = 2 + math.ceil(math.log2(len(names))) + 16  # 16 for searching steps and kernels
        what = begin(search, *(revisions.find(search.repo, names[n]) for n in (0, -1)))
        found = commits(names, search.commit, search.tell) if "commit" in given.by else (0, len(names) - 1, [])
        print(answer(search, names, found, what, given.by))
        print("again: " + shlex.join(["mlcomp", "bisect", *words]))
        return 0
    except (Inconclusive, RevisionError, ValueError) as problem:
        print(f"mlcomp: inconclusive: {problem}", file=sys.stderr)
        return CANNOT_TELL if given.check else 1
    finally:
        if search is not None:
            search.child.close()


def _check(search: Search, good: str) -> int:
    """Judge the working tree; returns an exit status for `git bisect run`."""
    identity, text = search.text(revisions.find(search.repo, NOW))
    if search.slow:
        known, search.reference = search.text(revisions.find(search.repo, good))
        search.bar, search.judged = 1 + LEAST, {known: (GOOD, "")}
    return {GOOD: 0, BAD: 1, SKIP: CANNOT_TELL}[search.verdict(identity, text)]


def _search(given: argparse.Namespace) -> Search:
    repo = revisions.repository(Path.cwd())
    name, _, item = given.case.partition("::")
    file = Path(name).resolve()
    stem = item.removesuffix("-bench]").removesuffix("]").removesuffix("-bench")
    ids = {item, re.sub(rf"-{re.escape(given.target)}$", "", stem) + ("]" if "[" in item else "")}
    found = texts.named([file], tuple(ids))
    if not found:
        raise ValueError(f"{name} has no case {item!r}; `pytest --mlcomp {name} --collect-only -q` lists them")
    case = found[0]
    kind = "speed" if given.speed else "value"
    slug = re.sub(r"[^\w.+-]+", "_", f"{kind}-{case.id}-{given.target}-{given.good}").strip("_")
    state = repo / "reports" / ".last" / "bisect" / f"{slug}.json"
    threads = {"OPENBLAS_NUM_THREADS": "1"}
    search = Search(
        repo, file, case, given.target, given.speed, given.seed, state, Executor([TRIAL], environment=threads),
        lambda line: print(f"\r{line:78}", end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True),
    )  # fmt: skip
    if state.is_file() and not (given.fresh or given.check):
        known = json.loads(state.read_text(encoding="utf-8"))
        search.judged, search.bar, search.reference = known["judged"], known["bar"], known["reference"]
    return search


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mlcomp bisect", description="Which commit, and which pass or step of it, made a kernel slow or wrong."
    )
    parser.add_argument("case", metavar="FILE::CASE", help="a shape file and a case of it, as pytest names them")
    parser.add_argument("--good", required=True, metavar="REV", help="a revision where it was right, or fast")
    parser.add_argument("--bad", default=NOW, metavar="REV", help="one where it is not (default: the working tree)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--value", action="store_true", help="it is wrong (default)")
    kind.add_argument("--speed", action="store_true", help="it is slow")
    parser.add_argument("--target", default="cpu", help="where it runs (default: cpu)")
    parser.add_argument("--by", type=_levels, default=LEVELS, metavar="LIST",
                        help=f"how far to look: {','.join(LEVELS)} (default: all)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (default: 0)")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier search has found out")
    parser.add_argument("--check", action="store_true", help="judge the working tree alone, for `git bisect run`")
    return parser


def _levels(text: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    if unknown := [word for word in words if word not in LEVELS]:
        raise argparse.ArgumentTypeError(f"unknown {unknown[0]!r}; use {', '.join(LEVELS)}")
    return words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
