"""Per-sample differential privacy: clip every sample's gradient, add Gaussian noise to their sum, divide by the batch.

`dp-sgd` is Abadi et al. (CCS 2016, Alg. 1) with Opacus' arithmetic: factor min(1, C / (norm + 1e-6)) over all
parameters jointly, one N(0, (sigma C)^2) on the sum, division by the expected batch size. `fed-cdp` (Wei et al., ICDCS
2021) clips every tensor by itself, so L tensors have sensitivity C sqrt(L), which is what is accounted; sigma and C may
decay. `dp-adaptive` (Fu et al., TrustCom 2022) follows the sample norms with C and lets sigma fall with the loss.
Threat model: honest-but-curious server. Sigma 0 with clip `inf` is the identity. Departures: see `adaptive`; noise is
floating point, not hardened against attacks on its lowest bits.
"""

from __future__ import annotations

from fedseal.defences.dp.adaptive import AdaptiveDP
from fedseal.defences.dp.clipping import clipped_sum
from fedseal.defences.dp.fed_cdp import FedCDP, decayed
from fedseal.defences.dp.mechanism import PrivateGradients
from fedseal.defences.dp.sgd import DPSGD

__all__ = ["DPSGD", "AdaptiveDP", "FedCDP", "PrivateGradients", "clipped_sum", "decayed"]
