"""Layouts of tiles over threads and registers: what `widen` and `swizzled` do to them, on drawn sizes."""

import itertools
import random

import pytest

from compiler.targets.layout import Layout, is_bijection, neighbours, owner, place, registers, swizzled, threads, widen
from compiler.tests.meaning import fresh_seed

# The accumulator of m16n8k16 as the PTX ISA draws it: groupID = lane / 4, threadID_in_group = lane % 4.
ACC = Layout((16, 8), ((4, 2), (8, 8)), ((2, 1), (2, 64)))


def test_the_accumulator_is_where_the_manual_says() -> None:
    for lane, r in itertools.product(range(32), range(4)):
        group, inner = lane // 4, lane % 4
        assert place(ACC, lane, r) == (group + 8 * (r // 2), 2 * inner + r % 2)
        assert owner(ACC, *place(ACC, lane, r)) == (lane, r)
    assert is_bijection(ACC) and neighbours(ACC) == 2


def test_a_layout_that_misses_or_repeats_an_element_is_no_bijection() -> None:
    assert not is_bijection(ACC.replace(registers=((2, 1), (2, 8))))
    assert not is_bijection(ACC.replace(registers=((2, 1),)))
    assert not is_bijection(ACC.replace(shape=(16, 4)))


def test_widened_tiles_hold_every_element_once() -> None:
    seed = fresh_seed()
    rng = random.Random(seed)
    for _ in range(20):
        groups = (rng.choice((1, 2, 4)), rng.choice((1, 2, 4)))
        repeats = (rng.randint(1, 3), rng.randint(1, 3))
        wide = widen(ACC, (16 * groups[0] * repeats[0], 8 * groups[1] * repeats[1]), groups)
        assert is_bijection(wide), f"seed {seed}: {wide}"
        assert threads(wide) == 32 * groups[0] * groups[1] and registers(wide) == 4 * repeats[0] * repeats[1]
        # Warp g holds the block (g % rows, g // rows), and fragment f of it the place (f // along, f % along).
        warp, fragment = rng.randrange(groups[0] * groups[1]), rng.randrange(repeats[0] * repeats[1])
        lane, r = rng.randrange(32), rng.randrange(4)
        row, column = place(ACC, lane, r)
        row += 16 * (warp % groups[0] * repeats[0] + fragment // repeats[1])
        column += 8 * (warp // groups[0] * repeats[1] + fragment % repeats[1])
        assert place(wide, 32 * warp + lane, 4 * fragment + r) == (row, column), f"seed {seed}"


def test_a_tile_that_fragments_do_not_fill_is_refused() -> None:
    with pytest.raises(ValueError, match="not made of"):
        widen(ACC, (24, 8))
    with pytest.raises(ValueError, match="no thread 32"):
        place(ACC, 32, 0)


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
