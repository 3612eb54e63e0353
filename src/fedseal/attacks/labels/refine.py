"""Labels re-estimated while a reconstruction converges: the identity with p from the current images."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedseal.attacks.labels.identity import counts_given_responses
from fedseal.attacks.labels.last_layer import last_layer
from fedseal.attacks.labels.probes import respond
from fedseal.core.errors import InputError
from fedseal.core.observation import Observation


def refine_labels(observation: Observation, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return `labels` [B] changed in as few places as the counts implied by the reconstruction require.

    The identity gives counts with p the mean softmax on `inputs`. A class with too many labels gives up the images
    its softmax is lowest on; these go to the classes with too few, by the assignment of highest total softmax.

    Args:
        observation: what the attack sees.
        inputs: the current reconstruction as model inputs, [B, C, H, W].
        labels: the current labels [B], in the order of `inputs`.
    """
    layer = last_layer(observation)
    if len(inputs) != len(labels) or len(labels) != layer.count:
        raise InputError(
            f"refining labels: {len(inputs)} inputs and {len(labels)} labels for {layer.count} images.",
            hint="Give one input and one label per image behind the update.",
        )
    responses = respond(observation, layer.model, inputs)
    wanted = counts_given_responses(layer, responses).to(labels.device)
    return _reach(labels, wanted, responses.probabilities.to(labels.device))


def _reach(labels: Tensor, wanted: Tensor, probabilities: Tensor) -> Tensor:
    """Change as few `labels` [B] as possible to have `wanted` [C] of each class, guided by `probabilities` [B, C]."""
    present = torch.bincount(labels, minlength=len(wanted))
    moved: list[int] = []
    for surplus in (present > wanted).nonzero().flatten().tolist():
        members = (labels == surplus).nonzero().flatten()
        weakest = probabilities[members, surplus].argsort(stable=True)[: int(present[surplus] - wanted[surplus])]
        moved += members[weakest].tolist()
    refined = labels.clone()
    if moved:
        missing = torch.repeat_interleave((wanted - present).clamp(min=0))
        rows, columns = linear_sum_assignment(probabilities[moved][:, missing].cpu().numpy(), maximize=True)
        refined[torch.tensor(moved, device=labels.device)[rows]] = missing[columns]
    return refined
