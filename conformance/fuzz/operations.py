"""What may stand in a random program: a row for each call, whose text a `Drawing` fills with values of the program.

A row says what its call does to exactness. `SELECT` moves or chooses values; `WHOLE` is exact on small whole numbers;
`ROUND` rounds; `JUMP` is not continuous, and drawn only where its operands are exactly what eager has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from conformance.fuzz.drawing import Drawing, NotFitting

SELECT, WHOLE, ROUND, JUMP = "select", "whole", "round", "jump"


@dataclass(frozen=True)
class Row:
    """`changes`: the text is a statement that writes to its first operand."""

    name: str
    exactness: str
    text: Callable[[Drawing], str]
    weight: float = 1.0
    changes: bool = False


def _rows(exactness: str, texts: dict[str, Callable[[Drawing], str]], weight: float = 1.0) -> tuple[Row, ...]:
    return tuple(Row(name, exactness, text, weight) for name, text in texts.items())


def _of_real(exactness: str, *calls: str) -> tuple[Row, ...]:
    return tuple(Row(call, exactness, lambda d, call=call: call.format(d.real())) for call in calls)  # type: ignore[misc]


def _of_number(exactness: str, *calls: str) -> tuple[Row, ...]:
    return tuple(Row(call, exactness, lambda d, call=call: call.format(d.number())) for call in calls)  # type: ignore[misc]


def _slice(d: Drawing, axis: int) -> str:
    n = d.size(axis)
    start, step = d.among(0, 0, 1, 2, n // 2), d.among(1, 1, 1, 2, 3)
    stop = d.among("", "", str(max(start + 1, n - 1)), "-1" if n - 1 > start else "")
    return f"{start or ''}:{stop}" + (f":{step}" if step > 1 else "")


def _slices(d: Drawing, x: str) -> str:
    words = [d.among(":", _slice(d, k)) for k in range(len(d.shape))]
    return f"{x}[{', '.join(words)}]"


def _positive_axis(d: Drawing) -> int:
    return d.axis() % max(len(d.shape), 1)


def _axes(d: Drawing) -> str:
    rank = len(d.shape)
    order = list(range(rank))
    d.rng.shuffle(order)
    return ", ".join(map(str, order))


def _reshaped(d: Drawing, x: str) -> str:
    shape = d.shape
    if not shape:
        return f"{x}.reshape(1)"
    joined = d.up_to(0, len(shape) - 1)
    words = [d.spelled(k) for k in range(len(shape))]
    n = shape[joined]
    factor = d.among(2, 3, 4, 8)
    if d.chance(0.5) and n % factor == 0 and n > factor:
        return f"{x}.reshape({', '.join([*words[:joined], str(factor), '-1', *words[joined + 1 :]])})"
    if len(shape) < 2:
        return f"{x}.reshape(-1, 1)"
    joined = min(joined, len(shape) - 2)
    return f"{x}.reshape({', '.join([*words[:joined], '-1', *words[joined + 2 :]])})"


def _expanded(d: Drawing, x: str) -> str:
    words = [str(d.among(2, 3, 8)) if n == 1 else "-1" for n in d.shape]
    lead = [str(d.among(1, 2, 3, 7))] if d.chance(0.5) else []
    return f"{x}.expand({', '.join([*lead, *words])})"


def _padded(d: Drawing, x: str) -> str:
    rank = len(d.shape)
    mode = d.among("constant", "constant", "reflect", "replicate", "circular")
    axes = d.up_to(1, min(rank, 2)) if mode == "constant" else 1
    room = min(d.shape[rank - axes :]) if mode != "constant" else 4
    most = max(0, min(3, room - 1))
    low = -1 if mode == "constant" and min(d.shape[rank - axes :]) > 3 else 0
    amounts = ", ".join(str(d.up_to(low, most)) for _ in range(2 * axes))
    if mode == "constant":
        return f"F.pad({x}, ({amounts}), value={d.among(0, 0, 1, -2)})"
    return f"F.pad({x}, ({amounts}), mode='{mode}')"


def _matmul(d: Drawing, call: str = "torch.matmul({}, {})") -> str:
    x = d.number(2)
    k, n = d.size(-1), d.among(1, 3, 7, 8, 16, 17, 33)
    y = d.matching(lambda t: t.dim() == 2 and t.shape[0] == k, k, n)
    return call.format(x, y) if d.chance(0.7) else _swapped(d, x)


def _swapped(d: Drawing, x: str) -> str:
    k, n = d.size(-2), d.among(1, 3, 7, 8, 16, 17, 33)
    d.operands[1:] = []
    d.new[:] = [pair for pair in d.new if pair[1] is d.first]
    return f"{d.matching(lambda t: t.dim() == 2 and t.shape[1] == k, n, k)} @ {x}"


def _bmm(d: Drawing) -> str:
    x = d.number(3)
    shape = d.shape
    if len(shape) != 3:
        raise NotFitting
    n = d.among(1, 4, 7, 8, 9)
    y = d.matching(lambda t: t.dim() == 3 and t.shape[:2] == (shape[0], shape[2]), shape[0], shape[2], n)
    return f"torch.bmm({x}, {y})"


def _linear(d: Drawing) -> str:
    x = d.real(1)
    n = d.among(1, 3, 8, 16, 17)
    w = d.fresh(n, d.size(-1))
    return f"F.linear({x}, {w}, {d.fresh(n)})" if d.chance(0.5) else f"F.linear({x}, {w})"


def _attention(d: Drawing) -> str:
    q = d.real(2)
    shape = d.shape
    length = d.among(1, 4, 8, 17)
    k = d.fresh(*shape[:-2], length, shape[-1])
    v = k if d.chance(0.3) else d.fresh(*shape[:-2], length, shape[-1])
    causal = ", is_causal=True" if length == shape[-2] and d.chance(0.5) else ""
    return f"F.scaled_dot_product_attention({q}, {k}, {v}{causal})"


def _conv(d: Drawing, rank: int) -> str:
    x = d.real(rank + 2, most=rank + 2)
    channels, room = d.size(1), min(d.shape[2:])
    kernel = d.up_to(1, min(3, room))
    groups = d.among(1, 1, channels)
    out = groups * d.among(1, 2, 3)
    w = d.fresh(out, channels // groups, *[kernel] * rank)
    options = f", stride={d.among(1, 1, 2)}, padding={d.up_to(0, kernel - 1)}" + (
        f", groups={groups}" if groups > 1 else ""
    )
    return f"F.conv{rank}d({x}, {w}{options})"


def _conv_transpose(d: Drawing) -> str:
    x = d.real(4, most=4)
    kernel = d.up_to(1, 3)
    w = d.fresh(d.size(1), d.among(1, 2, 3), kernel, kernel)
    return f"F.conv_transpose2d({x}, {w}, stride={d.among(1, 2)})"


def _pool(d: Drawing, kind: str) -> str:
    x = d.real(3, most=4)
    rank = len(d.shape) - 2
    kernel = d.up_to(1, min(3, *d.shape[2:]))
    options = f"{kernel}, stride={d.among(1, 2)}, padding={d.up_to(0, kernel // 2)}, ceil_mode={d.among(True, False)}"
    return f"F.{kind}_pool{rank}d({x}, {options})"


def _resized(d: Drawing) -> str:
    x = d.real(4, most=4)
    mode = d.among("nearest", "bilinear")
    return f"F.interpolate({x}, scale_factor={d.among(2, 3)}, mode='{mode}')"


def _cat(d: Drawing, call: str) -> str:
    x = d.tensor(1)
    axis = d.axis()
    parts = [x, d.among(x, d.same()), *([x] if d.chance(0.2) else [])]
    return f"torch.{call}([{', '.join(parts)}], {axis})"


def _gather(d: Drawing) -> str:
    x = d.tensor(1)
    axis = _positive_axis(d)
    shape = list(d.shape)
    below, shape[axis] = shape[axis], d.among(1, 3, 8, shape[axis])
    return f"torch.gather({x}, {axis}, {d.indices(below, *shape)})"


def _index_select(d: Drawing) -> str:
    x = d.tensor(1)
    axis = d.axis()
    return f"torch.index_select({x}, {axis}, {d.indices(d.size(axis), d.among(1, 5, 8))})"


def _indexed(d: Drawing) -> str:
    x = d.tensor(1)
    n = d.among(1, 4, 8)
    first = d.indices(d.size(0), n)
    if len(d.shape) > 1 and d.chance(0.5):
        second = d.indices(d.size(1), n)
        return d.among(f"{x}[{first}, {second}]", f"{x}[:, {second}]")
    return f"{x}[{first}]"


def _scatter(d: Drawing, call: str, unique: bool) -> str:
    x = d.number(1) if call == "scatter_add" else d.tensor(1)
    axis = _positive_axis(d)
    shape = d.shape
    index = d.indices(shape[axis], *shape, unique_along=axis if unique else None)
    return f"torch.{call}({x}, {axis}, {index}, {d.fresh(*shape)})"


def _index_add(d: Drawing) -> str:
    x = d.number(1)
    axis = _positive_axis(d)
    shape = list(d.shape)
    below, shape[axis] = shape[axis], d.among(1, 3, 8)
    return f"torch.index_add({x}, {axis}, {d.indices(below, shape[axis])}, {d.fresh(*shape)})"


def _embedding(d: Drawing) -> str:
    x = d.real(2, most=2)
    return f"F.embedding({d.indices(d.size(0), *d.among((3,), (2, 5), (8,)))}, {x})"


def _layer_norm(d: Drawing, call: str) -> str:
    x = d.real(1)
    n = d.size(-1)
    if n < 2:
        raise NotFitting
    weight = f", {d.fresh(n)}" if d.chance(0.5) else ""
    return f"F.{call}({x}, ({d.spelled(len(d.shape) - 1)},){weight})"


def _batch_norm(d: Drawing) -> str:
    x = d.real(2)
    if d.first.eager.numel() < 4 * d.size(1):
        raise NotFitting
    return f"F.batch_norm({x}, None, None, training=True)"


def _reduction(call: str) -> Callable[[Drawing], str]:
    def text(d: Drawing) -> str:
        x = d.real()
        if not d.shape or d.chance(0.15):
            return f"{x}.{call}()"
        return f"{x}.{call}({d.axis()}{d.among('', ', keepdim=True')})"

    return text


def _reduction_of_number(call: str) -> Callable[[Drawing], str]:
    def text(d: Drawing) -> str:
        x = d.number()
        if not d.shape or d.chance(0.15):
            return f"{x}.{call}()"
        return f"{x}.{call}({d.axis()}{d.among('', ', keepdim=True')})"

    return text


def _along(call: str, kind: str = "real") -> Callable[[Drawing], str]:
    return lambda d: call.format(getattr(d, kind)(1), d.axis())


def _binary(call: str, kind: str = "number") -> Callable[[Drawing], str]:
    return lambda d: call.format(getattr(d, kind)(), d.like())


def _cast(d: Drawing, *types: str) -> str:
    return f"{d.tensor()}.to(torch.{d.among(*types)})"


VIEWS = _rows(SELECT, {
    "transpose": lambda d: f"{d.tensor(2)}.transpose({d.axis()}, {d.axis()})",
    "t": lambda d: f"{d.tensor(2)}.mT",
    "permute": lambda d: f"{d.tensor(2)}.permute({_axes(d)})",
    "reshape": lambda d: _reshaped(d, d.tensor()),
    "flatten": lambda d: f"{d.tensor()}.flatten()",
    "slice": lambda d: _slices(d, d.tensor(1)),
    "select": lambda d: f"{d.tensor(1)}.select({(a := d.axis())}, {d.up_to(0, d.size(a) - 1)})",
    "narrow": lambda d: f"{d.tensor(1)}.narrow({(a := d.axis())}, {(s := d.up_to(0, d.size(a) - 1))}, "
                        f"{d.up_to(1, d.size(a) - s)})",
    "unsqueeze": lambda d: f"{d.tensor()}.unsqueeze({d.up_to(-1, len(d.shape))})",
    "squeeze": lambda d: f"{d.tensor()}.squeeze()",
    "expand": lambda d: _expanded(d, d.tensor(1)),
    "diagonal": lambda d: f"{d.tensor(2)}.diagonal({d.among(0, 0, 1, -1)})",
    "unfold": lambda d: f"{d.tensor(1)}.unfold({(a := d.axis())}, {d.up_to(1, min(4, d.size(a)))}, {d.among(1, 2)})",
    "chunk": lambda d: f"{d.tensor(1)}.chunk(2, {d.axis()})",
    "split": lambda d: f"{d.tensor(1)}.split({(a := d.axis()) and d.up_to(max(1, d.size(a) // 3), d.size(a))}, {a})",
    "unbind": lambda d: f"{d.tensor(1)}.unbind({d.axis()})[-1]",
    "movedim": lambda d: f"{d.tensor(2)}.movedim({d.axis()}, {d.axis()})",
    "detach": lambda d: f"{d.tensor()}.detach()",
}, 1.2)  # fmt: skip
MOVES = _rows(SELECT, {
    "contiguous": lambda d: f"{d.tensor(2)}.mT.contiguous()",
    "clone": lambda d: f"{d.tensor()}.clone()",
    "flip": lambda d: f"{d.tensor(1)}.flip({d.axis()})",
    "roll": lambda d: f"{d.tensor(1)}.roll({d.among(1, -1, 2, 5)}, {d.axis()})",
    "rot90": lambda d: f"torch.rot90({d.tensor(2)})",
    "tril": lambda d: f"torch.{d.among('tril', 'triu')}({d.tensor(2)}, {d.among(0, 1, -1, 2)})",
    "cat": lambda d: _cat(d, "cat"),
    "stack": lambda d: _cat(d, "stack"),
    "repeat": lambda d: f"{d.tensor(1)}.repeat({', '.join(str(d.among(1, 2)) for _ in d.shape)})",
    "repeat_interleave": lambda d: f"{d.tensor(1)}.repeat_interleave(2, {d.axis()})",
    "pad": lambda d: _padded(d, d.number(1)),
    "gather": _gather, "index_select": _index_select, "index": _indexed, "embedding": _embedding,
    "scatter": lambda d: _scatter(d, "scatter", True),
    "diag_embed": lambda d: f"torch.diag_embed({d.tensor(1)})",
    "where": lambda d: f"torch.where({(x := d.number()) and d.mask()}, {x}, {d.like()})",
    "masked_fill": lambda d: f"{d.number()}.masked_fill({d.mask()}, {d.among(0, 1, -2)})",
    "zeros_like": lambda d: f"torch.{d.among('zeros_like', 'ones_like')}({d.tensor()})",
    "arange": lambda d: f"torch.arange({(x := d.tensor(1)) and d.spelled(0)}, device={x}.device)",
    "max_pool": lambda d: _pool(d, "max"),
})  # fmt: skip
CHOICES = (
    *_of_number(SELECT, "torch.relu({})", "torch.abs({})", "-{}", "{}.clamp(-1, 2)", "{}.clamp(min=0)"),
    *_rows(SELECT, {
        "maximum": _binary("torch.maximum({}, {})"), "minimum": _binary("torch.minimum({}, {})"),
        "amax": _reduction_of_number("amax"), "amin": _reduction_of_number("amin"),
        "max": _along("{}.max({}).values", "number"), "sort": _along("{}.sort({}).values", "number"),
        "cummax": _along("{}.cummax({}).values", "number"),
        "topk": lambda d: f"{d.number(1)}.topk({(a := d.axis()) and d.up_to(1, d.size(a))}, {a}).values",
    }),
)  # fmt: skip
WHOLES = (
    *_rows(WHOLE, {
        "add": _binary("{} + {}"), "sub": _binary("{} - {}"), "mul": _binary("{} * {}"),
        "radd": lambda d: f"{d.number()} + {d.among(1, 2, -3)}",
        "rmul": lambda d: f"{d.number()} * {d.among(2, -1, 3)}",
        "rsub": lambda d: f"{d.among(1, 2)} - {d.number()}", "add.alpha": _binary("torch.add({}, {}, alpha=2)"),
    }, 2.0),
    *_rows(WHOLE, {
        "sum": _reduction_of_number("sum"), "cumsum": _along("{}.cumsum({})", "number"), "matmul": _matmul, "bmm": _bmm,
        "linear": _linear, "conv1d": lambda d: _conv(d, 1), "conv2d": lambda d: _conv(d, 2),
        "conv_transpose2d": _conv_transpose, "scatter_add": lambda d: _scatter(d, "scatter_add", False),
        "index_add": _index_add, "square": lambda d: f"{d.number()}.square()",
        "count": lambda d: f"{d.boolean()}.sum()",
        "outer": lambda d: f"{(x := d.number(1))}.unsqueeze(-1) * {x}.unsqueeze(-2)",
        "einsum": lambda d: _matmul(d, "torch.einsum('...ij,jk->...ki', {}, {})"),
        "addcmul": lambda d: f"torch.addcmul({d.number()}, {d.same()}, {d.same()})",
    }),
)  # fmt: skip
ROUNDS = (
    *_of_real(
        ROUND, "torch.exp({})", "torch.log({}.abs() + 1)", "torch.sqrt({}.abs() + 0.5)", "torch.rsqrt({}.abs() + 1)",
        "torch.sin({})", "torch.cos({})", "torch.tanh({})", "torch.sigmoid({})", "F.gelu({})", "F.silu({})",
        "F.softplus({})", "F.elu({})", "torch.erf({})", "torch.reciprocal({}.abs() + 1)", "F.leaky_relu({}, 0.1)",
        "F.hardswish({})", "F.mish({})", "{} / 3", "{} * 0.3", "{} + 0.1", "torch.expm1({})", "torch.atan({})",
        "F.logsigmoid({})", "{} ** 3", "F.gelu({}, approximate='tanh')",
    ),
    *_rows(ROUND, {
        "div": lambda d: f"{d.real()} / ({d.like()}.abs() + 1)",
        "lerp": lambda d: f"torch.lerp({d.real()}, {d.same()}, 0.3)",
        "atan2": lambda d: f"torch.atan2({d.real()}, {d.same()}.abs() + 1)",
        "addcdiv": lambda d: f"torch.addcdiv({d.real()}, {d.same()}, {d.same()}.abs() + 1)",
        "logaddexp": lambda d: f"torch.logaddexp({d.real()}, {d.same()})",
        "mean": _reduction("mean"), "var": _reduction("var"), "std": _reduction("std"), "norm": _reduction("norm"),
        "logsumexp": _along("torch.logsumexp({}, {})"), "softmax": _along("torch.softmax({}, {})"),
        "log_softmax": _along("F.log_softmax({}, {})"), "normalize": _along("F.normalize({}, dim={})"),
        "cumprod": _along("{}.cumprod({})"),
        "layer_norm": lambda d: _layer_norm(d, "layer_norm"), "rms_norm": lambda d: _layer_norm(d, "rms_norm"),
        "batch_norm": _batch_norm, "attention": _attention, "avg_pool": lambda d: _pool(d, "avg"),
        "interpolate": _resized, "mse_loss": lambda d: f"F.mse_loss({d.real()}, {d.same()})",
        "adaptive_avg_pool": lambda d: f"F.adaptive_avg_pool2d({d.real(4, 4)}, {d.among(1, 2, 3)})",
        "cross_entropy": lambda d: f"F.cross_entropy({d.real(2, 2)}, {d.indices(d.size(1), d.size(0))})",
    }),
)  # fmt: skip
JUMPS = (
    *_of_number(JUMP, "torch.sign({})", "{} > 0", "{} == 1", "{} <= -1", "{}.to(torch.bool)", "{} // 2", "{} % 3"),
    *_of_real(JUMP, "torch.floor({})", "torch.round({})", "torch.trunc({})", "torch.ceil({})", "{}.to(torch.int64)"),
    *_rows(JUMP, {
        "lt": _binary("{} < {}"), "eq": _binary("{} == {}"), "ne": _binary("{} != {}"),
        "argmax": _reduction_of_number("argmax"), "argmin": _reduction_of_number("argmin"),
        "argsort": _along("torch.argsort({}, stable=True, dim={})", "number"),
        "topk.indices": lambda d: f"torch.sort({d.number(1)}, descending=True, stable=True).indices",
        "any": lambda d: f"{d.boolean(1)}.{d.among('any', 'all')}({d.axis()})", "not": lambda d: f"~{d.boolean()}",
        "and": lambda d: f"{d.boolean()} {d.among('&', '|', '^')} {d.mask()}",
        "bits": lambda d: f"{d.integer()} {d.among('& 3', '| 1', '^ 5', '<< 1', '>> 1')}",
    }, 0.8),
)  # fmt: skip
CASTS = _rows(SELECT, {
    "wider": lambda d: _cast(d, "float32", "float64"),
    "narrower": lambda d: _cast(d, "bfloat16", "float16", "float32"),
    "counted": lambda d: f"{d.boolean()}.to(torch.{d.among('float32', 'int64', 'int32')})",
}, 0.8)  # fmt: skip


def _writes(exactness: str, texts: dict[str, Callable[[Drawing], str]]) -> tuple[Row, ...]:
    return tuple(Row(f"{name}_", exactness, text, 0.6, True) for name, text in texts.items())


def _assigned(d: Drawing) -> str:
    x = d.number(1)
    axis, size = d.axis(), d.size(d.axis())
    del axis
    return f"{_slices(d, x)} = {d.among(0, 1, -2)}" if size else d.among(x)


def _assigned_part(d: Drawing) -> str:
    x = d.tensor(1)
    n = d.size(0)
    rows = d.up_to(1, n)
    return f"{x}[{n - rows}:] = {d.fresh(rows, *d.shape[1:])}"


WRITES = (
    *_writes(WHOLE, {
        "add": lambda d: f"{d.number()}.add_({d.like()})", "mul": lambda d: f"{d.number()}.mul_({d.like()})",
        "sub": lambda d: f"{d.number()}.sub_(1)", "iadd": lambda d: f"{d.number()} += {d.like()}",
        "index_add": lambda d: f"{d.number(1)}.index_add_(0, {d.indices(d.size(0), 3)}, {d.fresh(3, *d.shape[1:])})",
    }),
    *_writes(SELECT, {
        "relu": lambda d: f"{d.number()}.relu_()", "clamp": lambda d: f"{d.number()}.clamp_(-1, 1)",
        "zero": lambda d: f"{d.tensor()}.zero_()", "fill": lambda d: f"{d.number()}.fill_({d.among(1, -2)})",
        "copy": lambda d: f"{d.number()}.copy_({d.like()})", "assign": _assigned, "assign.part": _assigned_part,
        "assign.row": lambda d: f"{d.number(2)}[{d.among(0, -1)}] = {d.fresh(*d.shape[1:])}",
        "masked_fill": lambda d: f"{d.number()}.masked_fill_({d.mask()}, {d.among(0, 1)})",
        "neg": lambda d: f"{d.number()}.neg_()",
    }),
    *_writes(ROUND, {
        "sigmoid": lambda d: f"{d.real()}.sigmoid_()", "div": lambda d: f"{d.real()}.div_(3)",
        "tanh": lambda d: f"{d.real()}.tanh_()",
    }),
)  # fmt: skip
OPERATIONS = (*VIEWS, *MOVES, *CHOICES, *WHOLES, *ROUNDS, *JUMPS, *CASTS, *WRITES)
