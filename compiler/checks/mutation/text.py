"""Mutations of generated C++, CUDA and Triton text.

Only lines of kernels are changed: no includes, no comments, and not the entry that passes the buffers. Besides general
mistakes, CUDA has those between threads: barriers, guards, and the assignment of elements to threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from compiler.checks.mutation.tree import Change

Edit = tuple[str, str]  # description, replacement line
Tokens = tuple[tuple[str, str, str], ...]
_ENTRY = 'extern "C"'
_DROPPABLE = re.compile(r"^ *(mlc_store|mlc_\w+_block|[\w\[\]* +().]+ = |\w+\[[^=]*\] \+= ).*;$")
_DECLARATION = re.compile(
    r"^ *(alignas|const|using|static|float|double|long|int|short|signed|unsigned|bool|f\d+x|mlc_|\w+x\d+ )"
)
_INITIALISED = re.compile(r"^ +(?:float|double|long|int|[fi]\d+x\d+) \w+ = [^;]*;$")
_SCALAR = re.compile(r"^( +(?:const )?float \w+ = )(.*);$")
# Pattern, replacement, description.
_TOKENS: Tokens = (
    (r" \+ ", " - ", "sub instead of add"),
    (r" - ", " + ", "add instead of sub"),
    (r" \* ", " + ", "add instead of mul"),
    (r" / ", " * ", "mul instead of div"),
    (r" < ", " <= ", "le instead of lt"),
    (r" <= ", " < ", "lt instead of le"),
    (r" > ", " >= ", "ge instead of gt"),
    (r" >= ", " > ", "gt instead of ge"),
    (r" == ", " != ", "ne instead of eq"),
    (r" && ", " || ", "or instead of and"),
    (r" & ", " | ", "or instead of and"),
    (r"mlc_max\(", "mlc_min(", "min instead of max"),
    (r"mlc_min\(", "mlc_max(", "max instead of min"),
    (r"mlc_exp\(", "mlc_exp2(", "exp2 instead of exp"),
    (r"mlc_exp2_ftz\(", "mlc_exp(", "exp instead of exp2"),
    (r"mlc_erf\(", "mlc_tanh(", "tanh instead of erf"),
    (r"mlc_sqrt\(", "mlc_rsqrt(", "rsqrt instead of sqrt"),
    (r"mlc_rsqrt\(", "mlc_sqrt(", "sqrt instead of rsqrt"),
    (r"mlc_reduce_add\(", "mlc_reduce_max(", "reduction changed"),
    (r"mlc_reduce_max\(", "mlc_reduce_min(", "reduction changed"),
)
_CUDA_DROPPABLE = re.compile(r"^ *(mlc_\w+(<[^>]*>)?\(|\w+(\[.*?\])?(\.bits)? = ).*;$")
_GUARD = re.compile(r"^( *)if \(.*\) \{$")
_CUDA: Tokens = (
    (r"mlc_maximum\b", "mlc_minimum", "reduction changed"),
    (r"mlc_minimum\b", "mlc_maximum", "reduction changed"),
    (r"mlc_sum\b", "mlc_maximum", "reduction changed"),
    (r"mlc_prod\b", "mlc_sum", "reduction changed"),
    (r"threadIdx\.x", "threadIdx.x + 1", "thread shifted"),
    (r"blockIdx\.([xyz])", r"blockIdx.\1 + 1", "block shifted"),
    (r"mlc_quotient\(", "mlc_rest(", "remainder instead of quotient"),
    (r"mlc_rest\(", "mlc_quotient(", "quotient instead of remainder"),
)
_STORE = re.compile(r" *tl\.(store|atomic_\w+)\(")
_TRITON: Tokens = (
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


def cpp(text: str) -> list[Change]:
    return _changes_by_line(text, text.find("\n" + _ENTRY), _in_kernel, _TOKENS, _statements)


def cuda(text: str) -> list[Change]:
    def is_inside(line: str) -> bool:
        return _in_kernel(line) and "__restrict__" not in line and not line.lstrip().startswith("#")

    return _changes_by_line(text, -1, is_inside, (*_TOKENS, *_CUDA), _cuda_statements)


def triton(text: str) -> list[Change]:
    def is_inside(line: str) -> bool:
        return line.startswith("    ") and not line.lstrip().startswith("return ")

    def statements(line: str) -> Iterator[Edit]:
        if _STORE.match(line):
            yield "store dropped", re.sub(r"\S.*", "pass", line)

    return _changes_by_line(text, text.find("\ndef launch("), is_inside, (*_TOKENS, *_TRITON), statements)


def _in_kernel(line: str) -> bool:
    return line.startswith("  ") and not line.lstrip().startswith("//")


def _changes_by_line(
    text: str, end: int, is_inside: Callable[[str], bool], tokens: Tokens, statements: Callable[[str], Iterator[Edit]]
) -> list[Change]:
    """Changes in the lines `is_inside` kernels, up to position `end` if that is not negative."""
    lines = text.split("\n")
    out: list[Change] = []
    for k, line in enumerate(text[:end].split("\n") if end >= 0 else lines):
        if not is_inside(line):
            continue
        for edits in (*_exchange_tokens(line, tokens), *_change_literals(line), [*statements(line)]):
            builds = tuple((description, _builder(lines, k, new)) for description, new in edits)
            out += [Change(line.strip()[:70], builds)] if builds else []
        out += _hoist_declaration(lines, k)
    return out


def _builder(lines: list[str], k: int, new: str) -> Callable[[], str]:
    return lambda: "\n".join([*lines[:k], new, *lines[k + 1 :]])


def _exchange_tokens(line: str, tokens: Tokens) -> Iterator[list[Edit]]:
    for pattern, new, description in tokens:
        yield from (
            [(description, line[: m.start()] + m.expand(new) + line[m.end() :])] for m in re.finditer(pattern, line)
        )


def _addresses(line: str) -> Iterator[Edit]:
    for m in re.finditer(r"&(\w+)\[", line):
        yield "address shifted", f"{line[: m.start()]}&{m[1]}[1 + {line[m.end() :]}"


def _change_literals(line: str) -> Iterator[list[Edit]]:
    """Changes of literals; a loop's step is doubled."""
    for m in re.finditer(r"(?<![\w.])(\d+)(?![\w.>])", line):
        n = int(m[1])
        values = (n * 2,) if line[: m.start()].endswith("+= ") else (n + 1, n - 1)
        yield [("constant changed", f"{line[: m.start()]}{v}{line[m.end() :]}") for v in values if v >= 0]
    for m in re.finditer(r"(?<![\w.])(\d+\.\d*(?:e[+-]?\d+)?)(f?)(?![\w.])", line):
        value = float(m[1])
        others = (1.0,) if value == 0 else (value * 1.25, value * 0.99)
        yield [("constant changed", f"{line[: m.start()]}{v!r}{m[2]}{line[m.end() :]}") for v in others]
    for m in re.finditer(r"-__builtin_inff?\(\)", line):
        yield [("identity changed", f"{line[: m.start()]}0.0f{line[m.end() :]}")]


