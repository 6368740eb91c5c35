"""Losses: the Tensor program gives what eager gives, with weights, ignored targets and every reduction."""

import pytest
import torch

from compiler.tests.eager import check, expressions

REDUCTIONS = ("mean", "sum", "none")


def inputs() -> dict[str, torch.Tensor]:
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    return {
        "x": x, "y": y, "h": x.bfloat16(), "row": torch.randn(7), "p": torch.rand(5, 7), "q": torch.rand(5, 7),
        "ends": torch.randint(0, 3, (5, 7)) / 2, "w": torch.rand(7), "weight": torch.rand(7),
        "t": torch.randint(0, 7, (5,)),
        "image": torch.randn(2, 7, 3, 4), "timage": torch.randint(0, 7, (2, 3, 4)), "one": torch.tensor(3),
        "big": x + 1000, "d": x.double(), "skipped": torch.full((5,), 2), "chances": torch.rand(5, 7).softmax(1),
        "sign": torch.randint(0, 2, (5, 7)) * 2.0 - 1, "a": torch.randn(2, 4, 5), "b": torch.randn(2, 4, 5),
        "s": torch.tensor(0.25), "labels": torch.stack([torch.randperm(8)[:7] - 1 for _ in range(5)]),
    }  # fmt: skip


EXPRESSIONS = """
    *(F.mse_loss(x, y, reduction=r) for r in R)
    *(F.l1_loss(x, y, reduction=r) for r in R), F.mse_loss(h, y)
    F.mse_loss(s, s * 2)
    *(F.smooth_l1_loss(x, y, reduction=r) for r in R)
    F.smooth_l1_loss(x, y, beta=0.5), F.smooth_l1_loss(x, y, beta=0.0)
    *(F.huber_loss(x, y, reduction=r) for r in R)
    F.huber_loss(x, y, delta=0.5), F.mse_loss(x[:0], y[:0]), F.l1_loss(d, y)
    *(F.binary_cross_entropy(p, q, reduction=r) for r in R)
    F.binary_cross_entropy(ends, q, w, reduction="none"), F.binary_cross_entropy(p, q, w)
    *(F.binary_cross_entropy_with_logits(x, q, reduction=r) for r in R)
    F.binary_cross_entropy_with_logits(x * 100, q, w, pos_weight=weight)
    F.binary_cross_entropy_with_logits(x, q, pos_weight=weight, reduction="none")
    F.binary_cross_entropy_with_logits(x, q, w, reduction="sum")
    *(F.kl_div(x.log_softmax(1), chances, reduction=r) for r in (*R, "batchmean"))
    F.kl_div(x, ends, reduction="none")
    *(F.kl_div(x.log_softmax(1), y.log_softmax(1), reduction=r, log_target=True) for r in (*R, "batchmean"))
    F.soft_margin_loss(x, sign), F.cosine_similarity(x, y)
    F.cosine_similarity(a, b, dim=-1), F.cosine_similarity(x, row, 1, eps=0.5)
    F.cosine_similarity(row, row * 2, 0), F.cosine_similarity(x * 0, y, 1)
    F.cosine_embedding_loss(x, y, sign[:, 0]), F.pairwise_distance(x, y)
    *(F.nll_loss(x.log_softmax(1), t, reduction=r) for r in R), *(F.nll_loss(x, t, w, reduction=r) for r in R)
    *(F.nll_loss(x, t, w, ignore_index=2, reduction=r) for r in R)
    F.nll_loss(x, skipped, ignore_index=2), F.nll_loss(row, one)
    F.nll_loss(image, timage), F.nll_loss(image, timage, w, ignore_index=1)
    F.nll_loss(image, timage, reduction="none")
    *(F.cross_entropy(x, t, reduction=r) for r in R)
    *(F.cross_entropy(big, t, reduction=r, label_smoothing=0.1) for r in R)
    *(F.cross_entropy(x, t, w, ignore_index=2, reduction=r) for r in R), F.cross_entropy(d, t), F.cross_entropy(h, t)
    *(F.cross_entropy(x, t, w, ignore_index=2, reduction=r, label_smoothing=0.3) for r in R)
    F.cross_entropy(x, skipped, ignore_index=2)
    *(F.cross_entropy(x, chances, reduction=r) for r in R)
    *(F.cross_entropy(x, chances, w, reduction=r, label_smoothing=0.2) for r in R)
    F.cross_entropy(image, timage), F.cross_entropy(image, timage, w, label_smoothing=0.1)
    F.cross_entropy(image, image.softmax(1), reduction="none")
    F.cross_entropy(row, one), F.cross_entropy(row, one, w, reduction="none", label_smoothing=0.2)
    F.cross_entropy(row, row.softmax(0)), F.cross_entropy(x, t, ignore_index=-1)
    F.margin_ranking_loss(x[:, 0], y[:, 0], sign[:, 0])
    F.hinge_embedding_loss(x, sign), F.triplet_margin_loss(x, y, p)
    F.poisson_nll_loss(x, p), F.multilabel_soft_margin_loss(x, ends)
    *(F.multilabel_margin_loss(x, labels, reduction=r) for r in R), F.multilabel_margin_loss(row, labels[0])
"""


@pytest.mark.parametrize("expression", expressions(EXPRESSIONS))
@pytest.mark.filterwarnings("ignore:.*reduction:UserWarning")
def test_agrees_with_eager(expression: str) -> None:
    spelled = expression.replace(" in R)", f" in {REDUCTIONS})").replace("(*R,", f"(*{REDUCTIONS},")
    check(f"({spelled},)", inputs)
