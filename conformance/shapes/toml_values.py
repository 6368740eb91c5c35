"""Check and convert TOML values, and report errors with their file, line, case and key."""

import difflib
import functools
import importlib
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance.shapes.cases import RIVALS, Case
from conformance.shapes.expressions import quote
from conformance.shapes.specs import ShapeFileError

Keys = tuple[str | int, ...]
_WORD = r"(?:[\w-]+|\"[^\"]*\"|'[^']*')"
_DOTTED = rf"{_WORD}(?:\s*\.\s*{_WORD})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_BACKEND = re.compile(r"\w[\w.-]*")
MISSPELLED = 0.8  # the likeness, in terms of difflib, from which on an unknown backend is taken for a known one
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")


@functools.lru_cache(maxsize=4)  # called for many keys of the same file
def key_lines(text: str) -> Mapping[Keys, int]:
    """Return the line of every table header and of every key at the start of a line.

    >>> key_lines('a = 1\\n[[case]]\\nargs.x = { shape = [] }\\n[case.perf]\\nvs = []')[("case", 0, "perf", "vs")]
    5
    """
    lines: dict[Keys, int] = {}
    counts: dict[Keys, int] = {}
    table: Keys = ()
    for number, line in _outside_strings(text):
        if header := _HEADER.match(line):
            table = _table_path(_words(header[2]), counts, header[1] == "[[")
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            words = _words(key[1])
            for length in range(1, len(words) + 1):
                lines.setdefault((*table, *words[:length]), number)
    return lines


def line_of(text: str, path: Keys) -> int:
    """Return the line of a key; else the first line after its parent that has its last word; else its parent's."""
    lines = key_lines(text)
    known_path = next((path[:length] for length in range(len(path), 0, -1) if path[:length] in lines), None)
    if known_path is None:
        return 1
    if known_path != path:
        pattern = re.compile(rf"(?<![\w-])[\"']?{re.escape(str(path[-1]))}[\"']?\s*(?:=|\.\s*[\w\"'-])")
        rest = text.splitlines()[lines[known_path] - 1 :]
        for offset, line in enumerate(rest):
            if offset and _HEADER.match(line):
                break
            if pattern.search(line.partition("#")[0]):
                return lines[known_path] + offset
    return lines[known_path]


def line_below(file: str, line: int, *keys: str) -> int:
    """Return the line of a key of the table whose header is at `line` of a file; or `line` if it is not found."""
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
    except (OSError, ValueError):
        return line
    table = next((path for path, number in key_lines(text).items() if number == line), None)
    return line if table is None else line_of(text, (*table, *keys))


def _outside_strings(text: str) -> Iterator[tuple[int, str]]:
    """Yield numbered lines that do not start inside a multi-line string."""
    closing = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not closing:
            yield number, line
        for mark in re.findall(r'"""|' + "'''", line):
            closing = "" if mark == closing else closing or mark


def _words(dotted: str) -> Keys:
    return tuple(word.strip("\"'") for word in re.findall(_WORD, dotted))


def _table_path(words: Keys, counts: dict[Keys, int], array: bool) -> Keys:
    """Return the path of a table, with the index of the current element after each array of tables."""
    path: Keys = ()
    for word in words:
        path = (*path, word)
        if array and len(path) == len(words) + sum(isinstance(item, int) for item in path):
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


@dataclass(frozen=True)
class Place:
    """The place of a key in a file, for errors.

    Keys of a case that are `inherited`, with one part or two, have their place in the file's defaults.
    """

    file: str
    text: str
    path: tuple[str | int, ...] = ()
    case: str = ""
    inherited: frozenset[Keys] = frozenset()

    def at(self, *keys: str | int) -> "Place":
        """Return the place of a key below."""
        path = (*self.path, *keys)
        is_inherited = self.path[:1] != ("defaults",) and {path[2:3], path[2:4]} & self.inherited
        return replace(self, path=("defaults", *path[2:]) if is_inherited else path)

    @property
    def line(self) -> int:
        """The line of the key."""
        return line_of(self.text, self.path)

    def fail(self, message: str) -> NoReturn:
        """Raise ShapeFileError with file, line, case and key."""
        words = self.path if self.path[:1] == ("defaults",) else self.path[2:]
        key = ".".join(str(word) for word in words if not isinstance(word, int))
        where = f"case {self.case!r}: " if self.case else ""
        raise ShapeFileError(self.file, self.line, where + (f"{key}: " if key else "") + message)


def closed_table(place: Place, value: Any, kind: str, known: Collection[str]) -> dict[str, Any]:
    """Check that a value is a table with known keys only, and return it."""
    table = dict(any_table(place, value))
    for key in table:
        if key not in known:
            place.at(key).fail(f"{kind} has no key {key!r};{nearest(key, known)}")
    return table


def any_table(place: Place, value: Any) -> Collection[tuple[str, Any]]:
    """Check that a value is a table with any keys, and return its items."""
    if not isinstance(value, Mapping):
        place.fail(f"a table is needed here, not {value!r}")
    return value.items()


