"""Noise allotted to parameters by how strongly they follow the inputs (after Chen, Gürsoy and Lei, 2024).

Entries of the gradient that follow the inputs get more noise than those that do not, at the same total variance as
`gaussian` of the same sigma. Threat model: honest-but-curious server. Sigma 0 with clip `inf` is the identity. There is
no claim of differential privacy, as the allotment depends on the data.

Equations: o = g(x) + n, n_i ~ N(0, s_i^2). Any reader's squared error is at least d^2 / (tr F + tr P) for d inputs,
P the prior's information and tr F = sum_i |dg_i/dx|^2 / s_i^2 (Bayesian Cramér-Rao). At a given sum of variances,
N sigma^2, tr F is least for s_i^2 = N sigma^2 |dg_i/dx| / sum_j |dg_j/dx|; it is (sum_j |dg_j/dx|)^2 / (N sigma^2)
then, instead of sum_j |dg_j/dx|^2 / sigma^2.

Departures: of the paper we have the abstract only: a lower bound for all attackers, and noise made parameter- and
model-specific by it. The allotment above is derived here, by Lagrange from that bound; utility is taken to be the sum
of variances, all parameters alike. Slopes are those of the client's own last batch, estimated by `probes` random
directions; `even` is a share of the variance spread over all entries alike, 0 by default as derived.

Cost: `probes` second-order passes per round; no state, no bytes.

Known breaks: entries that do not follow the inputs to first order are sent exactly, among them those of units that are
off: which ones are is told, and labels with them, unless `even` is above 0. The bound is for the mean of all readers'
errors at a point, no bound on what a strong prior recognises. Fresh noise is averaged over rounds as any is.
"""

from __future__ import annotations

import math

import torch

from fedseal.core.channel import Channel
from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, NoiseLaw, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors, flatten, unflatten
from fedseal.core.traits import Traits
from fedseal.defences.noise import clip_to_norm
from fedseal.defences.slopes import row_norms


def allotted(slopes: Tensors, sigma: float, even: float = 0.0) -> Tensors:
    """Return the variance of each entry: the total of `sigma`^2 each, in proportion to slopes.

    Args:
        slopes: |dg_i/dx| by parameter name; where all are zero, entries are treated alike.
        sigma: deviation that evenly spread noise of the same total would have.
        even: share of the total that is spread evenly.
    """
    every = flatten(slopes).double()
    mean = every.mean()
    relative = torch.where(mean > 0, every / mean.clamp(min=1e-300), torch.ones_like(every))
    return unflatten(sigma**2 * (even + (1 - even) * relative), slopes)


@DEFENCES.register(
    "optimal-noise",
    Info(
        "Gaussian noise where the gradient follows the inputs, at a given total",
        paper="Chen, Gürsoy and Lei, 2024",
        threat="passive",
        strengths=("sigma=0.0001", "sigma=0.001", "sigma=0.01", "sigma=0.1"),
    ),
)
class OptimalNoise(Defence):
    """Clipping, and Gaussian noise of a given total variance, allotted by slopes.

    Args:
        sigma: deviation that noise of the same total would have if it were the same in every entry.
        clip: L2 norm the upload is clipped to first; `inf` for no clipping.
        probes: random directions that slopes are estimated by; 0 takes all inputs one by one.
        even: share of the variance that all entries get alike.
    """

    stage = "update"

    def __init__(self, sigma: float = 0.01, clip: float = 1.0, probes: int = 16, even: float = 0.0) -> None:
        if not 0 <= sigma < math.inf or not clip > 0 or probes < 0 or not 0 <= even <= 1:
            raise UsageError(
                f"optimal-noise needs a finite sigma >= 0, clip > 0, probes >= 0 and 0 <= even <= 1, got {sigma:g}, "
                f"{clip:g}, {probes} and {even:g}.",
                hint="sigma=0 with clip=inf is no defence at all.",
            )
        self.sigma = sigma
        self.clip = clip
        self.probes = probes
        self.even = even
        self.traits = Traits(reads_batch=sigma > 0)
        self._variance: Tensors = {}
        self._passes = 0.0

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Clip, measure slopes, add noise."""
        clipped = clip_to_norm(update, self.clip)
        if self.sigma == 0:
            return clipped
        assert context.batch is not None, "an update belongs to a batch"
        slopes = row_norms(context.batch, context, self.probes, update, self.name)
        self._variance = allotted(slopes, self.sigma, self.even)
        self._passes = 2.0 + (self.probes or context.batch.inputs.numel())
        sent = {}
        for name, tensor in clipped.items():
            drawn = torch.randn(tensor.shape, generator=context.generator, device=context.generator.device)
            deviation = self._variance[name].sqrt().to(tensor.device)
            sent[name] = (tensor + drawn.to(tensor.device) * deviation).to(tensor.dtype)
        return sent

    def report(self) -> CostReport:
        """Count the passes of the last round."""
        return CostReport(extra_passes=self._passes)

    def attacker_view(self) -> AttackerView:
        """Publish the clip bound, and the law of the noise, with each entry's variance: the most one could know."""
        parameters = {"sigma": self.sigma, "clip": self.clip, "even": self.even}
        variance = dict(self._variance)
        noisy = self.sigma > 0 and bool(variance)

        def varies(update: Tensors, observed: Tensors) -> Tensors:
            return {name: variance[name].to(tensor) for name, tensor in update.items()}

        def clipped(gradient: Tensors, observed: Tensors) -> Tensors:
            return clip_to_norm(gradient, self.clip)

        remark = "how much noise an entry has depends on the batch; the reading supposes that this is known"
        return AttackerView(
            self.name,
            parameters,
            clipped,
            NoiseLaw("gaussian", self.sigma) if self.sigma > 0 else None,
            channel=Channel(clipped, varies, remarks=(remark,)) if noisy else None,
            variances=variance if noisy else None,
        )
