"""Wrong CUDA: the generated text in, the places where a line may go wrong out.

Beside what can go wrong in any C++, what goes wrong between threads: barriers, guards, and who has which element.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from compiler.checks.mutation import text
from compiler.checks.mutation.tree import Change

_DROPPABLE = re.compile(r"^ *(mlc_\w+(<[^>]*>)?\(|\w+(\[.*?\])?(\.bits)? = ).*;$")
_GUARD = re.compile(r"^( *)if \(.*\) \{$")
_TOKENS: text.Tokens = (
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
    return text.by_line(source, -1, _inside, (*text.TOKENS, *_TOKENS), _statements)


def _inside(line: str) -> bool:
    """Only the bodies of kernels."""
    return line.startswith("  ") and "__restrict__" not in line and not line.lstrip().startswith(("//", "#"))


def _statements(line: str) -> Iterator[text.Edit]:
    if re.match(r" *mlc_\w+_barrier\(\);$", line):
        yield "barrier dropped", ""
    elif _DROPPABLE.match(line):
        yield "statement dropped", ""
    if guard := _GUARD.match(line):
        yield "guard dropped", f"{guard[1]}{{"
    yield from text.addresses(line)
