"""What any attacker first makes of an observation: a model to compute on, and an estimate of the batch gradient."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import replace_all_batch_norm_modules_
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.batch import IDENTITY, Normalisation
from fedseal.core.errors import CapabilityError
from fedseal.core.observation import Observation
from fedseal.core.tensors import Tensors


def attack_model(observation: Observation) -> nn.Module:
    """Return a private copy of the model, fit for repeated functional calls.

    Dropout is off, as its mask is the client's secret. Batch normalisation runs as the client ran it: with running
    statistics, or with those of the (dummy) batch, in which case it keeps no running statistics to update.
    """
    model = copy.deepcopy(observation.model).eval()
    if next(iter(observation.parameters.values())).dtype == torch.float16:
        model = model.float()
    if observation.knowledge.bn_mode != "eval":
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.train()
        replace_all_batch_norm_modules_(model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def input_normalisation(observation: Observation) -> Normalisation:
    """Return the normalisation the attacker believes in: the given one, or none."""
    return observation.knowledge.normalisation or IDENTITY


def update_scale(observation: Observation) -> float:
    """Return s such that the update is about s times the gradient of the loss on all images.

    1 for a gradient. For a weight change after T steps of learning rate lr it is -lr T, which makes
    update / s = (w_old - w_new) / (lr T), the mean of the T step gradients (FedLeak, Sec. 4.1). Momentum goes farther
    (`Optimiser.reach`); what Adam sends has a size of its own, and only its direction is worth comparing.
    """
    if observation.update.kind == "gradient":
        return 1.0
    knowledge = observation.knowledge
    if knowledge.learning_rate is None or knowledge.local_steps is None:
        raise CapabilityError(
            "a weight change can be read as a gradient only with the learning rate and the number of local steps.",
            hint="Grant `learning_rate` and `local_steps` under `attacker:` in the scenario.",
        )
    return -knowledge.learning_rate * knowledge.rule.reach(knowledge.local_steps * (knowledge.local_epochs or 1))


def image_count(observation: Observation) -> int:
    """Return how many images are behind the update: batch size times local steps times clients."""
    size = observation.knowledge.batch_size
    if size is None:
        raise CapabilityError("the number of images behind the update is not known.", hint="Grant `batch_size`.")
    return size * (observation.knowledge.local_steps or 1) * (observation.knowledge.clients or 1)


def estimated_gradient(observation: Observation) -> Tensors:
    """Return the update divided by `update_scale`: the gradient, or the mean of the local steps' gradients.

    An attacker who knows the defence first undoes of it what can be undone.
    """
    scale = update_scale(observation)
    view = observation.knowledge.defence
    update = observation.update.tensors if view is None else view.read(observation.update.tensors)
    return {name: _single(tensor) / scale for name, tensor in update.items()}


def attack_parameters(observation: Observation) -> Tensors:
    """Return the trainable parameters in the precision the attacker computes in: at least single."""
    return {name: _single(tensor) for name, tensor in observation.parameters.items()}


def _single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.float16 else tensor
