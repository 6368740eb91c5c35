"""TOML values in, checked Python values out: readers of words, numbers and tables that know where they stand."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from conformance.shapes.expressions import quoted
from conformance.shapes.specs import ShapeFileError
from conformance.shapes.toml_lines import line_of


@dataclass(frozen=True)
class Place:
    """A key of one file, to be named in an error."""

    file: str
    text: str
    path: tuple[str | int, ...] = ()
    case: str = ""

    def at(self, *keys: str | int) -> "Place":
        """The place of a key below."""
        return Place(self.file, self.text, (*self.path, *keys), self.case)

    @property
    def line(self) -> int:
        """The line of the key."""
        return line_of(self.text, self.path)

    def fail(self, message: str) -> NoReturn:
        """Raise the error that names file, line, case and key."""
        key = ".".join(str(word) for word in self.path[2:] if not isinstance(word, int))
        where = f"case {self.case!r}: " if self.case else ""
        raise ShapeFileError(self.file, self.line, where + (f"{key}: " if key else "") + message)


def closed_table(place: Place, value: Any, kind: str, known: Collection[str]) -> dict[str, Any]:
    """A table of a kind, with known keys only."""
    table = dict(any_table(place, value))
    for key in table:
        if key not in known:
            place.at(key).fail(f"{kind} has no key {key!r};{nearest(key, known)}")
    return table


def any_table(place: Place, value: Any) -> Collection[tuple[str, Any]]:
    """The items of a table with keys of any name."""
    if not isinstance(value, Mapping):
        place.fail(f"a table is needed here, not {value!r}")
    return value.items()


def strings(place: Place, value: Any, what: str, some: bool = False) -> tuple[str, ...]:
    """A list of words, each once, and at least one if there must be `some`."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value) or (some and not value):
        place.fail(f"a list of {what} is needed, not {value!r}")
    if len(set(value)) != len(value):
        place.fail(f"{value!r} names something twice; write each once")
    return tuple(value)


def word(place: Place, table: Mapping[str, Any], key: str, known: Collection[str]) -> str | None:
    """The word under a key, one of a few, or None where there is none."""
    value = table.get(key)
    if value is not None and value not in known:
        place.at(key).fail(f"{value!r} is none of {quoted(known)};{nearest(str(value), known)}")
    return value


def text(place: Place, value: Any, message: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        place.fail(message)
    return value


def optional_text(place: Place, value: Any) -> str | None:
    """A text, or None where there is none."""
    return None if value is None else text(place, value, f"a text is needed here, not {value!r}")


def optional_number(place: Place, value: Any) -> float | None:
    """A number of 0 or more, or None where there is none."""
    if value is not None and not (is_kind(value, (int, float)) and value >= 0):
        place.fail(f"{value!r} is no number of 0 or more")
    return None if value is None else float(value)


def flag(place: Place, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        place.fail(f"{value!r} is neither true nor false")
    return value


def is_kind(value: Any, kinds: tuple[type, ...]) -> bool:
    """Like isinstance, but a boolean is no number."""
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def nearest(word: str, known: Collection[str]) -> str:
    """A hint after a message: the nearest known word, or all of them."""
    by_lower = {name.lower(): name for name in known}
    near = [by_lower[name] for name in difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)]
    return f" did you mean {near[0]!r}?" if near else f" known are {quoted(sorted(known))}"
