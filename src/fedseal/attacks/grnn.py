"""`grnn`, the Generative Regression Neural Network (Ren et al., ACM TIST 2022): a generator fitted to one update.

Not an image is optimised but the weights of an untrained generator with two branches on fixed noise: one draws the
image, one gives the label. No data are needed, and labels come out by themselves. Threat model: passive server.

Equations: minimise d^2 + d + tv TV over the weights of both branches, d = |g - u| over all tensors. What the paper
calls a Wasserstein distance is the plain norm in the authors' code; so it is here.

Departures: the authors' initialisation with deviation 0.02 does not reach the layers in their code, so PyTorch's own is
ours too; total variation is the mean of magnitudes, not of squares. The rate of the default, `preset=cpu`, is ten times
the paper's, with less momentum, which reaches the same in a tenth of the steps.

Cost: one second-order pass through network and generator per step; the paper takes 1,000, its readers up to 20,000.

Known breaks: noise and pruning move the minimum, since the squared distance trusts every entry; batches whose images
share a class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.attacks.ggl import Preset
from fedseal.attacks.labels import LabelGuess
from fedseal.attacks.matching.descent import Descent
from fedseal.attacks.matching.engine import MatchingAttack
from fedseal.attacks.matching.objectives import SquarePlusRoot
from fedseal.attacks.matching.parameterisation import NOISE, DeepImagePrior, Parameterisation
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.matching.problem import MatchingProblem
from fedseal.attacks.matching.recipe import Recipe
from fedseal.attacks.matching.rmsprop import RMSprop
from fedseal.attacks.matching.schedules import Schedule
from fedseal.attacks.reading import image_count, input_normalisation
from fedseal.core.attack import ATTACKS
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.observation import Observation
from fedseal.core.ranges import Count, Weight, Width
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.priors.prior import Prior

_RATES: dict[Preset, tuple[float, float]] = {"cpu": (1e-3, 0.9), "paper": (1e-4, 0.99)}
"""Learning rate and momentum."""


class _TwoBranches(MatchingProblem):
    """A matching problem whose label logits are a linear layer's answers to the noise the images are drawn from."""

    @property
    def size(self) -> int:
        hidden = sum(start.numel() for start in self.unknowns.values())
        return self.parameterisation.size + hidden + (NOISE + 1) * self.num_classes

    def label_logits(self, z: Tensor) -> Tensor:
        if z.dim() > 1:  # each lane alone: where a row lies in a product decides its last bits
            return torch.stack([self.label_logits(one.clone()) for one in z])
        layer = z[-(NOISE + 1) * self.num_classes :].reshape(NOISE + 1, self.num_classes)
        assert isinstance(self.parameterisation, _ImageBranch)
        return self.parameterisation.noise.to(z) @ layer[:-1] + layer[-1:]


class _ImageBranch(DeepImagePrior):
    """Noise to images by gated blocks."""

    @property
    def noise(self) -> Tensor:
        """What both branches are fed, [B, 128]."""
        return self._noise

    def network(self, outputs: int, channels: int, blocks: int) -> nn.Module:
        return _Gated(outputs, channels, blocks)


class _Gated(nn.Module):
    """A transposed convolution to 4 x 4; then nearest upsampling, convolution, normalisation and a gate, in turn."""

    def __init__(self, outputs: int, channels: int, blocks: int) -> None:
        super().__init__()
        widths = [channels << place for place in range(blocks - 1, -1, -1)]
        self.stem = nn.ConvTranspose2d(NOISE, 2 * widths[0], 4, bias=False)
        layers: list[nn.Module] = []
        for inputs, wanted in zip(widths, [*widths[1:], outputs], strict=True):
            layers += [
                nn.Upsample(scale_factor=2),
                nn.Conv2d(inputs, 2 * wanted, 3, padding=1, bias=False),
                nn.BatchNorm2d(2 * wanted, track_running_stats=False),
                nn.GLU(1),
            ]
        self.body = nn.Sequential(*layers)

    def forward(self, noise: Tensor) -> Tensor:
        return torch.sigmoid(self.body(F.glu(self.stem(noise[:, :, None, None]), 1)))


@ATTACKS.register(
    "grnn",
    Info(
        "fit a generator of image and label to the update",
        paper="Ren, Deng and Xie, ACM TIST 2022",
        threat="passive",
        needs=("batch_size",),
    ),
)
@dataclass(frozen=True)
class GenerativeRegression(MatchingAttack):
    """GRNN.

    Attributes:
        iterations: of RMSprop; 1,000 in the authors' code.
        preset: `cpu`: rate 1e-3 along a cosine, momentum 0.9; `paper`: a constant 1e-4, momentum 0.99.
        channels: of the image branch before its last block.
        tv: weight of total variation; 1e-3 in the paper for LeNet, 1e-6 for ResNet-18.
    """

    problem_type: ClassVar[type[MatchingProblem]] = _TwoBranches

    iterations: Count = 1000
    preset: Preset = "cpu"
    channels: Width = 32
    tv: Weight = 1e-3

    def __post_init__(self) -> None:
        """Refuse a learned prior: the generator is the prior."""
        if self.prior != "tv":
            raise UsageError("grnn fits a generator of its own, and takes no other prior.", hint="Use ggl or ig.")
        super().__post_init__()

    def recipe(self) -> Recipe:
        """Minimise d^2 + d by RMSprop, labels from nothing."""
        rate, momentum = _RATES[self.preset]
        schedule: Schedule = "constant" if self.preset == "paper" else "cosine"
        descent = Descent(RMSprop(momentum), lr=rate, schedule=schedule)
        return Recipe(SquarePlusRoot(), descent, Priors(tv=self.tv), labels="free", generator_channels=self.channels)

    def _parameterisation(self, observation: Observation, recipe: Recipe, prior: Prior | None) -> Parameterisation:
        shape = (image_count(observation), *observation.knowledge.image_shape)
        if shape[2] < 8:
            raise CapabilityError(f"grnn draws images of 8 pixels and more, the data has {shape[2]}.")
        return _ImageBranch(shape, input_normalisation(observation), self.channels)

    def _start(self, problem: MatchingProblem, guess: LabelGuess | None, seed: int, restart: int) -> Tensor:
        source = generator(seed, "start", restart)
        images = problem.parameterisation.start(source)
        hidden = [start.reshape(-1).to(images) for start in problem.unknowns.values()]
        bound = NOISE**-0.5
        labels = (2 * torch.rand((NOISE + 1) * problem.num_classes, generator=source) - 1) * bound
        return torch.cat([images, *hidden, labels])
