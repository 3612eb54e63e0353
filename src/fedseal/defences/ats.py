"""ATS (Gao et al., CVPR 2021): train on images transformed by a policy that was searched for.

A policy is up to three of 50 fixed operations, written by their numbers: `3-1-7`; a hybrid, `3-1-7+43-18-18`, draws one
of its policies per image. `search_policies` finds them: the privacy score is the area under the layer-wise cosine of
gradients on the way from noise to the image, the accuracy score comes from the eigenvalues of correlated input
Jacobians of an untrained model. Threat model: passive server, after some training. Departures: the
stored probabilities are left out, as the authors' code ignores them; crop and flip are off by default, so that
`policy=none` is the identity. Any other policy rounds images to 8 bits, as Pillow does.

Cost: the transformation of each image; the search for a policy is done once, offline.

Known breaks: the gradient leaks the transformed image, which early in training is as legible as the raw one; active
servers do not care what the image is. Score against both, as audits do.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.batch import IDENTITY, Batch
from fedseal.core.defence import DEFENCES, AttackerView, Defence, Loss, RoundContext
from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Info
from fedseal.defences.ats_operations import LIBRARY, OPERATIONS, SIGNED
from fedseal.federation.client import sample_gradients
from fedseal.federation.loss import cross_entropy_loss

Policy = tuple[int, ...]
"""Numbers of operations in the library, applied in order."""

_BINS = 20
_ACCURACY_FLOOR = -85 / 63
"""The authors' bound of -85, per image: of 100 CIFAR100 images their code keeps one per class, about 63."""


def parse_policies(text: str) -> tuple[Policy, ...]:
    """Parse `3-1-7+43-18-18` into its policies."""
    try:
        policies = tuple(tuple(int(number) for number in policy.split("-")) for policy in text.split("+"))
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a policy of ATS.", hint="Write numbers of operations: 3-1-7 or 3-1-7+43-18-18."
        ) from error
    wrong = [number for policy in policies for number in policy if not 0 <= number < len(LIBRARY)]
    if wrong:
        raise UsageError(f"ATS has no operation {wrong[0]}.", hint=f"They are numbered 0 to {len(LIBRARY) - 1}.")
    return policies


def transform(images: Tensor, policies: tuple[Policy, ...], generator: torch.Generator) -> Tensor:
    """Apply one of `policies`, drawn per image, to images [B, C, H, W] in [0, 1]; the result is rounded to 8 bits."""
    integers = (images * 255).round().clamp(0, 255).to(torch.uint8)
    changed = []
    for image in integers:
        policy = policies[_below(len(policies), generator)]
        for number in policy:
            name, strength = LIBRARY[number]
            sign = 2 * _below(2, generator) - 1 if name in SIGNED else 1
            image = OPERATIONS[name](image, strength, sign)
        changed.append(image)
    return (torch.stack(changed).double() / 255).to(images.dtype)


def _below(limit: int, generator: torch.Generator) -> int:
    return int(torch.randint(limit, (), generator=generator, device=generator.device)) if limit > 1 else 0


