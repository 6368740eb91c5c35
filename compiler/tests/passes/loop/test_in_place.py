"""Which outputs are made in the memory of an input."""

import pytest

from compiler.ir.stages import IRS
from compiler.passes.loop.in_place import in_place

TEXT = """
def f(x: f32[8, {row}], held: f32[8: {apart}, {row}: 1], *, y: f32[8, {row}]):
    with kernel("y", [x, y], writes=[y]):
        for i in parallel(8):
            for j in parallel({row}):
                y[i, j] = x[i, j] + 1.0
"""


@pytest.mark.parametrize(("row", "apart", "placed"), [(64, 64, True), (64, 68, True), (65, 68, False), (65, 65, True)])
def test_rows_that_end_amid_16_bytes_of_others_are_not_written_in_place(row: int, apart: int, placed: bool) -> None:
    """A bulk store of a GPU writes all 16 bytes, of which the rest is the caller's."""
    made = in_place(IRS["loop"].parse(TEXT.format(row=row, apart=apart)), {"y": "held"})
    assert bool(made.outputs) is not placed
    assert ("held" in made.kernels[0].writes) is placed


STEP = """
def f(p: f32[8, 4], g: f32[8, 4], *, y: f32[8, 4], z: f32[8, 4]):
    with kernel("y", [p, g, y, z], writes=[y, z]):
        for i in parallel(8):
            for j in parallel(4):
                {body}
"""
UPDATE = ("a = p[i, j] - g[i, j]", "z[i, j] = p[i, j] * 2.0", "y[i, j] = a")


@pytest.mark.parametrize(
    ("body", "placed"),
    [
        (UPDATE, True),
        ((UPDATE[0], UPDATE[2], UPDATE[1]), False),  # read after the store
        (("y[i, j] = p[i, 3 - j] - g[i, j]", "z[i, j] = 1.0"), False),  # read by another iteration
        (("y[0, j] = p[0, j]", "z[i, j] = 1.0"), False),  # stored by several iterations
        (("z[i, j] = require(g[i, j] > 0.0, g[i, j])", "y[i, j] = p[i, j] * 2.0"), False),  # a call may fail
        (("s: f32 = 0.0", "for r in reduce(4):", "    s += p[i, r]", "y[i, j] = p[i, j] * s", "z[i, j] = s"), False),
    ],
)
def test_elements_are_replaced_where_only_they_are_read(body: tuple[str, ...], placed: bool) -> None:
    text = STEP.format(body="\n                ".join(body))
    made = in_place(IRS["loop"].parse(text), {"y": "p"})
    assert ("p" in made.kernels[0].writes) is placed
    assert ([t.name for t in made.outputs] == ["z"]) is placed
    assert len({p.name for p in made.kernels[0].params}) == len(made.kernels[0].params)


def test_checks_that_report_later_let_elements_be_replaced() -> None:
    body = ("z[i, j] = require(g[i, j] > 0.0, g[i, j])", "y[i, j] = p[i, j] * 2.0")
    program = IRS["loop"].parse(STEP.format(body="\n                ".join(body)))
    assert "p" not in in_place(program, {"y": "p"}).kernels[0].writes
    assert "p" in in_place(program, {"y": "p"}, checks_report_later=True).kernels[0].writes


KERNELS = {
    "writer": """
    with kernel("writer", [p, y{more_params}], writes=[y{more_writes}]):
        for i in parallel(8):
            {more_body}y[i] = p[i] + 1.0""",
    "reader": """
    with kernel("reader", [p, z], writes=[z]):
        for i in parallel(8):
            z[i] = p[7 - i]""",
    "user": """
    with kernel("user", [p, t, z], writes=[z]):
        for i in parallel(8):
            z[i] = p[7 - i] + t[i]""",
    "check": """
    with kernel("check", [q, z], writes=[z]):
        for i in parallel(8):
            z[i] = require(q[i] > 0.0, q[i])""",
    "changer": """
    with kernel("changer", [p, q], writes=[q]):
        for i in parallel(8):
            q[i] = p[7 - i]""",
}


@pytest.mark.parametrize(
    ("order", "names", "reads_q", "writes_t"),
    [
        ("writer, reader", "reader, writer", False, False),
        ("writer, check", "check, writer", False, False),
        ("writer, reader, check", "reader, check, writer", False, False),
        ("writer, user", "", False, True),
        ("writer, changer", "changer, writer", False, False),
        ("writer, changer", "", True, False),
    ],
)
def test_a_kernel_follows_those_that_read_what_it_replaces(
    order: str, names: str, reads_q: bool, writes_t: bool
) -> None:
    """... unless those read what it makes, or write what it reads."""
    more = {
        "more_params": ", t" * writes_t + ", q" * reads_q,
        "more_writes": ", t" * writes_t,
        "more_body": "t[i] = p[i]\n            " if writes_t else "t0 = q[i]\n            " if reads_q else "",
    }
    outputs = "y: f32[8], z: f32[8]" if "changer" not in order else "y: f32[8]"
    temps = "\n    t: f32[8]" if writes_t else ""
    body = "".join(KERNELS[name].format(**more) if name == "writer" else KERNELS[name] for name in order.split(", "))
    program = IRS["loop"].parse(f"\ndef f(p: f32[8], q: f32[8], *, {outputs}):{temps}{body}\n")
    made = in_place(program, {"y": "p"})
    assert ("y" not in [t.name for t in made.outputs]) == bool(names)
    assert [k.name for k in made.kernels] == (names or order).split(", ")
