"""Inputs the attacker runs through the model to learn what its softmax and last features usually are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedseal.attacks.reading import attack_parameters, input_normalisation
from fedseal.core.batch import Batch
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.core.tokeniser import Tokeniser
from fedseal.models.structure import executed_layers

_NOISE = 64
_PER_CLASS = 64
_MOST = 2048
_CHUNK = 128


@dataclass(frozen=True)
class Responses:
    """What the model makes of N inputs.

    Attributes:
        features: that enter the last layer, [N, D].
        probabilities: the softmax, [N, C].
        labels: of the inputs, [N]; None for noise.
    """

    features: Tensor
    probabilities: Tensor
    labels: Tensor | None = None


def noise_inputs(observation: Observation, seed: int, count: int = _NOISE) -> Tensor:
    """Return model inputs [count, C, H, W] from images of uniform noise."""
    return model_inputs(observation, _noise(observation, seed, count))


def dummy_inputs(observation: Observation, seed: int) -> Tensor:
    """Return model inputs from black, white and noise images in equal parts, the dummy data of LLG*."""
    noise = _noise(observation, seed, _NOISE)
    return model_inputs(observation, torch.cat([torch.zeros_like(noise), torch.ones_like(noise), noise]))


def _noise(observation: Observation, seed: int, count: int) -> Tensor:
    """Return images of uniform noise, or texts of random tokens."""
    known, source = observation.knowledge, generator(seed, "label-probe")
    if isinstance(known.encoding, Tokeniser):
        return torch.randint(1, known.encoding.size, (count, *known.input_shape), generator=source)
    return torch.rand(count, *known.input_shape, generator=source)


def model_inputs(observation: Observation, images: Tensor) -> Tensor:
    """Return images [N, C, H, W] as the attacker believes they enter the model; ids of text as they are."""
    if not images.is_floating_point():
        return images
    return input_normalisation(observation)(images.to(next(iter(attack_parameters(observation).values()))))


def public_responses(observation: Observation, model: nn.Module, seed: int) -> Responses | None:
    """Return the model's responses to the attacker's public data, at most 64 images a class; None without any."""
    public = observation.knowledge.auxiliary
    if public is None or len(public) == 0:
        return None
    chosen = _balanced(public, seed)
    inputs = model_inputs(observation, public.inputs[chosen.to(public.inputs.device)])
    responses = respond(observation, model, inputs)
    labels = public.labels[chosen.to(public.labels.device)].to(inputs.device)
    return Responses(responses.features, responses.probabilities, labels)


def respond(observation: Observation, model: nn.Module, inputs: Tensor) -> Responses:
    """Run inputs [N, C, H, W] through the model, in chunks of the client's batch size where batches interact."""
    features, probabilities = [], []
    for chunk in _chunks(observation, inputs.detach()):
        entered = executed_layers(model, chunk)[-1].inputs
        with torch.no_grad():
            probabilities.append(model(chunk).double().softmax(1))
        features.append(entered.reshape(len(chunk), -1, entered.shape[-1]).mean(1).double())
    return Responses(torch.cat(features), torch.cat(probabilities))


def _chunks(observation: Observation, inputs: Tensor) -> Sequence[Tensor]:
    knowledge = observation.knowledge
    size = _CHUNK if knowledge.bn_mode == "eval" else max(knowledge.batch_size or _CHUNK, 2)
    chunks = torch.split(inputs, size)
    if len(chunks) > 1 and len(chunks[-1]) == 1:  # batch normalisation refuses a single image
        return [*chunks[:-2], torch.cat(chunks[-2:])]
    return chunks


def _balanced(public: Batch, seed: int) -> Tensor:
    """Return indices of at most `_PER_CLASS` images of each class, in random order."""
    order = torch.randperm(len(public), generator=generator(seed, "label-public"))
    labels = public.labels.cpu()[order]
    taken: dict[int, int] = {}
    chosen = []
    for index, label in zip(order.tolist(), labels.tolist(), strict=True):
        if taken.get(label, 0) < _PER_CLASS:
            taken[label] = taken.get(label, 0) + 1
            chosen.append(index)
    return torch.tensor(chosen[:_MOST])
