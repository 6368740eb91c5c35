"""Orders of kernels: right ones only, never worse than as they are, as good as the best where there are few."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from compiler.analysis.kernel_order import Launch, least_peak, ordered, predecessors

NAMES = "abcdefg"
SOME = st.frozensets(st.sampled_from(NAMES), max_size=3)
PROGRAMS = st.lists(
    st.builds(lambda reads, writes: Launch(reads | writes, writes), SOME, SOME.filter(bool)), min_size=1, max_size=6
)
SIZES = st.fixed_dictionaries({name: st.integers(0, 9) for name in NAMES})


def peak(launches: list[Launch], sizes: dict[str, int]) -> int:
    lives = {x: [n for n, launch in enumerate(launches) if x in launch.uses] for x in sizes}
    alive = [sum(sizes[x] for x, at in lives.items() if at and at[0] <= n <= at[-1]) for n in range(len(launches))]
    return max(alive)


@given(PROGRAMS, SIZES)
def test_the_order_is_the_best_of_all_that_keep_what_was_before(launches: list[Launch], sizes: dict[str, int]) -> None:
    needs = predecessors(launches)
    right = [
        order
        for order in permutations(range(len(launches)))
        if all(not needs[n] >> later & 1 for at, n in enumerate(order) for later in order[at:])
    ]
    found = ordered(launches, sizes)
    assert tuple(found) in right
    best = min(peak([launches[n] for n in order], sizes) for order in right)
    assert least_peak(launches, sizes) <= best == peak([launches[n] for n in found], sizes)


def test_what_reads_before_a_write_stays_before_it() -> None:
    read, write = Launch(frozenset("xy"), frozenset("y")), Launch(frozenset("x"), frozenset("x"))
    assert predecessors([read, write, read]) == [0, 1, 3]
    assert predecessors([read, Launch(frozenset("z"), frozenset("z"), last=True)]) == [0, 1]
