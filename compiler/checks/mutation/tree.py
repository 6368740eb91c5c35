"""Find the places in a program where a node can be replaced: every occurrence of every node.

Nodes are shared, so a node has many occurrences; a miscompile replaces one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from compiler.ir.node import Node
from compiler.ir.tensor import Axis, Tensor

Path = tuple[tuple[str, int], ...]  # a field, and the position if it is a tuple, else -1
LIMIT = 20_000  # the most places visited: shared expressions may unfold to very many


@dataclass(frozen=True)
class Change:
    """A place, described in words, and its mutations: (description, function that builds the program)."""

    place: str
    builds: tuple[tuple[str, Callable[[], Any]], ...]


Edit = tuple[str, Any]  # description, and the replacement: a node or a tuple of statements
Rules = Callable[[Node], Iterator[Edit]]


def changes(program: Node, rules: Rules, show: Callable[[Node], str]) -> list[Change]:
    """Every place for which `rules` have an edit."""
    out = []
    for path, node in _occurrences(program):
        edits = list(rules(node))
        if edits:
            builds = tuple((description, _builder(program, path, new)) for description, new in edits)
            out.append(Change(show(node), builds))
    return out


def _builder(program: Node, path: Path, new: Any) -> Callable[[], Any]:
    return lambda: replace_at(program, path, new)


def _occurrences(root: Node) -> Iterator[tuple[Path, Node]]:
    """All nodes with their paths, except declared shapes, which come from the caller and not from passes."""
    stack: list[tuple[Path, Node]] = [((), root)]
    for _ in range(LIMIT):
        if not stack:
            return
        path, node = stack.pop()
        yield path, node
        for name in type(node).fields:
            value = getattr(node, name)
            children = list(enumerate(value)) if isinstance(value, tuple) else [(-1, value)]
            for k, child in children:
                if isinstance(child, Node) and not isinstance(child, Tensor | Axis):
                    stack.append(((*path, (name, k)), child))


def replace_at(root: Any, path: Path, new: Any) -> Any:
    """`root` with the node at `path` replaced; a tuple replaces a statement by its members."""
    if not path:
        return new
    (name, k), *rest = path
    value = getattr(root, name)
    if k < 0:
        return root.replace(**{name: replace_at(value, tuple(rest), new)})
    replacement = replace_at(value[k], tuple(rest), new)
    middle = replacement if isinstance(replacement, tuple) else (replacement,)
    return root.replace(**{name: (*value[:k], *middle, *value[k + 1 :])})
