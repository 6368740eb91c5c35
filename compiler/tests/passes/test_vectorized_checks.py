"""Loops whose requirements are checked for several turns at once, and those whose are not; texts before and after."""

import pytest

from compiler.ir import kernel_text
from compiler.passes.requirements import requirements

HEAD = "def f(n: size[0, 999, 9], x: f32[100], i: i64[100], *, y: f32[100], t: i64[100]):\n"
FUNCTION = '    with function("f", [x, i, y, t], writes=[y, t], checks=[8, 32, 2, 4]):\n'


def passed(body: str, width: int = 32, by_lane: bool = True) -> str:
    """What the pass makes of statements, without the head."""
    text = HEAD + FUNCTION + "".join(f"        {line}\n" for line in body.strip().splitlines())
    made = kernel_text.show(requirements(kernel_text.parse(text), width, by_lane))
    return "\n".join(line[8:] for line in made.removeprefix(HEAD + FUNCTION).splitlines())


SCALARS = """
for j in range(0, 70, 1):
    y[require((i[j] >= 0) & (i[j] < 9), i[j])] += x[j]
"""
PIECES = """
for j_piece in range(0, 64, 32):
    asked_1: i64x16 = i[j_piece, i64x16]
    asked_2: i64x16 = i[j_piece + 16, i64x16]
    valid_1: bool = across(all, \
(asked_1 >= broadcast(0, 16)) & (asked_1 < broadcast(9, 16)) & \
((asked_2 >= broadcast(0, 16)) & (asked_2 < broadcast(9, 16))))
    if require(valid_1, valid_1):
        for j in range(j_piece, j_piece + 32, 1, unroll):
            asked: i64 = i[j]
            checked: i64 = asked
            y[checked] += x[j]
for j in range(64, 70, 1):
    asked: i64 = i[j]
    checked: i64 = require((asked >= 0) & (asked < 9), asked)
    y[checked] += x[j]
"""


def test_a_loop_of_scalars_asks_by_pieces() -> None:
    assert passed(SCALARS, 128) == PIECES.strip()


def test_an_open_end_leaves_a_rest_and_no_vectors_leave_all() -> None:
    made = passed(SCALARS.replace("70", "n"), 128)
    assert made.splitlines()[0] == "for j_piece in range(0, n // 32 * 32, 32):"
    assert "for j in range(n // 32 * 32, n, 1):" in made
    assert "piece" not in passed(SCALARS, 0)


def test_threads_take_pieces_of_short_turns_and_the_rest_is_one_thread_s() -> None:
    short = """
for j in range(0, 70, 1, parallel):
    for k in range(0, 4, 4):
        y[j * 4 + k] = x[require((i[j] >= 0) & (i[j] < 9), i[j]) * 4 + k, f32x4]
"""
    lines = passed(short).splitlines()
    assert "for j_piece in range(0, 64, 32, parallel):" in lines
    assert "        for j in range(j_piece, j_piece + 32, 1, unroll):" in lines
    assert "for j in range(64, 70, 1):" in lines
    assert "piece" not in passed(short.replace("range(0, 4, 4)", "range(0, 40, 4)"))


VECTORS = """
for j in range(0, 72, 8):
    y[j] = gather(x, require((where(i[j, i64x8] < broadcast(0, 8), i[j, i64x8] + broadcast(9, 8), i[j, i64x8]) \
>= broadcast(0, 8)) & (where(i[j, i64x8] < broadcast(0, 8), i[j, i64x8] + broadcast(9, 8), i[j, i64x8]) \
< broadcast(9, 8)), where(i[j, i64x8] < broadcast(0, 8), i[j, i64x8] + broadcast(9, 8), i[j, i64x8])))
"""


def test_a_loop_over_vectors_asks_of_four_before_it_uses_any() -> None:
    lines = passed(VECTORS).splitlines()
    assert lines[0] == "for j in range(0, 64, 32):"
    (asks,) = (n for n, line in enumerate(lines) if line.startswith("    if require(valid"))
    assert sum("gather(" in line for line in lines[:asks]) == 0
    assert [line.split(" = ")[0].strip() for line in lines[asks + 1 : asks + 5]] == [
        "y[j]", "y[j + 8]", "y[j + 16]", "y[j + 24]",
    ]  # fmt: skip
    assert lines[asks + 5] == "for j in range(64, 72, 8):"
    assert sum("require(" in line for line in lines[asks + 5 :]) == 1


