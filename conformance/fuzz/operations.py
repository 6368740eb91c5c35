"""The calls of random programs: a row for each, with a function that writes its text by means of a `Drawing`.

A row states the effect on exactness: `SELECT` moves or selects values; `WHOLE` is exact on small integers; `ROUND`
rounds; `JUMP` is discontinuous, and drawn only if its operands are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from conformance.fuzz import placing, recurrent, texts, windows
from conformance.fuzz.drawing import Drawing

SELECT, WHOLE, ROUND, JUMP = "select", "whole", "round", "jump"
LAYER = 3.0  # weight of the calls that networks consist of


@dataclass(frozen=True)
class Row:
    """A call; `mutates` means that its text is a statement that mutates its first operand."""

    name: str
    exactness: str
    text: Callable[[Drawing], str]
    weight: float = 1.0
    mutates: bool = False


def _rows(exactness: str, calls: dict[str, Callable[[Drawing], str]], weight: float = 1.0) -> tuple[Row, ...]:
    return tuple(Row(name, exactness, text, weight) for name, text in calls.items())


def _of_real(exactness: str, *calls: str) -> tuple[Row, ...]:
    return tuple(Row(call, exactness, lambda d, call=call: call.format(d.real())) for call in calls)  # type: ignore[misc]


def _of_number(exactness: str, *calls: str) -> tuple[Row, ...]:
    return tuple(Row(call, exactness, lambda d, call=call: call.format(d.number())) for call in calls)  # type: ignore[misc]


VIEWS = _rows(SELECT, {
    "transpose": lambda d: f"{d.tensor(2)}.transpose({d.axis()}, {d.axis()})",
    "t": lambda d: f"{d.tensor(2)}.mT",
    "permute": lambda d: f"{d.tensor(2)}.permute({texts.permutation(d)})",
    "reshape": lambda d: texts.reshape(d, d.tensor()),
    "flatten": lambda d: f"{d.tensor()}.flatten()",
    "slice": lambda d: texts.slices(d, d.tensor(1)),
    "select": lambda d: f"{d.tensor(1)}.select({(a := d.axis())}, {d.up_to(0, d.size(a) - 1)})",
    "narrow": lambda d: f"{d.tensor(1)}.narrow({(a := d.axis())}, {(s := d.up_to(0, d.size(a) - 1))}, "
                        f"{d.up_to(1, d.size(a) - s)})",
    "unsqueeze": lambda d: f"{d.tensor()}.unsqueeze({d.up_to(-1, len(d.shape))})",
    "squeeze": lambda d: f"{d.tensor()}.squeeze()",
    "expand": lambda d: texts.expand(d, d.tensor(1)),
    "diagonal": lambda d: f"{d.tensor(2)}.diagonal({d.among(0, 0, 1, -1)})",
    "unfold": lambda d: f"{d.tensor(1)}.unfold({(a := d.axis())}, {d.up_to(1, min(4, d.size(a)))}, {d.among(1, 2)})",
    "chunk": lambda d: f"{d.tensor(1)}.chunk(2, {d.axis()})",
    "split": lambda d: f"{d.tensor(1)}.split({(a := d.axis()) and d.up_to(max(1, d.size(a) // 3), d.size(a))}, {a})",
    "unbind": texts.unbind,
    "movedim": lambda d: f"{d.tensor(2)}.movedim({d.axis()}, {d.axis()})",
    "detach": lambda d: f"{d.tensor()}.detach()",
    "unflatten": lambda d: texts.unflatten(d, d.tensor(1)),
    "as_strided": texts.as_strided,
    "bitcast": texts.bitcast,
    "indexed": lambda d: f"{d.tensor(1)}[{d.among('None', '..., None', '-1', '..., 0', '..., -1:', '0, ..., None')}]",
    "split.sizes": texts.split_by_sizes, "swapaxes": lambda d: f"{d.tensor(2)}.swapaxes({d.axis()}, {d.axis()})",
    "ravel": lambda d: f"{d.tensor()}.ravel()", "view_as": lambda d: f"{d.tensor()}.contiguous().view_as({d.same()})",
    "tensor_split": lambda d: f"{d.tensor(1)}.tensor_split(2, {d.axis()})",
    "expand_as": lambda d: f"{d.tensor()}.expand_as({d.same()})",
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
    "gather": texts.gather, "index_select": texts.index_select, "index": texts.index_tensor,
    "embedding": texts.embedding,
    "scatter": lambda d: texts.scatter(d, "scatter", True),
    "diag_embed": lambda d: f"torch.diag_embed({d.tensor(1)})",
    "where": lambda d: f"torch.where({(x := d.number()) and d.mask()}, {x}, {d.like()})",
    "masked_fill": lambda d: f"{d.number()}.masked_fill({d.mask()}, {d.among(0, 1, -2)})",
    "zeros_like": lambda d: f"torch.{d.among('zeros_like', 'ones_like')}({d.tensor()})",
    "arange": lambda d: f"torch.arange({(x := d.tensor(1)) and d.size_text(0)}, device={x}.device)",
    "tile": lambda d: f"{d.tensor()}.tile({d.among('2', '2, 1', '1, 3')})",
    "flip.two": lambda d: f"{d.tensor(2)}.flip(0, -1)", "roll.flat": lambda d: f"{d.tensor(1)}.roll({d.among(1, -3)})",
    "diag": lambda d: f"torch.diag({d.tensor(1)}, {d.among(0, 1, -1)})",
    "hstack": lambda d: f"torch.{d.among('hstack', 'vstack', 'dstack')}([{d.tensor(1)}, {d.same()}])",
    "block_diag": lambda d: f"torch.block_diag({d.tensor(1)}, {d.same()})",
    "meshgrid": lambda d: f"torch.meshgrid({d.tensor(1)}, {d.same()}, indexing='{d.among('ij', 'xy')}')[0]",
    "index_fill": placing.index_fill, "index_copy": placing.index_copy, "take_along_dim": placing.take_along_dim,
    "slice_scatter": lambda d: placing.view_scatter(d, "slice"),
    "select_scatter": lambda d: placing.view_scatter(d, "select"),
    "diagonal_scatter": lambda d: placing.view_scatter(d, "diagonal"),
    "masked_scatter": lambda d: placing.masked_scatter(d, "masked_scatter"),
    "one_hot": placing.one_hot, "pixel_shuffle": windows.pixel_shuffle, "unfold.image": windows.unfold,
    "where.number": lambda d: f"torch.where({(x := d.number()) and d.mask()}, {x}, {d.among(0, 1.5, -2)})",
    "full_like": lambda d: f"torch.full_like({d.number()}, {d.among(2, -1)})",
    "new": lambda d: f"{d.number(1)}.new_{d.among('zeros', 'ones')}(({d.size_text(0)}, {d.among(1, 3)}))",
    "linspace": lambda d: f"torch.linspace(0, 4, {d.real(1) and d.size(-1)}, device={d.first.name}.device)",
    "eye": lambda d: f"torch.eye({(x := d.tensor(2)) and d.size(0)}, {d.size(1)}, dtype={x}.dtype, device={x}.device)",
})  # fmt: skip
CHOICES = (
    Row("max_pool", SELECT, lambda d: texts.pool(d, "max", 3, 4), LAYER),
    Row("pad", SELECT, lambda d: texts.pad(d, d.number(1)), 2.5),
    *_of_number(SELECT, "torch.relu({})", "torch.abs({})", "-{}", "{}.clamp(-1, 2)", "{}.clamp(min=0)"),
    *_rows(SELECT, {
        "maximum": texts.binary("torch.maximum({}, {})"), "minimum": texts.binary("torch.minimum({}, {})"),
        "amax": texts.reduction("amax", "number"), "amin": texts.reduction("amin", "number"),
        "max": texts.axis_call("{}.max({}).values", "number"),
        "sort": texts.axis_call("{}.sort(stable=True, dim={}).values", "number"),
        "cummax": texts.axis_call("{}.cummax({}).values", "number"),
        "min": texts.axis_call("{}.min({}).values", "number"),
        "cummin": texts.axis_call("{}.cummin({}).values", "number"),
        "max.other": texts.binary("torch.max({}, {})"), "min.other": texts.binary("torch.min({}, {})"),
        "max.all": lambda d: f"{d.number()}.{d.among('max', 'min')}()",
        "topk": texts.topk,
        "amax.axes": texts.axes_reduction("amax", "number"), "kthvalue": texts.kthvalue, "median": texts.median,
        "aminmax": texts.axis_call("torch.aminmax({}, dim={})[0]", "number"),
        "fmax": texts.binary("torch.fmax({}, {})"), "fmin": texts.binary("torch.fmin({}, {})"),
        "clamp.tensors": lambda d: f"torch.clamp({d.number()}, {d.same()}, {d.same()})",
        "nan_to_num": lambda d: f"torch.nan_to_num({d.real()}{d.among('', ', nan=2.0', ', posinf=3.0, neginf=-3.0')})",
        "relu6": lambda d: f"F.{d.among('relu6', 'hardtanh')}({d.number()})",
        "threshold": lambda d: f"F.threshold({d.number()}, {d.among(0, 1)}, {d.among(0, 1)})",
        "copysign": lambda d: f"torch.copysign({d.real()}, {texts.with_sign(d.like())})",
        "max_unpooled": lambda d: windows.adaptive_pool(d, "max", 3, 4),
        "max_pool3d": lambda d: texts.pool(d, "max", 5),
        "max_pool3d.adaptive": lambda d: windows.adaptive_pool(d, "max", 5),
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
        "conv2d": lambda d: texts.conv(d, 2), "conv2d.forms": lambda d: windows.conv(d, 2),
        "conv1d": lambda d: texts.conv(d, 1),
    }, LAYER),
    *_rows(WHOLE, {
        "cumsum": texts.axis_call("{}.cumsum({})", "number"), "conv_transpose2d": texts.conv_transpose,
        "scatter_add": lambda d: texts.scatter(d, "scatter_add", False),
        "index_add": texts.index_add, "square": lambda d: f"{d.number()}.square()",
        "count": lambda d: f"{d.boolean()}.sum()",
        "outer": lambda d: f"{(x := d.number(1))}.unsqueeze(-1) * {x}.unsqueeze(-2)",
        "addcmul": lambda d: f"torch.addcmul({d.number()}, {d.same()}, {d.same()})",
        "sum.axes": texts.axes_reduction("sum", "number"), "nansum": texts.axes_reduction("nansum", "real"),
        "sum.wide": texts.sum_in_dtype,
        "prod": texts.reduction("prod", "number"),
        "count_nonzero": texts.axis_call("torch.count_nonzero({}, {})", "number"),
        "cumprod.whole": texts.axis_call("{}.cumprod({})", "number"),
        "diff": texts.axis_call("torch.diff({}, dim={})", "number"),
        "trace": lambda d: f"torch.trace({d.number(2)})", "size": texts.size_arithmetic,
        "scaled.bool": lambda d: f"{d.boolean()} * {d.like()}", "dot": texts.dot, "cross": texts.cross,
        "einsum.forms": windows.einsum, "product": windows.product,
        "conv1d.forms": lambda d: windows.conv(d, 1),
        "conv3d": lambda d: windows.conv(d, 3), "conv.same": windows.conv_same,
        "conv_transpose1d": lambda d: windows.conv_transpose(d, 1),
        "conv_transpose2d.forms": lambda d: windows.conv_transpose(d, 2),
        "conv_transpose3d": lambda d: windows.conv_transpose(d, 3),
        "scatter_reduce": placing.scatter_reduce, "index_put": placing.index_put,
        "power.whole": lambda d: f"{d.number()} ** {d.among(2, 3)}",
    }),
)  # fmt: skip
ROUNDS = (
    *_rows(ROUND, {
        "recurrent": recurrent.network, "attention": texts.attention, "attention.forms": windows.attention,
        "softmax": texts.axis_call("torch.softmax({}, {})"),
        "layer_norm": lambda d: texts.layer_norm(d, "layer_norm"),
        "rms_norm": lambda d: texts.layer_norm(d, "rms_norm"),
        "batch_norm": texts.batch_norm, "batch_norm.running": windows.batch_norm, "group_norm": windows.group_norm,
        "avg_pool": lambda d: texts.pool(d, "avg", 3, 4), "interpolate": texts.interpolate,
        "interpolate.forms": windows.interpolate,
    }, LAYER),
    *_of_real(
        ROUND, "torch.exp({})", "torch.log({}.abs() + 1)", "torch.sqrt({}.abs() + 0.5)", "torch.rsqrt({}.abs() + 1)",
        "torch.sin({})", "torch.cos({})", "torch.tanh({})", "torch.sigmoid({})", "F.gelu({})", "F.silu({})",
        "F.softplus({})", "F.elu({})", "torch.erf({})", "torch.reciprocal({}.abs() + 1)", "F.leaky_relu({}, 0.1)",
        "F.hardswish({})", "F.mish({})", "{} / 3", "{} * 0.3", "{} + 0.1", "torch.expm1({})", "torch.atan({})",
        "F.logsigmoid({})", "{} ** 3", "F.gelu({}, approximate='tanh')",
        "torch.exp2({})", "torch.log1p({}.abs())", "torch.log2({}.abs() + 1)", "torch.log10({}.abs() + 1)",
        "torch.sinh({})", "torch.cosh({})", "torch.asinh({})", "torch.acosh({}.abs() + 1.5)", "torch.erfc({})",
        "torch.asin({}.clamp(-0.9, 0.9))", "torch.acos({}.clamp(-0.9, 0.9))",
        "torch.atanh({}.clamp(-0.9, 0.9))", "torch.lgamma({}.abs() + 0.5)",
        "torch.sinc({})", "torch.logit({}, eps=0.1)", "F.softshrink({})", "F.celu({})",
        "F.selu({})", "F.relu6({})", "F.tanhshrink({})", "F.softsign({})", "torch.deg2rad({})", "2 ** {}",
        "({}.abs() + 0.5) ** 0.5", "({}.abs() + 0.5) ** -1.5", "F.glu(torch.cat([{0}, {0}], -1), -1)",
        "torch.special.expit({})", "torch.special.ndtr({})", "torch.float_power({}, 2)",
    ),
    *_of_number(ROUND, "{} * 0.5", "{} / 2", "1 / ({}.abs() + 1)", "torch.exp(-{}.abs())", "torch.true_divide({}, 7)"),
    *_rows(ROUND, {
        "div": lambda d: f"{d.real()} / ({d.like()}.abs() + 1)",
        "lerp": lambda d: f"torch.lerp({d.real()}, {d.same()}, 0.3)",
        "atan2": lambda d: f"torch.atan2({d.real()}, {d.same()}.abs() + 1)",
        "addcdiv": lambda d: f"torch.addcdiv({d.real()}, {d.same()}, {d.same()}.abs() + 1)",
        "logaddexp": lambda d: f"torch.logaddexp({d.real()}, {d.same()})",
        "mean": texts.reduction("mean"), "var": texts.reduction("var"),
        "std": texts.reduction("std"), "norm": texts.reduction("norm"),
        "logsumexp": texts.axis_call("torch.logsumexp({}, {})"),
        "log_softmax": texts.axis_call("F.log_softmax({}, {})"),
        "normalize": texts.axis_call("F.normalize({}, dim={})"),
        "cumprod": texts.axis_call("{}.cumprod({})"), "mse_loss": lambda d: f"F.mse_loss({d.real()}, {d.same()})",
        "adaptive_avg_pool": lambda d: f"F.adaptive_avg_pool2d({d.image(4)}, {d.among(1, 2, 3)})",
        "hypot": lambda d: f"torch.hypot({d.real()}, {d.like()})", "hardsigmoid": texts.hardsigmoid,
        "xlogy": lambda d: f"torch.xlogy({d.real()}, {d.same()}.abs() + 0.5)",
        "pow": lambda d: f"({d.real()}.abs() + 0.5) ** {d.same()}.clamp(-2, 2)",
        "mean.axes": texts.axes_reduction("mean"), "var.axes": texts.axes_reduction("var"), "var_mean": texts.var_mean,
        "norm.p": texts.norm, "logcumsumexp": texts.axis_call("torch.logcumsumexp({}, {})"),
        "softmax.wide": texts.axis_call("torch.softmax({}, {}, dtype=torch.float32)", "number"),
        "softmin": texts.axis_call("F.softmin({}, {})"), "cosine": texts.cosine,
        "std_mean": texts.axis_call("torch.std_mean({}, {})[1]"),
        "instance_norm": windows.instance_norm, "cdist": texts.cdist,
        "adaptive_pool": lambda d: windows.adaptive_pool(d, "avg", 3, 4),
        "avg_pool3d": lambda d: texts.pool(d, "avg", 5),
        "avg_pool3d.adaptive": lambda d: windows.adaptive_pool(d, "avg", 5),
        "interpolate3d": windows.interpolate3d, "recurrent.cell": recurrent.cell,
        "scatter_mean": placing.scatter_mean, "embedding_bag": placing.embedding_bag,
        "loss": texts.loss, "lerp.tensor": lambda d: f"torch.lerp({d.real()}, {d.same()}, {d.same()})",
        "prelu": lambda d: f"F.prelu({d.real(2)}, {d.fresh(d.size(1))})", "bilinear": texts.bilinear,
        "div.mixed": lambda d: f"{d.number()} / ({d.like()}.abs() + 1)",
        "cross_entropy": lambda d: f"F.cross_entropy({d.real(2, 2)}, {d.indices(d.size(1), d.size(0))})",
    }),
)  # fmt: skip
JUMPS = (
    *_of_number(JUMP, "torch.sign({})", "{} > 0", "{} == 1", "{} <= -1", "{}.to(torch.bool)", "{} // 2", "{} % 3",
                "torch.fmod({}, 3)", "{} % -3", "{} // -2", "torch.div({}, 3, rounding_mode='trunc')",
                "torch.div({}, 2, rounding_mode='floor')", "torch.logical_not({})", "torch.isfinite({})",
                "torch.heaviside({0}, {0})", "torch.sgn({})"),
    *_of_real(JUMP, "torch.floor({})", "torch.round({})", "torch.trunc({})", "torch.ceil({})", "{}.to(torch.int64)",
              "torch.frac({})", "torch.round({}, decimals=1)", "torch.isnan({})", "torch.isinf({})",
              "torch.isposinf({})", "F.hardshrink({})"),
    *_rows(JUMP, {
        "signbit": lambda d: f"torch.signbit({texts.with_sign(d.real())})",
        "lt": texts.binary("{} < {}"), "eq": texts.binary("{} == {}"), "ne": texts.binary("{} != {}"),
        "argmax": texts.reduction("argmax", "number"), "argmin": texts.reduction("argmin", "number"),
        "argsort": texts.axis_call("torch.argsort({}, stable=True, dim={})", "number"),
        "max.indices": texts.axis_call("{}.max({}).indices", "number"), "searched": placing.searchsorted,
        "cummax.indices": texts.axis_call("{}.cummax({}).indices", "number"),
        "remainder": lambda d: f"{d.number()} {d.among('%', '//')} ({d.same()}.abs() + 1)",
        "fmod": lambda d: f"torch.fmod({d.number()}, {d.same()}.abs() + 1)",
        "gcd": texts.gcd_or_lcm,
        "logical": lambda d: f"torch.logical_{d.among('and', 'or', 'xor')}({d.number()}, {d.like()})",
        "bitwise": lambda d: f"{d.integer()} {d.among('&', '|', '^')} {d.same()}",
        "invert": lambda d: f"~{d.integer()}",
        "shift": lambda d: f"{d.integer()} {d.among('<<', '>>')} ({d.same()} & 3)",
        "nonzero.all": lambda d: f"{d.number()}.{d.among('any', 'all')}()", "isin": texts.is_in,
        "topk.indices": lambda d: f"torch.sort({d.number(1)}, descending=True, stable=True).indices",
        "any": lambda d: f"{d.boolean(1)}.{d.among('any', 'all')}({d.axis()})", "not": lambda d: f"~{d.boolean()}",
        "and": lambda d: f"{d.boolean()} {d.among('&', '|', '^')} {d.mask()}",
        "bits": lambda d: f"{d.integer()} {d.among('& 3', '| 1', '^ 5', '<< 1', '>> 1')}",
    }, 0.8),
)  # fmt: skip
CASTS = _rows(SELECT, {
    "wider": lambda d: texts.cast(d, "float32", "float64"),
    "narrower": lambda d: texts.cast(d, "bfloat16", "float16", "float32"),
    "whole": lambda d: f"{d.integer()}.to(torch.{d.among('int8', 'uint8', 'int16', 'int32', 'int64')})",
    "promoted": lambda d: f"{d.integer()} + {d.among(0.5, 1.0)}",
    "typed": lambda d: f"{d.boolean()} + {d.among(1, 0.5)}",
    "as_other": lambda d: f"{d.number()}.type_as({d.number()})",
    "counted": lambda d: f"{d.boolean()}.to(torch.{d.among('float32', 'int64', 'int32')})",
}, 0.8)  # fmt: skip


def _mutations(exactness: str, calls: dict[str, Callable[[Drawing], str]]) -> tuple[Row, ...]:
    return tuple(Row(f"{name}_", exactness, text, 0.6, True) for name, text in calls.items())


WRITES = (
    *_mutations(WHOLE, {
        "add": lambda d: f"{d.number()}.add_({d.like()})", "mul": lambda d: f"{d.number()}.mul_({d.like()})",
        "sub": lambda d: f"{d.number()}.sub_(1)", "iadd": lambda d: f"{d.number()} += {d.like()}",
        "add.alpha": lambda d: f"{d.number()}.add_({d.like()}, alpha={d.among(2, -1)})",
        "view.add": lambda d: f"{d.number(2)}{d.among('.mT', '.diagonal()', '[1:]', '.select(0, 0)')}"
                              f".add_({d.among(1, 2)})",
        "scatter": placing.scatter_in_place, "imul.part": lambda d: f"{d.number(1)}[::2] *= 2",
        "cumsum": lambda d: f"{d.number(1)}.cumsum_({d.axis()})", "pow": lambda d: f"{d.number()}.pow_(2)",
        "addcmul": lambda d: f"{d.number()}.addcmul_({d.same()}, {d.same()})",
        "addmm": lambda d: f"{d.real(2, most=2)}.addmm_({d.fresh(d.size(0), 3)}, {d.fresh(3, d.size(1))})",
        "out": lambda d: f"torch.add({d.real()}, {d.same()}, out={d.first.name})",
        "index_add": lambda d: f"{d.number(1)}.index_add_(0, {d.indices(d.size(0), 3)}, {d.fresh(3, *d.shape[1:])})",
    }),
    *_mutations(SELECT, {
        "relu": lambda d: f"{d.number()}.relu_()", "clamp": lambda d: f"{d.number()}.clamp_(-1, 1)",
        "zero": lambda d: f"{d.tensor()}.zero_()", "fill": lambda d: f"{d.number()}.fill_({d.among(1, -2)})",
        "copy": lambda d: f"{d.number()}.copy_({d.like()})", "assign": texts.assign_number,
        "assign.part": texts.assign_rows,
        "assign.row": lambda d: f"{d.number(2)}[{d.among(0, -1)}] = {d.fresh(*d.shape[1:])}",
        "masked_fill": lambda d: f"{d.number()}.masked_fill_({d.mask()}, {d.among(0, 1)})",
        "neg": lambda d: f"{d.number()}.neg_()",
        "masked_scatter": lambda d: placing.masked_scatter(d, "masked_scatter_"),
        "index_put": placing.assign_rows, "where": placing.assign_where, "abs": lambda d: f"{d.number()}.abs_()",
        "tril": lambda d: f"{d.tensor(2)}.{d.among('tril_', 'triu_')}()",
        "fill_diagonal": lambda d: f"{d.number(2)}.fill_diagonal_({d.among(0, 1)})",
        "index_fill": lambda d: f"{d.number(1)}.index_fill_(0, {d.indices(d.size(0), 2)}, {d.among(0, 1)})",
        "not": lambda d: f"{d.boolean()}.logical_not_()",
        "assign.tail": lambda d: f"{d.tensor(1)}[1:] = {d.first.name}[:-1].clone()",
        "turned": lambda d: f"{d.tensor(2)}.{d.among('t_()', 'transpose_(0, 1)', 'unsqueeze_(0)', 'squeeze_()')}",
    }),
    *_mutations(ROUND, {
        "sigmoid": lambda d: f"{d.real()}.sigmoid_()", "div": lambda d: f"{d.real()}.div_(3)",
        "tanh": lambda d: f"{d.real()}.tanh_()", "exp": lambda d: f"{d.real()}.clamp_(max=3).exp_()",
        "lerp": lambda d: f"{d.real()}.lerp_({d.same()}, 0.5)",
        "view.div": lambda d: f"{d.real(2)}{d.among('.mT', '.diagonal()', '[::2]')}.div_({d.among(2, 3)})",
        "gelu": lambda d: f"{d.real()}.copy_(F.gelu({d.first.name}))",
    }),
    *_mutations(JUMP, {
        "floor": lambda d: f"{d.real()}.floor_()", "floordiv": lambda d: f"{d.number()} //= {d.among(2, -2)}",
        "mod": lambda d: f"{d.number()} %= 3", "and": lambda d: f"{d.boolean()} &= {d.mask()}",
        "bits": lambda d: f"{d.integer()} {d.among('|=', '&=', '<<=', '>>=')} {d.among(1, 2)}",
        "compare": lambda d: f"{d.number()}.{d.among('gt_', 'eq_')}({d.among(0, 1)})",
    }),
)  # fmt: skip
OPERATIONS = (*VIEWS, *MOVES, *CHOICES, *WHOLES, *ROUNDS, *JUMPS, *CASTS, *WRITES)
