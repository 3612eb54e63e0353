"""The evaluation network D of Refiner (Sec. 3.3 and App. D): which share of an image is uniform noise.

Three convolutions 3x3 of stride 2 with ReLU, and a sigmoid at the end. `paper` has 128, 256 and 512 filters and one
linear layer on the 4x4 map of a 32x32 image (1.49 M parameters, 39 M multiply-adds); other sizes are pooled to that
map. `small` has 24, 48 and 80 filters, the mean over positions and a hidden layer (48 k parameters, 1.4 M
multiply-adds): on a CPU the paper's network would be most of the defence's cost.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.errors import InputError, UsageError

Architecture: TypeAlias = Literal["small", "paper"]

FILTERS: dict[Architecture, tuple[int, int, int]] = {"small": (24, 48, 80), "paper": (128, 256, 512)}

_MAP = 4
_HIDDEN = 32


def parse_architecture(text: str) -> Architecture:
    """Return the architecture of that name."""
    for name in FILTERS:
        if text == name:
            return name
    raise UsageError(f"there is no evaluation network called {text!r}.", hint=f"Known: {', '.join(FILTERS)}.")


class EvaluationNetwork(nn.Module):
    """Maps images [B, 1 or 3, H, W] in [0, 1] to noise ratios [B] in (0, 1); grey images are repeated over channels.

    Args:
        architecture: which of the two.
    """

    def __init__(self, architecture: Architecture = "small") -> None:
        super().__init__()
        self.architecture = architecture
        layers: list[nn.Module] = []
        channels = 3
        for width in FILTERS[architecture]:
            layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.ReLU()]
            channels = width
        self.features = nn.Sequential(*layers)
        if architecture == "paper":
            self.head = nn.Sequential(nn.Flatten(), nn.Linear(channels * _MAP**2, 1))
        else:
            self.head = nn.Sequential(nn.Flatten(), nn.Linear(channels, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1))

    def logits(self, images: Tensor) -> Tensor:
        """Return the ratio's logit per image, [B]."""
        if images.ndim != 4 or images.shape[1] not in (1, 3):
            raise InputError(
                f"the evaluation network needs grey or colour images [B, 1 or 3, H, W], got {list(images.shape)}."
            )
        features = self.features(images.expand(-1, 3, -1, -1))
        if self.architecture == "paper":
            if features.shape[-2:] != (_MAP, _MAP):
                features = F.adaptive_avg_pool2d(features, _MAP)
        else:
            features = features.mean((2, 3))
        result: Tensor = self.head(features)[:, 0]
        return result

    def forward(self, images: Tensor) -> Tensor:
        """Return the noise ratio per image, [B]."""
        return self.logits(images).sigmoid()
