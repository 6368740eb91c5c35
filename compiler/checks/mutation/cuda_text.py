"""Wrong CUDA: the generated text in, the places where a line may go wrong out.

Beside what can go wrong in any C++, what goes wrong between threads: barriers, guards, and who has which element.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from compiler.checks.mutation import text
from compiler.checks.mutation.text import builder
from compiler.checks.mutation.tree import Change

_DROPPABLE = re.compile(r"^ *(mlc_\w+(<[^>]*>)?\(|\w+(\[.*?\])?(\.bits)? = ).*;$")
_GUARD = re.compile(r"^( *)if \(.*\) \{$")
_TOKENS: tuple[tuple[str, str, str], ...] = (
    (r"mlc_maximum\b", "mlc_minimum", "reduction changed"),
    (r"mlc_minimum\b", "mlc_maximum", "reduction changed"),
    (r"mlc_sum\b", "mlc_maximum", "reduction changed"),
    (r"mlc_prod\b", "mlc_sum", "reduction changed"),
    (r"threadIdx\.x", "threadIdx.x + 1", "thread shifted"),
    (r"blockIdx\.([xyz])", r"blockIdx.\1 + 1", "block shifted"),
    (r"mlc_quotient\(", "mlc_rest(", "remainder instead of quotient"),
    (r"mlc_rest\(", "mlc_quotient(", "quotient instead of remainder"),
)


def changes(source: str) -> list[Change]:
    lines = source.split("\n")
    found: list[Change] = []
    for k, line in enumerate(lines):
        if not line.startswith("  ") or "__restrict__" in line or line.lstrip().startswith(("//", "#")):
            continue  # only the bodies of kernels
        for edits in (*text.tokens(line), *text.numbers(line), *_between_threads(line), [*_statements(line)]):
            builds = tuple((how, builder(lines, k, new)) for how, new in edits)
            found += [Change(line.strip()[:70], builds)] if builds else []
        found += text.hoisted(lines, k)
    return found


def _between_threads(line: str) -> Iterator[list[tuple[str, str]]]:
    for pattern, new, how in _TOKENS:
        for m in re.finditer(pattern, line):
            yield [(how, line[: m.start()] + m.expand(new) + line[m.end() :])]


def _statements(line: str) -> Iterator[tuple[str, str]]:
    if re.match(r" *mlc_\w+_barrier\(\);$", line):
        yield "barrier dropped", ""
    elif _DROPPABLE.match(line):
        yield "statement dropped", ""
    if guard := _GUARD.match(line):
        yield "guard dropped", f"{guard[1]}{{"
    for m in re.finditer(r"&(\w+)\[", line):
        yield "address shifted", f"{line[: m.start()]}&{m[1]}[1 + {line[m.end() :]}"
