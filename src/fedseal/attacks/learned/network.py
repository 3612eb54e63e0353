"""A small network from sketched updates to images, trained on the fly (Wu et al., UAI 2023).

Every epoch plays the public images anew, in other batches and with fresh randomness of the defence, so data never run
out. A batch has no order: the loss compares each sample's images with the truth in the assignment that fits best.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.attacks.learned.pairs import Pairs, Stage
from fedseal.attacks.learned.sketch import tensor_units
from fedseal.core.seeds import derive_seed, generator
from fedseal.core.trainable import Saved, Unfinished
from fedseal.core.watcher import Report, Tick

_TILE = 16
_LABELS = 0.01
"""Weight of the labels' cross-entropy beside the images' squared error."""


@dataclass(frozen=True)
class NetworkPlan:
    """How a network is trained.

    Attributes:
        epochs: over the public images.
        width: of its hidden layers.
        batch: updates per step.
        lr: learning rate at the start, with cosine decay.
        repeats: steps are taken over each epoch's rehearsal this many times, as that costs more than they do.
    """

    epochs: int = 30
    width: int = 768
    batch: int = 64
    lr: float = 1e-3
    repeats: int = 2


@dataclass(frozen=True)
class NetworkDecoder:
    """What was learned.

    Attributes:
        network: from scaled sketches [K, D] to images and label logits [K, B C H W + B classes].
        lengths: of the tensors' ranges in a sketch.
        classes: number of them.
        count: images behind an update.
        held_back_db: PSNR in dB on the images held back.
    """

    network: nn.Module
    lengths: tuple[int, ...]
    classes: int
    count: int
    held_back_db: float
    ordered: bool = False

    def describe(self) -> str:
        """Return how it was learned."""
        return "by a network"

    def predict(self, sketches: Tensor) -> Tensor:
        """Return images and shares of labels; see `Decoder`. Each is answered as if it were alone."""
        answers = []
        with torch.no_grad():
            for part in torch.split(sketches, _TILE):
                padded = F.pad(part, (0, 0, 0, _TILE - len(part)))
                raw = self.network(_scaled(padded, self.lengths))[: len(part)]
                images, logits = _parted(raw, self.count, self.classes)
                answers.append(torch.cat([images.flatten(1), logits.softmax(-1).flatten(1)], 1))
        return torch.cat(answers).clamp(0, 1)

    def state(self) -> Saved:
        """Return it as tensors and values."""
        return Saved(self.network.state_dict(), {"held_back_db": self.held_back_db})

    @classmethod
    def restore(cls, saved: Saved, stage: Stage, classes: int, plan: NetworkPlan) -> NetworkDecoder:
        """Return what `state` described."""
        network = _network(stage, classes, plan)
        network.load_state_dict(dict(saved.tensors))
        quality = float(saved.values["held_back_db"])
        return cls(network.eval(), stage.sketch.lengths, classes, stage.count, quality)


def fit_network(
    stage: Stage, classes: int, plan: NetworkPlan, report: Report, unfinished: Unfinished
) -> NetworkDecoder:
    """Train, going on from what `unfinished` holds, and return the epoch that was best on images held back."""
    learned_from, held_back = stage.split()
    held = stage.play(held_back, "held back")
    network = _network(stage, classes, plan)
    optimiser = torch.optim.Adam(network.parameters(), plan.lr)
    best, quality, begun = copy.deepcopy(network.state_dict()), float("-inf"), 0
    left = unfinished.load()
    if left is not None:
        best, quality, begun = _resume(left, network, optimiser)
    for epoch in range(begun, plan.epochs):
        for group in optimiser.param_groups:
            group["lr"] = plan.lr * (1 + math.cos(math.pi * epoch / plan.epochs)) / 2
        loss = _epoch(network, optimiser, stage.play(learned_from, "epoch", epoch), stage, classes, plan, epoch)
        found = _quality(network, held, stage, classes)
        if found > quality:
            best, quality = copy.deepcopy(network.state_dict()), found
        report(Tick(epoch + 1, {"loss": loss, "psnr_db": found}))
        unfinished.save(_left(network, optimiser, best, quality, epoch + 1))
    network.load_state_dict(best)
    return NetworkDecoder(network.eval(), stage.sketch.lengths, classes, stage.count, quality)


def _epoch(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    pairs: Pairs,
    stage: Stage,
    classes: int,
    plan: NetworkPlan,
    epoch: int,
) -> float:
    """Take the steps of one epoch and return the mean loss."""
    network.train()
    inputs, losses = _scaled(pairs.sketches, stage.sketch.lengths), []
    source = generator(stage.seed, "steps", epoch)
    for _ in range(plan.repeats):
        for chosen in torch.split(torch.randperm(len(inputs), generator=source), plan.batch):
            images, logits = _parted(network(inputs[chosen]), stage.count, classes)
            loss = _loss(images, logits, pairs.images[chosen].reshape(images.shape), pairs.labels[chosen])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


def _loss(images: Tensor, logits: Tensor, truth: Tensor, labels: Tensor) -> Tensor:
    """Return the squared error of images [K, B, P], and the labels' cross-entropy, in the assignment that fits best."""
    order = assigned(images.detach(), truth)
    truth = torch.take_along_dim(truth, order[:, :, None], 1)
    labels = torch.take_along_dim(labels, order, 1)
    return F.mse_loss(images, truth) + _LABELS * F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def assigned(images: Tensor, truth: Tensor) -> Tensor:
    """Return for each image of [K, B, P] the place [K, B] of its original in `truth`, for the least sum of errors."""
    if images.shape[1] == 1:
        return torch.zeros(len(images), 1, dtype=torch.long)
    costs = torch.cdist(images, truth).square().double().numpy()
    return torch.stack([torch.as_tensor(linear_sum_assignment(cost)[1]) for cost in costs])


