"""Which row of a tile each row of a tensor instruction is: any order will do, as long as all operands have the same.

Where an operand of 32 bits lies in memory along m or n, which no ldmatrix deals out, the registers of a thread are
given neighbours: it loads four at once. Lanes that read in one phase of shared memory then come to lie in eight pieces
of 16 bytes that a swizzle keeps in different banks.
"""

from __future__ import annotations

from compiler.ir.node import Node

NEIGHBOURS = 2  # bits: four elements of 32 bits, 16 bytes
LANES = 3  # bits of the lane that number the rows or columns of an instruction


class RowOrder(Node):
    """Bit n of the old place along an axis is bit `bits[n]` of the new one; bits beyond stay."""

    bits: tuple[int, ...] = ()


def neighbouring(length: int, instruction: int, rows: int) -> RowOrder:
    """The order of an axis of which a group of threads has `length`, for registers with neighbours.

    `instruction` is the length of one instruction along the axis, `rows` the rows (or columns) that one warp has of it:
    8 by lanes, beyond that in registers; what the instruction has besides is other warps'. Lengths that are no powers
    of two keep their order.

    >>> neighbouring(64, 8, 8)
    RowOrder((4, 2, 3, 0, 1, 5))
    >>> neighbouring(128, 64, 16)
    RowOrder((4, 2, 3, 0, 5, 6, 1))
    """
    if length & (length - 1):
        return RowOrder()
    total = length.bit_length() - 1
    held = (rows - 1).bit_length()
    whole = (instruction - 1).bit_length()
    registers = [b for b in range(total) if LANES <= b < held or b >= whole][:NEIGHBOURS]
    order = [*registers, 1, 2, 0]
    order += [b for b in range(total) if b not in order]
    places = {old: new for new, old in enumerate(order)}
    return RowOrder(tuple(places[b] for b in range(total)))


def reordered(extent: int, step: int, order: RowOrder) -> list[tuple[int, int]]:
    """A digit of a place as digits of the new one: (extent, step) of each, the fastest first.

    >>> reordered(8, 1, neighbouring(64, 8, 8)), reordered(8, 8, neighbouring(64, 8, 8))
    ([(2, 16), (4, 4)], [(4, 1), (2, 32)])
    """
    if not order.bits or step >> len(order.bits):
        return [(extent, step)]
    out: list[tuple[int, int]] = []
    low = step.bit_length() - 1
    if step != 1 << low or extent & (extent - 1):
        raise ValueError(f"a digit of {extent} with step {step} has no bits to be exchanged")
    for bit in range(low, low + extent.bit_length() - 1):
        by = 1 << (order.bits[bit] if bit < len(order.bits) else bit)
        if out and out[-1][0] * out[-1][1] == by:
            out[-1] = out[-1][0] * 2, out[-1][1]
        else:
            out.append((2, by))
    return out
