"""The gradient a batch of one class would leave behind, measured on probes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedseal.attacks.labels.probes import Responses


def mean_gradients(responses: Responses, readout: Tensor) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Return the classes k [K] that probes stand for, G [K, C], and notes.

    G[k, c] is the mean over probes of class k of (p[c] - 1{c = k}) z, the gradient of a batch of class k alone in the
    bias (z = 1) or along a direction of the features (z = h . v). Probes without labels stand for every class.

    Args:
        responses: to the probes.
        readout: z of each probe, [N].
    """
    probabilities, labels = responses.probabilities, responses.labels
    num_classes = probabilities.shape[1]
    if labels is None:
        mean = (probabilities * readout[:, None]).mean(0)
        every = torch.arange(num_classes, device=mean.device)
        return every, mean - torch.eye(num_classes).to(mean) * readout.mean(), ()
    members = F.one_hot(labels, num_classes).to(probabilities)
    present = members.sum(0) > 0
    sums = members.T @ ((probabilities - members) * readout[:, None])
    notes: tuple[str, ...] = ()
    if not bool(present.all()):
        notes = (f"{int((~present).sum())} of {num_classes} classes are missing from the public data",)
    return present.nonzero().flatten(), sums[present] / members.sum(0)[present, None], notes


def with_missing_classes(classes: Tensor, gradients: Tensor) -> Tensor:
    """Return G [C, C] from the rows G [K, C] of some classes: the others are taken to be recognised as well as those.

    The row of a missing class k gets the mean diagonal entry at k and elsewhere the mean of the known rows' entries
    off their diagonal.
    """
    num_classes = gradients.shape[1]
    own = torch.zeros_like(gradients, dtype=torch.bool)
    own[torch.arange(len(classes), device=classes.device), classes] = True
    elsewhere = gradients.masked_fill(own, 0).sum(0) / (~own).sum(0).clamp(min=1)
    full = elsewhere.expand(num_classes, num_classes).clone()
    full.fill_diagonal_(float(gradients[own].mean()))
    full[classes] = gradients
    return full
