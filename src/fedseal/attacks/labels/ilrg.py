"""iLRG: class features from the gradient itself, then linear equations for the counts (Ma et al., ICLR 2023, Sec. 4).

g_W[c] / g_b[c] is about the mean feature of class c, so softmax(W e_c + b) is about p(. | class c), and the identity
becomes sum_j n_j p_j[c] - n_c = B g_b[c] with sum n = B, solved by the pseudo-inverse. Needs small logits and a bias
(LLG+ answers without one), but no data. Departures: rounding is by least squares; as in the authors' code, but not in
their paper, solutions above B count as 0.
"""

from __future__ import annotations

import torch

from fedseal.attacks.labels.counts import misfit, round_to_sum
from fedseal.attacks.labels.guess import LabelGuess, guess_from_counts
from fedseal.attacks.labels.last_layer import last_layer
from fedseal.attacks.labels.llg import llg_plus
from fedseal.attacks.labels.rules import LABEL_RULES
from fedseal.core.observation import Observation
from fedseal.core.registry import Info

_TINY = 1e-12
_POOR = 0.25


@LABEL_RULES.register(
    "ilrg", Info("class features from the gradient itself, then equations for the counts", paper="Ma et al., ICLR 2023")
)
def ilrg(observation: Observation, seed: int) -> LabelGuess:
    """Solve iLRG's equations for the counts."""
    layer = last_layer(observation, seed)
    g_b = layer.bias_gradient
    if g_b is None:
        instead = llg_plus(observation, seed)
        return LabelGuess(instead.labels, (*instead.notes, "no last bias: iLRG divides by its gradient, LLG+ answered"))
    divisor = torch.where(g_b.abs() < _TINY, torch.full_like(g_b, _TINY), g_b)
    class_features = layer.weight_gradient / divisor[:, None]
    probabilities = (class_features @ layer.weight.T + layer.bias).softmax(1)
    equations = torch.cat([torch.ones_like(g_b)[None], probabilities.T - torch.eye(layer.num_classes).to(g_b)])
    totals = layer.count * torch.cat([torch.ones_like(g_b[:1]), g_b])
    solution = torch.linalg.pinv(equations) @ totals
    notes = layer.notes
    if misfit(solution, layer.count) > _POOR:
        notes = (*notes, "iLRG's equations have no solution near whole counts: the classes' features are too spread")
    possible = torch.where(solution > layer.count, torch.zeros_like(solution), solution)
    return guess_from_counts(round_to_sum(possible, layer.count), notes)
