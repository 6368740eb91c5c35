"""Wrong kernels for Triton: the text in, the places where a line of one may go wrong out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from compiler.checks.mutation import text
from compiler.checks.mutation.tree import Change

_STORED = re.compile(r" *tl\.(store|atomic_\w+)\(")
_TOKENS: text.Tokens = (
    (r" // ", " % ", "remainder instead of quotient"),
    (r" % ", " // ", "quotient instead of remainder"),
    (r"tl\.program_id\(0\)", "(tl.program_id(0) + 1)", "block shifted"),
    (r"tl\.arange\((.*?)\)", r"(tl.arange(\1) + 1)", "lane shifted"),
    (r"tl\.sum\(", "tl.max(", "reduction changed"),
    (r"tl\.max\(", "tl.min(", "reduction changed"),
    (r"mlc_max\b", "mlc_min", "min instead of max"),
    (r"mlc_min\b", "mlc_max", "max instead of min"),
    (r"libdevice\.exp\(", "libdevice.exp2(", "exp2 instead of exp"),
    (r"libdevice\.rsqrt\(", "tl.sqrt(", "sqrt instead of rsqrt"),
    (r"tl\.div_rn\((.*?), ", r"tl.maximum(\1, ", "max instead of div"),
    (r", mask=[^,)]*\)", ")", "mask dropped"),
    (r"tl\.dot\((\w+), (\w+), \w+", r"tl.dot(\1, \2, None", "accumulator dropped"),
)


def changes(source: str) -> list[Change]:
    return text.by_line(source, source.find("\ndef launch("), _inside, (*text.TOKENS, *_TOKENS), _statements)


def _inside(line: str) -> bool:
    """Only the bodies of kernels."""
    return line.startswith("    ") and not line.lstrip().startswith("return ")


def _statements(line: str) -> Iterator[text.Edit]:
    if _STORED.match(line):
        yield "store dropped", re.sub(r"\S.*", "pass", line)
