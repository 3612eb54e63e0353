"""PRECODE (Scheliga, Mäder and Seeland, WACV 2022, Sec. 3): a variational bottleneck in front of the classifier.

Features h of the classifier's input are encoded to mu and sigma = softplus(.) of a code z = mu + sigma xi, xi ~
N(0, I), and decoded again; beta KL(z | N(0, I)) in bits, summed over the code and averaged over the batch, joins the
loss. Threat model: passive server; layers before the bottleneck stay open. Departures: a client's step
is always stochastic, whatever the mode of its dropout, with noise from the round's generator; prediction is
deterministic (xi = 0) unless `deterministic_eval=false`, as in the reference, and so is a naive attacker's copy of the
model; an aware one seeks xi together with the images, and counts the divergence. `k=0` inserts nothing.

Cost: 3 d k parameters more in model and traffic for a layer of d features, and one draw per step.

Known breaks: layers before the bottleneck are untouched: a first linear layer gives the image away in closed form
(`first-layer`), and elsewhere the noise is one more unknown to optimise.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.batch import Batch
from fedseal.core.channel import Channel
from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.registry import Info
from fedseal.models.surgery import called_modules, replace_module


class Bottleneck(nn.Module):
    """The variational bottleneck.

    Args:
        features: d, width of what it encodes and decodes.
        size: K, width of the code.
        deterministic_eval: whether prediction uses the mean of the code.
    """

    def __init__(self, features: int, size: int, deterministic_eval: bool) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, 2 * size)
        self.decoder = nn.Linear(size, features)
        self.deterministic_eval = deterministic_eval
        self.guessed_noise: Tensor | None
        self.register_buffer("guessed_noise", None, persistent=False)
        self._source: torch.Generator | None = None
        self._divergence: Tensor | None = None

    def draw_from(self, source: torch.Generator) -> None:
        """Make every further pass stochastic, with noise from `source`: what a client's step does."""
        self._source = source

    def forward(self, h: Tensor) -> Tensor:
        """Map features [..., d] through the code and back."""
        mu, raw = self.encoder(h).chunk(2, -1)
        sigma = F.softplus(raw)
        self._divergence = divergence_bits(mu, sigma)
        predicting = not torch.is_grad_enabled() and not self.deterministic_eval
        if self.guessed_noise is not None:
            mu = mu + sigma * self.guessed_noise
        elif self._source is not None or self.training or predicting:
            noise = torch.randn(mu.shape, generator=self._source, dtype=mu.dtype, device=mu.device)
            mu = mu + sigma * noise
        decoded: Tensor = self.decoder(mu)
        return decoded

    def take_divergence(self) -> Tensor | None:
        """Return the divergence of the latest pass, once."""
        latest, self._divergence = self._divergence, None
        return latest

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of copies what belongs to one pass of one client."""
        return {**self.__dict__, "_source": None, "_divergence": None}


class BottleneckedClassifier(nn.Module):
    """A classifier behind its bottleneck.

    Args:
        classifier: the model's own last layer.
        bottleneck: goes before it.
    """

    def __init__(self, classifier: nn.Linear, bottleneck: Bottleneck) -> None:
        super().__init__()
        self.bottleneck = bottleneck
        self.classifier = classifier

    def forward(self, h: Tensor) -> Tensor:
        """Map features [..., d] to logits."""
        logits: Tensor = self.classifier(self.bottleneck(h))
        return logits


def divergence_bits(mu: Tensor, sigma: Tensor) -> Tensor:
    """Return KL(N(mu, sigma^2) | N(0, 1)) in bits, summed over the last dimension, averaged over the others."""
    nats = 0.5 * (mu.square() + sigma.square() - 1) - sigma.log()
    return nats.sum(-1).mean() / math.log(2)


@DEFENCES.register(
    "precode",
    Info("a stochastic bottleneck before the classifier", paper="Scheliga et al., WACV 2022", threat="passive"),
)
class Precode(Defence):
    """Inserts the bottleneck and adds its divergence to the loss.

    Args:
        k: width of the code; 0 inserts nothing.
        beta: weight of the divergence.
        deterministic_eval: whether prediction uses the mean of the code.
    """

    stage = "model"

    def __init__(self, k: int = 256, beta: float = 1e-3, deterministic_eval: bool = True) -> None:
        if k < 0 or not 0 <= beta < math.inf:
            raise UsageError(f"precode needs k >= 0 and a finite beta >= 0, got {k} and {beta:g}.")
        self.k = k
        self.beta = beta
        self.deterministic_eval = deterministic_eval
        self._added = 0

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Insert the bottleneck before the last linear layer the model calls, if nothing with weights follows it."""
        if self.k == 0:
            return model
        if isinstance(model, nn.Linear):
            name = ""
        else:
            weighted = [n for n in called_modules(model) if list(model.get_submodule(n).parameters())]
            name = weighted[-1] if weighted else ""
        classifier = model.get_submodule(name)
        if not isinstance(classifier, nn.Linear):
            raise CapabilityError(
                f"precode needs a model that ends in a linear layer, this one ends in {type(classifier).__name__}.",
                hint="Give the model a linear classifier, or choose another defence.",
            )
        bottleneck = Bottleneck(classifier.in_features, self.k, self.deterministic_eval).to(classifier.weight)
        bottleneck.train(classifier.training)
        return replace_module(model, name, BottleneckedClassifier(classifier, bottleneck))

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        """Make the client's bottleneck stochastic; the batch stays as it is."""
        found = _bottlenecks(context.model)
        _make_stochastic(context.model, context.generator)
        self._added = sum(p.numel() for bottleneck in found for p in bottleneck.parameters())
        return batch

    def extra_loss(self, model: nn.Module) -> Tensor | None:
        """Return beta times the divergence of the latest pass, or None if there was none since."""
        found = [value for b in _bottlenecks(model) if (value := b.take_divergence()) is not None]
        return self.beta * torch.stack(found).sum() if found else None

    def report(self) -> CostReport:
        """Say how many parameters were added; they travel both ways in every round."""
        return CostReport(remarks=(f"precode adds {self._added:,} parameters to the model",) if self._added else ())

    def attacker_view(self) -> AttackerView:
        """Publish the parameters; the weights are in the model anyway, the noise is sought together with the images."""
        parameters, channel = {"k": self.k, "beta": self.beta}, Channel(draws=_make_stochastic)
        if self.k == 0:
            return AttackerView(self.name, parameters, channel=channel)
        return AttackerView(self.name, parameters, unknowns=_unknown_noise, extra_loss=self.extra_loss, channel=channel)


def _make_stochastic(model: nn.Module, source: torch.Generator) -> None:
    """Let every bottleneck of a model draw from `source`, as a client's does."""
    for bottleneck in _bottlenecks(model):
        bottleneck.draw_from(source)


def _unknown_noise(model: nn.Module, images: int) -> dict[str, Tensor]:
    """Return what an attacker seeks, the noise of each image's code, starting from none."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, Bottleneck)}
    return {
        f"{name}.guessed_noise".lstrip("."): module.decoder.weight.new_zeros(images, module.decoder.in_features)
        for name, module in found.items()
    }


def _bottlenecks(model: nn.Module) -> list[Bottleneck]:
    return [module for module in model.modules() if isinstance(module, Bottleneck)]