def _quality(network: nn.Module, held: Pairs, stage: Stage, classes: int) -> float:
    """Return the mean PSNR in dB of the answers to `held`."""
    network.eval()
    with torch.no_grad():
        images, _ = _parted(network(_scaled(held.sketches, stage.sketch.lengths)), stage.count, classes)
    truth = held.images.reshape(images.shape)
    truth = torch.take_along_dim(truth, assigned(images, truth)[:, :, None], 1)
    return float(-10 * (images.clamp(0, 1) - truth).square().mean(2).clamp(min=1e-12).log10().mean())


def _network(stage: Stage, classes: int, plan: NetworkPlan) -> nn.Module:
    """Return two hidden layers, and a last one that begins with the mean public image."""
    mean = stage.public.inputs.float().mean(0).flatten().repeat(stage.count)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(stage.seed, "network"))
        last = nn.Linear(plan.width, len(mean) + stage.count * classes)
        with torch.no_grad():
            last.weight.mul_(0.1)
            last.bias.zero_()[: len(mean)] = mean
        size = sum(stage.sketch.lengths)
        layers = [nn.Linear(size, plan.width), nn.LayerNorm(plan.width), nn.GELU()]
        layers += [nn.Linear(plan.width, plan.width), nn.LayerNorm(plan.width), nn.GELU()]
        return nn.Sequential(*layers, last)


def _scaled(sketches: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return sketches with every tensor's range at the same norm, entries of order 1."""
    return tensor_units(sketches, lengths) * math.sqrt(sketches.shape[1] / len(lengths))


def _parted(raw: Tensor, count: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return images [K, B, P] and label logits [K, B, classes]."""
    pixels = raw.shape[1] - count * classes
    return raw[:, :pixels].reshape(len(raw), count, -1), raw[:, pixels:].reshape(len(raw), count, classes)


def _left(
    network: nn.Module, optimiser: torch.optim.Optimizer, best: dict[str, Any], quality: float, epoch: int
) -> Saved:
    """Return the state between two epochs."""
    tensors = {f"now.{name}": value for name, value in network.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in best.items()}
    moments = optimiser.state_dict()["state"]
    tensors |= {f"adam.{place}.{name}": value for place, own in moments.items() for name, value in own.items()}
    return Saved({name: value.clone() for name, value in tensors.items()}, {"quality": quality, "epoch": epoch})


def _resume(left: Saved, network: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[dict[str, Any], float, int]:
    """Put a saved state back; return the best network so far, its quality, and the next epoch."""

    def part(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): t for name, t in left.tensors.items() if name.startswith(prefix)}

    network.load_state_dict(part("now."))
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in part("adam.").items():
        place, _, key = name.partition(".")
        state.setdefault(int(place), {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return part("best."), float(left.values["quality"]), int(left.values["epoch"])
