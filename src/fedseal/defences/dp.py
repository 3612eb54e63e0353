"""Per-sample differential privacy: clip every sample's gradient, add Gaussian noise to their sum, divide by the batch.

`dp-sgd` is Abadi et al. (CCS 2016, Alg. 1) with Opacus' arithmetic: factor min(1, C / (norm + 1e-6)) over all
parameters jointly, one N(0, (sigma C)^2) on the sum, division by the expected batch size. `fed-cdp` (Wei et al., ICDCS
2021) clips every tensor by itself, so L tensors have sensitivity C sqrt(L), which is what is accounted; sigma and C may
decay. `dp-adaptive` (Fu et al., TrustCom 2022) follows the sample norms with C and lets sigma fall with the loss.
Threat model: honest-but-curious server. Sigma 0 with clip `inf` is the identity. Departures: see `AdaptiveDP`; noise is
floating point, not hardened against attacks on its lowest bits.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, NoiseLaw, RoundContext
from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.defences.accounting import Accountant, PrivacyLedger, require_opacus
from fedseal.defences.noise import with_noise

Clipping: TypeAlias = Literal["flat", "per-tensor"]
"""Whether a sample's gradient is clipped as one vector or tensor by tensor."""

Decay: TypeAlias = Literal["linear", "staircase", "exponential", "cosine"]
"""How a strength goes from its first to its last value."""

_STAIRS = 5
_MARK = "replaces_batch_norm"


def clip_factors(grads: Tensors, bound: float, clipping: Clipping) -> dict[str, Tensor]:
    """Return min(1, bound / (norm + 1e-6)) of each sample, [B] per tensor; one and the same for all tensors if flat."""
    norms = {name: _sample_norms(grad) for name, grad in grads.items()}
    if clipping == "flat":
        joint = torch.linalg.vector_norm(torch.stack(list(norms.values()), dim=1), dim=1)
        norms = dict.fromkeys(norms, joint)
    return {name: (bound / (norm + 1e-6)).clamp(max=1.0) for name, norm in norms.items()}


def clipped_sum(grads: Tensors, bound: float, clipping: Clipping = "flat") -> dict[str, Tensor]:
    """Clip per-sample gradients [B, ...] and add them up; in single precision at least."""
    factors = clip_factors(grads, bound, clipping)
    return {
        name: torch.einsum("i,i...->...", factors[name], grad.to(factors[name].dtype)) for name, grad in grads.items()
    }


def _sample_norms(grad: Tensor) -> Tensor:
    wide = grad.to(torch.promote_types(grad.dtype, torch.float32))
    norms: Tensor = torch.linalg.vector_norm(wide.reshape(len(wide), math.prod(wide.shape[1:])), dim=-1)
    return norms


def _clip_lone_sample(gradient: Tensors, bound: float, clipping: Clipping) -> Tensors:
    """Clip the gradient of a batch of one, as the client did."""
    factors = clip_factors({name: tensor.unsqueeze(0) for name, tensor in gradient.items()}, bound, clipping)
    return {name: tensor * factors[name].squeeze(0) for name, tensor in gradient.items()}


def replace_batch_norm(model: nn.Module) -> nn.Module:
    """Return a copy with every batch normalisation replaced as Opacus does it: by a fresh group normalisation."""
    require_opacus()
    from opacus.validators import ModuleValidator

    fixed = copy.deepcopy(model)
    for name, module in list(fixed.named_modules()):
        if not isinstance(module, _BatchNorm):
            continue
        group = ModuleValidator.fix(module)
        if isinstance(group, _BatchNorm):
            raise InputError(
                f"the batch normalisation {name or 'model'!r} cannot be replaced: it has no weights, or is of its own "
                "kind.",
                hint="Train a model with GroupNorm instead.",
            )
        setattr(group, _MARK, True)
        group.to(next(module.parameters()).dtype)
        if not name:
            return group  # type: ignore[no-any-return]
        fixed.set_submodule(name, group)
    return fixed


