"""`mlcomp bisect`: find the commit that made a case wrong or slow, and in it the pass, schedule steps and kernels.

    mlcomp bisect shapes/mine.toml::scaled_tanh[...] --good v1 --bad HEAD --speed

Each commit is identified by the text that it emits for the case, which needs no execution. Only distinct texts are
built and judged, each once. A commit that cannot be judged is skipped, and named if the answer depends on it. The exit
status is 0 for an answer, 1 for none, 2 for invalid usage. With `--check` only the working tree is judged, with the
exit statuses of `git bisect run`: 0 good, 1 bad, 125 cannot be judged.
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

import compiler
from conformance.bench import emitted
from conformance.history import applications, revisions, texts
from conformance.history.culprit import Culprit, first_difference, least_changes, least_kernels
from conformance.history.revisions import NOW, Revision, RevisionError, TextRequest
from conformance.isolation import scratch
from conformance.isolation.executor import Executor, Status
from conformance.report import writer
from conformance.shapes.cases import Case, kind_of, to_json

TRIAL = "conformance.history.trial"
SECONDS = 300.0  # time limit of judging one text
ERROR_PROBABILITY = 0.01  # probability that any judgement of speed in a whole search is wrong
LEAST_SLOWDOWN = 0.03  # the smallest slowdown that is searched for
GOOD, BAD, SKIP = "good", "bad", "skip"
LEVELS = ("commit", "pass", "step", "kernel")
INVALID_USAGE = 2
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
    report_progress: Callable[[str], None]
    judged: dict[str, Any] = field(default_factory=dict)  # identity of a text -> (verdict, reason)
    probes: int = 1
    threshold: float = 0.0
    reference: dict[str, Any] = field(default_factory=dict)  # the good text, with its headers

    @property
    def text_request(self) -> TextRequest:
        """The request for the texts of the case on its target."""
        return TextRequest((self.file,), (self.target,), only=(self.case.id,))

    def text(self, revision: Revision) -> tuple[str, dict[str, Any]]:
        """Return the identity of the text that a revision emits for the case, and the text with its headers.

        Raises Inconclusive if the revision emits none.
        """
        (record,) = revisions.records([revision], self.text_request, 1)
        text = record.get(f"{self.target} {self.case.id}") or record.get(f"capture {self.case.id}") or ""
        packed = record.get(f"{kind_of(self.target)} {texts.HEADERS}")
        if not text.startswith("// ") or packed is None:
            raise Inconclusive(text.splitlines()[0] if text else "emits nothing that can be built again")
        headers = emitted.unpack_headers(packed)
        return emitted.identity(text, headers), {"text": text, "headers": headers}

    def judge_commit(self, name: str) -> str:
        """Judge a commit: GOOD, BAD, or SKIP if it cannot be judged."""
        try:
            return self.verdict(*self.text(revisions.find(self.repo, name)))
        except (Inconclusive, RevisionError):
            return SKIP

    def verdict(self, identity: str, text: dict[str, Any]) -> str:
        """Judge a text, or return the earlier verdict on the same identity."""
        if identity not in self.judged:
            self.judged[identity] = self._judge_speed(text) if self.slow else self._judge_values(text)
            self.save_state()
        return str(self.judged[identity][0])

    def _judge_values(self, text: dict[str, Any]) -> tuple[str, str]:
        reply = self.child.call(
            f"{TRIAL}:value", to_json(self.case), self.target, text, self.seed, timeout=SECONDS, hold="shared"
        )
        if reply.status in (Status.CRASH, Status.TIMEOUT):
            return BAD, f"{reply.status}: {reply.message}"
        if reply.status is Status.RAISED:
            return SKIP, reply.message
        return (BAD, str(reply.value)) if reply.value else (GOOD, "")

    def _judge_speed(self, text: dict[str, Any]) -> tuple[str, str]:
        ratio = self.ratio(text, self.threshold)
        if isinstance(ratio, str):
            return SKIP, ratio
        reason = "{:.3f} of the time of the good one [{:.3f}, {:.3f}]".format(*ratio)
        return (BAD if ratio[1] > self.threshold else GOOD if ratio[2] < self.threshold else SKIP), reason

    def ratio(self, text: dict[str, Any], threshold: float) -> tuple[float, float, float] | str:
        """Return the time of a text over that of the good one with its interval, or the reason why there is none."""
        reply = self.child.call(
            f"{TRIAL}:speed", to_json(self.case), self.target, self.reference, text, self.seed, threshold,
            1 - ERROR_PROBABILITY / self.probes, timeout=SECONDS, hold="exclusive",
        )  # fmt: skip
        return tuple(reply.value) if reply.status is Status.DONE else f"{reply.status}: {reply.message}"

    def save_state(self) -> None:
        """Save the state, so that an interrupted search can continue."""
        state = {"judged": self.judged, "bar": self.threshold, "reference": self.reference}
        writer.write(self.state.parent, {self.state.name: json.dumps(state, indent=1, sort_keys=True) + "\n"})


def bisect_commits(
    names: Sequence[str], judge: Callable[[str], str], tell: Callable[[str], None]
) -> tuple[int, int, list[int]]:
    """Bisect; return the indices of the last good and the first bad commit, and of skipped commits between them.

    The first commit must be good and the last one bad.
    """
    low, high = 0, len(names) - 1
    skipped: set[int] = set()
    while candidates := [n for n in range(low + 1, high) if n not in skipped]:
        n = min(candidates, key=lambda n: abs(2 * n - low - high))
        verdict = judge(names[n])
        tell(f"{names[n][:12]} is {verdict}; {len(candidates) - 1} commits left at most")
        if verdict == SKIP:
            skipped.add(n)
        elif verdict == GOOD:
            low = n
        else:
            high = n
    return low, high, sorted(skipped & set(range(low + 1, high)))


def judge_ends(search: Search, good: Revision, bad: Revision) -> str:
    """Judge both ends and return what is wrong with the bad one.

    Raises Inconclusive if the ends emit the same code or are not as good and as bad as claimed.
    """
    revisions.records([good, bad], search.text_request, 2)  # lower both concurrently
    good_identity, good_text = search.text(good)
    bad_identity, bad_text = search.text(bad)
    if good_identity == bad_identity:
        raise Inconclusive(f"{good.name} and {bad.name} emit the same code for it: look outside of the compiler")
    search.reference = good_text
    if not search.slow:
        for name, expected, identity, text in (
            (good.name, GOOD, good_identity, good_text),
            (bad.name, BAD, bad_identity, bad_text),
        ):
            if search.verdict(identity, text) != expected:
                raise Inconclusive(
                    f"{name} is {search.judged[identity][0]}, not {expected}: {search.judged[identity][1]}"
                )
        return str(search.judged[bad_identity][1])
    if not search.threshold:
        ratio = search.ratio(bad_text, 1 + LEAST_SLOWDOWN)
        if isinstance(ratio, str) or ratio[1] <= 1 + LEAST_SLOWDOWN:
            reason = (
                ratio
                if isinstance(ratio, str)
                else "its time is {:.3f} [{:.3f}, {:.3f}] of the good one's".format(*ratio)
            )
            raise Inconclusive(f"{bad.name} is not slower by {LEAST_SLOWDOWN:.0%} for sure: {reason}")
        search.threshold = math.sqrt(ratio[0])  # the geometric mean of the good and the bad end
        search.judged |= {
            good_identity: (GOOD, "the good one"),
            bad_identity: (BAD, "{:.3f} [{:.3f}, {:.3f}]".format(*ratio)),
        }
        search.save_state()
    return f"its time is {search.judged[bad_identity][1]} of that of the good one"


def find_culprit(search: Search, good: Revision, bad: Revision, levels: Sequence[str]) -> Culprit:
    """Find the first pass application in which two adjacent revisions differ, and the steps and kernels to blame."""
    before, after = _records(search, (good, bad))
    culprit = first_difference(before, after)
    if "kernel" in levels:
        culprit = culprit.with_kernels(_kernels_to_blame(search, good, bad, after["kernels"]))
    if search.slow and "step" in levels and before["schedules"] != after["schedules"]:

        def slow(steps: str) -> bool | None:
            if steps == after["schedules"]:
                return True
            (record,) = _records(search, (bad,), steps)
            if record["error"]:
                return None
            headers = search.text(bad)[1]["headers"]
            text = {"text": record["text"], "headers": headers}
            return {GOOD: False, BAD: True}.get(search.verdict(emitted.identity(record["text"], headers), text))

        culprit = culprit.with_steps(least_changes(before["schedules"], after["schedules"], slow))
    return culprit.with_blame(after.get("stage"), after.get("pass"))


def _kernels_to_blame(search: Search, good: Revision, bad: Revision, names: Sequence[str]) -> list[str]:
    """Return the kernels that suffice to make the program wrong or slow, by their present names."""
    (_, good_text), (_, bad_text) = search.text(good), search.text(bad)
    headers = bad_text["headers"]
    if good_text["headers"] != headers:
        return []

    def worse(candidate: str) -> bool | None:
        text = {"text": candidate, "headers": headers}
        return {GOOD: False, BAD: True}.get(search.verdict(emitted.identity(candidate, headers), text))

    blamed = least_kernels(good_text["text"], bad_text["text"], worse)
    found = []
    for name in blamed:  # kernelN of a normalised text, or a function for loops of a kernel
        match = re.fullmatch(r"kernel(\d+)", name)
        found.append(
            names[int(match[1])] if match else next((kernel for kernel in names if name.startswith(kernel)), name)
        )
    return list(dict.fromkeys(found))


def _records(search: Search, ends: Sequence[Revision], steps: str = "") -> list[dict[str, Any]]:
    """Run `applications` with the compilers of some revisions concurrently, optionally with given schedules.

    In a search for a wrong value without given schedules, it also judges the stages of the last revision.
    """
    with contextlib.closing(scratch.make()) as temporary:
        steps_file = temporary.folder / "steps"
        steps_file.write_text(steps, encoding="utf-8")
        outputs = [temporary.folder / f"{n}.json" for n in range(len(ends))]
        processes = []
        for revision, output in zip(ends, outputs, strict=True):
            words = [str(search.file), search.case.id, search.target, str(output)]
            words += ["--steps", str(steps_file)] if steps else []
            words += ["--judge", str(search.seed)] if output == outputs[-1] and not steps and not search.slow else []
            processes.append(revisions.start_module(revision, temporary, applications.__name__, *words))
        for revision, process in zip(ends, processes, strict=True):
            revisions.wait_for_output(process, f"running the passes of {revision.name}")
        return [json.loads(output.read_text(encoding="utf-8")) for output in outputs]


def answer_text(
    search: Search, names: Sequence[str], ends: tuple[int, int, list[int]], complaint: str, levels: Sequence[str]
) -> str:
    """Return the answer: the commit, what is wrong, and the pass, steps and kernels to blame."""
    low, high, skipped = ends
    before, after = (revisions.find(search.repo, names[n]) for n in (low, high))
    lines = [
        f"{search.case.id} on {search.target} is {'slower' if search.slow else 'wrong'} since",
        f"  {revisions.commit_title(search.repo, after.commit) if after.commit else NOW}",
        f"({complaint})",
    ]
    if skipped:
        skipped_names = ", ".join(names[n][:12] for n in skipped)
        lines.append(f"or since one of these before it, which could not be judged: {skipped_names}")
    if {"pass", "step", "kernel"} & {*levels}:
        lines.append(find_culprit(search, before, after, levels).text())
    else:
        lines.append(f"after {revisions.commit_title(search.repo, before.commit)}")
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Search and print the answer; returns the exit status."""
    options = _parser().parse_args(words)
    try:
        compiler.target(options.target)  # raises if there is none of this name
        repo = revisions.repository(Path.cwd())
        names = _names_of_revisions(repo, options)
        search = _make_search(repo, options)
    except (compiler.CompilerError, RevisionError, ValueError) as problem:
        print(f"mlcomp: {problem}", file=sys.stderr)
        return CANNOT_TELL if options.check else INVALID_USAGE
    try:
        if options.check:
            return _check_working_tree(search, options.good)
        search.probes = 2 + math.ceil(math.log2(len(names))) + 16  # 16 for searching steps and kernels
        complaint = judge_ends(search, *(revisions.find(search.repo, names[n]) for n in (0, -1)))
        ends = (
            bisect_commits(names, search.judge_commit, search.report_progress)
            if "commit" in options.by
            else (0, len(names) - 1, [])
        )
        print(answer_text(search, names, ends, complaint, options.by))
        print("again: " + shlex.join(["mlcomp", "bisect", *words]))
        return 0
    except (Inconclusive, RevisionError, ValueError) as problem:
        print(f"mlcomp: inconclusive: {problem}", file=sys.stderr)
        return CANNOT_TELL if options.check else 1
    finally:
        search.child.close()


