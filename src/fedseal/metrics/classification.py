"""How good a classifier is beside its accuracy: per class, and by rank."""

from __future__ import annotations

import torch
from scipy.stats import rankdata
from torch import Tensor


def class_accuracies(right: Tensor, labels: Tensor, classes: int) -> tuple[float | None, ...]:
    """Return the share of each class's images that was answered right; None for a class without images.

    Args:
        right: bool [N].
        labels: int [N], from 0 to classes - 1.
        classes: how many there are.
    """
    counts = torch.bincount(labels, minlength=classes).tolist()
    hits = torch.bincount(labels[right], minlength=classes).tolist()
    return tuple(hit / count if count else None for hit, count in zip(hits, counts, strict=True))


def macro_auc(logits: Tensor, labels: Tensor) -> float | None:
    """Return the area under the ROC curve, one class against the rest, mean over the classes that can be told.

    The area is the chance that an image of the class gets a higher probability of it than one of another class (Mann
    and Whitney's U by mid-ranks, so ties count half): 0.5 by chance, whatever the frequencies of the classes.

    Args:
        logits: [N, classes], or [N] or [N, 1] for two classes.
        labels: int [N].

    Returns:
        None where no class has images on both sides, or where an answer is not finite.
    """
    table = logits.detach().double().reshape(len(labels), -1)
    if not torch.isfinite(table).all():
        return None
    single = table.shape[1] == 1
    scores = table if single else table.softmax(1)
    positive = (labels[:, None] == (1 if single else torch.arange(table.shape[1], device=labels.device))).double()
    ranks = torch.from_numpy(rankdata(scores.cpu().numpy(), axis=0)).to(positive)
    own = positive.sum(0)
    pairs = own * (len(labels) - own)
    areas = ((ranks * positive).sum(0) - own * (own + 1) / 2)[pairs > 0] / pairs[pairs > 0]
    return float(areas.mean()) if len(areas) else None
