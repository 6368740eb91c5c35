"""Set the width, the prefetch size and the bounds predicates of copies by threads.

```
copy(a[0: +16], x[i * 16: +16], "cp.async")
```
becomes, of 100 elements,
```
copy(a[0: +16], x[i * 16: +16].within(0), "cp.async", width=4, prefetch=128)
```
"""

from __future__ import annotations

from collections.abc import Iterable

from compiler.analysis import copies
from compiler.analysis.copies import Place
from compiler.analysis.predicates import unasked
from compiler.ir import tile
from compiler.ir.launches import block_size
from compiler.ir.statement import Kernel, Program
from compiler.schedule.steps import Cache, Schedule, Stage, Step, Writeback

ROUNDS_WRITTEN_OUT = 32  # of a copy; beyond that, one round at a time


def vectorize(program: Program) -> Program:
    """Set widths; a copy that has one keeps it, and its prefetch. Raises ValueError if threads cannot make it so."""
    made = program.replace(kernels=tuple(copies.changed(kernel, _with_width) for kernel in program.kernels))
    verify(made)
    return made


def _with_width(s: tile.Copy, place: Place) -> tile.Copy:
    target, source = (x.replace(within=copies.leaving(x, place)) for x in (s.target, s.source))
    chosen = {} if s.width else {"width": copies.widest(s, place), "prefetch": s.prefetch or copies.line(s, place)}
    return s.replace(target=target, source=source, **chosen)


def verify(program: Program) -> None:
    """Raise ValueError for accesses that are too wide or may leave their buffer.

    These are copies wider than threads can make them, or without a predicate on an axis along which they may leave
    their buffer, and loads or stores that certainly leave theirs.
    """
    for kernel in program.kernels:
        for problem in unasked(kernel):
            raise ValueError(f"kernel {kernel.name}: {problem}")
        for s, place in copies.copies(kernel):
            problem = copies.width_problem(s, place) or copies.prefetch_problem(s, place)
            if problem or not s.width:
                raise ValueError(f"kernel {kernel.name}: {problem or 'no copy says how wide it is: run `vectorize`'}")
            for x in (s.target, s.source):
                unchecked = set(copies.leaving(x, place)) - set(x.within)
                if unchecked:
                    raise ValueError(
                        f"kernel {kernel.name}: a copy of {s.source.buffer} to {s.target.buffer} may leave {x.buffer} "
                        f"along axes {sorted(unchecked)}, and does not ask"
                    )


def with_widths(schedule: Schedule, launches: Iterable[Kernel]) -> Schedule:
    """The schedule that made these launches, with copies by threads as wide as is legal.

    Copies of many rounds are made one round at a time. Asynchronous ones prefetch a cache line where they can.
    """
    fits: dict[str, int] = {}
    rounds: dict[str, int] = {}
    lines: dict[str, int] = {}
    for kernel in launches:
        threads = block_size(kernel.body)
        for s, place in copies.copies(kernel):
            every = copies.rounds(s, place, threads)
            for name in (s.target.buffer, s.source.buffer):
                fits[name] = min(fits.get(name, copies.WIDEST), copies.widest(s, place))
                rounds[name] = max(rounds.get(name, 1), every)
            lines[s.target.buffer] = min(lines.get(s.target.buffer, copies.LINE), copies.line(s, place))

    def set_width(step: Step) -> Step:
        match step:
            case Stage() | Cache() | Writeback() if step.how and step.tile in fits:
                one_by_one = int(rounds[step.tile] > ROUNDS_WRITTEN_OUT)
                step = step.replace(width=step.width or fits[step.tile], rounds=step.rounds or one_by_one)
                return step if isinstance(step, Writeback) else step.replace(prefetch=step.prefetch or lines[step.tile])
        return step

    return Schedule(tuple(map(set_width, schedule.steps))) if fits else schedule
