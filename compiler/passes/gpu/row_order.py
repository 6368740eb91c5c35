"""The order of a tile's rows in tensor instructions: any order is correct if all operands use the same.

A 32-bit operand that is contiguous along m or n cannot be distributed by ldmatrix. Its registers are given neighbours
instead, so that a thread loads four at once. Lanes that read in one phase of shared memory then access eight 16-byte
pieces, which a swizzle puts into different banks.
"""

from __future__ import annotations

from compiler.ir.node import Node

NEIGHBOURS = 2  # bits: four 32-bit elements, 16 bytes
LANES = 3  # bits of the lane that index the rows or columns of an instruction


class RowOrder(Node):
    """A permutation of index bits: bit n of the old index is bit `bits[n]` of the new one; higher bits stay."""

    bits: tuple[int, ...] = ()


def neighbour_order(length: int, instruction: int, rows: int) -> RowOrder:
    """The order that gives registers neighbours along an axis of which a group of threads has `length`.

    `instruction` is the length of one instruction along the axis, `rows` the rows (or columns) that one warp has of it:
    8 by lanes, the rest in registers; the instruction's remaining rows belong to other warps. Lengths that are not
    powers of two keep their order.

    >>> neighbour_order(64, 8, 8)
    RowOrder((4, 2, 3, 0, 1, 5))
    >>> neighbour_order(128, 64, 16)
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
    """A digit of an index as digits of the new one: (extent, step) of each, the fastest first.

    >>> reordered(8, 1, neighbour_order(64, 8, 8)), reordered(8, 8, neighbour_order(64, 8, 8))
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