def random_crop(images: Tensor, margin: int, generator: torch.Generator) -> Tensor:
    """Pad images [B, C, H, W] by `margin` black pixels and cut them back to size, each at a place of its own."""
    height, width = images.shape[2:]
    padded = F.pad(images, (margin,) * 4)
    corners = [(_below(2 * margin + 1, generator), _below(2 * margin + 1, generator)) for _ in images]
    return torch.stack(
        [image[:, top : top + height, left : left + width] for image, (top, left) in zip(padded, corners, strict=True)]
    )


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each of the images [B, C, H, W] with probability 1/2."""
    return torch.stack([image.flip(2) if _below(2, generator) else image for image in images])


@DEFENCES.register(
    "ats",
    Info("train on images transformed by a searched policy", paper="Gao et al., CVPR 2021", threat="passive"),
)
class ATS(Defence):
    """Transforms every image before it is trained on.

    Args:
        policy: numbers of operations, `3-1-7`, or a hybrid, `3-1-7+43-18-18` (the authors' for CIFAR100 and
            ResNet20); none for no operation.
        crop: margin in pixels of a random crop before the policy; 0 for none, the authors use 4.
        flip: whether images are mirrored at random before the policy; the authors do.
    """

    stage = "data"

    def __init__(self, policy: str | None = "3-1-7+43-18-18", crop: int = 0, flip: bool = False) -> None:
        if crop < 0:
            raise UsageError(f"ats needs crop >= 0, got {crop}.", hint="It is a margin in pixels.")
        self.policy = policy
        self.crop = crop
        self.flip = flip
        self._policies = () if policy is None else parse_policies(policy)

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        """Crop, mirror and transform the batch."""
        images = batch.images
        if not bool(torch.isfinite(images).all()):
            raise InputError("ats: images hold values that are NaN or infinite.", hint="Check how they are read.")
        if self.crop:
            images = random_crop(images, self.crop, context.generator)
        if self.flip:
            images = random_flip(images, context.generator)
        if self._policies:
            images = transform(images, self._policies, context.generator)
        return replace(batch, inputs=images)

    def attacker_view(self) -> AttackerView:
        """Publish the policy; the gradient is the true one of the transformed images."""
        return AttackerView(self.name, {"policy": self.policy or "none", "crop": self.crop, "flip": self.flip})


@dataclass(frozen=True)
class PolicyScore:
    """How a policy fared in the search.

    Attributes:
        policy: as a spec writes it.
        privacy: mean privacy score; lower is better.
        variance: of the privacy score over images.
        accuracy: accuracy score per image; higher is better.
        accepted: whether `accuracy` reached the floor.
        rank: 0.7 mean + 0.3 variance of the privacy score, each scaled to 0..1 over all candidates; lower is better.
    """

    policy: str
    privacy: float
    variance: float
    accuracy: float
    accepted: bool
    rank: float = 0.0


def privacy_scores(model: nn.Module, data: Batch, loss: Loss, generator: torch.Generator) -> Tensor:
    """Return per image the area under its gradient-similarity curve, [B].

    At point k = 0..20 of the curve stands the cosine, averaged over tensors, between the gradients at the image and at
    (1 - k/20) noise + (k/20) image: the sooner it rises, the easier an attacker finds the way.
    """
    areas = []
    for image, label in zip(data.images, data.labels, strict=True):
        noise = torch.rand(image.shape, generator=generator, device=generator.device).to(image)
        steps = torch.linspace(0, 1, _BINS + 1, dtype=image.dtype, device=image.device).view(-1, 1, 1, 1)
        path = Batch((1 - steps) * noise + steps * image, label.expand(_BINS + 1, *label.shape))
        gradients = sample_gradients(model, path, loss)
        curve = torch.stack(
            [F.cosine_similarity(g.flatten(1), g[-1:].flatten(1)) for g in gradients.values() if g[-1].any()]
        ).mean(0)
        areas.append(torch.trapezoid(curve) / _BINS)
    return torch.stack(areas)


def accuracy_score(model: nn.Module, images: Tensor) -> float:
    """Return how well an untrained model tells images [B, C, H, W] apart, per image and at most -1.

    It is -mean(ln(e + 1e-5) + 1 / (e + 1e-5)) over the eigenvalues e of the correlation matrix of input Jacobians.
    """
    inputs = images.detach().requires_grad_()
    (jacobian,) = torch.autograd.grad(model(inputs).sum(), inputs)
    eigenvalues = torch.linalg.eigvalsh(torch.corrcoef(jacobian.flatten(1).double())).clamp(min=0) + 1e-5
    return -float((eigenvalues.log() + 1 / eigenvalues).mean())


def search_policies(
    trained: nn.Module,
    untrained: nn.Module,
    data: Batch,
    generator: torch.Generator,
    *,
    loss: Loss | None = None,
    candidates: int = 24,
    operations: int = 3,
    privacy_images: int = 10,
    accuracy_images: int = 32,
    repeats: int = 2,
    floor: float = _ACCURACY_FLOOR,
) -> list[PolicyScore]:
    """Score random policies and return them, accepted ones first, the best first.

    The authors score 1600 candidates on five images per class, and 10 repeats of 100 images; the defaults are a
    budget for one CPU and find a good policy, not the best one.

    Args:
        trained: a model trained on a tenth of the data, for the privacy score.
        untrained: the same model with fresh weights, for the accuracy score.
        data: images to score on.
        generator: source of candidates, signs and noise.
        loss: the client's; cross-entropy on images as they are by default.
        candidates: policies to try.
        operations: operations in a policy.
        privacy_images: images for the privacy score.
        accuracy_images: images for one accuracy score.
        repeats: accuracy scores averaged.
        floor: least accuracy score, per image.
    """
    objective = loss or cross_entropy_loss(IDENTITY, "mean")
    informed, naive = copy.deepcopy(trained).eval(), copy.deepcopy(untrained).eval()
    found = []
    for _ in range(candidates):
        policy = tuple(_below(len(LIBRARY), generator) for _ in range(operations))
        private = _some(data, privacy_images, generator)
        fed = replace(private, inputs=transform(private.images, (policy,), generator))
        areas = privacy_scores(informed, fed, objective, generator)
        accuracies = []
        for _ in range(repeats):
            chosen = _some(data, accuracy_images, generator).images
            accuracies.append(accuracy_score(naive, transform(chosen, (policy,), generator)))
        accuracy = sum(accuracies) / repeats
        name = "-".join(map(str, policy))
        spread = float(areas.var(unbiased=False))
        found.append(PolicyScore(name, float(areas.mean()), spread, accuracy, accuracy >= floor))
    means, spreads = _scaled([score.privacy for score in found]), _scaled([score.variance for score in found])
    ranked = [replace(s, rank=0.7 * m + 0.3 * v) for s, m, v in zip(found, means, spreads, strict=True)]
    return sorted(ranked, key=lambda score: (not score.accepted, score.rank))


def _some(data: Batch, count: int, generator: torch.Generator) -> Batch:
    order = torch.randperm(len(data), generator=generator, device=generator.device)[:count].to(data.labels.device)
    return Batch(data.images[order], data.labels[order])


def _scaled(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]