@dataclass(eq=False)
class PrivateGradients(Defence):
    """Clipping per sample, noise on the sum; the one mechanism of this module.

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
        self.accounts_epsilon = self.sigma > 0
        self._ledger = PrivacyLedger(self.name, self.delta, self.accountant, self.budget)
        self._samples = 0
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
        if not self.needs_sample_grads or not _has_batch_norm(model):
            return model
        if self.batch_norm == "refuse":
            raise _batch_norm_refused(self.name)
        return replace_batch_norm(model)

    def on_sample_grads(self, grads: Tensors, context: RoundContext) -> Tensors:
        """Clip, add up, add noise and divide; the step is booked, or refused, before anything is computed."""
        if _has_batch_norm(context.model):
            raise _batch_norm_refused(self.name)
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
        self._rate = context.learning_rate if self._steps > 1 else 1.0
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
            clipped = _clip_lone_sample(gradient, bound, self.clipping)
            return {name: tensor / divisor for name, tensor in clipped.items()}

        return AttackerView(self.name, parameters, simulate, NoiseLaw("gaussian", scale) if scale else None)

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
        self._replaced = sum(hasattr(module, _MARK) for module in context.model.modules())

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


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def _batch_norm_refused(name: str) -> InputError:
    return InputError(
        f"{name} cannot train a model with batch normalisation: it makes a sample's gradient depend on its batch.",
        hint="Let batch_norm=replace put GroupNorm in its place through wrap_model, or use a model without it.",
    )


@DEFENCES.register(
    "dp-sgd",
    Info(
        "clip each sample's gradient, add Gaussian noise to their sum, account epsilon",
        paper="Abadi et al., CCS 2016",
        threat="passive",
    ),
)
@dataclass(eq=False)
class DPSGD(PrivateGradients):
    """DP-SGD at constant strength."""

    name = "dp-sgd"


@DEFENCES.register(
    "fed-cdp",
    Info(
        "clip each sample's gradient tensor by tensor, add Gaussian noise that may decay over rounds",
        paper="Wei et al., ICDCS 2021",
        threat="passive",
    ),
)
@dataclass(eq=False)
class FedCDP(PrivateGradients):
    """Fed-CDP; with `sigma_end` or `clip_end` its decaying variants (sigma 10 to 4, or 15 to 4.85, in 100 rounds).

    Attributes:
        sigma_end: sigma after `rounds` rounds; by default it stays.
        clip_end: the clip bound then; by default it stays.
        decay: the way there; `staircase` in five steps.
        rounds: after which the last values are reached.
    """

    sigma: float = 6.0
    clip: float = 4.0
    clipping: Clipping = "per-tensor"
    sigma_end: float | None = None
    clip_end: float | None = None
    decay: Decay = "linear"
    rounds: int = 100

    name = "fed-cdp"

    def __post_init__(self) -> None:
        super().__post_init__()
        last = self.sigma if self.sigma_end is None else self.sigma_end
        self._check_strength(last, self.clip if self.clip_end is None else self.clip_end)
        if self.rounds < 1 or (self.sigma > 0) != (last > 0) or (math.isinf(self.clip) and self.clip_end is not None):
            raise UsageError(
                f"{self.name} decays between positive, finite values in at least one round; got sigma "
                f"{self.sigma:g} to {last:g}, clip {self.clip:g} to {self.clip_end} in {self.rounds}.",
                hint="For example fed-cdp:sigma=10,sigma_end=4,decay=linear,rounds=100.",
            )

    def _strength(self, context: RoundContext) -> tuple[float, float]:
        progress = min(context.round / self.rounds, 1.0)
        return (
            decayed(self.sigma, self.sigma_end, self.decay, progress),
            decayed(self.clip, self.clip_end, self.decay, progress),
        )


def decayed(first: float, last: float | None, decay: Decay, progress: float) -> float:
    """Return the value at `progress` in [0, 1] of the way from `first` to `last`; `first` if there is no last."""
    if last is None or first == last:
        return first
    if decay == "exponential":
        return float(first * (last / first) ** progress)
    shares = {
        "linear": progress,
        "staircase": math.floor(progress * _STAIRS + 1e-9) / _STAIRS,
        "cosine": (1 - math.cos(math.pi * progress)) / 2,
    }
    return first + (last - first) * shares[decay]


@DEFENCES.register(
    "dp-adaptive",
    Info(
        "DP-SGD whose clip bound follows the sample norms and whose noise falls with the loss",
        paper="Fu et al., TrustCom 2022",
        threat="passive",
    ),
)
@dataclass(eq=False)
class AdaptiveDP(PrivateGradients):
    """Adap DP-FL: C of a round is alpha times the noisy mean norm of the last; sigma falls by beta as the loss falls.

    Sigma is multiplied by beta in every round whose last three losses all fell. Departures: noise goes on the sum of
    clipped norms, one number of sensitivity C (std `norm_sigma` x sigma x C, and accounted), because norms of
    noised gradients grow by sigma sqrt(N) a round; C changes by at most a factor of two a round.

    Attributes:
        alpha: clip bound over mean norm; above 1 the bound can grow again.
        beta: factor on sigma.
        norm_sigma: noise on the norms relative to that on the gradients; smaller costs more privacy.
        loss: where the loss comes from: the client's `batch` before training (which the accountant does not cover),
            or the `server`, which calls `record_loss` with that of public validation data.
    """

    alpha: float = 1.0
    beta: float = 0.999
    norm_sigma: float = 5.0
    loss: Literal["batch", "server"] = "batch"

    name = "dp-adaptive"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < math.inf or not 0 < self.beta <= 1 or not 0 < self.norm_sigma < math.inf:
            raise UsageError(
                f"{self.name} needs alpha > 0, 0 < beta <= 1 and norm_sigma > 0, got {self.alpha:g}, {self.beta:g} "
                f"and {self.norm_sigma:g}."
            )
        if self.clipping != "flat":
            raise UsageError(f"{self.name} follows the norm of whole gradients.", hint="Leave out `clipping`.")
        self._sigma, self._clip = self.sigma, self.clip
        self._losses: tuple[float, ...] = ()
        self._norms: list[float] = []

    def record_loss(self, value: float) -> None:
        """Take the loss before a round; after three falls in a row sigma goes down."""
        self._losses = (*self._losses, value)[-4:]
        if len(self._losses) == 4 and all(
            late < early for early, late in zip(self._losses, self._losses[1:], strict=False)
        ):
            self._sigma *= self.beta

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Leave the update alone, and set the clip bound of the next round."""
        if self._norms:
            wanted = self.alpha * sum(self._norms) / len(self._norms)
            self._clip = min(max(wanted, self._clip / 2), self._clip * 2)
            self._norms = []
        return super().on_update(update, context)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the ledger, sigma, the clip bound and the last losses."""
        if not self.needs_sample_grads:
            return {}
        now = {"sigma": self._sigma, "clip": self._clip, "losses": self._losses}
        return super().state_dict() | {name: torch.tensor(value, dtype=torch.float64) for name, value in now.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        own = {"sigma", "clip", "losses"}
        super().load_state_dict({name: value for name, value in state.items() if name not in own})
        if own <= set(state):
            self._sigma, self._clip = float(state["sigma"]), float(state["clip"])
            self._losses = tuple(state["losses"].tolist())
        elif own & set(state):
            raise InputError(f"the state of {self.name} is incomplete: it holds {sorted(state)} only.")

    def report(self) -> CostReport:
        """Add the forward pass for the loss, a third of a training pass."""
        cost = super().report()
        passes = 1 / 3 if self.loss == "batch" and self._steps else 0.0
        return CostReport(**{**vars(cost), "extra_passes": passes})

    def _strength(self, context: RoundContext) -> tuple[float, float]:
        if context.step == 0:
            self._norms = []  # of a round that was given up
        if context.step == 0 and self.loss == "batch":
            if context.batch is None:
                raise InputError(f"{self.name} has no batch to compute a loss on.", hint="Or use loss=server.")
            with torch.no_grad():
                self.record_loss(float(context.loss(context.model, context.batch)))
        return self._sigma, self._clip

    def _multiplier(self, sigma: float, tensors: int) -> float:
        return sigma / math.sqrt(1 + self.norm_sigma**-2)

    def _end_step(self, grads: Tensors, sigma: float, bound: float, context: RoundContext) -> None:
        """Take the clipped norms' sum with its own noise."""
        joint = torch.linalg.vector_norm(torch.stack([_sample_norms(grad) for grad in grads.values()], dim=1), dim=1)
        total = {"norms": joint.clamp(max=bound).sum()}
        law = NoiseLaw("gaussian", self.norm_sigma * sigma * bound)
        self._norms.append(
            float(with_noise(total, law, context.generator)["norms"]) / (self.batch_size or max(1, len(joint)))
        )

    def _remarks(self, private: bool) -> list[str]:
        sigma, bound = self._used
        remarks = [*super()._remarks(private), f"sigma {sigma:.4g} and clip bound {bound:.4g} in this round"]
        if self.loss == "batch" and self.beta < 1:
            remarks.append("sigma follows the loss on private batches, which epsilon does not cover; see loss=server")
        elif self.beta < 1 and len(self._losses) < 4:
            remarks.append(f"{len(self._losses)} losses were recorded by the server; sigma cannot have fallen yet")
        return remarks
