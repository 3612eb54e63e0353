"""LLG and LLG+: every label of a class moves its row sum by one and the same amount (Wainakh et al., PETS 2022).

The row sum of the last weight's gradient is about s_c + n_c m, with m < 0 the impact of one label. LLG takes s = 0 and
m from the negative rows; LLG+ measures both on public data, LLG* on dummy data. Needs no bias; features must be >= 0.
Departure: the authors average ten random batches of one class, we take the mean over all probes, their limit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedseal.attacks.labels.class_means import mean_gradients
from fedseal.attacks.labels.guess import LabelGuess, guess_from_counts
from fedseal.attacks.labels.last_layer import LastLayer, last_layer
from fedseal.attacks.labels.probes import Responses, dummy_inputs, public_responses, respond
from fedseal.attacks.labels.rules import LABEL_RULES
from fedseal.core.observation import Observation
from fedseal.core.registry import Info

_WRONG_IMPACT = "no row sum behaves as LLG expects: labels are spread over the smallest rows"


@LABEL_RULES.register("llg", Info("count labels by the row sums of the last weight", paper="Wainakh et al., PETS 2022"))
def llg(observation: Observation, seed: int) -> LabelGuess:
    """Take m = (1 + 1/C) / B times the sum of the negative row sums, and no offset."""
    layer = last_layer(observation, seed)
    rows = layer.weight_gradient.sum(1)
    impact = (1 + 1 / layer.num_classes) / layer.count * float(rows[rows < 0].sum())
    return _extract(layer, rows, rows, impact, layer.notes)


@LABEL_RULES.register(
    "llg-plus", Info("the same, impact and offsets measured on public or dummy data", paper="Wainakh et al., PETS 2022")
)
def llg_plus(observation: Observation, seed: int) -> LabelGuess:
    """Measure m and the offsets s_c on public data if there are any (LLG+), else on dummy data (LLG*)."""
    layer = last_layer(observation, seed)
    rows = layer.weight_gradient.sum(1)
    responses = public_responses(observation, layer.model, seed)
    notes = layer.notes
    if responses is None:
        responses = respond(observation, layer.model, dummy_inputs(observation, seed))
        notes = (*notes, "no public data: impact and offsets are measured on dummy images")
    impact, offsets, remarks = _measure(responses, layer)
    return _extract(layer, rows, rows - offsets, impact, (*notes, *remarks))


def _measure(responses: Responses, layer: LastLayer) -> tuple[float, Tensor, tuple[str, ...]]:
    """Return the impact of one label, the offsets [C] and remarks.

    With G[k, c] the row sum c of a batch that holds only class k: m = (1 + 1/C) mean_k G[k, k] / B, and
    s_c = mean of G[k, c] over k != c.
    """
    classes, gradients, notes = mean_gradients(responses, responses.features.sum(1))
    own = gradients[torch.arange(len(classes), device=classes.device), classes]
    impact = (1 + 1 / layer.num_classes) * float(own.mean()) / layer.count
    others = torch.ones_like(gradients)
    others[torch.arange(len(classes), device=classes.device), classes] = 0
    return impact, (gradients * others).sum(0) / others.sum(0).clamp(min=1), notes


def _extract(layer: LastLayer, rows: Tensor, shifted: Tensor, impact: float, notes: tuple[str, ...]) -> LabelGuess:
    """Give each negative class one label, then label after label to the smallest row, each paid for with `impact`."""
    if not impact < 0:
        impact = -(float(rows.abs().mean()) + 1e-12)
        notes = (*notes, _WRONG_IMPACT)
    remaining = shifted.clone()
    counts = torch.zeros(layer.num_classes, dtype=torch.long, device=rows.device)
    negative = (rows < 0).nonzero().flatten()
    certain = negative[rows[negative].argsort(stable=True)[: layer.count]]
    counts[certain] = 1
    remaining[certain] -= impact
    for _ in range(layer.count - len(certain)):
        smallest = int(remaining.argmin())
        counts[smallest] += 1
        remaining[smallest] -= impact
    return guess_from_counts(counts, notes)