def strings(place: Place, value: Any, what: str, nonempty: bool = False) -> tuple[str, ...]:
    """Check that a value is a list of distinct strings, not empty if `nonempty`, and return it."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value) or (nonempty and not value):
        place.fail(f"a list of {what} is needed, not {value!r}")
    if len(set(value)) != len(value):
        place.fail(f"{value!r} names something twice; write each once")
    return tuple(value)


def word(place: Place, table: Mapping[str, Any], key: str, known: Collection[str]) -> str | None:
    """Return the value of a key, which must be one of `known`; None if it is missing."""
    value = table.get(key)
    if value is not None and value not in known:
        place.at(key).fail(f"{value!r} is none of {quote(known)};{nearest(str(value), known)}")
    return value


def one_of(place: Place, name: str, known: Collection[str], what: str) -> str:
    """Check that a name is one of `known`, and return it."""
    if name not in known:
        place.fail(f"{name!r} is not {what};{nearest(name, known)}")
    return name


def text(place: Place, value: Any, message: str) -> str:
    """Check that a value is a text that is not empty, and return it."""
    if not isinstance(value, str) or not value.strip():
        place.fail(message)
    return value


def optional_text(place: Place, value: Any) -> str | None:
    """Return a text, or None if it is missing."""
    return None if value is None else text(place, value, f"a text is needed here, not {value!r}")


def optional_number(place: Place, value: Any, positive: bool = False) -> float | None:
    """Return a finite number of at least 0, or above 0 if `positive`; None if it is missing."""
    if value is None:
        return None
    if not (is_kind(value, (int, float)) and math.isfinite(value) and (value > 0 if positive else value >= 0)):
        place.fail(f"{value!r} is not a number {'above 0' if positive else 'of at least 0'}")
    return float(value)


def contestants(place: Place, value: Any) -> tuple[str, ...]:
    """Check that a value is a list of systems to time against, and return it.

    A name that torch does not know may be a backend of another machine, unless it is close to one that torch knows.
    """
    names = strings(place, value, "systems to time against")
    for name in names:
        if name not in RIVALS:  # only torch, which takes seconds to import, knows the names of its backends
            backends = importlib.import_module("torch._dynamo").list_backends(exclude_tags=None)
            known = (*RIVALS, *backends)
            if not _BACKEND.fullmatch(name) or difflib.get_close_matches(name.lower(), known, n=1, cutoff=MISSPELLED):
                one_of(place, name, known, "a system to time against")
    return names


def versions(place: Place, value: Any) -> str:
    """Return the torch versions that a case needs, as a version specifier; "" if it is missing."""
    specifier = optional_text(place, value) or ""
    try:
        return str(SpecifierSet(specifier))
    except InvalidSpecifier:
        place.fail(f'{specifier!r} is not a version specifier; write ">=2.12" or ">=2.12,<3"')


def flag(place: Place, value: Any) -> bool:
    """Check that a value is a boolean, and return it."""
    if not isinstance(value, bool):
        place.fail(f"{value!r} is not true or false")
    return value


def is_kind(value: Any, kinds: tuple[type, ...]) -> bool:
    """Like isinstance, but a boolean does not count as a number."""
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def nearest(word: str, known: Collection[str]) -> str:
    """Return a hint for an error: the nearest known word, or all of them."""
    by_lower = {name.lower(): name for name in known}
    closest = [by_lower[name] for name in difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)]
    return f" did you mean {closest[0]!r}?" if closest else f" known are {quote(sorted(known))}"


DEFAULTS = ("dtypes", "targets", "inputs", "layouts", "combine", "tier", "family", "timeout", "tolerance", "perf")
BUDGETS = ("min_speedup_eager", "min_speedup_compile", "min_speedup", "min_roofline", "max_compile_s", "max_kernels")
KEYS = {
    "the file": ("format", "defaults", "distributions", "case", "compose", "model"),
    "the defaults": DEFAULTS,
    "a case": (
        "name", "op", "ops", "expr", "module", "init", "args", "params", "consts", "constants", "mutates", "dims",
        "where", "xfail", "dynamic", "raises", "grad", "entry", "torch", *DEFAULTS,
    ),
    "an argument": ("shape", "dtype", "layout", "inputs", "low", "high"),
    "the tolerance": ("mode", "rtol", "atol", "reason", "specials", "deterministic"),
    "an xfail": ("stage", "reason", "strict", "where"),
    "a perf table": ("dims", "dtypes", "params", "tier", "layout", "inputs", "vs", "budget", "checked"),
    "a checked table": ("around", "targets", "tier"),
    "a dynamic dim": ("min", "max"),
    "a budget": BUDGETS,
}  # fmt: skip


def known_table(place: Place, value: Any, kind: str) -> dict[str, Any]:
    return closed_table(place, value, kind, KEYS[kind])


MOST_ERROR_CHARACTERS = 200  # most characters of an error of PyTorch in a message


class CaseError(Exception):
    """The case itself is invalid; no compiler is to blame."""

    def __init__(self, case: Case, key: str, what: str) -> None:
        path, here = Path(case.file), Path.cwd()
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        line = line_below(case.file, case.line, key)
        super().__init__(f"{shown}:{line}: case {case.id.partition('[')[0]!r}: {key}: {what}")


def one_line(error: BaseException) -> str:
    """Return the error as one line of at most MOST_ERROR_CHARACTERS characters."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= MOST_ERROR_CHARACTERS else text[: MOST_ERROR_CHARACTERS - 1] + "…"
