"""Every function with a `before:` and an `after:` in its docstring does what they show, and changes no meaning."""

import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from compiler import passes
from compiler.ir import tile
from compiler.passes.tile import steps
from compiler.schedule.steps import STEPS, parse
from compiler.tests import snippet
from compiler.tests.meaning import fresh_seed, same_meaning

_CODE = r"((?: {8}.*\n|\n)+)"
EXAMPLE = re.compile(rf"\A`([^`]+)`.*\s+before:\n{_CODE} +after:\n{_CODE}")


@dataclass(frozen=True)
class Example:
    step: str
    before: str
    after: str


def functions() -> dict[str, Callable[..., Any]]:
    """Functions of all passes that show an example."""
    found = {}
    for module in pkgutil.walk_packages(passes.__path__, passes.__name__ + "."):
        for name, f in vars(importlib.import_module(module.name)).items():
            if callable(f) and getattr(f, "__module__", "") == module.name and "before:" in (f.__doc__ or ""):
                found[f"{module.name.removeprefix(passes.__name__ + '.')}.{name}"] = f
    return found


FUNCTIONS = functions()


def example(f: Callable[..., Any]) -> Example:
    found = EXAMPLE.match(f.__doc__ or "")
    assert found, f"{f.__name__}: a docstring with an example begins with the step that it shows, in backquotes"
    return Example(*found.groups())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_example(name: str) -> None:
    shown = example(FUNCTIONS[name])
    before = snippet.program(shown.before)
    shapes = snippet.shapes_of(before)
    gone = frozenset(shapes) - frozenset(snippet.shapes_of(snippet.program(shown.after, shapes)))
    before = snippet.program(shown.before, temps=gone)
    after = snippet.program(shown.after, shapes)
    (step,) = parse(shown.step).steps
    made, _ = steps.apply_step(before, before.kernels[0], step)
    assert snippet.body(made) == snippet.body(after)
    for p in (before, made):
        tile.verify(p)
    same_meaning(("tile", before), ("tile", made), fresh_seed())


def test_every_step_shows_an_example() -> None:
    shown = {type(parse(example(f).step).steps[0]) for f in FUNCTIONS.values()}
    missing = set(STEPS.values()) - shown
    assert not missing, f"no example of {sorted(s.__name__ for s in missing)}"
