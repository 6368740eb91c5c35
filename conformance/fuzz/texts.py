"""The texts of calls that a template cannot express: with fitting shapes, windows within bounds, valid indices."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.fuzz.drawing import Drawing, NotFitting, require

Text = Callable[[Drawing], str]
MOST_PARTS = 256  # most results of one call, as torch traces them one by one


def with_sign(name: str) -> str:
    """A value whose sign is looked at: zeros that are computed become 0, as the sign of some is unspecified."""
    return name if name.startswith("x") else f"({name} + 0)"


def one_slice(d: Drawing, axis: int) -> str:
    """`start:stop:step` that is not empty."""
    n = d.size(axis)
    start, step = d.among(0, 0, 1, 2, n // 2), d.among(1, 1, 1, 2, 3)
    stop = d.among("", "", str(max(start + 1, n - 1)), "-1" if n - 1 > start else "")
    return f"{start or ''}:{stop}" + (f":{step}" if step > 1 else "")


def slices(d: Drawing, x: str) -> str:
    """Slicing of some axes."""
    words = [d.among(":", one_slice(d, k)) for k in range(len(d.shape))]
    return f"{x}[{', '.join(words)}]"


def positive_axis(d: Drawing) -> int:
    """A random axis of the first operand, not negative."""
    return d.axis() % max(len(d.shape), 1)


def permutation(d: Drawing) -> str:
    """A permutation of all axes, joined by commas."""
    rank = len(d.shape)
    order = list(range(rank))
    d.rng.shuffle(order)
    return ", ".join(map(str, order))


def unbind(d: Drawing) -> str:
    """The last result of `unbind`."""
    x, axis = d.tensor(1), d.axis()
    require(d.size(axis) <= MOST_PARTS)
    return f"{x}.unbind({axis})[-1]"


def reshape(d: Drawing, x: str) -> str:
    """`reshape` that joins two axes or splits one."""
    shape = d.shape
    if not shape:
        return f"{x}.reshape(1)"
    joined = d.up_to(0, len(shape) - 1)
    words = [d.size_text(k) for k in range(len(shape))]
    n = shape[joined]
    factor = d.among(2, 3, 4, 8)
    if d.chance(0.5) and n % factor == 0 and n > factor:
        return f"{x}.reshape({', '.join([*words[:joined], str(factor), '-1', *words[joined + 1 :]])})"
    if len(shape) < 2:
        return f"{x}.reshape(-1, 1)"
    joined = min(joined, len(shape) - 2)
    return f"{x}.reshape({', '.join([*words[:joined], '-1', *words[joined + 2 :]])})"


def split_by_sizes(d: Drawing) -> str:
    """`split` into two parts of random sizes."""
    x = d.tensor(1)
    axis = d.axis()
    first = d.up_to(1, d.size(axis) - 1)
    return f"{x}.split([{first}, {d.size(axis) - first}], {axis})"


def expand(d: Drawing, x: str) -> str:
    """`expand` of all axes of size 1, possibly with a new axis in front."""
    words = [str(d.among(2, 3, 8)) if n == 1 else "-1" for n in d.shape]
    lead = [str(d.among(1, 2, 3, 7))] if d.chance(0.5) else []
    return f"{x}.expand({', '.join([*lead, *words])})"


def pad(d: Drawing, x: str) -> str:
    """`F.pad` in a random mode by amounts that are valid for it."""
    rank = len(d.shape)
    mode = d.among("constant", "constant", "reflect", "replicate", "circular")
    axes = d.up_to(1, min(rank, 2)) if mode == "constant" else 1
    shortest = min(d.shape[rank - axes :]) if mode != "constant" else 4
    most = max(0, min(3, shortest - 1))
    low = -1 if mode == "constant" and min(d.shape[rank - axes :]) > 3 else 0
    amounts = ", ".join(str(d.up_to(low, most)) for _ in range(2 * axes))
    if mode == "constant":
        return f"F.pad({x}, ({amounts}), value={d.among(0, 0, 1, -2)})"
    return f"F.pad({x}, ({amounts}), mode='{mode}')"


def matmul(d: Drawing, call: str = "torch.matmul({}, {})") -> str:
    """A product with a matrix on the right, formatted by `call`, or on the left."""
    x = d.number(2)
    k, n = d.size(-1), d.among(1, 3, 7, 8, 16, 17, 33)
    y = d.matching(lambda t: t.dim() == 2 and t.shape[0] == k, k, n)
    return call.format(x, y) if d.chance(0.7) else left_product(d, x)


def left_product(d: Drawing, x: str) -> str:
    """A product with a matrix on the left; replaces a right operand that has been picked."""
    k, n = d.size(-2), d.among(1, 3, 7, 8, 16, 17, 33)
    d.operands[1:] = []
    d.new[:] = [pair for pair in d.new if pair[1] is d.first]
    return f"{d.matching(lambda t: t.dim() == 2 and t.shape[1] == k, n, k)} @ {x}"


def bmm(d: Drawing) -> str:
    """`bmm`."""
    x = d.number(3)
    shape = d.shape
    require(len(shape) == 3)
    n = d.among(1, 4, 7, 8, 9)
    y = d.matching(lambda t: t.dim() == 3 and t.shape[:2] == (shape[0], shape[2]), shape[0], shape[2], n)
    return f"torch.bmm({x}, {y})"


def linear(d: Drawing) -> str:
    """`F.linear`, with or without bias."""
    x = d.real(1)
    n = d.among(1, 3, 8, 16, 17)
    w = d.fresh(n, d.size(-1))
    return f"F.linear({x}, {w}, {d.fresh(n)})" if d.chance(0.5) else f"F.linear({x}, {w})"


def attention(d: Drawing) -> str:
    """Attention with a random number of keys, which may be the values as well."""
    q = d.real(2)
    shape = d.shape
    length = d.among(1, 4, 8, 17, shape[-2])
    k = d.fresh(*shape[:-2], length, shape[-1])
    v = k if d.chance(0.3) else d.fresh(*shape[:-2], length, shape[-1])
    causal = ", is_causal=True" if d.chance(0.4) else ""
    return f"F.scaled_dot_product_attention({q}, {k}, {v}{causal})"


def conv(d: Drawing, rank: int) -> str:
    """A convolution with equal side lengths of the kernel."""
    x = d.image(rank + 2)
    channels, shortest = d.size(1), min(d.shape[2:])
    kernel = d.up_to(1, min(3, shortest))
    groups = d.among(1, 1, channels)
    out = groups * d.among(1, 2, 3)
    w = d.fresh(out, channels // groups, *[kernel] * rank)
    options = f", stride={d.among(1, 1, 2)}, padding={d.up_to(0, kernel - 1)}" + (
        f", groups={groups}" if groups > 1 else ""
    )
    return f"F.conv{rank}d({x}, {w}{options})"


def conv_transpose(d: Drawing) -> str:
    """`F.conv_transpose2d`."""
    x = d.image(4)
    kernel = d.up_to(1, 3)
    w = d.fresh(d.size(1), d.among(1, 2, 3), kernel, kernel)
    return f"F.conv_transpose2d({x}, {w}, stride={d.among(1, 2)})"


def pool(d: Drawing, kind: str, *ranks: int) -> str:
    """Average or maximum pooling (`kind`) of images of one of these ranks."""
    x = d.image(d.among(*ranks))
    rank = len(d.shape) - 2
    kernel = d.up_to(1, min(3, *d.shape[2:]))
    options = f"{kernel}, stride={d.among(1, 2)}, padding={d.up_to(0, kernel // 2)}, ceil_mode={d.among(True, False)}"
    return f"F.{kind}_pool{rank}d({x}, {options})"


def interpolate(d: Drawing) -> str:
    """`F.interpolate` by a factor of two or three."""
    x = d.image(4)
    mode = d.among("nearest", "bilinear")
    return f"F.interpolate({x}, scale_factor={d.among(2, 3)}, mode='{mode}')"


def cat(d: Drawing, call: str) -> str:
    """`cat` or `stack` of a value with itself or another one."""
    x = d.tensor(1)
    axis = d.axis()
    parts = [x, d.among(x, d.same()), *([x] if d.chance(0.2) else [])]
    return f"torch.{call}([{', '.join(parts)}], {axis})"


def gather(d: Drawing) -> str:
    """`gather`."""
    x = d.tensor(1)
    axis = positive_axis(d)
    shape = list(d.shape)
    below, shape[axis] = shape[axis], d.among(1, 3, 8, shape[axis])
    return f"torch.gather({x}, {axis}, {d.indices(below, *shape)})"


def index_select(d: Drawing) -> str:
    """`index_select`, also with duplicate indices."""
    x = d.tensor(1)
    axis = d.axis()
    return f"torch.index_select({x}, {axis}, {d.indices(d.size(axis), d.among(1, 5, 8))})"


def index_tensor(d: Drawing) -> str:
    """Indexing by one or two index tensors."""
    x = d.tensor(1)
    n = d.among(1, 4, 8)
    first = d.indices(d.size(0), n)
    if len(d.shape) > 1 and d.chance(0.5):
        second = d.indices(d.size(1), n)
        return d.among(f"{x}[{first}, {second}]", f"{x}[:, {second}]")
    return f"{x}[{first}]"


def scatter(d: Drawing, call: str, unique: bool) -> str:
    """`scatter` with unique indices, or `scatter_add` with any."""
    x = d.number(1) if call == "scatter_add" else d.tensor(1)
    axis = positive_axis(d)
    shape = d.shape
    index = d.indices(shape[axis], *shape, unique_along=axis if unique else None)
    return f"torch.{call}({x}, {axis}, {index}, {d.fresh(*shape)})"


def index_add(d: Drawing) -> str:
    """`index_add`, also with duplicate indices."""
    x = d.number(1)
    axis = positive_axis(d)
    shape = list(d.shape)
    below, shape[axis] = shape[axis], d.among(1, 3, 8)
    return f"torch.index_add({x}, {axis}, {d.indices(below, shape[axis])}, {d.fresh(*shape)})"


def embedding(d: Drawing) -> str:
    """`F.embedding`."""
    x = d.real(2, most=2)
    return f"F.embedding({d.indices(d.size(0), *d.among((3,), (2, 5), (8,)))}, {x})"


def layer_norm(d: Drawing, call: str) -> str:
    """`F.layer_norm` or `F.rms_norm` of rows of at least two elements."""
    x = d.real(1)
    n = d.size(-1)
    require(n >= 2)
    weight = f", {d.fresh(n)}" if d.chance(0.5) else ""
    return f"F.{call}({x}, ({d.size_text(len(d.shape) - 1)},){weight})"


def batch_norm(d: Drawing) -> str:
    """`F.batch_norm` by the statistics of the batch, of at least four elements per channel."""
    x = d.real(2)
    require(d.first.eager.numel() >= 4 * d.size(1))
    return f"F.batch_norm({x}, None, None, training=True)"


def reduction(call: str, kind: str = "real") -> Text:
    """`x.call(axis)` or `x.call()`; `kind` is the method of `Drawing` that picks x."""

    def text(d: Drawing) -> str:
        x = getattr(d, kind)()
        if not d.shape or d.chance(0.15):
            return f"{x}.{call}()"
        return f"{x}.{call}({d.axis()}{d.among('', ', keepdim=True')})"

    return text


def axis_call(call: str, kind: str = "real") -> Callable[[Drawing], str]:
    """A call with an axis; `kind` is the method of `Drawing` that picks the operand."""
    return lambda d: call.format(getattr(d, kind)(1), d.axis())


def binary(call: str, kind: str = "number") -> Callable[[Drawing], str]:
    """A call of two operands that broadcast; `kind` is the method of `Drawing` that picks the first."""
    return lambda d: call.format(getattr(d, kind)(), d.like())


def topk(d: Drawing) -> str:
    """`topk`, only without gradients: PyTorch does not specify which of equal elements is chosen and gets one."""
    x = d.number(1)
    require(not d.first.eager.requires_grad)
    axis = d.axis()
    return f"{x}.topk({d.up_to(1, d.size(axis))}, {axis}).values"


def cast(d: Drawing, *types: str) -> str:
    """A conversion to one of some dtypes."""
    return f"{d.tensor()}.to(torch.{d.among(*types)})"


def assign_number(d: Drawing) -> str:
    """Assignment of a number to a slice."""
    x = d.number(1)
    return f"{slices(d, x)} = {d.among(0, 1, -2)}"


def assign_rows(d: Drawing) -> str:
    """Assignment of new rows to the last ones."""
    x = d.tensor(1)
    n = d.size(0)
    rows = d.up_to(1, n)
    return f"{x}[{n - rows}:] = {d.fresh(rows, *d.shape[1:])}"


def axes_reduction(call: str, kind: str = "real") -> Text:
    """A reduction over several axes."""

    def text(d: Drawing) -> str:
        x = getattr(d, kind)(1)
        rank = len(d.shape)
        axes = tuple(d.rng.sample(range(rank), d.up_to(1, rank)))
        return f"{x}.{call}({axes}{d.among('', ', keepdim=True')})"

    return text


def sum_in_dtype(d: Drawing) -> str:
    """A sum, cumulative sum or product in another dtype."""
    x, call = d.number(1), d.among("sum", "cumsum", "prod")
    return f"{x}.{call}({d.axis()}, dtype=torch.{d.among('float32', 'float64', 'int64', 'int32')})"


def var_mean(d: Drawing) -> str:
    """A variance, standard deviation or mean with a random `correction`."""
    x = d.real(1)
    call = d.among("torch.var_mean({}, {}, correction={})[1]", "torch.std({}, {}, correction={})", "torch.var({}, {}, "
                   "correction={})")  # fmt: skip
    return call.format(x, d.axis(), d.among(0, 1, 2))


def norm(d: Drawing) -> str:
    """A vector norm of random order."""
    order = d.among("1", "2", "3", "0.5", "float('inf')", "float('-inf')", "0")
    return f"torch.linalg.vector_norm({d.real(1)}, {order}, {d.axis()})"


def kthvalue(d: Drawing) -> str:
    """`kthvalue`, without gradients for the same reason as `topk`."""
    x = d.number(1)
    require(not d.first.eager.requires_grad)
    axis = d.axis()
    return f"{x}.kthvalue({d.up_to(1, d.size(axis))}, {axis}).values"


def median(d: Drawing) -> str:
    """`median` along an axis, without gradients for the same reason as `topk`."""
    x = d.number(1)
    require(not d.first.eager.requires_grad)
    return f"{x}.median({d.axis()}).values"


def size_arithmetic(d: Drawing) -> str:
    """Arithmetic of a tensor with one of its sizes."""
    x = d.number(1)
    return f"{x} {d.among('+', '*', '-')} {x}.size({d.axis()})"


def dot(d: Drawing) -> str:
    """`dot` or `outer` of two vectors."""
    x = d.number(1)
    require(len(d.shape) == 1)
    return f"torch.{d.among('dot', 'outer')}({x}, {d.same()})"


def cross(d: Drawing) -> str:
    """A cross product."""
    x = d.number(1)
    axis = positive_axis(d)
    require(d.size(axis) >= 3)
    shape = [3 if k == axis else n for k, n in enumerate(d.shape)]
    return f"torch.linalg.cross({x}.narrow({axis}, 0, 3), {d.fresh(*shape)}, dim={axis})"


def cosine(d: Drawing) -> str:
    """`F.cosine_similarity`."""
    return f"F.cosine_similarity({d.real(1)}, {d.same()}, dim={d.axis()}, eps=0.1)"


def cdist(d: Drawing) -> str:
    """`cdist`: distances of all pairs of rows."""
    x = d.real(2)
    y = d.fresh(*d.shape[:-2], d.among(1, 3, 8), d.size(-1))
    return f"torch.cdist({x}, {y}, p={d.among(1.0, 2.0)})"


def loss(d: Drawing) -> str:
    """A loss function."""
    x = d.real(1)
    reduction = d.among("mean", "sum", "none")
    plain_loss = d.among("l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss")
    kind = d.among(plain_loss, plain_loss, "soft_margin", "bce", "kl_div", "nll", "smoothed")
    match kind:
        case "soft_margin":
            return f"F.soft_margin_loss({x}, {d.same()}, reduction='{reduction}')"
        case "bce":
            return f"F.binary_cross_entropy_with_logits({x}, {d.same()}.sigmoid(), reduction='{reduction}')"
        case "kl_div":
            return f"F.kl_div({x}, {d.same()}.sigmoid(), reduction='{reduction}')"
        case "nll" | "smoothed" if len(d.shape) == 2:
            target = d.indices(d.size(1), d.size(0))
            if kind == "nll":
                return f"F.nll_loss({x}, {target}, ignore_index={d.among(0, -100)}, reduction='{reduction}')"
            return f"F.cross_entropy({x}, {target}, label_smoothing=0.125, reduction='{reduction}')"
        case "nll" | "smoothed":
            raise NotFitting
    return f"F.{kind}({x}, {d.same()}, reduction='{reduction}')"


def gcd_or_lcm(d: Drawing) -> str:
    """`gcd` or `lcm`, not with special data: `torch.lcm` of the least integer crashes the process."""
    require(not d.specials)
    return f"torch.{d.among('gcd', 'lcm')}({d.integer()}, {d.same()})"


def hardsigmoid(d: Drawing) -> str:
    """`F.hardsigmoid`, without f64 gradients: eager multiplies these by 1/6 rounded to f32."""
    x = d.real()
    require(not d.differentiable or d.first.eager.dtype is not torch.float64)
    return f"F.hardsigmoid({x})"


def bilinear(d: Drawing) -> str:
    """`F.bilinear`."""
    x = d.real(2)
    return f"F.bilinear({x}, {d.same()}, {d.fresh(2, d.size(-1), d.size(-1))})"


def is_in(d: Drawing) -> str:
    """`isin`."""
    return f"torch.isin({d.number()}, {d.fresh(d.among(1, 3, 9))})"


def unflatten(d: Drawing, x: str) -> str:
    """`unflatten` of an axis into two."""
    axis = positive_axis(d)
    n = d.size(axis)
    factor = d.among(*(k for k in (1, 2, 3, 4, 8) if n % k == 0))
    return f"{x}.unflatten({axis}, ({factor}, -1))"


def as_strided(d: Drawing) -> str:
    """`as_strided` of a contiguous copy, as rows that may overlap."""
    x = d.tensor(1)
    n = d.first.eager.numel()
    rows = d.up_to(1, min(4, n))
    step = d.among(*(k for k in (0, 1, 2, 3) if (rows - 1) * k < n))
    across = (n - 1 - (rows - 1) * step) // d.among(1, 2) + 1
    return f"{x}.contiguous().as_strided(({rows}, {min(across, 8)}), ({step}, 1))"


def bitcast(d: Drawing) -> str:
    """A bit cast to integers and back."""
    x = d.number(1)
    integer_type = {2: "int16", 4: "int32", 8: "int64", 1: "int8"}[d.first.eager.element_size()]
    return f"({x}.view(torch.{integer_type}) ^ 0).view({x}.dtype)"
