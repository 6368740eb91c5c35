"""The base class of schedule steps."""

from __future__ import annotations

from typing import ClassVar

from compiler.ir.node import Node


class Step(Node):
    """One change of a kernel.

    `makes` lists the fields, or properties, that hold the names of what the step creates. Properties derive such names
    from the fields in `stems` by adding endings. `temporaries` lists the fields among `makes` that name buffers of the
    program. `worded` lists further fields that are keyword arguments in the text; those in `makes` and `stems` are too,
    except `tile`.
    """

    makes: ClassVar[tuple[str, ...]] = ()
    stems: ClassVar[tuple[str, ...]] = ()
    temporaries: ClassVar[tuple[str, ...]] = ()
    worded: ClassVar[tuple[str, ...]] = ("width", "rounds", "prefetch")