def _statements(line: str) -> Iterator[Edit]:
    if _DROPPABLE.match(line) and not _DECLARATION.match(line.replace("mlc_store", "store").replace("_block", "")):
        yield "statement dropped", ""
    yield from _addresses(line)
    scalar = _SCALAR.match(line)
    if scalar:
        yield "rounded to bf16", f"{scalar[1]}mlc_round_bf16((float)({scalar[2]}));"


def _cuda_statements(line: str) -> Iterator[Edit]:
    if re.match(r" *mlc_\w+_barrier\(\);$", line):
        yield "barrier dropped", ""
    elif _CUDA_DROPPABLE.match(line):
        yield "statement dropped", ""
    if guard := _GUARD.match(line):
        yield "guard dropped", f"{guard[1]}{{"
    yield from _addresses(line)


def _hoist_declaration(lines: list[str], k: int) -> list[Change]:
    """Move a variable that is declared and changed in a loop before the loop."""
    line, start = lines[k], k - 1
    name = line.split(" = ")[0].split(" ")[-1]
    is_changed = any(re.match(rf" +{re.escape(name)} = ", other) for other in lines[k + 1 :])
    while start > 0 and not re.search(r"[{}]\s*$", lines[start]):  # up to the start of the block, or the end of another
        start -= 1
    if not _INITIALISED.match(line) or not lines[start].lstrip().startswith("for (") or not is_changed:
        return []
    hoisted = "\n".join([*lines[:start], line, *lines[start:k], *lines[k + 1 :]])
    return [Change(line.strip()[:70], (("accumulator not reset", lambda: hoisted),))]
