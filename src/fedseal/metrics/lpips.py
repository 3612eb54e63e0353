"""LPIPS, the learned perceptual distance (Zhang, Isola, Efros, Shechtman and Wang, CVPR 2018), version 0.1.

Features of five layers of an ImageNet network, normalised over channels at each position; squared differences
weighted by learned non-negative heads, averaged over positions, summed over layers. 0 for equal images,
larger for less alike. AlexNet is the variant papers report unless they say otherwise; scores of AlexNet and
VGG16 are not comparable. Written here because the reference needs torchvision, which does not work beside a
CPU build of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.errors import InputError
from fedseal.data.places import cache_directory
from fedseal.metrics.checks import check_pair, check_unit_range
from fedseal.metrics.lpips_weights import (
    HINT,
    Net,
    missing_reason,
    read_weights,
    weight_files,
)

NETS: tuple[Net, ...] = ("alex", "vgg")

SMALLEST: Mapping[Net, int] = {"alex": 31, "vgg": 16}
"""Least side in pixels at which the network's last feature map has one position left."""

UPSCALED = 32
"""Shorter side, in pixels, to which images below `SMALLEST` are enlarged bilinearly; others never are."""

_CHUNK_PIXELS = 2**19
"""Pixels pushed through the network at once: 512 images of 32x32, 10 of 224x224."""

_EPS = 1e-10
_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)


def _alexnet() -> tuple[nn.Sequential, tuple[int, ...]]:
    """Return AlexNet's convolutions (Krizhevsky 2014, torchvision's numbering) and the layers LPIPS reads."""
    layers = nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
    )
    return layers, (1, 4, 7, 9, 11)


def _vgg16() -> tuple[nn.Sequential, tuple[int, ...]]:
    """Return VGG16's convolutions (Simonyan 2015, torchvision's numbering) and the layers LPIPS reads."""
    layers: list[nn.Module] = []
    taps: list[int] = []
    channels = 3
    for width, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        if layers:
            layers.append(nn.MaxPool2d(2, stride=2))
        for _ in range(repeats):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        taps.append(len(layers) - 1)
    return nn.Sequential(*layers), tuple(taps)


class Lpips(nn.Module):
    """The LPIPS distance with given weights; call it with two stacks of images.

    Args:
        state: tensors by name, as `lpips_weights.read_weights` returns them.
        net: which network they belong to.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, state: Mapping[str, Tensor], net: Net = "alex") -> None:
        super().__init__()
        self.net = net
        self.features, self._taps = _alexnet() if net == "alex" else _vgg16()
        widths = [cast(nn.Conv2d, self.features[tap - 1]).out_channels for tap in self._taps]
        self.heads = nn.ParameterList([nn.Parameter(torch.zeros(width)) for width in widths])
        self.register_buffer("shift", torch.tensor(_SHIFT).view(1, 3, 1, 1))
        self.register_buffer("scale", torch.tensor(_SCALE).view(1, 3, 1, 1))
        self._load(state)
        self.eval().requires_grad_(False)

    def _load(self, state: Mapping[str, Tensor]) -> None:
        wanted = {f"features.{name}": value for name, value in self.features.named_parameters()}
        wanted |= {f"lin{k}.model.1.weight": head.view(1, -1, 1, 1) for k, head in enumerate(self.heads)}
        for name, target in wanted.items():
            if name not in state or state[name].shape != target.shape:
                got = f"has shape {list(state[name].shape)}" if name in state else "is missing"
                raise InputError(
                    f"the weights of LPIPS {self.net} do not fit: {name!r} {got}, not {list(target.shape)}.",
                    hint=HINT,
                )
            with torch.no_grad():
                target.copy_(state[name])

    @torch.no_grad()
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the distance of each pair of images [B, C, H, W] in [0, 1], C = 1 or 3, as [B] in float32.

        Grey images are repeated over three channels, [0, 1] is mapped to [-1, 1], images too small for the
        network are enlarged (`SMALLEST`, `UPSCALED`). No gradient is kept; memory is bounded whatever B is.
        """
        check_pair(a, b, "lpips")
        if a.shape[1] not in (1, 3):
            raise InputError(f"lpips: needs grey or RGB images, got {a.shape[1]} channels.")
        check_unit_range(a, "lpips")
        check_unit_range(b, "lpips")
        step = max(1, _CHUNK_PIXELS // (a.shape[-1] * a.shape[-2]))
        pairs = zip(torch.split(a, step), torch.split(b, step), strict=True)
        return torch.cat([self._distance(self._prepare(x), self._prepare(y)) for x, y in pairs])

    def differentiable(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the distances as `forward` does, [B], keeping gradients and without its checks."""
        return self._distance(self._prepare(a), self._prepare(b))

    def _prepare(self, images: Tensor) -> Tensor:
        device = self.heads[0].device
        images = images.to(device, torch.float32).expand(-1, 3, -1, -1)
        side = min(images.shape[-2:])
        if side < SMALLEST[self.net]:
            size = [round(length * UPSCALED / side) for length in images.shape[-2:]]
            images = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
        return (2 * images - 1 - self.shift) / self.scale

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros(len(x), device=x.device)
        heads = iter(self.heads)
        for index, layer in enumerate(self.features):
            x, y = layer(x), layer(y)
            if index in self._taps:
                difference = (_normalise(x) - _normalise(y)).square()
                total = total + torch.einsum("bchw,c->bhw", difference, next(heads)).mean(dim=(1, 2))
        return total


def _normalise(features: Tensor) -> Tensor:
    """Scale the feature vector at each position to unit length; zero vectors stay zero."""
    length: Tensor = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    return features / (length + _EPS)


def load_lpips(directory: Path | None = None, net: Net = "alex") -> Lpips | None:
    """Return LPIPS with the weights in `directory` (default: the cache), or None if they are not there.

    `why_no_lpips` says why. Weights that are there but damaged are an error, not an absence.
    """
    _check_net(net)
    files = weight_files(directory or cache_directory(), net)
    return Lpips(read_weights(files, net), net) if files else None


def why_no_lpips(directory: Path | None = None, net: Net = "alex") -> str | None:
    """Return, for the report, why `load_lpips` gives None and what to run; None if it gives the metric."""
    _check_net(net)
    return missing_reason(directory or cache_directory(), net)


def _check_net(net: str) -> None:
    if net not in NETS:
        raise InputError(f"there is no LPIPS network called {net!r}.", hint=f"Known: {', '.join(NETS)}.")