def test_vectors_of_one_iteration_are_asked_of_together() -> None:
    """Two of one bound, so that two iterations ask of four, and one of another."""
    at = "i[j{}, i64x8] * broadcast(2, 8)"
    first, second, other = (at.format(by) for by in ("", " + 8", " + 16"))
    required = "require(({0} >= broadcast(0, 8)) & ({0} < broadcast({1}, 8)), {0})"
    made = passed(f"""
for j in range(0, 64, 16):
    y[j] = gather(x, {required.format(first, 9)})
    y[j + 8] = gather(x, {required.format(second, 9)} + {required.format(other, 7)})
""")
    lines = made.splitlines()
    assert lines[0] == "for j in range(0, 64, 32):" and "for" not in "".join(lines[1:])
    (asks,) = (n for n, line in enumerate(lines) if line.startswith("    if require(valid"))
    assert "gather(" not in "".join(lines[:asks])
    assert "".join(lines[:asks]).count("broadcast(9, 8)") == 4 and "".join(lines[:asks]).count("broadcast(7, 8)") == 2
    stored = [line.split(" = ")[0].strip() for line in lines[asks + 1 :]]
    assert stored == ["y[j]", "y[j + 8]", "y[j + 16]", "y[j + 16 + 8]"]


def test_sums_ask_of_four_vectors_before_they_add_any() -> None:
    made = passed("s: f32x8 = broadcast(0.0, 8)" + VECTORS.replace("y[j] = ", "s = s + ")).splitlines()
    assert made[1] == "for j in range(0, 64, 32):"
    (asks,) = (n for n, line in enumerate(made) if line.startswith("    if require(valid"))
    assert sum("gather(" in line for line in made[:asks]) == 0
    assert [line.split(" + ")[0].strip() for line in made[asks + 1 : asks + 5]] == ["s = s"] * 4


def test_lanes_that_go_from_memory_to_addresses_are_asked_of_together_where_an_instruction_gathers() -> None:
    made = passed(LANES, by_lane=False).splitlines()
    assert made[0] == "for j in range(0, 64, 32):" and sum("require(" in line for line in made) == 1


LANES = """
for j in range(0, 64, 8):
    y[j] = gather(x, require((i[j, i64x8] >= broadcast(0, 8)) & (i[j, i64x8] < broadcast(9, 8)), i[j, i64x8]))
"""


@pytest.mark.parametrize(
    "body",
    [
        # too short
        SCALARS.replace("70", "31"),
        # the loop writes what it asks of
        SCALARS.replace("i[j]", "t[j]"),
        # where an index lies is an index
        """
for j in range(0, 70, 1):
    y[require((i[i[j]] >= 0) & (i[i[j]] < 9), i[i[j]])] = x[j]
""",
        # indices lie apart
        SCALARS.replace("i[j]", "i[j * 2]").replace("70", "50"),
        # a loop that is long within
        """
for j in range(0, 70, 1):
    for k in range(0, n, 1):
        y[require((i[j] >= 0) & (i[j] < 9), i[j])] += x[k]
""",
        # lanes that go from memory to addresses
        LANES,
        # what is found is where the next is
        """
for j in range(0, 64, 8):
    first: i64x8 = require((i[j, i64x8] >= broadcast(0, 8)) & (i[j, i64x8] < broadcast(9, 8)), i[j, i64x8])
    next: i64x8 = gather(i, first + broadcast(1, 8))
    y[j] = gather(x, require((next >= broadcast(0, 8)) & (next < broadcast(9, 8)), next) * broadcast(2, 8))
""",
    ],
)  # fmt: skip
def test_what_is_checked_turn_by_turn(body: str) -> None:
    made = passed(body)
    assert "piece" not in made and "valid" not in made and "require(" in made
    assert made == passed(body, 0)
