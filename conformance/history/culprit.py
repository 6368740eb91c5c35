"""Compare two compilers on one program: the first differing pass application, and the minimal change to blame."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

SHOWN = 40  # lines of a diff that are printed
_FUNCTION = re.compile(r'^(?:static|extern "C" __global__) .*?^}\n', re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"\b(?!__)(\w+)\(")


@dataclass(frozen=True)
class Culprit:
    """The first differing pass application or step with the diff of its result; `steps` are the schedule changes, and
    `kernels` the kernels, that suffice to cause the regression; `blamed` is the verdict from judging every stage."""

    name: str
    stage: str
    difference: tuple[str, ...]
    steps: tuple[str, ...] = ()
    blamed: str = ""
    kernels: tuple[str, ...] = ()

    def with_steps(self, steps: Sequence[str]) -> "Culprit":
        """Return a copy with these schedule changes."""
        return replace(self, steps=tuple(steps))

    def with_kernels(self, names: Sequence[str]) -> "Culprit":
        """Return a copy with these kernels."""
        return replace(self, kernels=tuple(names))

    def with_blame(self, stage: str | None, name: str | None) -> "Culprit":
        """Return a copy with the first bad stage and the pass to blame."""
        return replace(self, blamed=f"first bad stage {stage}, by {name}" if stage else "")

    def text(self) -> str:
        """Return the text for the answer."""
        lines = [self.blamed] if self.blamed else []
        if self.kernels:
            lines.append(f"of its kernels these alone are enough: {', '.join(self.kernels)}")
        if self.steps:
            lines += ["of its schedule these changes alone are enough:", *(f"  {line}" for line in self.steps)]
        lines.append(f"first application with another result: {self.name}, in {self.stage}")
        more = len(self.difference) - SHOWN
        lines += [*self.difference[:SHOWN], *([f"… and {more} lines more"] if more > 0 else [])]
        return "\n".join(lines)


def first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Culprit:
    """Return the first application whose name or result differs between two `applications` records, with the diff."""
    old, new = before["applications"], after["applications"]
    for n, application in enumerate(new):
        counterpart = old[n] if n < len(old) else {"name": "", "text": ""}
        if (counterpart["name"], counterpart["text"]) != (application["name"], application["text"]):
            lines = difflib.unified_diff(
                counterpart["text"].splitlines(), application["text"].splitlines(), "before", "after", lineterm="", n=1
            )
            name = (
                application["name"]
                if application["name"] == application["pass"]
                else f"{application['pass']}: {application['name']}"
            )
            return Culprit(f"{name} (#{application['number']})", application["stage"], tuple(lines))
    return Culprit("none", "no stage: what texts include has changed", ())


def least_changes(good: str, bad: str, slow: Callable[[str], bool | None]) -> tuple[str, ...]:
    """Return a minimal set of the changes from `good` to `bad` that suffices to make it slow, by delta debugging.

    Returns none if all changes together do not make it slow. `slow` returns None for a text that cannot be judged.
    """
    a, b = good.splitlines(keepends=True), bad.splitlines(keepends=True)
    changes = [c for c in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes() if c[0] != "equal"]

    def text_with(chosen: Sequence[int]) -> str:
        lines, position = [], 0
        for n, (_, i1, i2, j1, j2) in enumerate(changes):
            lines += [*a[position:i1], *(b[j1:j2] if n in chosen else a[i1:i2])]
            position = i2
        return "".join([*lines, *a[position:]])

    least = _least_subset(list(range(len(changes))), lambda chosen: slow(text_with(chosen)))
    lines = []
    for n in least:
        _, i1, i2, j1, j2 = changes[n]
        lines += [f"-{line.strip()}" for line in a[i1:i2]] + [f"+{line.strip()}" for line in b[j1:j2]]
    return tuple(lines)


def least_kernels(good: str, bad: str, worse: Callable[[str], bool | None]) -> tuple[str, ...]:
    """Return a minimal set of functions of `bad` that suffices to make `good` worse.

    Returns none if the texts differ outside of functions or in their number. A single changed function needs no trial.
    """
    a, b = _FUNCTION.findall(good), _FUNCTION.findall(bad)
    if len(a) != len(b) or _FUNCTION.sub("", good) != _FUNCTION.sub("", bad):
        return ()

    def text_with(chosen: Sequence[int]) -> str:
        bodies = iter(b[n] if n in chosen else a[n] for n in range(len(a)))
        return _FUNCTION.sub(lambda _: next(bodies), good)

    changed = [n for n in range(len(a)) if a[n] != b[n]]
    least = _least_subset(changed, lambda chosen: worse(text_with(chosen))) if len(changed) > 1 else changed
    return tuple(match[1] for n in least if (match := _NAME.search(b[n])))


def _least_subset(kept: list[int], judge: Callable[[Sequence[int]], bool | None]) -> list[int]:
    """Return a minimal bad subset of changes, by delta debugging.

    Returns none unless all changes together are judged bad and the empty set is judged good.
    """

    def is_slow(chosen: Sequence[int]) -> bool:
        return judge(chosen) is True

    if not is_slow(kept) or judge([]) is not False:
        return []
    parts = 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        pieces = [kept[n : n + size] for n in range(0, len(kept), size)]
        complements = [[n for n in kept if n not in piece] for piece in pieces] if len(pieces) > 2 else []
        smaller = next((subset for subset in (*pieces, *complements) if is_slow(subset)), None)
        if smaller is not None:
            parts = 2 if smaller in pieces else max(2, len(pieces) - 1)
            kept = smaller
        elif size == 1:
            break
        else:
            parts = min(len(kept), 2 * parts)
    return kept
