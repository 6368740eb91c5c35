"""The memory plan: what is alive together lies apart, aligned, and close to the smallest arena that can exist."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.runtime.memory import ALIGNMENT, Arena, Lifetime, peak_bytes, plan

lifetimes = st.lists(
    st.builds(
        lambda size, first, length: Lifetime(size, first, first + length),
        st.integers(0, 10_000),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=40,
)


def peak(temporaries: list[Lifetime]) -> int:
    """The most bytes alive at one step: no arena can be smaller."""
    sizes = [(t, -(-t.size // ALIGNMENT) * ALIGNMENT) for t in temporaries]
    return max((sum(n for t, n in sizes if t.first <= x.first <= t.last) for x in temporaries), default=0)


@given(lifetimes)
def test_live_buffers_never_share_bytes(temporaries: list[Lifetime]) -> None:
    arena = plan(temporaries)
    for i, a in enumerate(temporaries):
        assert arena.offsets[i] % ALIGNMENT == 0 and 0 <= arena.offsets[i] <= arena.offsets[i] + a.size <= arena.size
        for j, b in enumerate(temporaries[:i]):
            alive_together = a.first <= b.last and b.first <= a.last
            apart = (
                arena.offsets[i] + a.size <= arena.offsets[j]
                or arena.offsets[j] + b.size <= arena.offsets[i]
                or not (a.size and b.size)
            )
            assert apart or not alive_together, f"{a} and {b} overlap in {arena}"


@given(lifetimes)
def test_the_arena_lies_between_the_peak_and_the_sum(temporaries: list[Lifetime]) -> None:
    total = sum(-(-t.size // ALIGNMENT) * ALIGNMENT for t in temporaries)
    assert peak_bytes(temporaries) == peak(temporaries) <= plan(temporaries).size <= total


def test_a_chain_needs_two_places() -> None:
    chain = [Lifetime(1 << 20, i, i + 1) for i in range(10)]
    assert plan(chain).size == 2 << 20 == peak(chain)


def test_a_hole_is_used_again() -> None:
    arena = plan([Lifetime(640, 0, 9), Lifetime(256, 0, 1), Lifetime(128, 0, 9), Lifetime(64, 5, 9)])
    assert arena.offsets == (0, 640, 896, 640)


def test_where_the_largest_first_leaves_holes_another_order_is_taken() -> None:
    """What a bottleneck of ResNet-50 has on a GPU."""
    lives = [(8, 0, 1), (2, 3, 4), (8, 4, 6), (3, 2, 3), (8, 1, 3), (4, 5, 6)]
    temporaries = [Lifetime(size * ALIGNMENT, first, last) for size, first, last in lives]
    assert plan(temporaries).size == peak(temporaries) == 16 * ALIGNMENT


def test_nothing_and_empty_buffers() -> None:
    assert plan([]) == Arena((), 0) and peak([]) == 0
    assert plan([Lifetime(0, 0, 0), Lifetime(1, 0, 0)]).size == ALIGNMENT


@pytest.mark.parametrize("wrong", [Lifetime(-1, 0, 0), Lifetime(1, 2, 1)])
def test_what_is_no_lifetime_is_refused(wrong: Lifetime) -> None:
    with pytest.raises(ValueError, match="not a lifetime"):
        plan([wrong])
