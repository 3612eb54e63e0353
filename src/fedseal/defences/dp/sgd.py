"""DP-SGD (Abadi et al., CCS 2016, Alg. 1): constant clip bound and noise, over all parameters jointly.

Each sample's gradient g_i is scaled by min(1, C / |g_i|), the sum gets N(0, (sigma C)^2) once and is divided by the
batch size. Epsilon at `delta` is accounted over all steps. Threat model: honest-but-curious server (local differential
privacy), with noise no one can repeat.

Cost: per-sample gradients, B x N of memory; no change of bytes.

Known breaks: at the small sigma papers call `strong` epsilon is in the hundreds and images come out; imprint attacks
average the noise over many rows; an aware attacker takes the noise for a likelihood (`bayes`). Batch normalisation is
replaced, since it ties samples together.
"""

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
