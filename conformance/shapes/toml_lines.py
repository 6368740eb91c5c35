"""TOML text in, the line of each key out: the standard parser keeps no positions, and errors need them."""

import functools
import re
from collections.abc import Iterator, Mapping

Path = tuple[str | int, ...]
_WORD = r"(?:[\w-]+|\"[^\"]*\"|'[^']*')"
_DOTTED = rf"{_WORD}(?:\s*\.\s*{_WORD})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")


@functools.lru_cache(maxsize=4)  # every key of a file asks
def key_lines(text: str) -> Mapping[Path, int]:
    """The line of every table header and of every key that starts a line.

    >>> key_lines('a = 1\\n[[case]]\\nargs.x = { shape = [] }\\n[case.perf]\\nvs = []')[("case", 0, "perf", "vs")]
    5
    """
    lines: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    for number, line in _outside_strings(text):
        if header := _HEADER.match(line):
            table = _numbered(_words(header[2]), counts, header[1] == "[[")
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            words = _words(key[1])
            for length in range(1, len(words) + 1):
                lines.setdefault((*table, *words[:length]), number)
    return lines


def line_of(text: str, path: Path) -> int:
    """The line of a key: its own, else the first that spells its last word after its parent, else its parent's."""
    lines = key_lines(text)
    known = next((path[:length] for length in range(len(path), 0, -1) if path[:length] in lines), None)
    if known is None:
        return 1
    if known != path:
        wanted = re.compile(rf"(?<![\w-])[\"']?{re.escape(str(path[-1]))}[\"']?\s*(?:=|\.\s*[\w\"'-])")
        rest = text.splitlines()[lines[known] - 1 :]
        for offset, line in enumerate(rest):
            if offset and _HEADER.match(line):
                break
            if wanted.search(line.partition("#")[0]):
                return lines[known] + offset
    return lines[known]


def line_below(file: str, line: int, *keys: str) -> int:
    """The line of a key of the table whose header is in a line of a file, for errors; that line if nobody knows."""
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
    except (OSError, ValueError):
        return line
    table = next((path for path, number in key_lines(text).items() if number == line), None)
    return line if table is None else line_of(text, (*table, *keys))


def _outside_strings(text: str) -> Iterator[tuple[int, str]]:
    """Lines that do not start inside a multi-line string."""
    closing = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not closing:
            yield number, line
        for mark in re.findall(r'"""|' + "'''", line):
            closing = "" if mark == closing else closing or mark


def _words(dotted: str) -> Path:
    return tuple(word.strip("\"'") for word in re.findall(_WORD, dotted))


def _numbered(words: Path, counts: dict[Path, int], array: bool) -> Path:
    """The path of a table, with the number of the current element after each array of tables."""
    path: Path = ()
    for word in words:
        path = (*path, word)
        if array and len(path) == len(words) + sum(isinstance(item, int) for item in path):
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path
