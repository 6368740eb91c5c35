"""Tile IR in; the same out with how wide copies by threads are, and along which axes they ask what is in its buffer.

```
copy(a[0: +16], x[i * 16: +16], "cp.async")
```
becomes, of 100 elements,
```
copy(a[0: +16], x[i * 16: +16].within(0), "cp.async", width=4)
```
"""

from __future__ import annotations

from compiler.analysis import copies
from compiler.analysis.copies import Place
from compiler.analysis.predicates import unasked
from compiler.ir import tile
from compiler.ir.statement import Kernel, Program
from compiler.schedule.steps import Cache, Schedule, Stage, Step, Writeback


def vectorize(program: Program) -> Program:
    """A copy that says a width keeps it; raises ValueError where threads cannot make it so."""
    made = program.replace(kernels=tuple(copies.changed(kernel, _said) for kernel in program.kernels))
    verify(made)
    return made


def _said(s: tile.Copy, place: Place) -> tile.Copy:
    target, source = (x.replace(within=copies.leaving(x, place)) for x in (s.target, s.source))
    return s.replace(target=target, source=source, width=s.width or copies.widest(s, place))


def verify(program: Program) -> None:
    """Each copy is as wide as threads can make it or less, and asks along every axis that may leave its buffer; no load
    or store leaves its buffer for certain."""
    for kernel in program.kernels:
        for problem in unasked(kernel):
            raise ValueError(f"kernel {kernel.name}: {problem}")
        for s, place in copies.copies(kernel):
            problem = copies.width_problem(s, place)
            if problem or not s.width:
                raise ValueError(f"kernel {kernel.name}: {problem or 'no copy says how wide it is: run `vectorize`'}")
            for x in (s.target, s.source):
                open_ = set(copies.leaving(x, place)) - set(x.within)
                if open_:
                    raise ValueError(
                        f"kernel {kernel.name}: a copy of {s.source.buffer} to {s.target.buffer} may leave {x.buffer} "
                        f"along axes {sorted(open_)}, and does not ask"
                    )


def with_widths(schedule: Schedule, kernel: Kernel) -> Schedule:
    """The steps that make copies by threads, of a schedule that made this kernel, with the widest that are legal."""
    fits: dict[str, int] = {}
    for s, place in copies.copies(kernel):
        for name in (s.target.buffer, s.source.buffer):
            fits[name] = min(fits.get(name, copies.WIDEST), copies.widest(s, place))

    def wide(step: Step) -> Step:
        match step:
            case Stage() | Cache() | Writeback() if step.how and not step.width and step.tile in fits:
                return step.replace(width=fits[step.tile])
        return step

    return Schedule(tuple(map(wide, schedule.steps))) if fits else schedule
