"""`fishing`, Fishing for User Data (Wen et al., ICML 2022): a last layer that lets one sample's gradient through.

Class step: every row of the last layer is zero but the target class's, and all other biases are huge; a sample of
another class then sends nothing backwards, and the rest of the network receives the target class's gradient alone.
Feature step, if several samples share the class: the target's row looks at one feature, with a bias that places a
threshold on it; bisection over rounds finds one that a single sample exceeds. What is isolated is inverted like any
single gradient. Parameters only. Threat model: active server that asks one client several times.
A first round with a zero last layer counts the classes, g_b[c] = 1/C - n_c/N. Departure: samples of other classes above
the threshold answer too, so the step's body gradient is taken as the difference to a round whose threshold all lie
below; one sample changes sides between the two, whatever its class. The weight of 300 is per deviation of the feature.
Behind a layer normalisation, which fixes the sum of the features, the row of equal weights has random signs.

Cost: a round per step of the bisection, then one inversion of a single gradient.

Known breaks: clients that answer once, secure aggregation, and noise beside which one sample's gradient is small. The
last layer it sends is conspicuous: all rows but one are zero.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedseal.attacks.active.isolation import Isolated, IsolatingAttack
from fedseal.attacks.active.server import altered, normalisation_of
from fedseal.attacks.reading import image_count
from fedseal.core.attack import ATTACKS, Ask
from fedseal.core.errors import CapabilityError, InputError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.ranges import Place
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.models.structure import ExecutedLayer, output_layer

_ROW = 0.5
_SILENCE = 1000.0
_SHARPNESS = 300.0
_DOUBLINGS = 20
_HALVINGS = 60
_TOLERANCE = 1e-4
_PROBES = 64
_FIXED_SUM = 1e-3


@ATTACKS.register(
    "fishing",
    Info(
        "silence all samples but one by the last layer, then invert its gradient",
        paper="Wen et al., ICML 2022",
        threat="active: changes parameters, asks several rounds",
        needs=("batch_size",),
    ),
)
class FishingAttack(IsolatingAttack):
    """Fishing by class, then by feature.

    Args:
        target: class to fish for; -1 for the one with fewest samples.
        inversion: attack on the isolated gradient, with its own defaults.
        iterations: of it; 0 for its own default.
    """

    def __init__(self, target: Place = -1, inversion: str = "ig", iterations: int = 0) -> None:
        self._target = target
        super().__init__(inversion, iterations)

    def provoke(self, model: nn.Module, knowledge: Knowledge, ask: Ask, seed: int) -> Observation:
        """Count the classes, silence all but one, and split that one by a feature if it holds several samples."""
        self.check_knowledge(knowledge)
        if (knowledge.local_steps or 1) > 1:
            raise CapabilityError(
                "fishing silences samples in one step; after the first local step the last layer is another one.",
                hint="Set `client.local_steps: 1`.",
            )
        head = _Head(model, knowledge, seed)
        rounds = _Rounds(ask, head)
        target = self._choose(rounds, knowledge)
        observation = ask([head.for_class(target)])
        counted = round(-float(_bias_gradient(observation, head)[target]) * _images_per_unit(observation))
        count = min(max(counted, 1), image_count(observation))  # noise may say anything
        body = frozenset(observation.update.tensors) - {head.weight, head.bias}
        labels = torch.full((count,), target, device=head.device)
        split = rounds.one_above(target) if count > 1 else None
        if split is None:
            shared = (f"{count} samples share class {target}, and no feature splits them",) if count > 1 else ()
            isolated = Isolated(
                observation.model,
                body,
                _images_per_unit(observation) / _unit_of(observation, len(labels)),
                len(labels),
                labels,
                notes=shared,
            )
            return altered(observation, isolated, f"its last layer lets class {target} alone send gradients back")
        observation, top, below = split
        isolated = Isolated(
            head.for_feature(target, top),
            body,
            -_images_per_unit(observation),
            1,
            labels[:1],
            subtract=below,
            notes=(f"class {target} has {count} samples: split by a feature in {rounds.asked} rounds",),
        )
        return altered(observation, isolated, "its last layer lets the sample with the largest feature send gradients")

    def _choose(self, rounds: _Rounds, knowledge: Knowledge) -> int:
        if self._target >= knowledge.num_classes:
            raise InputError(f"there is no class {self._target}, only {knowledge.num_classes}.")
        if self._target >= 0:
            return self._target
        counts = rounds.census()
        present = counts > 0
        return int(torch.where(present, counts, counts.max() + 1).argmin()) if bool(present.any()) else 0


class _Head:
    """The last layer of a model and altered copies of it."""

    def __init__(self, model: nn.Module, knowledge: Knowledge, seed: int) -> None:
        self._model = model
        like = next(model.parameters())
        self.device = like.device
        if knowledge.auxiliary is not None and len(knowledge.auxiliary) > 1:
            images = knowledge.auxiliary.images[:_PROBES]
        else:
            images = torch.rand(_PROBES, *knowledge.input_shape, generator=generator(seed, "probe"))
        probes = normalisation_of(knowledge)(images.to(like.device, like.dtype))
        layer = output_layer(copy.deepcopy(model).eval(), probes, knowledge.num_classes)
        if layer is None or layer.bias_name is None or layer.inputs.ndim != 2:
            raise CapabilityError(
                "fishing alters the last layer, and this model does not end in a linear one with a bias.",
                hint="Attack it with `imprint` or `loki`, which bring their own layer.",
            )
        self.weight, self.bias = layer.weight_name, layer.bias_name
        self.feature, self.range, spread = _telling_feature(layer)
        self._row = _class_row(layer, seed).to(like.device, like.dtype)
        self._sharpness = _SHARPNESS / spread

    def blank(self) -> nn.Module:
        """Return a copy whose last layer says nothing."""
        return self._with(0.0, None, None)

    def for_class(self, target: int) -> nn.Module:
        """Return a copy in which the target class alone sends gradients back."""
        return self._with(_SILENCE, target, None)

    def for_feature(self, target: int, threshold: float) -> nn.Module:
        """Return a copy in which samples of the target class answer below a threshold, all others above it."""
        return self._with(0.0, target, threshold)

    @torch.no_grad()
    def _with(self, silence: float, target: int | None, threshold: float | None) -> nn.Module:
        sent = copy.deepcopy(self._model)
        parameters = dict(sent.named_parameters())
        weight, bias = parameters[self.weight], parameters[self.bias]
        weight.zero_()
        own = 0.0 if target is None else float(bias[target])
        bias.fill_(silence)
        if target is not None and threshold is None:
            weight[target] = self._row
            bias[target] = own
        elif target is not None and threshold is not None:
            weight[target, self.feature] = self._sharpness
            bias[target] = -self._sharpness * threshold
        return sent


class _Rounds:
    """Rounds the server plays to find whom to isolate.

    Attributes:
        asked: how many so far.
    """

    def __init__(self, ask: Ask, head: _Head) -> None:
        self._ask = ask
        self._head = head
        self.asked = 0

    def census(self) -> Tensor:
        """Return how many samples each class has, [C], from a round with a last layer that says nothing."""
        observation = self._send(self._head.blank())
        gradient = _bias_gradient(observation, self._head)
        scale = _images_per_unit(observation)
        share = image_count(observation) / len(gradient) / scale
        return ((share - gradient) * scale).round().clamp(min=0)

    def one_above(self, target: int) -> tuple[Observation, float, Tensors] | None:
        """Find a threshold that one sample alone exceeds.

        Returns:
            The round with it, a threshold that no sample exceeds, and the tensors of a round with that one; None if
            samples share the feature's value, or the counts are too noisy to read.
        """
        low, high = self._head.range
        above = self._send(self._head.for_feature(target, high))
        for _ in range(_DOUBLINGS):
            further = self._send(self._head.for_feature(target, 2 * high - low))
            if abs(self._answers(further, target) - self._answers(above, target)) < _TOLERANCE:
                break
            high, above = 2 * high - low, further
        top, silent = high, self._answers(above, target)
        for _ in range(_HALVINGS):
            threshold = (low + high) / 2
            observation = self._send(self._head.for_feature(target, threshold))
            exceeding = self._answers(observation, target) - silent
            if abs(exceeding - 1) < _TOLERANCE:
                return observation, top, above.update.tensors
            low, high = (low, threshold) if exceeding < 1 else (threshold, high)
        return None

    def _answers(self, observation: Observation, target: int) -> float:
        """Return a count that grows by one with every sample that exceeds the threshold."""
        return float(_bias_gradient(observation, self._head)[target]) * _images_per_unit(observation)

    def _send(self, model: nn.Module) -> Observation:
        self.asked += 1
        return self._ask([model])


def _bias_gradient(observation: Observation, head: _Head) -> Tensor:
    return observation.update.tensors[head.bias]


def _images_per_unit(observation: Observation) -> float:
    """Return what to multiply an update by so that one sample counts one."""
    return 1.0 if observation.knowledge.loss_reduction == "sum" else float(image_count(observation))


def _unit_of(observation: Observation, images: int) -> float:
    """Return what to divide the sum of some samples' gradients by to have the client's loss on them alone."""
    return 1.0 if observation.knowledge.loss_reduction == "sum" else float(images)


def _class_row(layer: ExecutedLayer, seed: int) -> Tensor:
    """Return the target class's row: all features alike, or by random signs where a normalisation fixes their sum."""
    row = torch.full((layer.inputs.shape[1],), _ROW)
    sums = layer.inputs.double().sum(1)
    if float(sums.std()) > _FIXED_SUM * float(layer.inputs.double().norm(dim=1).mean()):
        return row
    return row * (torch.randint(2, row.shape, generator=generator(seed, "signs")) * 2 - 1)


def _telling_feature(layer: ExecutedLayer) -> tuple[int, tuple[float, float], float]:
    """Return the feature that varies most between probes, its range there and its deviation."""
    features = layer.inputs.double()
    spread = features.std(0)
    index = int(spread.argmax())
    column = features[:, index]
    return index, (float(column.min()), float(column.max())), max(float(spread[index]), 1e-12)