def _check_working_tree(search: Search, good: str) -> int:
    """Judge the working tree; returns an exit status for `git bisect run`."""
    identity, text = search.text(revisions.find(search.repo, NOW))
    if search.slow:
        good_identity, search.reference = search.text(revisions.find(search.repo, good))
        search.threshold, search.judged = 1 + LEAST_SLOWDOWN, {good_identity: (GOOD, "")}
    return {GOOD: 0, BAD: 1, SKIP: CANNOT_TELL}[search.verdict(identity, text)]


def _names_of_revisions(repo: Path, options: argparse.Namespace) -> list[str]:
    """The good revision, and with a search those after it, up to the bad one. Raises RevisionError."""
    if options.check:
        return [revisions.find(repo, options.good).name]
    names = revisions.between(repo, options.good, "HEAD" if options.bad == NOW else options.bad)
    return [*names, NOW] if options.bad == NOW else names


def _make_search(repo: Path, options: argparse.Namespace) -> Search:
    name, separator, item = options.case.partition("::")
    if not separator:
        raise ValueError(f"{options.case!r} names no case: write FILE::CASE")
    file = Path(name).resolve()
    stem = item.removesuffix("-bench]").removesuffix("]").removesuffix("-bench")
    ids = {item, re.sub(rf"-{re.escape(options.target)}$", "", stem) + ("]" if "[" in item else "")}
    cases = texts.cases_by_id([file], tuple(ids))
    if not cases:
        raise ValueError(f"{name} has no case {item!r}; `pytest --mlcomp {name} --collect-only -q` lists them")
    case = cases[0]
    kind = "speed" if options.speed else "value"
    slug = re.sub(r"[^\w.+-]+", "_", f"{kind}-{case.id}-{options.target}-{options.good}").strip("_")
    state = repo / "reports" / ".last" / "bisect" / f"{slug}.json"
    threads = {"OPENBLAS_NUM_THREADS": "1"}
    search = Search(
        repo, file, case, options.target, options.speed, options.seed, state, Executor([TRIAL], environment=threads),
        lambda line: print(f"\r{line:78}", end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True),
    )  # fmt: skip
    if state.is_file() and not (options.fresh or options.check):
        saved = json.loads(state.read_text(encoding="utf-8"))
        search.judged, search.threshold, search.reference = saved["judged"], saved["bar"], saved["reference"]
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
    parser.add_argument("--by", type=_parse_levels, default=LEVELS, metavar="LIST",
                        help=f"how far to look: {','.join(LEVELS)} (default: all)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (default: 0)")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier search has found out")
    parser.add_argument("--check", action="store_true", help="judge the working tree alone, for `git bisect run`")
    return parser


def _parse_levels(text: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    if unknown := [word for word in words if word not in LEVELS]:
        raise argparse.ArgumentTypeError(f"unknown {unknown[0]!r}; use {', '.join(LEVELS)}")
    return words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
