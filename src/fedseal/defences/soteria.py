"""Soteria (Sun et al., CVPR 2021, Sec. 4): hide the features of one linear layer that give the image away most.

Of the weight gradient of one layer, the columns of those input features r_f are zeroed for which |r_f| / |dr_f/dx|,
the paper's approximation of |r (dr/dx)^-1|, is largest; x is the model's input. Threat model: passive server.
Departures: scores are averaged over the batch and exactly round(ratio x features) columns go, since
the authors' signed denominator can vanish and dead features eat their budget (`official_score` restores theirs); row
norms are estimated by random directions, one pass for all features, unless `method=exact`. Ratio 0 is the identity.

Cost: one pass by random directions, or one per feature with `method=exact`, which is hours on large layers.

Known breaks: one layer is defended: an attacker leaves it out of the objective (`attacker=mute`) or reads the mask off
its zeros. Imprint attacks use another layer.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NoReturn, TypeAlias

import numpy
import torch
from torch import Tensor, nn
from torch.func import jvp, replace_all_batch_norm_modules_, vjp, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from fedseal.core.channel import Channel
from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.core.traits import Traits
from fedseal.defences.pruning import match_observed_support
from fedseal.models.structure import ExecutedLayer, executed_layers

Method: TypeAlias = Literal["probes", "exact"]
Break: TypeAlias = Literal["mute", "mask"]
"""How an aware attacker breaks it: leaves the layer's weight out, or reads the mask off the zero columns."""

_FEWEST_PROBES = 256
_LANE_IMAGES = 512
_FORWARD_MODE = threading.Lock()
"""Forward-mode derivatives of PyTorch share one level per process, and clients may train side by side."""


class _Reached(Exception):
    """Carries out of a forward pass the tensor it was run for."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tensor = tensor


def defended_layer(model: nn.Module, inputs: Tensor) -> ExecutedLayer:
    """Return the linear layer whose input is the representation Soteria protects.

    The first linear layer after the last convolution that takes one vector [B, features] per image, other than the
    flattened image itself. That is the classifier in networks with one linear head, the first fully connected layer
    in those with more, and the second layer of a purely linear network.

    Args:
        model: run in the mode it is in.
        inputs: model inputs [B, C, H, W].
    """
    layers = executed_layers(model, inputs)
    last = max((index for index, layer in enumerate(layers) if isinstance(layer.module, _ConvNd)), default=-1)
    for layer in layers[last + 1 :]:
        seen = layer.inputs
        is_image = seen.numel() == inputs.numel() and torch.equal(seen.flatten(), inputs.flatten())
        if isinstance(layer.module, nn.Linear) and seen.ndim == 2 and not is_image:
            return layer
    raise CapabilityError(
        "soteria needs a linear layer on a representation, and the model has none behind its last convolution.",
        hint="A single linear layer on the image, or a purely convolutional network, cannot be defended by it.",
    )


def representation(model: nn.Module, layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the function from model inputs [B, C, H, W] to what enters `layer`, [B, features]."""

    def stop(module: nn.Module, entered: tuple[Tensor, ...]) -> NoReturn:
        raise _Reached(entered[0])

    def features(inputs: Tensor) -> Tensor:
        handle = layer.register_forward_pre_hook(stop)
        try:
            model(inputs)
        except _Reached as reached:
            return reached.tensor
        finally:
            handle.remove()
        raise AssertionError("the layer was executed when it was found")

    return features


