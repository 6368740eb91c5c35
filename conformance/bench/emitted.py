"""Emitted texts: normalisation, the headers that they include, and a digest that is equal for equal code."""

import hashlib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

_COMMENT = re.compile(r"[ \t]*//[^\n]*|/\*.*?\*/", re.DOTALL)
_ATTRIBUTE = r"(?:\w+\([^)]*\) |__attribute__\(\([^;{]*?\)\) )*"
_KERNEL = re.compile(rf'^(?:extern "C" __global__|static) (?:void )?{_ATTRIBUTE}[^;{{=(]*?(\w+)\(', re.MULTILINE)
_WRAPPED = re.compile(r",\n[ \t]*")
_HEAD = re.compile(r"\A// .+, for .+\n// def .*\n(?://   .*\n)*")
_INCLUDE = re.compile(r'^#include "([^"]+)"\n?', re.MULTILINE)
_ONCE = re.compile(r"^#pragma once\n", re.MULTILINE)
_FILE = re.compile(r"^// file (\S+)\n", re.MULTILINE)

Headers = Mapping[str, str]  # texts of headers by their names


@dataclass(frozen=True)
class StoredKernel:
    """An emitted text of a baseline, with the baseline's name and headers."""

    baseline: str
    text: str
    headers: Headers


def normalise(text: str) -> str:
    """Normalise a text: drop comments except the head and empty lines, unfold lines, replace kernel names by numbers.

    >>> normalise('// made by hand\\nstatic void add_3(float *x,\\n    int n) {  // one row\\n}\\n')
    'static void kernel0(float *x, int n) {\\n}'
    """
    head_match = _HEAD.match(text)
    head = head_match[0] if head_match else ""
    text = _WRAPPED.sub(", ", strip_comments(text[len(head) :]))
    for number, name in enumerate(kernels(text)):
        text = re.sub(rf"\b{re.escape(name)}\(", f"kernel{number}(", text)
        head = head.replace(f'"{name}"', f'"kernel{number}"')
    return head + text


def kernels(text: str) -> list[str]:
    """Return the names of the kernels, in the order in which `normalise` numbers them."""
    return list(dict.fromkeys(_KERNEL.findall(_WRAPPED.sub(", ", strip_comments(text)))))


def strip_comments(text: str) -> str:
    """Return the text without comments and empty lines."""
    return "\n".join(line for line in _COMMENT.sub("", text).splitlines() if line.strip())


def pack_headers(headers: Headers) -> str:
    """Join the headers, without comments, to one text; `unpack_headers` is the inverse."""
    return "".join(f"// file {name}\n{strip_comments(text)}\n" for name, text in sorted(headers.items()))


def unpack_headers(text: str) -> dict[str, str]:
    """Return the headers of a text made by `pack_headers`.

    >>> unpack_headers(pack_headers({"a.h": "int a;  // one", "b/c.h": "int c;"}))
    {'a.h': 'int a;\\n', 'b/c.h': 'int c;\\n'}
    """
    _, *parts = _FILE.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def included_headers(text: str, headers: Headers) -> list[str]:
    """Return the names of the headers that a text includes, directly or indirectly, in the order of first inclusion."""
    names: dict[str, None] = {}

    def visit(text: str, folder: str) -> None:
        for name in _INCLUDE.findall(text):
            header = _resolve_header(name, folder, headers)
            if header is not None and header not in names:
                names[header] = None
                visit(headers[header], posixpath.dirname(header))

    visit(text, "")
    return list(names)


def identity(text: str, headers: Headers) -> str:
    """Return the digest of the normalised text and its headers; it is equal for equal code launched the same way."""
    parts = [normalise(text), *(strip_comments(headers[name]) for name in sorted(included_headers(text, headers)))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def self_contained(text: str, headers: Headers) -> str:
    """Return the text with every known header inserted where it is first included."""
    seen: set[str] = set()

    def inline(text: str, folder: str) -> str:
        def replacement(match: re.Match[str]) -> str:
            name = _resolve_header(match[1], folder, headers)
            if name is None:
                return match[0]
            if name in seen:
                return ""
            seen.add(name)
            return inline(_ONCE.sub("", headers[name]), posixpath.dirname(name)) + "\n"

        return _INCLUDE.sub(replacement, text)

    return inline(text, "")


def _resolve_header(name: str, folder: str, headers: Headers) -> str | None:
    """Return the name of the header that an #include in `folder` refers to; None if it is not in `headers`."""
    return next((n for n in (posixpath.normpath(posixpath.join(folder, name)), name) if n in headers), None)
