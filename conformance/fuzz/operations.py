"""What may stand in a random program: a row for each call, whose text a `Drawing` fills with values of the program.

A row says what its call does to exactness. `SELECT` moves or chooses values; `WHOLE` is exact on small whole numbers;
`ROUND` rounds; `JUMP` is not continuous, and drawn only where its operands are exactly what eager has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from conformance.fuzz import texts
from conformance.fuzz.drawing import Drawing

FORWARD = frozenset({
    "conv1d", "conv2d", "conv_transpose2d", "max_pool", "avg_pool", "adaptive_avg_pool", "interpolate", "attention",
})  # fmt: skip
SELECT, WHOLE, ROUND, JUMP = "select", "whole", "round", "jump"


@dataclass(frozen=True)
class Row:
    """`changes`: the text is a statement that writes to its first operand."""

    name: str
    exactness: str
    text: Callable[[Drawing], str]
    weight: float = 1.0
    changes: bool = False

    @property
    def forward(self) -> bool:
        """Whether the compiler has no backward pass of it, and refuses that by name."""
        return self.name in FORWARD


def _rows(exactness: str, calls: dict[str, Callable[[Drawing], str]], weight: float = 1.0) -> tuple[Row, ...]:
    return tuple(Row(name, exactness, text, weight) for name, text in calls.items())


def _of_real(exactness: str, *calls: str) -> tuple[Row, ...]:
    return tuple(Row(call, exactness, lambda d, call=call: call.format(d.real())) for call in calls)  # type: ignore[misc]


def _of_number(exactness: str, *calls: str) -> tuple[Row, ...]:
    return tuple(Row(call, exactness, lambda d, call=call: call.format(d.number())) for call in calls)  # type: ignore[misc]


VIEWS = _rows(SELECT, {
    "transpose": lambda d: f"{d.tensor(2)}.transpose({d.axis()}, {d.axis()})",
    "t": lambda d: f"{d.tensor(2)}.mT",
    "permute": lambda d: f"{d.tensor(2)}.permute({texts.axes(d)})",
    "reshape": lambda d: texts.reshaped(d, d.tensor()),
    "flatten": lambda d: f"{d.tensor()}.flatten()",
    "slice": lambda d: texts.slices(d, d.tensor(1)),
    "select": lambda d: f"{d.tensor(1)}.select({(a := d.axis())}, {d.up_to(0, d.size(a) - 1)})",
    "narrow": lambda d: f"{d.tensor(1)}.narrow({(a := d.axis())}, {(s := d.up_to(0, d.size(a) - 1))}, "
                        f"{d.up_to(1, d.size(a) - s)})",
    "unsqueeze": lambda d: f"{d.tensor()}.unsqueeze({d.up_to(-1, len(d.shape))})",
    "squeeze": lambda d: f"{d.tensor()}.squeeze()",
    "expand": lambda d: texts.expanded(d, d.tensor(1)),
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
    "cat": lambda d: texts.cat(d, "cat"),
    "stack": lambda d: texts.cat(d, "stack"),
    "repeat": lambda d: f"{d.tensor(1)}.repeat({', '.join(str(d.among(1, 2)) for _ in d.shape)})",
    "repeat_interleave": lambda d: f"{d.tensor(1)}.repeat_interleave(2, {d.axis()})",
    "gather": texts.gather, "index_select": texts.index_select, "index": texts.indexed, "embedding": texts.embedding,
    "scatter": lambda d: texts.scatter(d, "scatter", True),
    "diag_embed": lambda d: f"torch.diag_embed({d.tensor(1)})",
    "where": lambda d: f"torch.where({(x := d.number()) and d.mask()}, {x}, {d.like()})",
    "masked_fill": lambda d: f"{d.number()}.masked_fill({d.mask()}, {d.among(0, 1, -2)})",
    "zeros_like": lambda d: f"torch.{d.among('zeros_like', 'ones_like')}({d.tensor()})",
    "arange": lambda d: f"torch.arange({(x := d.tensor(1)) and d.spelled(0)}, device={x}.device)",
    "max_pool": lambda d: texts.pool(d, "max"),
})  # fmt: skip
CHOICES = (
    Row("pad", SELECT, lambda d: texts.padded(d, d.number(1)), 2.5),
    *_of_number(SELECT, "torch.relu({})", "torch.abs({})", "-{}", "{}.clamp(-1, 2)", "{}.clamp(min=0)"),
    *_rows(SELECT, {
        "maximum": texts.binary("torch.maximum({}, {})"), "minimum": texts.binary("torch.minimum({}, {})"),
        "amax": texts.reduction("amax", "number"), "amin": texts.reduction("amin", "number"),
        "max": texts.along("{}.max({}).values", "number"),
        "sort": texts.along("{}.sort(stable=True, dim={}).values", "number"),
        "cummax": texts.along("{}.cummax({}).values", "number"),
        "topk": texts.topk,
    }),
)  # fmt: skip
WHOLES = (
    *_rows(WHOLE, {
        "add": texts.binary("{} + {}"), "sub": texts.binary("{} - {}"), "mul": texts.binary("{} * {}"),
        "radd": lambda d: f"{d.number()} + {d.among(1, 2, -3)}",
        "rmul": lambda d: f"{d.number()} * {d.among(2, -1, 3)}",
        "rsub": lambda d: f"{d.among(1, 2)} - {d.number()}", "add.alpha": texts.binary("torch.add({}, {}, alpha=2)"),
    }, 2.0),
    *_rows(WHOLE, {
        "sum": texts.reduction("sum", "number"), "matmul": texts.matmul, "bmm": texts.bmm, "linear": texts.linear,
        "einsum": lambda d: texts.matmul(d, "torch.einsum('...ij,jk->...ki', {}, {})"),
        "conv2d": lambda d: texts.conv(d, 2),
    }, 2.5),
    *_rows(WHOLE, {
        "cumsum": texts.along("{}.cumsum({})", "number"), "conv1d": lambda d: texts.conv(d, 1),
        "conv_transpose2d": texts.conv_transpose, "scatter_add": lambda d: texts.scatter(d, "scatter_add", False),
        "index_add": texts.index_add, "square": lambda d: f"{d.number()}.square()",
        "count": lambda d: f"{d.boolean()}.sum()",
        "outer": lambda d: f"{(x := d.number(1))}.unsqueeze(-1) * {x}.unsqueeze(-2)",
        "addcmul": lambda d: f"torch.addcmul({d.number()}, {d.same()}, {d.same()})",
    }),
)  # fmt: skip
ROUNDS = (
    Row("attention", ROUND, texts.attention, 2.5),
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
        "mean": texts.reduction("mean"), "var": texts.reduction("var"),
        "std": texts.reduction("std"), "norm": texts.reduction("norm"),
        "logsumexp": texts.along("torch.logsumexp({}, {})"), "softmax": texts.along("torch.softmax({}, {})"),
        "log_softmax": texts.along("F.log_softmax({}, {})"), "normalize": texts.along("F.normalize({}, dim={})"),
        "cumprod": texts.along("{}.cumprod({})"),
        "layer_norm": lambda d: texts.layer_norm(d, "layer_norm"),
        "rms_norm": lambda d: texts.layer_norm(d, "rms_norm"),
        "batch_norm": texts.batch_norm, "avg_pool": lambda d: texts.pool(d, "avg"),
        "interpolate": texts.resized, "mse_loss": lambda d: f"F.mse_loss({d.real()}, {d.same()})",
        "adaptive_avg_pool": lambda d: f"F.adaptive_avg_pool2d({d.real(4, 4)}, {d.among(1, 2, 3)})",
        "cross_entropy": lambda d: f"F.cross_entropy({d.real(2, 2)}, {d.indices(d.size(1), d.size(0))})",
    }),
)  # fmt: skip
JUMPS = (
    *_of_number(JUMP, "torch.sign({})", "{} > 0", "{} == 1", "{} <= -1", "{}.to(torch.bool)", "{} // 2", "{} % 3"),
    *_of_real(JUMP, "torch.floor({})", "torch.round({})", "torch.trunc({})", "torch.ceil({})", "{}.to(torch.int64)"),
    *_rows(JUMP, {
        "lt": texts.binary("{} < {}"), "eq": texts.binary("{} == {}"), "ne": texts.binary("{} != {}"),
        "argmax": texts.reduction("argmax", "number"), "argmin": texts.reduction("argmin", "number"),
        "argsort": texts.along("torch.argsort({}, stable=True, dim={})", "number"),
        "topk.indices": lambda d: f"torch.sort({d.number(1)}, descending=True, stable=True).indices",
        "any": lambda d: f"{d.boolean(1)}.{d.among('any', 'all')}({d.axis()})", "not": lambda d: f"~{d.boolean()}",
        "and": lambda d: f"{d.boolean()} {d.among('&', '|', '^')} {d.mask()}",
        "bits": lambda d: f"{d.integer()} {d.among('& 3', '| 1', '^ 5', '<< 1', '>> 1')}",
    }, 0.8),
)  # fmt: skip
CASTS = _rows(SELECT, {
    "wider": lambda d: texts.cast(d, "float32", "float64"),
    "narrower": lambda d: texts.cast(d, "bfloat16", "float16", "float32"),
    "counted": lambda d: f"{d.boolean()}.to(torch.{d.among('float32', 'int64', 'int32')})",
}, 0.8)  # fmt: skip


def _writes(exactness: str, calls: dict[str, Callable[[Drawing], str]]) -> tuple[Row, ...]:
    return tuple(Row(f"{name}_", exactness, text, 0.6, True) for name, text in calls.items())


WRITES = (
    *_writes(WHOLE, {
        "add": lambda d: f"{d.number()}.add_({d.like()})", "mul": lambda d: f"{d.number()}.mul_({d.like()})",
        "sub": lambda d: f"{d.number()}.sub_(1)", "iadd": lambda d: f"{d.number()} += {d.like()}",
        "index_add": lambda d: f"{d.number(1)}.index_add_(0, {d.indices(d.size(0), 3)}, {d.fresh(3, *d.shape[1:])})",
    }),
    *_writes(SELECT, {
        "relu": lambda d: f"{d.number()}.relu_()", "clamp": lambda d: f"{d.number()}.clamp_(-1, 1)",
        "zero": lambda d: f"{d.tensor()}.zero_()", "fill": lambda d: f"{d.number()}.fill_({d.among(1, -2)})",
        "copy": lambda d: f"{d.number()}.copy_({d.like()})", "assign": texts.assigned,
        "assign.part": texts.assigned_part,
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
