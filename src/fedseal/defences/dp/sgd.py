"""DP-SGD (Abadi et al., CCS 2016, Alg. 1): constant clip bound and noise, over all parameters jointly."""

from __future__ import annotations

from dataclasses import dataclass

from fedseal.core.defence import DEFENCES
from fedseal.core.registry import Info
from fedseal.defences.dp.mechanism import PrivateGradients


@DEFENCES.register(
    "dp-sgd",
    Info(
        "clip each sample's gradient, add Gaussian noise to their sum, account epsilon",
        paper="Abadi et al., CCS 2016",
        threat="passive",
        strengths=("sigma=0.001", "sigma=0.01", "sigma=0.1", "sigma=1"),
    ),
)
@dataclass(eq=False)
class DPSGD(PrivateGradients):
    """DP-SGD at constant strength."""
