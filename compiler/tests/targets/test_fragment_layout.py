"""Layouts of tiles over threads and registers, and what swizzles do to tiles in shared memory."""

import itertools

import pytest

from compiler.targets.layout import Layout, is_bijection, position, swizzle_mask

# The accumulator of m16n8k16 as the PTX ISA draws it: groupID = lane / 4, threadID_in_group = lane % 4.
ACC = Layout((16, 8), ((4, 2), (8, 8)), ((2, 1), (2, 64)))


def test_the_accumulator_is_where_the_manual_says() -> None:
    for lane, r in itertools.product(range(32), range(4)):
        group, inner = lane // 4, lane % 4
        assert position(ACC, lane, r) == (group + 8 * (r // 2), 2 * inner + r % 2)
    assert is_bijection(ACC)


def test_a_layout_that_misses_or_repeats_an_element_is_no_bijection() -> None:
    assert not is_bijection(ACC.replace(registers=((2, 1), (2, 8))))
    assert not is_bijection(ACC.replace(registers=((2, 1),)))
    assert not is_bijection(ACC.replace(shape=(16, 4)))


def test_a_thread_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no thread 32"):
        position(ACC, 32, 0)


def swizzled(offset: int, span: int) -> int:
    """Where the byte at an offset of a tile is."""
    return offset ^ (offset >> 3 & swizzle_mask(span))


@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_swizzles_permute_the_pieces_of_each_row(span: int) -> None:
    width = span or 128
    for row in range(16):
        start = row * width
        pieces = [swizzled(start + 16 * p, span) for p in range(width // 16)]
        assert sorted(pieces) == [start + 16 * p for p in range(width // 16)]
        assert all(swizzled(p + 5, span) == swizzled(p, span) + 5 for p in range(start, start + width, 16))
    with pytest.raises(ValueError, match="no swizzle of 48 bytes"):
        swizzled(0, 48)


@pytest.mark.parametrize("span", [32, 64, 128])
def test_swizzled_columns_meet_every_bank(span: int) -> None:
    """Eight rows at one 16-byte piece are what ldmatrix reads at once: together they touch all 128 bytes of banks."""
    for piece in range(span // 16):
        banks = {swizzled(row * span + 16 * piece, span) % 128 for row in range(8)}
        assert len(banks) == 8
