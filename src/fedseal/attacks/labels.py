"""Label inference from the last layer's gradient (ATTACKS.md 4).

For cross-entropy and any network with a last bias, the bias gradient obeys g_b[c] = p[c] - n_c / B exactly, with p the
batch mean of the softmax and n_c the number of labels c. `identity` solves it for the counts with p estimated on
public data or on noise; for one image its special case, iDLG's rule, needs no estimate: only the true class is
negative (Zhao et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedseal.attacks.server_view import (
    attack_model,
    attack_parameters,
    estimated_gradient,
    image_count,
    input_normalisation,
)
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.observation import Observation
from fedseal.core.registry import near_matches
from fedseal.core.seeds import generator
from fedseal.models.structure import ExecutedLayer, output_layer

_PROBES = 64


@dataclass(frozen=True)
class LabelGuess:
    """Inferred labels [B] in ascending order, and what is uncertain about them."""

    labels: Tensor
    notes: tuple[str, ...] = ()


def infer_labels(observation: Observation, seed: int) -> LabelGuess:
    """Return the labels an attack works with: the given ones, or those its rule infers."""
    knowledge = observation.knowledge
    if knowledge.labels is not None:
        return LabelGuess(knowledge.labels)
    if knowledge.label_rule not in LABEL_RULES:
        raise UsageError(
            f"there is no label rule called {knowledge.label_rule!r}.",
            hint=near_matches(knowledge.label_rule, [*LABEL_RULES, "true", "unknown"]),
        )
    return LABEL_RULES[knowledge.label_rule](observation, seed)


def idlg(observation: Observation, seed: int) -> LabelGuess:
    """Return the one class whose last-layer gradient is negative: by the bias, or by row sums without one."""
    if image_count(observation) != 1:
        raise CapabilityError(
            f"iDLG's rule reads one label, the update holds {image_count(observation)}.",
            hint="Use the rule `identity`.",
        )
    gradient = estimated_gradient(observation)
    layer = _last_layer(observation, attack_model(observation), seed)
    if layer.bias_name is not None:
        return LabelGuess(gradient[layer.bias_name].argmin().reshape(1))
    by_row_sum = gradient[layer.weight_name].sum(1).argmin().reshape(1)
    return LabelGuess(by_row_sum, ("no last bias: row sums need non-negative features",))


def identity(observation: Observation, seed: int) -> LabelGuess:
    """Solve g_b = p - n / B for the counts n, rounded to whole numbers that sum to B by largest remainders."""
    count = image_count(observation)
    if count == 1:
        return idlg(observation, seed)
    model = attack_model(observation)
    layer = _last_layer(observation, model, seed)
    inputs = _probe_inputs(observation, seed)
    with torch.no_grad():
        mean_probability = model(inputs).softmax(1).mean(0)
    gradient = estimated_gradient(observation)
    notes: tuple[str, ...] = ()
    if layer.bias_name is not None:
        bias_gradient = gradient[layer.bias_name]
    else:
        features = output_layer(model, inputs, observation.knowledge.num_classes)
        assert features is not None
        mean_feature = features.inputs.mean(0)
        bias_gradient = gradient[layer.weight_name] @ mean_feature / mean_feature.square().sum()
        notes = ("no last bias: its gradient is estimated from the weight's and the mean feature",)
    if observation.knowledge.loss_reduction == "sum":
        bias_gradient = bias_gradient / count
    if float(bias_gradient.abs().max()) < 1e-3 / count:
        notes = (*notes, "the last layer's gradient is almost zero: labels are uncertain")
    counts = round_to_sum(count * (mean_probability - bias_gradient), count)
    return LabelGuess(torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts), notes)


LABEL_RULES: dict[str, Callable[[Observation, int], LabelGuess]] = {"idlg": idlg, "identity": identity}


def round_to_sum(values: Tensor, total: int) -> Tensor:
    """Round non-negative values to integers that sum to `total`, by largest remainders; negatives count as zero."""
    values = values.double().clamp(min=0)
    values = (
        values * (total / values.sum()) if float(values.sum()) > 0 else torch.full_like(values, total / len(values))
    )
    floors = values.floor()
    missing = total - int(floors.sum())
    extra = torch.zeros_like(floors)
    extra[(values - floors).topk(missing).indices] = 1
    return (floors + extra).long()


def _probe_inputs(observation: Observation, seed: int) -> Tensor:
    """Return inputs to estimate the mean softmax on: public data if given, else uniform noise."""
    knowledge = observation.knowledge
    like = next(iter(attack_parameters(observation).values()))
    if knowledge.auxiliary is not None:
        images = knowledge.auxiliary.images[:_PROBES]
    else:
        images = torch.rand(_PROBES, *knowledge.input_shape, generator=generator(seed, "label-probe"))
    return input_normalisation(observation)(images.to(like))


def _last_layer(observation: Observation, model: nn.Module, seed: int) -> ExecutedLayer:
    layer = output_layer(model, _probe_inputs(observation, seed)[:2], observation.knowledge.num_classes)
    if layer is None:
        raise CapabilityError(
            "labels cannot be inferred: the model does not end in a linear layer with one output per class.",
            hint="Set `attacker.labels` to `unknown` or `true` in the scenario.",
        )
    return layer
