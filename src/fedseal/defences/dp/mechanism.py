"""What the methods share: clip every sample's gradient, add Gaussian noise to their sum, divide by the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor, nn

from fedseal.core.channel import Channel, constant_variance
from fedseal.core.defence import AttackerView, CostReport, Defence, NoiseLaw, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.privacy import PrivateRelease
from fedseal.core.tensors import Tensors
from fedseal.core.traits import Traits
from fedseal.defences.accounting import Accountant, PrivacyLedger, require_opacus
from fedseal.defences.dp.batch_norm import MARK, batch_norm_refused, has_batch_norm, replace_batch_norm
from fedseal.defences.dp.clipping import Clipping, clip_lone_sample, clipped_sum
from fedseal.defences.noise import with_noise


@dataclass(eq=False)
class PrivateGradients(Defence):
    """Clipping per sample, noise on the sum; the one mechanism of all three methods.

    Attributes:
        sigma: noise multiplier: the noise on the clipped sum has standard deviation sigma x clip.
        clip: L2 bound of a sample's gradient; `inf` for none, only with sigma 0.
        clipping: over all parameters jointly, or tensor by tensor.
        delta: at which epsilon is stated.
        sample_rate: probability of a sample to be in a batch, if batches are Poisson samples; 1 claims no
            amplification.
        batch_size: expected batch size the sum is divided by; by default the actual one, if all are equal.
        reduction: how the client's loss treats a batch; `sum` leaves out the division.
        accountant: for subsampled steps.
        budget: largest accounted epsilon; a step beyond it raises instead of sending.
        batch_norm: what happens to models with batch normalisation, under which samples are not independent.
    """

    sigma: float = 1.0
    clip: float = 1.0
    clipping: Clipping = "flat"
    delta: float = 1e-5
    sample_rate: float = 1.0
    batch_size: int | None = None
    reduction: Literal["mean", "sum"] = "mean"
    accountant: Accountant = "prv"
    budget: float | None = None
    batch_norm: Literal["replace", "refuse"] = "replace"

    stage = "sample"

    def __post_init__(self) -> None:
        self._check_strength(self.sigma, self.clip)
        if not 0 < self.sample_rate <= 1:
            raise UsageError(f"{self.name} needs 0 < sample_rate <= 1, got {self.sample_rate:g}.")
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"{self.name} needs batch_size >= 1, got {self.batch_size}.")
        if self.sample_rate < 1 and self.batch_size is None and self.reduction == "mean":
            raise UsageError(
                f"{self.name} with sample_rate < 1 needs the expected batch_size: Poisson batches differ in size.",
                hint="It is the sample rate times the number of the client's samples.",
            )
        if self.sigma > 0 and (self.sample_rate < 1 or self.accountant == "rdp"):
            require_opacus()
        self.traits = Traits(accounts_epsilon=self.sigma > 0)
        self._ledger = PrivacyLedger(self.name, self.delta, self.accountant, self.budget)
        self._samples = 0
        self._tensors = 0
        self._steps = 0
        self._variance = 0.0
        self._rate = 1.0
        self._replaced = 0
        self._used = (self.sigma, self.clip)

    @property
    def needs_sample_grads(self) -> bool:  # type: ignore[override]
        """Whether there is anything to do: without noise and bound, gradients are the plain ones."""
        return self.sigma > 0 or not math.isinf(self.clip)

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Replace, or refuse, batch normalisation."""
        if not self.needs_sample_grads or not has_batch_norm(model):
            return model
        if self.batch_norm == "refuse":
            raise batch_norm_refused(self.name)
        return replace_batch_norm(model)

    def on_sample_grads(self, grads: Tensors, context: RoundContext) -> Tensors:
        """Clip, add up, add noise and divide; the step is booked, or refused, before anything is computed."""
        if has_batch_norm(context.model):
            raise batch_norm_refused(self.name)
        self._begin_step(grads, context)
        sigma, bound = self._strength(context)
        self._ledger.spend(self._multiplier(sigma, len(grads)), self.sample_rate)
        noisy = with_noise(
            clipped_sum(grads, bound, self.clipping),
            NoiseLaw("gaussian", sigma * bound if sigma else 0.0),
            context.generator,
        )
        divisor = self._divisor()
        self._variance += (sigma * bound / divisor) ** 2 if sigma else 0.0
        self._used = (sigma, bound)
        self._end_step(grads, sigma, bound, context)
        return {name: (total / divisor).to(grads[name].dtype) for name, total in noisy.items()}

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Leave the update alone, and note how it scales the noise: a weight change holds lr times every step's."""
        self._rate = context.learning_rate if context.kind == "delta" else 1.0
        return update

    def state_dict(self) -> dict[str, Tensor]:
        """Return the privacy ledger."""
        return self._ledger.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the privacy ledger."""
        self._ledger.load_state_dict(state)

    def report(self) -> CostReport:
        """State both epsilons: sqrt(2 ln(1.25/delta)) / sigma per step, added up, and the accountant's."""
        sigma, _ = self._used
        private = sigma > 0 and self._ledger.steps > 0
        accounted = self._ledger.epsilon() if private else math.inf
        return CostReport(
            state_bytes=super().report().state_bytes,
            epsilon_nominal=max(1, self._steps) * math.sqrt(2 * math.log(1.25 / self.delta)) / sigma if sigma else None,
            epsilon_accounted=accounted if math.isfinite(accounted) else None,
            remarks=tuple(self._remarks(private)) if self.needs_sample_grads else (),
        )

    def releases(self) -> tuple[PrivateRelease, ...]:
        """State the mechanism: noise on every step's sum of bounded gradients."""
        sigma, _ = self._used
        if sigma == 0 or self._steps == 0:
            return ()
        return (
            PrivateRelease("sample", "gaussian", self._multiplier(sigma, self._tensors), self.sample_rate, self._steps),
        )

    def attacker_view(self) -> AttackerView:
        """Publish strengths and the noise on the upload; clipping is simulated only for one sample in one step."""
        sigma, bound = self._used
        scale = self._rate * math.sqrt(self._variance)
        alone = self._samples == 1 and self._steps == 1 and self.needs_sample_grads
        parameters: dict[str, float | str] = {"sigma": sigma, "clip": bound, "clipping": self.clipping}
        if not alone:
            parameters["per-sample clipping"] = "not simulated, as it is no function of the batch gradient"
        divisor = self._divisor() if alone else 1.0

        def simulate(gradient: Tensors, observed: Tensors) -> Tensors:
            if not alone:
                return gradient
            clipped = clip_lone_sample(gradient, bound, self.clipping)
            return {name: tensor / divisor for name, tensor in clipped.items()}

        channel = Channel(
            variance=constant_variance(scale**2) if scale else None,
            reduces=partial(self._clipped_mean, bound) if self.needs_sample_grads else None,
        )
        law = NoiseLaw("gaussian", scale) if scale else None
        return AttackerView(self.name, parameters, simulate, law, channel=channel)

    def _clipped_mean(self, bound: float, grads: Tensors) -> Tensors:
        """Return what a step makes of single samples' gradients, without its noise."""
        size = self.batch_size or len(next(iter(grads.values())))
        divisor = 1.0 if self.reduction == "sum" else float(size)
        return {name: total / divisor for name, total in clipped_sum(grads, bound, self.clipping).items()}

    def _check_strength(self, sigma: float, clip: float) -> None:
        if not 0 <= sigma < math.inf or not clip > 0 or (sigma > 0 and math.isinf(clip)):
            raise UsageError(
                f"{self.name} needs a finite sigma >= 0 and clip > 0, finite if sigma > 0; got {sigma:g} and {clip:g}.",
                hint="Noise is sigma x clip. No defence at all is sigma=0,clip=inf.",
            )

    def _strength(self, context: RoundContext) -> tuple[float, float]:
        """Return sigma and the clip bound of this step."""
        return self.sigma, self.clip

    def _multiplier(self, sigma: float, tensors: int) -> float:
        """Return the noise's standard deviation over the sensitivity of what is released in a step."""
        return sigma / math.sqrt(tensors) if self.clipping == "per-tensor" else sigma

    def _divisor(self) -> float:
        return 1.0 if self.reduction == "sum" else float(self.batch_size or max(1, self._samples))

    def _begin_step(self, grads: Tensors, context: RoundContext) -> None:
        if context.step == 0:
            self._steps, self._variance = 0, 0.0
        self._steps += 1
        self._samples = len(next(iter(grads.values())))
        self._tensors = len(grads)
        self._replaced = sum(hasattr(module, MARK) for module in context.model.modules())

    def _end_step(self, grads: Tensors, sigma: float, bound: float, context: RoundContext) -> None:
        """Learn from the step; for adaptive rules."""

    def _remarks(self, private: bool) -> list[str]:
        remarks = [
            f"nominal epsilon of the textbook formula, added up over the {self._steps} steps of the round"
            if self._used[0]
            else "no noise, hence no epsilon"
        ]
        if private:
            remarks.append(self._ledger.describe())
        if private and self.budget is not None:
            remarks.append(f"privacy budget: epsilon {self._ledger.epsilon():.4g} of {self.budget:g} spent")
        if self.clipping == "per-tensor":
            remarks.append("accounted with the joint sensitivity clip x sqrt(number of tensors)")
        if self._replaced:
            remarks.append(f"{self._replaced} BatchNorm layers were replaced by GroupNorm with fresh weights")
        return remarks
