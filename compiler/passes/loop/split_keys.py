"""Split softmax-weighted sums of few queries over their keys (Loop IR to Loop IR, for GPUs).

A sum for few queries, as when a model decodes, has work for few blocks, however many keys there are. Parts of the keys
are summed by blocks of their own, each relative to its own maximum; a second kernel combines the parts of each query:

```
before:  o = sum over j of exp(s_j - m) * v_j / l
after:   m_p, l_p, o_p = the same of the keys of part p, without the division
         o = sum over p of exp(m_p - m) * o_p / sum over p of exp(m_p - m) * l_p,  m = max over p of m_p
```
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from compiler.analysis import kernel_names, online_softmax
from compiler.analysis.guarded_factors import unwidened
from compiler.analysis.nests import bound, loop_ranges, wrap
from compiler.analysis.online_softmax import KEY, For, Online, Scores, guarded
from compiler.ir import loop
from compiler.ir.dtype import DType
from compiler.ir.expr import Expr, Load, Var, cast, dim, fresh, identity, op, static, substitute
from compiler.ir.index import simplify
from compiler.ir.statement import Accum, Init, Kernel, Let, Program, Stmt, Store
from compiler.ir.tensor import Tensor, row_major
from compiler.ir.value_ranges import extent_range
from compiler.passes.loop.costs import key_parts
from compiler.passes.loop.fuse_attention import private_temporaries
from compiler.targets.target import Target


def split_keys(program: Program, target: Target) -> Program:
    """Split the keys of every softmax-weighted sum that has too few queries and heads for the multiprocessors."""
    for kernel in program.kernels if not program.sizes else ():
        found = online_softmax.attention(kernel, private_temporaries(program, kernel, [kernel]))
        parts = key_parts(*found, target) if found is not None else 1
        if found is not None and parts > 1:
            program = _replace(program, kernel, _Split(program, kernel, *found, parts))
    return program


def _replace(program: Program, kernel: Kernel, split: _Split) -> Program:
    place, taken = program.kernels.index(kernel), {k.name for k in program.kernels}
    kernels = (*program.kernels[:place], *split.kernels(taken), *program.kernels[place + 1 :])
    temps = tuple(t for t in program.temps if t.name not in split.found.inner)
    return program.replace(kernels=kernels, temps=(*temps, *split.temps.values()))


class _Split:
    """The kernels that a softmax-weighted sum becomes, and the temporaries `temps` that they use, by purpose."""

    def __init__(self, program: Program, kernel: Kernel, found: Online, scores: Scores, parts: int) -> None:
        self.kernel, self.found, self.scores = kernel, found, scores
        self.taken = bound(kernel) | {t.name for t in (*program.inputs, *program.outputs, *program.temps)}
        self.dtype: DType = found.accumulator.dtype
        self.part = loop.For(fresh("part", self.taken), dim(parts), "parallel", ())
        self.keys = dim(static(found.keys) // parts)
        self.query, self.feature, self.depth = map(_parallel, (found.query, found.feature, scores.depth))
        self.rows = [self.query if f is found.query else _parallel(f) for f in found.rows]
        self.each = [*(f for f in self.rows if f is not self.query), self.part, self.query]
        self.temps: dict[str, Tensor] = {}
        for word, own in {
            "logits": (self.keys,), "weights": (self.keys,), "sums": (self.feature.extent,), "maximum": (), "total": ()
        }.items():  # fmt: skip
            shape = (*(f.extent for f in self.each), *own)
            name = fresh(f"{found.after[0].buffer}_{word}", self.taken)
            self.temps[word] = Tensor(name, self.dtype, shape, row_major(shape))

    def kernels(self, taken: set[str]) -> list[Kernel]:
        """The kernels in order, with names that are not taken."""
        before, after = self.queries(), self.combined()

        def named(word: str, kernel: Kernel) -> Kernel:
            return kernel.replace(name=kernel_names.free(f"{word}_{kernel.name}", taken))

        first = [named("queries", before)] if before is not None else []
        return [*first, self.partial(), named("combine", after)]

    def queries(self) -> Kernel | None:
        """A kernel that computes the queries, once for all parts; None if they are read as they are."""
        left = unwidened(self.scores.left)
        if isinstance(left, Load):
            return None
        over = [*(f for f in self.each if f is not self.part), self.depth]
        shape = tuple(f.extent for f in over)
        name = fresh(f"{self.found.after[0].buffer}_queries", self.taken)
        made = Tensor(name, left.dtype, shape, row_major(shape))
        self.temps["queries"] = made
        place = tuple(Var(f.var) for f in over)
        load = cast(Load(made.name, place, made.dtype), self.scores.left.dtype)
        self.scores = replace(self.scores, left=load)
        return self.with_params(wrap(over, (Store(made.name, place, left),)))

    def load(self, word: str, *more: Expr, part: str = "") -> Load:
        """The element of a temporary for the head, the part and the query at hand."""
        places = (Var(part if part and f is self.part else f.var) for f in self.each)
        return Load(self.temps[word].name, (*places, *more), self.dtype)

    def store(self, word: str, value: Expr, *more: Expr) -> Stmt:
        return Store(self.temps[word].name, (*(Var(f.var) for f in self.each), *more), value)

    def over_keys(self, kind: str, body: Callable[[Var], tuple[Stmt, ...]]) -> loop.For:
        """A loop over the keys of a part."""
        key = fresh(self.found.key, self.taken)
        ranges = loop_ranges([*self.each, self.feature, self.depth]) | {key: extent_range(self.keys)}
        every = Var(self.part.var) * self.keys + Var(key)
        return loop.For(key, self.keys, kind, simplify(substitute(body(Var(key)), {KEY: every}), ranges))

    def partial(self) -> Kernel:
        """The kernel that sums each part of the keys relative to the part's maximum."""
        f, s = self.found, self.scores
        total, result = f.total.name, f.accumulator.name

        def logits(key: Var) -> tuple[Stmt, ...]:
            products = self.depth.replace(kind="reduce", body=(Accum(s.name.name, "sum", s.left * s.right),))
            return Init(s.name.name, identity("sum", s.name.dtype)), products, self.store("logits", f.score, key)

        def weights(key: Var) -> tuple[Stmt, ...]:
            weight = op("exp", self.load("logits", key) - guarded(f.maximum))
            return self.store("weights", weight, key), Accum(total, "sum", weight)

        def weighted(key: Var) -> tuple[Stmt, ...]:
            weight = cast(cast(self.load("weights", key), f.weight), self.dtype)
            return (Accum(result, "sum", weight * f.value),)

        body = (
            self.over_keys("parallel", logits),
            Init(f.maximum.name, identity("max", self.dtype)),
            self.over_keys("reduce", lambda key: (Accum(f.maximum.name, "max", self.load("logits", key)),)),
            Init(total, identity("sum", self.dtype)),
            self.over_keys("reduce", weights),
            self.store("maximum", f.maximum),
            self.store("total", f.total),
            self.feature.replace(
                body=(
                    Init(result, identity("sum", self.dtype)),
                    self.over_keys("reduce", weighted),
                    self.store("sums", f.accumulator, Var(f.feature.var)),
                )
            ),
        )
        return self.with_params(wrap(self.each, body))

    def combined(self) -> Kernel:
        """The kernel that combines the parts of each query."""
        f = self.found
        first, second = (fresh(self.part.var, self.taken) for _ in range(2))
        weight = Var(fresh(f"{self.part.var}_weight", self.taken), self.dtype)
        total = self.load("total", part=second)
        sums = self.load("sums", Var(f.feature.var), part=second)
        maximum = Accum(f.maximum.name, "max", self.load("maximum", part=first))
        body = (
            Init(f.maximum.name, identity("max", self.dtype)),
            self.part.replace(var=first, kind="reduce", body=(maximum,)),
            Init(f.total.name, identity("sum", self.dtype)),
            Init(f.accumulator.name, identity("sum", self.dtype)),
            self.part.replace(
                var=second,
                kind="reduce",
                body=(
                    Let(weight.name, op("exp", self.load("maximum", part=second) - guarded(f.maximum))),
                    Accum(f.total.name, "sum", weight * total),
                    Accum(f.accumulator.name, "sum", weight * sums),
                ),
            ),
            *substitute(f.after, {f.accumulator: f.last}),
        )
        return self.with_params(wrap([*self.rows, self.feature], body))

    def with_params(self, body: tuple[Stmt, ...]) -> Kernel:
        """The kernel of this body with the buffers that it uses as parameters."""
        accesses = [n for s in body for n in s.walk() if isinstance(n, Load | Store)]
        used, stored = ({n.buffer for n in accesses if isinstance(n, kind)} for kind in (Load | Store, Store))
        params = [p for p in (*self.kernel.params, *self.temps.values()) if p.name in used]
        ordered = [p for p in params if p.name not in stored] + [p for p in params if p.name in stored]
        writes = tuple(p.name for p in ordered if p.name in stored)
        return self.kernel.replace(params=tuple(ordered), writes=writes, body=body)


def _parallel(f: For) -> loop.For:
    return loop.For(f.var, f.extent, "parallel", ())
