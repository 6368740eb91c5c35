"""Layout names in, their meaning out: which ranks a layout fits, and the storage that it implies."""

import re

# The count of numbers in brackets, and the smallest and largest rank (None: no limit).
LAYOUTS = {
    "contig": (0, 0, None),
    "transposed": (2, 2, None),
    "permuted": (0, 2, None),
    "strided": (2, 1, None),
    "expanded": (1, 1, None),
    "offset": (1, 0, None),
    "channels_last": (0, 4, 4),
}


def parse(layout: str) -> tuple[str, tuple[int, ...]] | None:
    """The name and numbers of a layout, or None if it is not one.

    >>> parse("strided(-1, 2)"), parse("strided"), parse("diagonal")
    (('strided', (-1, 2)), None, None)
    """
    found = re.fullmatch(r"(\w+)(?:\(\s*(-?\d+(?:\s*,\s*-?\d+)*)\s*\))?", layout)
    if found is None or found[1] not in LAYOUTS:
        return None
    numbers = tuple(int(number) for number in found[2].split(",")) if found[2] else ()
    positive = found[1] not in ("strided", "offset") or numbers[-1:] > (0,)
    return (found[1], numbers) if len(numbers) == LAYOUTS[found[1]][0] and positive else None


def fits(layout: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape can be stored so.

    >>> fits("transposed(0,1)", (4, 5)), fits("transposed(0,2)", (4, 5)), fits("expanded(0)", ())
    (True, False, False)
    """
    parsed = parse(layout)
    if parsed is None:
        return False
    name, numbers = parsed
    _, least, most = LAYOUTS[name]
    axes = {"transposed": numbers, "strided": numbers[:1], "expanded": numbers}.get(name, ())
    rank = len(shape)
    return least <= rank and (most is None or rank <= most) and all(-rank <= axis < rank for axis in axes)
