"""The lesson behind `denoised`: a network learns from what an attack made of shadow targets, whose truth is known."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.attacks.learned.library import Lesson
from fedseal.attacks.shadow.targets import Shadows
from fedseal.core.attack import Attack, Budget
from fedseal.core.batch import Batch
from fedseal.core.errors import TrialError
from fedseal.core.knowledge import Rehearse
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import derive_seed, generator
from fedseal.core.tensors import check_finite, check_like
from fedseal.core.trainable import Saved, Unfinished
from fedseal.core.watcher import Report, Tick
from fedseal.metrics.matching import hungarian
from fedseal.priors.networks import Denoiser

_BATCH = 32
_LR = 1e-3
_HELD_BACK = 4
"""One shadow in so many is held back, to choose the state by."""
_EVERY = 20


@dataclass(frozen=True)
class Polish:
    """What was learned: y -> middle + scale x ..., a network on top of the best affine map from answers to truths.

    Attributes:
        network: the denoiser, fine-tuned.
        sigma: deviation it is told.
        mean: of public images, [C, H, W].
        keep: share of an answer's difference to the mean that is believed.
        before, after: PSNR in dB on shadows held back.
        pairs: images learned from.
    """

    network: nn.Module
    sigma: float
    mean: Tensor
    keep: float
    before: float
    after: float
    pairs: int

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return what answers [B, C, H, W] probably stand for."""
        return polished(self.network, images.float(), self.mean, self.keep, self.sigma).clamp(0, 1).to(images)


def polished(network: nn.Module, answers: Tensor, mean: Tensor, keep: float, sigma: float) -> Tensor:
    """Return answers [N, C, H, W] drawn towards the mean image and then denoised."""
    shrunk = mean + keep * (answers - mean)
    result: Tensor = network(shrunk, shrunk.new_full((len(shrunk),), sigma))
    return result


class PolishLesson(Lesson[Polish]):
    """What is learned from shadows.

    Args:
        inversion: the attack that is post-processed.
        shadows: it is tried on.
        budget: of each.
        start: a denoiser of public images, to begin with.
        public: the attacker's images.
        rehearse: how shadows are played.
        options: that determine the outcome too.
    """

    kind: ClassVar[str] = "denoised"

    def __init__(
        self,
        inversion: Attack,
        shadows: Shadows,
        budget: Budget,
        start: Denoiser,
        public: Batch,
        rehearse: Rehearse,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(shadows.observations[0].model, public, rehearse, options)
        self._inversion, self._shadows, self._budget, self._start = inversion, shadows, budget, start
        self._steps = int(options["steps"])

    @property
    def title(self) -> str:
        """What is learned, in words."""
        return f"post-processing of {self._inversion.name} from {len(self._shadows.observations)} shadow targets"

    @property
    def size(self) -> int:
        """Steps of training."""
        return self._steps

    def fit(self, report: Report, unfinished: Unfinished) -> Polish:
        """Attack the shadows, unless that was done before, and learn from what came out."""
        left = unfinished.load()
        if left is None:
            answers, truths = self._pairs()
            unfinished.save(Saved({"answers": answers, "truths": truths}, {}))
        else:
            answers, truths = left.tensors["answers"], left.tensors["truths"]
        return self._learn(answers, truths, report)

    def _pairs(self) -> tuple[Tensor, Tensor]:
        seeds = [derive_seed(0, "denoised", number) for number in range(len(self._shadows.observations))]
        found = self._inversion.run_many(self._shadows.observations, self._budget, seeds)
        pairs = list(zip(self._shadows.originals, found, strict=True))
        answers = [one.images[hungarian(truth, one.images)] for truth, one in pairs]
        return torch.cat(answers).float().cpu(), torch.cat([truth for truth, _ in pairs]).float().cpu()

    def _learn(self, answers: Tensor, truths: Tensor, report: Report) -> Polish:
        held = torch.arange(len(answers)) % _HELD_BACK == 0
        mean = self.public.images.float().mean(0).cpu()
        keep = _share(answers[~held] - mean, truths[~held] - mean)
        left_over = mean + keep * (answers[~held] - mean) - truths[~held]
        sigma = float(left_over.square().mean().sqrt().clamp(0.02, 1.0))
        network = copy.deepcopy(self._start).requires_grad_(True)
        optimiser = torch.optim.Adam(network.parameters(), _LR)
        source = generator(0, "denoised", "steps")
        before = _decibels(answers[held].clamp(0, 1), truths[held])
        first = _decibels(polished(network, answers[held], mean, keep, sigma).detach().clamp(0, 1), truths[held])
        best, after = copy.deepcopy(network.state_dict()), first
        for step in range(self._steps):
            optimiser.param_groups[0]["lr"] = _LR * (1 + math.cos(math.pi * step / self._steps)) / 2
            chosen = (~held).nonzero().squeeze(1)
            chosen = chosen[torch.randint(len(chosen), (min(_BATCH, len(chosen)),), generator=source)]
            y, x = _mirrored(answers[chosen], truths[chosen], source)
            loss = F.mse_loss(polished(network, y, mean, keep, sigma), x)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            if (step + 1) % _EVERY == 0 or step + 1 == self._steps:
                if not bool(torch.isfinite(loss)):
                    raise TrialError("training the post-processing diverged.", hint="Give it more shadows.")
                with torch.no_grad():
                    found = _decibels(polished(network, answers[held], mean, keep, sigma).clamp(0, 1), truths[held])
                if found > after:
                    best, after = copy.deepcopy(network.state_dict()), found
                report(Tick(step + 1, {"loss": float(loss.detach()), "psnr_db": found}))
        network.load_state_dict(best)
        return Polish(network.eval().requires_grad_(False), sigma, mean, keep, before, after, int((~held).sum()))

    def save(self, trained: Polish) -> Saved:
        """Return it as tensors and values."""
        tensors = {f"network.{name}": value for name, value in trained.network.state_dict().items()}
        names = ("sigma", "keep", "before", "after", "pairs")
        return Saved({**tensors, "mean": trained.mean}, {name: getattr(trained, name) for name in names})

    def load(self, saved: Saved) -> Polish:
        """Return it as it was."""
        network = copy.deepcopy(self._start)
        tensors = {n.removeprefix("network."): t for n, t in saved.tensors.items() if n.startswith("network.")}
        check_like(tensors, network.state_dict(), "the post-processing")
        check_finite(tensors, "the post-processing")
        network.load_state_dict(tensors)
        return Polish(network.eval().requires_grad_(False), mean=saved.tensors["mean"], **saved.values)


def applied(polish: Polish, found: Sequence[Reconstruction]) -> list[Tensor]:
    """Return the post-processed images of every answer, each by itself."""
    return [polish(one.images) for one in found]


def _share(answers: Tensor, truths: Tensor) -> float:
    """Return the factor in [0, 1] on answers that brings them nearest to the truths."""
    squares = float(answers.square().sum())
    return min(1.0, max(0.0, float((answers * truths).sum()) / squares)) if squares > 0 else 0.0


def _mirrored(answers: Tensor, truths: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
    flip = torch.rand(len(answers), 1, 1, 1, generator=source) < 0.5
    return torch.where(flip, answers.flip(-1), answers), torch.where(flip, truths.flip(-1), truths)


def _decibels(images: Tensor, truths: Tensor) -> float:
    errors = (images - truths).square().flatten(1).mean(1).clamp(min=1e-10)
    return float(-10 * errors.log10().mean())
