"""Immutable, interned IR nodes: a class with annotated fields becomes a frozen class whose equal nodes are one object.

So `is` is structural equality, hashing is cheap, and "nothing changed" is `new is old`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self, dataclass_transform
from weakref import WeakValueDictionary


@dataclass_transform(frozen_default=True)
class _Interned(type):
    _pool: ClassVar[WeakValueDictionary[Any, Any]] = WeakValueDictionary()
    _lock: ClassVar[threading.RLock] = threading.RLock()
    fields: tuple[str, ...]

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kw: Any) -> Any:
        plain: Any = super().__new__(mcls, name, bases, namespace, **kw)
        made: Any = dataclass(frozen=True, eq=False, repr=False)(plain)
        made.fields = tuple(f.name for f in dataclasses.fields(made))
        return made

    def __call__(cls, *args: Any, **kw: Any) -> Any:
        if kw or len(args) != len(cls.fields):
            args = _bind(cls, args, kw)
        key = (cls, *(map(_key, args) if _LITERALS.intersection(map(type, args)) else args))
        node = _Interned._pool.get(key)
        if node is None:
            with _Interned._lock:  # otherwise two threads could each make one
                node = _Interned._pool.get(key)
                if node is None:
                    node = _Interned._pool[key] = super().__call__(*args)
        return node


_LITERALS = {float, int, bool, tuple}  # types of fields that need `_key`


def _key(value: Any) -> Any:
    """A key that tells 1, 1.0 and True apart, and 0.0 and -0.0, which Python considers equal."""
    kind = type(value)
    if kind is float:
        return (float, value.hex())
    if kind is int or kind is bool:
        return (kind, value)
    if kind is tuple and _LITERALS.intersection(map(type, value)):
        return tuple(map(_key, value))
    return value


def _bind(cls: Any, args: tuple[Any, ...], kw: dict[str, Any]) -> tuple[Any, ...]:
    """The field values of a call with keywords or defaults; raises TypeError like Python if they do not fit."""
    left, known = cls.fields[len(args) :], _defaults(cls)
    try:
        made = (*args, *(kw[f] if f in kw else known[f] for f in left))
    except KeyError:
        made = ()
    if len(made) != len(cls.fields) or not kw.keys() <= set(left):
        inspect.signature(cls.__init__).bind(None, *args, **kw)  # raises Python's own TypeError
    return made


@functools.cache
def _defaults(cls: Any) -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}


class Node(metaclass=_Interned):
    """The root of every IR class; fields are other nodes, strings, numbers, None, or tuples of these."""

    def replace(self, **changes: Any) -> Self:
        return type(self)(*(changes.get(f, getattr(self, f)) for f in type(self).fields))

    def map(self, f: Callable[[Any], Any]) -> Self:
        """Rebuild with `f` applied to every child node; a tuple returned for a statement is spliced in."""
        made: list[Any] = []
        same = True
        for x in type(self).fields:  # hot path of every pass: the two kinds of fields are told apart inline
            old = getattr(self, x)
            new = f(old) if isinstance(old, Node) else mapped(old, f) if type(old) is tuple else old
            same = same and new is old
            made.append(new)
        return self if same else type(self)(*made)

    @functools.cached_property
    def below(self) -> tuple[Any, ...]:
        """The child nodes, each once, in order."""
        out: dict[Any, None] = {}
        for x in type(self).fields:
            _collect(getattr(self, x), out)
        return tuple(out)

    def children(self) -> Iterator[Any]:
        for x in type(self).fields:
            yield from _nodes(getattr(self, x))

    def walk(self) -> Iterator[Any]:
        """This node and all nodes below it, parents first, each once."""
        return itertools.chain((self,), self._all_below)

    @functools.cached_property
    def _all_below(self) -> tuple[Any, ...]:
        """Cache for `walk`, which passes call many times; without the node itself, which would never be freed."""
        stack: list[Node] = [*reversed(self.below)]
        seen = set(stack)
        out: list[Node] = []
        while stack:
            node = stack.pop()
            out.append(node)
            if below := node.below:
                new = [child for child in reversed(below) if child not in seen]
                seen.update(new)
                stack += new
        return tuple(out)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(repr(getattr(self, f)) for f in type(self).fields)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, f) for f in type(self).fields)


def mapped(value: Any, f: Callable[[Any], Any]) -> Any:
    """A field's value with `f` applied to its nodes; a tuple returned for a node in a tuple is spliced in."""
    if isinstance(value, Node):
        return f(value)
    if type(value) is not tuple or not value:
        return value
    out: list[Any] = []
    same = True
    for v in value:
        new = mapped(v, f)
        same = same and new is v
        if type(new) is tuple and isinstance(v, Node):
            out += new
        else:
            out.append(new)
    return value if same else tuple(out)


def _nodes(value: Any) -> Iterator[Any]:
    if isinstance(value, Node):
        yield value
    elif type(value) is tuple:
        for v in value:
            yield from _nodes(v)


def _collect(value: Any, out: dict[Any, None]) -> None:
    if isinstance(value, Node):
        out[value] = None
    elif type(value) is tuple:
        for v in value:
            _collect(v, out)


def digest(text: str) -> str:
    """A program's identity: the digest of its printed text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
