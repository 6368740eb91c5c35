"""The texts of calls with many options: convolutions, pooling, resizing, normalisation, attention, products."""

from __future__ import annotations

from conformance.fuzz.drawing import Drawing, overlaps, require


def conv(d: Drawing, rank: int) -> str:
    """A convolution with kernel size, stride, dilation and padding drawn per axis."""
    x = d.image(rank + 2)
    channels = d.size(1)
    sizes, strides, dilations, paddings = [], [], [], []
    for n in d.shape[2:]:
        padding, dilation = d.among(0, 0, 1, 2), d.among(1, 1, 2)
        sizes.append(d.up_to(1, min(3, (n + 2 * padding - 1) // dilation + 1)))
        strides.append(d.among(1, 1, 2, 3))
        dilations.append(dilation)
        paddings.append(padding)
    groups = d.among(*(g for g in (1, 1, 2, channels) if channels % g == 0))
    out = groups * d.among(1, 2, 3)
    w = d.fresh(out, channels // groups, *sizes)
    bias = f", {d.fresh(out)}" if d.chance(0.3) else ""
    options = f"stride={tuple(strides)}, padding={tuple(paddings)}, dilation={tuple(dilations)}, groups={groups}"
    return f"F.conv{rank}d({x}, {w}{bias}, {options})"


def conv_transpose(d: Drawing, rank: int) -> str:
    """A transposed convolution with groups, padding and output padding."""
    x = d.image(rank + 2)
    channels, kernel, step = d.size(1), d.up_to(1, 3), d.among(1, 2, 3)
    groups = d.among(*(g for g in (1, 1, 2, channels) if channels % g == 0))
    w = d.fresh(channels, d.among(1, 2), *[kernel] * rank)
    options = f"stride={step}, padding={d.up_to(0, kernel // 2)}, output_padding={d.up_to(0, step - 1)}"
    return f"F.conv_transpose{rank}d({x}, {w}, {options}, groups={groups})"


def conv_same(d: Drawing) -> str:
    """`F.conv1d` with padding 'same' or 'valid'."""
    x = d.image(3)
    kernel = d.up_to(1, min(4, d.size(2)))
    return f"F.conv1d({x}, {d.fresh(d.among(1, 2), d.size(1), kernel)}, padding='{d.among('same', 'valid')}')"


def unfold(d: Drawing) -> str:
    """`F.unfold`, or `F.fold` of the unfolded columns."""
    x = d.image(4)
    kernel, dilation = d.up_to(1, min(3, *d.shape[2:])), d.among(1, 1, 2)
    columns = f"F.unfold({x}, {kernel}, dilation={dilation}, padding=1, stride={d.among(1, 2)})"
    if d.chance(0.5):
        return columns
    step = d.among(1, 2)
    columns = f"F.unfold({x}, {kernel}, padding=1, stride={step})"
    return f"F.fold({columns}, {tuple(d.shape[2:])}, {kernel}, padding=1, stride={step})"


def adaptive_pool(d: Drawing, kind: str, *ranks: int) -> str:
    """Adaptive pooling (`kind`: avg or max) of images of one of these ranks, to a size that may not divide theirs."""
    x = d.image(d.among(*ranks))
    rank = len(d.shape) - 2
    return f"F.adaptive_{kind}_pool{rank}d({x}, {d.among(1, 2, 3, 5)})"


def interpolate(d: Drawing) -> str:
    """`F.interpolate` of 2-d images to a random size, in any mode."""
    x = d.image(4)
    size = (d.among(1, 2, 3, 5, 8), d.among(1, 3, 4, 7))
    mode = d.among("nearest", "nearest-exact", "bilinear", "bicubic", "area")
    corners = f", align_corners={d.among(True, False)}" if mode in ("bilinear", "bicubic") else ""
    return f"F.interpolate({x}, size={size}, mode='{mode}'{corners})"


def interpolate3d(d: Drawing) -> str:
    """`F.interpolate` of 3-d images to a random size, in any mode."""
    x = d.image(5)
    size = tuple(d.among(1, 2, 3, 5) for _ in range(3))
    mode = d.among("nearest", "nearest-exact", "trilinear", "area")
    corners = f", align_corners={d.among(True, False)}" if mode == "trilinear" else ""
    return f"F.interpolate({x}, size={size}, mode='{mode}'{corners})"


def pixel_shuffle(d: Drawing) -> str:
    """`F.pixel_shuffle` or `F.pixel_unshuffle`."""
    x = d.tensor(4)
    require(0 not in d.shape)  # eager returns tensors without elements unchanged, whose shape is wrong
    if d.size(-3) % 4 == 0 and d.chance(0.5):
        return f"F.pixel_shuffle({x}, 2)"
    return f"F.pixel_unshuffle({x}, {d.among(*(k for k in (1, 2, 3) if d.size(-1) % k == 0 and d.size(-2) % k == 0))})"


def group_norm(d: Drawing) -> str:
    """`F.group_norm` of groups of at least four elements."""
    x = d.real(2)
    channels = d.size(1)
    groups = d.among(*(g for g in (1, 2, channels) if channels % g == 0))
    require(d.first.eager[:1].numel() >= 4 * groups)
    weights = f", {d.fresh(channels)}, {d.fresh(channels)}" if d.chance(0.5) else ""
    return f"F.group_norm({x}, {groups}{weights})"


def instance_norm(d: Drawing) -> str:
    """`F.instance_norm` of images of at least four pixels."""
    x = d.image(d.among(3, 4))
    require(d.first.eager[:1, :1].numel() >= 4)
    return f"F.instance_norm({x})"


def batch_norm(d: Drawing) -> str:
    """`F.batch_norm` with running statistics, which training also updates."""
    x = d.real(2)
    require(d.first.eager.numel() >= 4 * d.size(1))
    channels = d.size(1)
    mean, var = d.fresh(channels), d.drawn_as("positive", channels)
    require(not any(overlaps(v.eager) for v in d.operands[-2:]))  # training would write to an element more than once
    weights = f", {d.fresh(channels)}, {d.fresh(channels)}" if d.chance(0.5) else ""
    return f"F.batch_norm({x}, {mean}, {var}{weights}{d.among('', ', training=True, momentum=0.25')})"


def attention(d: Drawing) -> str:
    """Attention with a mask, a scale, or fewer key heads than query heads."""
    q = d.image(4)
    *batch, heads, rows, width = d.shape
    length = d.among(1, 4, 8, 17)
    key_heads = d.among(heads, *(h for h in (1, 2) if heads % h == 0))
    k, v = (d.fresh(*batch, key_heads, length, width) for _ in range(2))
    options = ", enable_gqa=True" if key_heads != heads else ""
    options += d.among("", ", scale=0.25")
    shape = d.among((rows, length), (heads, rows, length), (*batch, 1, 1, length))
    mask = d.among("", "float", "bool")
    if not mask and d.chance(0.4):
        options += ", is_causal=True"
    elif mask:
        options += f", attn_mask={d.fresh(*shape) if mask == 'float' else d.truths(*shape)}"
    return f"F.scaled_dot_product_attention({q}, {k}, {v}{options})"


def einsum(d: Drawing) -> str:
    """`einsum` with batch, contracted and free axes, and axes summed in one operand only."""
    x = d.number(2)
    shape = d.shape
    if len(shape) == 2:
        m, k = shape
        text, other = d.among(
            ("ij,ij->i", (m, k)), ("ij,ij->", (m, k)), ("ij,j->i", (k,)), ("ij,kj->ik", (5, k)), ("ij,i->j", (m,)),
            ("ij,kl->ikjl", (2, 3)), ("ij,jk->k", (k, 3)), ("ij,jk->ikj", (k, 2)),
        )  # fmt: skip
    elif len(shape) == 3:
        b, m, k = shape
        text, other = d.among(
            ("bij,bkj->bik", (b, 3, k)), ("bij,bij->b", (b, m, k)), ("bij,jc->bci", (k, 3)), ("bij,bi->bj", (b, m)),
            ("bij,kj->ibk", (4, k)),
        )  # fmt: skip
    else:
        *batch, _, heads, width = shape
        text, other = "...qhd,...khd->...hqk", (*batch, 3, heads, width)
    return f"torch.einsum('{text}', {x}, {d.fresh(*other)})"


def product(d: Drawing) -> str:
    """Products of matrices and vectors in other forms: with an addend, scales, or broadcast batches."""
    x = d.number(2)
    shape = d.shape
    k, n = shape[-1], d.among(1, 3, 8, 17)
    form = d.among("mv", "broadcast", "addmm", "baddbmm", "tensordot", "inner", "vecdot", "kron")
    if form == "mv":
        return f"{x} @ {d.fresh(k)}"
    if form == "broadcast":
        return f"{x} @ {d.fresh(d.among(1, 2), *[1] * max(0, len(shape) - 3), k, n)}"
    if form == "addmm" and len(shape) == 2:
        bias = d.fresh(*d.among((n,), (shape[0], n), (1, n), (shape[0], 1), ()))
        return f"torch.addmm({bias}, {x}, {d.fresh(k, n)}, beta={d.among(1, 2, 0)}, alpha={d.among(1, -1)})"
    if form == "baddbmm" and len(shape) == 3:
        return f"torch.baddbmm({d.fresh(shape[1], n)}, {x}, {d.fresh(shape[0], k, n)}, alpha=2)"
    if form == "tensordot" and len(shape) > 2:
        return f"torch.tensordot({x}, {d.fresh(*shape[-2:], n)}, 2)"
    if form == "inner":
        return f"torch.inner({x}, {d.fresh(n, k)})"
    if form == "kron" and len(shape) == 2:
        return f"torch.kron({x}, {d.fresh(2, 3)})"
    return f"torch.linalg.vecdot({x}, {d.fresh(*shape)}, dim={d.axis()})"
