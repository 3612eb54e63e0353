"""Metrics by name that the defence papers report: LPIPS by either network, REC, RLA, and the best that any image gives.

DGP's Table 1 has "Min LPIPS" and "Max SSIM", the attacker's luckiest image; `min-lpips` and `max-ssim` take for each
original the reconstruction that is most like it, and the least and greatest of a run are those of the table.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from fedseal.core.errors import InputError
from fedseal.core.registry import Info
from fedseal.metrics.image import psnr, ssim
from fedseal.metrics.lpips import Lpips, load_lpips, why_no_lpips
from fedseal.metrics.lpips_weights import Net
from fedseal.metrics.recovery import RECOVERED_DB
from fedseal.metrics.registry import METRICS
from fedseal.models.registry import build_model

_LIDS = "Lin et al., Deceive-to-Defend"


@lru_cache(maxsize=2)
def _lpips(net: Net) -> Lpips:
    metric = load_lpips(net=net)
    if metric is None:
        raise InputError(f"the metric lpips:net={net} needs weights that are not there.", hint=why_no_lpips(net=net))
    return metric


@METRICS.register("lpips", Info("perceptual distance, by AlexNet or VGG", paper="Zhang et al., CVPR 2018"))
def perceptual_distance(originals: Tensor, reconstructions: Tensor, net: Net = "alex") -> Tensor:
    """Return LPIPS of each pair [B, C, H, W], as [B]."""
    distances: Tensor = _lpips(net).to(originals.device)(originals, reconstructions)
    return distances


@METRICS.register("rec", Info("1 where an image came out above a PSNR, else 0; its mean is REC", paper=_LIDS))
def recovered(originals: Tensor, reconstructions: Tensor, above: float = RECOVERED_DB) -> Tensor:
    """Return whether each pair [B, C, H, W] is closer than `above` dB, as [B]."""
    return (psnr(originals, reconstructions, data_range=1.0) > above).double()


@lru_cache(maxsize=2)
def _judge(model: str, checkpoint: Path, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    return build_model(f"{model}:checkpoint={checkpoint}", input_shape=shape, num_classes=classes, seed=0).eval()


@METRICS.register(
    "rla", Info("1 where a judge gives a reconstruction the class it gives the original; its mean is RLA", paper=_LIDS)
)
@torch.no_grad()
def recognised(
    originals: Tensor, reconstructions: Tensor, checkpoint: Path, model: str = "resnet18", classes: int = 10
) -> Tensor:
    """Return whether a classifier tells the same of each pair [B, C, H, W], as [B].

    Args:
        originals: in [0, 1].
        reconstructions: in [0, 1].
        checkpoint: weights of the judge, which takes images in [0, 1]; best trained on data nobody attacks.
        model: its name.
        classes: it knows.
    """
    channels, height, width = originals.shape[1:]
    judge = _judge(model, checkpoint, classes, (channels, height, width)).to(originals.device)
    told: list[Tensor] = [judge(images.float()).argmax(1) for images in (originals, reconstructions)]
    return torch.eq(*told).double()


@METRICS.register("max-ssim", Info("greatest structural similarity to any of the reconstructions"))
def greatest_similarity(originals: Tensor, reconstructions: Tensor) -> Tensor:
    """Return for each original [B, C, H, W] the greatest SSIM to any reconstruction, as [B]."""
    each = [ssim(originals, one.expand_as(originals), data_range=1.0) for one in reconstructions]
    return torch.stack(each).amax(0)


@METRICS.register("min-lpips", Info("least perceptual distance to any of the reconstructions"))
def least_distance(originals: Tensor, reconstructions: Tensor, net: Net = "alex") -> Tensor:
    """Return for each original [B, C, H, W] the least LPIPS to any reconstruction, as [B]."""
    metric = _lpips(net).to(originals.device)
    return torch.stack([metric(originals, one.expand_as(originals)) for one in reconstructions]).amin(0)
