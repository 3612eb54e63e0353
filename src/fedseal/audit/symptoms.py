"""What an upload and the truth behind it tell of how hard it is to attack: measured, not judged (`audit.why`)."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.attacks.spectrum import spectrum
from fedseal.core.batch import Batch
from fedseal.core.defence import Loss
from fedseal.core.observation import Observation
from fedseal.core.tensors import Tensors, flatten
from fedseal.federation.client import RoundConfig, plain_update
from fedseal.federation.loss import client_loss
from fedseal.models.structure import input_linear_layer


@dataclass(frozen=True)
class Symptoms:
    """Measured of one undefended upload.

    Attributes:
        images: behind it.
        steps: the client took.
        learning_rate: of these.
        loss_before: of the client, on all its images, at the weights it was sent.
        loss_after: at those it returned; None for a gradient.
        turn: cosine between the weight change and the step down the gradient at the start; None for a gradient.
        hidden_norms: layers that normalise by statistics of the batch which the attacker does not see.
        own_distance: one minus the cosine between the client's gradient and that by running statistics.
        layer: outputs and inputs of the linear layer that sees the images first; None without one.
        rank: of its gradient, by the largest gap.
        gap: that gap; None where the rank is all that the layer's size allows.
        residual: one minus the cosine between the upload and what the images found would have sent; None if unknown.
    """

    images: int
    steps: int
    learning_rate: float
    loss_before: float
    loss_after: float | None = None
    turn: float | None = None
    hidden_norms: int = 0
    own_distance: float = 0.0
    layer: tuple[int, int] | None = None
    rank: int = 0
    gap: float | None = None
    residual: float | None = None


def symptoms_of(observation: Observation, config: RoundConfig, truth: Batch, found: Tensor | None = None) -> Symptoms:
    """Measure an upload of one client that is not defended.

    Args:
        observation: of it.
        config: how the client trains.
        truth: all its images, in the order of its steps.
        found: what an attack made of it, in the order of the truth.
    """
    model, update = copy.deepcopy(observation.model), observation.update
    loss = client_loss(config.normalisation, config.loss_reduction, config.loss)
    gradient, before = _gradient(model, truth, loss)
    after = turn = None
    if update.kind == "delta":
        moved = {name: p.detach() + update.tensors[name] for name, p in model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            after = float(loss(lambda x: functional_call(model, moved, (x,)), truth))
        turn = -_cosine(update.tensors, gradient)
    hidden = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training]
    if observation.knowledge.bn_statistics is not None:
        hidden = []
    own = 1 - _cosine(_gradient(copy.deepcopy(model).eval(), truth, loss)[0], gradient) if hidden else 0.0
    layer, rank, gap = _first_layer(observation, truth)
    return Symptoms(
        images=len(truth),
        steps=config.steps,
        learning_rate=config.learning_rate,
        loss_before=before,
        loss_after=after,
        turn=turn,
        hidden_norms=len(hidden),
        own_distance=own,
        layer=layer,
        rank=rank,
        gap=gap,
        residual=None if found is None else _residual(observation, config, truth, found),
    )


def _gradient(model: nn.Module, batch: Batch, loss: Loss) -> tuple[Tensors, float]:
    """Return the gradient of a batch as a whole, and its loss."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    value = loss(model, batch)
    slopes = torch.autograd.grad(value, list(trained.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(trained, slopes, strict=True)), float(value.detach())


def _cosine(one: Tensors, other: Tensors) -> float:
    first, second = flatten(one).double(), flatten({name: other[name] for name in one}).double()
    return float(torch.nn.functional.cosine_similarity(first, second, dim=0))


def _first_layer(observation: Observation, truth: Batch) -> tuple[tuple[int, int] | None, int, float | None]:
    """Return size, rank and gap of the gradient of the linear layer that sees the images; of a gradient only."""
    first = input_linear_layer(observation.model, truth.inputs[:1]) if truth.inputs.is_floating_point() else None
    if first is None or observation.update.kind != "gradient":
        return None, 0, None
    matrix = observation.update.tensors.get(first.weight_name)
    if matrix is None or matrix.ndim != 2:
        return None, 0, None
    parted = spectrum(matrix)
    return (matrix.shape[0], matrix.shape[1]), parted.rank, None if parted.full else parted.gap


def _residual(observation: Observation, config: RoundConfig, truth: Batch, found: Tensor) -> float | None:
    if found.shape != truth.inputs.shape:
        return None
    batch = Batch(found.to(truth.inputs), truth.labels, truth.modality)
    size = len(batch) // config.local_steps
    steps = [batch.pick(places) for places in torch.split(torch.arange(len(batch)), size)]
    sent = plain_update(observation.model, steps, config, torch.Generator().manual_seed(0))
    return 1 - _cosine(sent.tensors, observation.update.tensors)
