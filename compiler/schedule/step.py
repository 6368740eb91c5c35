"""What all steps of schedules are."""

from __future__ import annotations

from typing import ClassVar

from compiler.ir.node import Node


class Step(Node):
    """One change. `makes` lists what names things that it makes: fields, or properties that add endings to `stems`."""

    makes: ClassVar[tuple[str, ...]] = ()
    stems: ClassVar[tuple[str, ...]] = ()
    temporaries: ClassVar[tuple[str, ...]] = ()  # fields among these that name buffers of the program
    worded: ClassVar[tuple[str, ...]] = ("width", "rounds")  # said by keyword, as names are
