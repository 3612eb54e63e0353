"""Canaries: clients' rounds in which one gradient is known to be there or not, played through the defence itself.

The model is one linear layer of zeros, fed with images that are scaled up: the gradient of a canary's image is as large
as one likes, so that any clipping acts in full, and lies in a pixel of its own; a blank image has no gradient at all.
Nothing is known of the defence but its hooks, which run as in any client's round. Where a claim rests on sampling, a
canary that is there still takes part by chance only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.core.privacy import PrivacyUnit
from fedseal.core.seeds import generator
from fedseal.federation.client import RoundConfig, set_mode, train
from fedseal.information.epsilon_bounds import Scores

_LOUDNESS = 1e3
_SIDE = 8
"""Pixels per side of the images of repeated rounds; the canary is the first."""


class _Loud(nn.Module):
    """A linear classifier of zeros on images scaled up; its gradient at an image x is (p - y) x, times the scale."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        with torch.device("meta"):  # draws nothing
            layer = nn.Linear(pixels, 2, bias=False)
        self.layer = layer.to_empty(device="cpu")
        nn.init.zeros_(self.layer.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, 1, H, W] to logits [B, 2]."""
        logits: Tensor = self.layer(self.flatten(images) * _LOUDNESS)
        return logits


@dataclass(frozen=True)
class CanaryScores:
    """Scores of canaries that were there, and of those that were not; the higher, the more a canary shows."""

    present: Scores
    absent: Scores


def one_run_scores(make: Callable[[], Defence], canaries: int, seed: int, *, rate: float = 1.0) -> CanaryScores:
    """Play one round with many canaries as samples, each there by a fair coin (a blank image stands in otherwise)."""
    there = torch.rand(canaries, generator=generator(seed, "coins")) < 0.5
    drawn = torch.rand(canaries, generator=generator(seed, "samples")) < rate
    images = torch.diag((there & drawn).float()).reshape(canaries, 1, canaries, 1)
    scores = _pull(_play(make(), images, seed, 0)).double().numpy()
    return CanaryScores(scores[there.numpy()], scores[~there.numpy()])


def repeated_scores(
    make: Callable[[], Defence], unit: PrivacyUnit, runs: int, seed: int, *, rate: float = 1.0
) -> CanaryScores:
    """Play independent rounds, half with the canary and half with a blank image, for a batch of two or a lone client.

    Args:
        make: builds the defence; every round has a fresh one.
        unit: `sample` puts a second, blank image beside the canary; an `update` is the canary's alone.
        runs: rounds in all.
        seed: of everything.
        rate: probability of a canary that is there to take part.
    """
    scores: dict[bool, list[float]] = {True: [], False: []}
    drawn = torch.rand(runs, generator=generator(seed, "samples")) < rate
    for run in range(runs):
        there = run % 2 == 0
        images = torch.zeros(2 if unit == "sample" else 1, 1, _SIDE, _SIDE)
        images[0, 0, 0, 0] = float(there and bool(drawn[run]))
        scores[there].append(float(_pull(_play(make(), images, seed, run))[0]))
    return CanaryScores(np.array(scores[True]), np.array(scores[False]))


def _play(defence: Defence, images: Tensor, seed: int, run: int) -> Tensor:
    """Return the gradient of the linear layer [2, pixels] that the server sees of a round."""
    config = RoundConfig()
    model = set_mode(defence.wrap_model(_Loud(images[0].numel())), config)
    batch = Batch(images, torch.zeros(len(images), dtype=torch.long))
    source = generator(seed, "canary", run)
    batch = defence.prepare(batch, source)
    done = train(model, [batch], config, defence, source, round_number=0, statistics=False, draws=True)
    seen = defence.server_view(copy.copy(done.update.tensors))
    return next(tensor for name, tensor in seen.items() if name.endswith("layer.weight"))


def _pull(gradient: Tensor) -> Tensor:
    """Return by pixel how far a gradient [2, pixels] points to where canaries, of label 0, pull: minus and plus."""
    return (gradient[1] - gradient[0]).detach()