def exact_row_norms(features: Callable[[Tensor], Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return r and |dr_f/dx| per image and feature, both [B, features], by one backward pass per feature.

    Under batch statistics the gradient of one image's feature by other images is included, as in the reference.
    """
    r, pull = vjp(features, inputs)[:2]
    rows = vmap(pull, chunk_size=max(1, _LANE_IMAGES // len(inputs)))
    norms = torch.empty_like(r)
    for chosen in torch.split(torch.arange(r.shape[1], device=r.device), 64):
        cotangents = r.new_zeros(len(chosen), *r.shape)
        cotangents[torch.arange(len(chosen)), :, chosen] = 1
        (gradients,) = rows(cotangents)
        norms[:, chosen] = gradients.flatten(2).norm(dim=2).T
    return r, norms


def estimated_row_norms(
    features: Callable[[Tensor], Tensor], inputs: Tensor, probes: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return r and estimates of |dr_f/dx|, both [B, features], from forward-mode derivatives along random signs.

    For v of independent random signs, E (J v)_f^2 is the squared norm of row f of the Jacobian J, so one direction
    informs of all features at once.
    """
    lanes = max(1, min(probes, _LANE_IMAGES // len(inputs)))
    squares: Tensor | None = None
    r = inputs
    for count in [lanes] * (probes // lanes) + ([probes % lanes] if probes % lanes else []):
        bits = torch.randint(2, (count, *inputs.shape), generator=generator, device=inputs.device)
        directions = (2 * bits - 1).to(inputs.dtype)

        def along(direction: Tensor) -> tuple[Tensor, Tensor]:
            value, slope = jvp(features, (inputs,), (direction,))[:2]
            return value, slope

        with _FORWARD_MODE:
            values, slopes = vmap(along, randomness="same")(directions)
        r = values[0]
        total = slopes.square().sum(0)
        squares = total if squares is None else squares + total
    assert squares is not None
    return r, (squares / probes).sqrt()


@DEFENCES.register(
    "soteria",
    Info(
        "withhold the gradient of the features that leak most, in one linear layer",
        paper="Sun et al., CVPR 2021",
        threat="passive",
        strengths=("ratio=0.3", "ratio=0.5", "ratio=0.7", "ratio=0.9"),
    ),
)
class Soteria(Defence):
    """Prunes columns of one layer's weight gradient.

    Args:
        ratio: share of the layer's input features withheld.
        method: row norms of the Jacobian by random `probes`, or `exact` by one backward pass per feature.
        probes: random directions per image; small batches get more, at least 256 in all.
        official_score: the released code's score |dr/dx| / (r + 0.1) summed over the batch and its percentile,
            strictly below which columns are zeroed.
        attacker: the break an aware attacker uses, see `Break`.
    """

    stage = "gradient"

    def __init__(
        self,
        ratio: float = 0.6,
        method: Method = "probes",
        probes: int = 12,
        official_score: bool = False,
        attacker: Break = "mute",
    ) -> None:
        if not 0 <= ratio <= 1 or probes < 1:
            raise UsageError(f"soteria needs 0 <= ratio <= 1 and probes >= 1, got {ratio:g} and {probes}.")
        self.ratio = ratio
        self.method = method
        self.probes = probes
        self.official_score = official_score
        self.attacker = attacker
        self.traits = Traits(data_dependent_mask=ratio > 0, reads_batch=ratio > 0)
        self._weight: str | None = None
        self._passes = 0.0

    def on_gradient(self, gradient: Tensors, context: RoundContext) -> Tensors:
        """Zero the columns of the features that leak most."""
        if self.ratio == 0:
            return gradient
        model, inputs = _scoring_copy(context)
        inputs = inputs.contiguous()  # images that share their memory cannot be moved along directions of their own
        layer = defended_layer(model, inputs[:2])
        self._weight = layer.weight_name
        with torch.no_grad():
            r, norms = self._row_norms(representation(model, model.get_submodule(layer.name)), inputs, context)
        pruned = self.pruned(r, norms)
        return {
            name: tensor.masked_fill(pruned, 0) if name == self._weight else tensor for name, tensor in gradient.items()
        }

    def pruned(self, r: Tensor, norms: Tensor) -> Tensor:
        """Return which columns go, [features] of booleans.

        Args:
            r: the representation, [B, features].
            norms: |dr_f/dx|, [B, features].
        """
        if self.official_score:
            official = (norms / (r + 0.1)).sum(0)
            return official.abs() < float(numpy.percentile(official.cpu().numpy(), 100 * self.ratio))
        score = (r.abs() / (norms + 1e-12)).mean(0)
        chosen = score.topk(round(self.ratio * len(score)), sorted=False).indices
        return torch.zeros_like(score, dtype=torch.bool).index_fill(0, chosen, True)

    def _row_norms(
        self, features: Callable[[Tensor], Tensor], inputs: Tensor, context: RoundContext
    ) -> tuple[Tensor, Tensor]:
        if self.method == "exact":
            r, norms = exact_row_norms(features, inputs)
            self._passes = float(r.shape[1])
            return r, norms
        probes = max(self.probes, math.ceil(_FEWEST_PROBES / len(inputs)))
        self._passes = float(probes)
        return estimated_row_norms(features, inputs, probes, context.generator)

    def report(self) -> CostReport:
        """Count the passes spent on scores: backward ones if exact, forward ones with a derivative otherwise."""
        return CostReport(extra_passes=self._passes)

    def attacker_view(self) -> AttackerView:
        """Publish the break: leave the layer's weight out of the comparison, or compare the columns that were sent.

        What was sent of it stays in the observation, where it does not move the matching but helps to infer labels.
        The layer is known only once a round was defended; before that every mask is read off the upload.
        """
        parameters = {"ratio": self.ratio, "break": self.attacker}
        weight = self._weight
        if self.ratio == 0:
            return AttackerView(self.name, parameters)
        if weight is None:
            return AttackerView(self.name, parameters, match_observed_support)

        def mute(gradient: Tensors, observed: Tensors) -> Tensors:
            return {name: torch.zeros_like(t) if name == weight else t for name, t in gradient.items()}

        def mask(gradient: Tensors, observed: Tensors) -> Tensors:
            sent = (observed[weight] != 0).any(0)
            return {name: t * sent if name == weight else t for name, t in gradient.items()}

        simulate = mute if self.attacker == "mute" else mask
        return AttackerView(self.name, parameters, simulate, channel=Channel(mask))


def _scoring_copy(context: RoundContext) -> tuple[nn.Module, Tensor]:
    """Return a copy of the client's model that keeps no running statistics up to date, and the step's inputs to it."""
    assert context.batch is not None, "a gradient belongs to a batch"

    def reach(inputs: Tensor) -> NoReturn:
        raise _Reached(inputs)

    try:
        context.loss(reach, replace(context.batch, inputs=context.batch.numbers))
    except _Reached as reached:
        inputs = reached.tensor
    model = copy.deepcopy(context.model)
    for module in list(model.modules()):
        if isinstance(module, _BatchNorm) and module.training:
            replace_all_batch_norm_modules_(module)
    if inputs.dtype == torch.float16:
        return model.float(), inputs.float()
    return model, inputs
