"""GradDefense (Wang et al., INFOCOM 2022): noise on random slices of equal sensitivity, removed again by the server.

The sensitivity of a tensor is the mean over root samples of |d(sum of its gradient)/dx|; the flattened gradient is cut
into slices of equal total sensitivity, some drawn at random get N(0, scale^2). The server reshapes the aggregate to
v x w, v/w = q, and removes covariance eigen-directions inside the Marchenko-Pastur bulk scale^2 (1 -+ sqrt(w/v))^2.
Threat model: passive server that helps to restore utility. This is what Refiner and FedLeak cite as improved Soteria.
Departures: slice borders do not overlap, the matrix is padded instead of factorised, no fixed seed, the root set comes
from `prepare` or else from the batch. Scale 0 is the identity.

Cost: one second-order pass per tensor on the root images when sensitivities are measured anew, then O(N); denoising is
an eigenproblem of the matrix's smaller side on the server.

Known breaks: slices without noise are exact and are matched alone; the denoising that restores utility restores the
attacker's view of a single client too, where the server sees it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.channel import Channel
from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, NoiseLaw, RoundContext, Stage
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors, flatten, unflatten
from fedseal.core.traits import Traits
from fedseal.defences.pruning import match_observed_support
from fedseal.defences.slopes import differentiated_twice
from fedseal.defences.tally import StepTally, everything

_STRETCH = 64
"""Entries that are judged noisy or clean together."""
_QUIET = 0.16
"""Half of the quarter quantile of a Gaussian's magnitude, in deviations."""
_LOUD = 4.0
"""Deviations beyond which an entry is more signal than noise."""


def sensitivities(root: Batch, context: RoundContext) -> Tensor:
    """Return per trainable tensor the mean over root samples of |d(sum of its gradient)/dx|, shape [tensors]."""
    model = copy.deepcopy(context.model)
    images = root.numbers.detach().requires_grad_()
    parameters = [p for p in model.parameters() if p.requires_grad]
    with differentiated_twice("graddefense"):
        loss = context.loss(model, replace(root, inputs=images))
        gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
        return torch.stack([_sensitivity(gradient, images) for gradient in gradients])


def _sensitivity(gradient: Tensor | None, images: Tensor) -> Tensor:
    if gradient is None or not gradient.requires_grad:
        return torch.zeros((), device=images.device)
    (slope,) = torch.autograd.grad(gradient.sum(), images, retain_graph=True, allow_unused=True)
    if slope is None:
        return torch.zeros((), device=images.device)
    norms: Tensor = slope.flatten(1).float().norm(dim=1)
    return norms.mean()


def slice_borders(sizes: Sequence[int], sensitivity: Tensor, slices: int) -> list[int]:
    """Return `slices` + 1 ascending positions that cut [0, sum(sizes)] into slices of equal total sensitivity.

    A tensor's sensitivity is spread evenly over its entries. Where no tensor has any, slices are of equal length.

    Args:
        sizes: number of entries of each tensor.
        sensitivity: of each tensor, [tensors].
        slices: how many.
    """
    weights = [float(value) for value in sensitivity]
    if not sum(weights) > 0:
        weights = [float(size) for size in sizes]
    share = sum(weights) / slices
    borders, position, passed = [0], 0, 0.0
    for size, weight in zip(sizes, weights, strict=True):
        while weight > 0 and len(borders) < slices and passed + weight >= len(borders) * share:
            inside = (len(borders) * share - passed) / weight
            borders.append(position + round(size * min(max(inside, 0.0), 1.0)))
        position, passed = position + size, passed + weight
    return [*borders, *[position] * (slices + 1 - len(borders))]


def denoise(update: Tensors, scale: float, q: float) -> Tensors:
    """Remove from an aggregate what looks like white noise of deviation `scale`.

    Args:
        update: flattened into a v x w matrix, padded with zeros.
        scale: deviation of the noise; 0 returns the update.
        q: wanted v / w.
    """
    vector = flatten(update).double()
    if scale == 0 or len(vector) < 2 * q:
        return update
    width = max(1, round(math.sqrt(len(vector) / q)))
    height = math.ceil(len(vector) / width)
    matrix = torch.cat([vector, vector.new_zeros(height * width - len(vector))]).view(height, width)
    values, directions = torch.linalg.eigh(torch.cov(matrix.T).view(width, width))
    low, high = (scale**2 * (1 + sign * math.sqrt(width / height)) ** 2 for sign in (-1, 1))
    noisy = directions[:, (values > low) & (values < high)]
    cleaned = (matrix - matrix @ noisy @ noisy.T).reshape(-1)[: len(vector)]
    like = next(iter(update.values()))
    return unflatten(cleaned.to(like.dtype), update)


@DEFENCES.register(
    "graddefense",
    Info(
        "noise on slices of equal sensitivity, filtered out of the aggregate",
        paper="Wang et al., INFOCOM 2022",
        threat="passive",
    ),
)
class GradDefense(Defence):
    """Noise on sampled slices of the gradient.

    Args:
        scale: deviation of the noise.
        slices: how many the gradient is cut into.
        perturbed: how many of them get noise.
        clip: whether each sample's part of those slices is first clipped to norm `scale`.
        q: ratio of the server's matrix.
        root: images per class that sensitivities are measured on.
        refresh: measure them every so many rounds.
        server_scale: deviation of the noise the server expects in the aggregate; none for `scale`, right for one
            client's gradient.
    """

    def __init__(
        self,
        scale: float = 0.01,
        slices: int = 10,
        perturbed: int = 5,
        clip: bool = False,
        q: float = 6.0,
        root: int = 5,
        refresh: int = 1,
        server_scale: float | None = None,
    ) -> None:
        if not 0 <= scale < math.inf or not 0 <= perturbed <= slices or slices < 1:
            raise UsageError(
                f"graddefense needs a finite scale >= 0 and 0 <= perturbed <= slices, got {scale:g}, {perturbed} "
                f"and {slices}."
            )
        if not q >= 1 or root < 1 or refresh < 1:
            raise UsageError(f"graddefense needs q, root and refresh >= 1, got {q:g}, {root} and {refresh}.")
        self.scale = scale
        self.slices = slices
        self.perturbed = perturbed
        self.clip = clip
        self.q = q
        self.root = root
        self.refresh = refresh
        self.server_scale = server_scale
        self.traits = Traits(reads_batch=scale > 0)
        self._root: Batch | None = None
        self._sensitivity: Tensor | None = None
        self._measured = 0
        self._passes = 0.0
        self._tally = StepTally()
        self._chosen: list[tuple[int, int]] = []

    @property
    def needs_sample_grads(self) -> bool:  # type: ignore[override]
        """Whether samples are clipped."""
        return self.clip and self.scale > 0

    @property
    def stage(self) -> Stage:  # type: ignore[override]
        """Where it acts: on samples if they are clipped."""
        return "sample" if self.needs_sample_grads else "gradient"

    def prepare(self, dataset: Batch, generator: torch.Generator) -> Batch:
        """Draw the root set from the client's data."""
        order = torch.randperm(len(dataset), generator=generator, device=generator.device).to(dataset.labels.device)
        self._root = _per_class(dataset.pick(order), self.root)
        return dataset

    def on_sample_grads(self, grads: Tensors, context: RoundContext) -> Tensors:
        """Clip the sampled slices of each sample, average, add noise to the slices."""
        chosen = self._sampled(grads, context, per_sample=True)
        clipped = self._clipped_mean(grads, chosen)
        return unflatten(self._noised(flatten(clipped), chosen, clipped, context), clipped)

    def on_gradient(self, gradient: Tensors, context: RoundContext) -> Tensors:
        """Add noise to the sampled slices, unless samples were clipped and noised already."""
        if self.scale == 0 or self.needs_sample_grads:
            return gradient
        chosen = self._sampled(gradient, context, per_sample=False)
        return unflatten(self._noised(flatten(gradient), chosen, gradient, context), gradient)

    def on_aggregate(self, update: Tensors) -> Tensors:
        """Remove the noise from the aggregate."""
        return denoise(update, self.scale if self.server_scale is None else self.server_scale, self.q)

    def _clipped_mean(self, grads: Tensors, chosen: list[tuple[int, int]]) -> dict[str, Tensor]:
        """Return the mean of samples' gradients [B, ...] whose chosen slices are clipped to norm `scale`."""
        vectors = torch.cat([g.flatten(1) for g in grads.values()], 1)
        parts, end = [], 0
        for start, stop in chosen:
            norms = vectors[:, start:stop].norm(dim=1, keepdim=True)
            parts += [vectors[:, end:start], vectors[:, start:stop] / (norms / self.scale).clamp(min=1)]
            end = stop
        mean = torch.cat([*parts, vectors[:, end:]], 1).mean(0)
        return unflatten(mean, {name: g[0] for name, g in grads.items()})

    def _noised(self, vector: Tensor, chosen: list[tuple[int, int]], like: Tensors, context: RoundContext) -> Tensor:
        result, variance = vector.clone(), torch.zeros_like(vector)
        self._chosen = chosen
        for start, end in chosen:
            noise = torch.randn(end - start, generator=context.generator, dtype=vector.dtype, device=vector.device)
            result[start:end] += self.scale * noise
            variance[start:end] = self.scale**2
        self._tally.begin(context)
        self._tally.note(unflatten(variance, like), everything(like), context)
        return result

    def _sampled(self, gradient: Tensors, context: RoundContext, *, per_sample: bool) -> list[tuple[int, int]]:
        """Return begin and end of the slices drawn in this step."""
        self._measure(context)
        sizes = [g[0].numel() if per_sample else g.numel() for g in gradient.values()]
        borders = slice_borders(sizes, cast(Tensor, self._sensitivity), self.slices)
        order = torch.randperm(self.slices, generator=context.generator, device=context.generator.device)
        return [(borders[i], borders[i + 1]) for i in sorted(order[: self.perturbed].tolist())]

    def _measure(self, context: RoundContext) -> None:
        """Measure sensitivities, once in `refresh` rounds."""
        self._passes = 0.0
        if self._sensitivity is not None and 0 <= context.round - self._measured < self.refresh:
            return
        assert context.batch is not None, "a gradient belongs to a batch"
        root = _per_class(context.batch, self.root) if self._root is None else self._root
        like = context.batch.numbers
        self._sensitivity = sensitivities(root.to(like.device, like.dtype), context)
        self._measured = context.round
        self._passes = (1.0 + len(self._sensitivity)) * len(root) / len(context.batch)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the sensitivities and the round they were measured in."""
        if self._sensitivity is None:
            return {}
        return {"sensitivity": self._sensitivity, "measured": torch.tensor(self._measured)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the sensitivities."""
        if state and state.keys() != {"sensitivity", "measured"}:
            raise UsageError(f"graddefense does not know the state {sorted(state)}.", hint="Load what it saved.")
        self._sensitivity = state.get("sensitivity")
        self._measured = int(state["measured"]) if state else 0

    def report(self) -> CostReport:
        """Count the second-order passes of the last step."""
        return CostReport(state_bytes=super().report().state_bytes, extra_passes=self._passes)

    def attacker_view(self) -> AttackerView:
        """Publish the law of the noise. Which slices it lies on is hidden and shows in the upload (`clean_part`)."""
        parameters = {"scale": self.scale, "slices": self.slices, "perturbed": self.perturbed}
        if self.scale == 0 or self.perturbed == 0:
            return AttackerView(self.name, parameters)
        channel = self._channel()
        if self.perturbed == self.slices:
            return AttackerView(self.name, parameters, noise=NoiseLaw("gaussian", self.scale), channel=channel)
        return AttackerView(
            self.name,
            parameters,
            match_observed_support,
            read=lambda observed: clean_part(observed, self.scale),
            channel=channel,
        )

    def _channel(self) -> Channel:
        """Return what passed: noise on the slices drawn, and, if samples are clipped, by the slices drawn last."""
        chosen = list(self._chosen)
        reduces = (lambda grads: self._clipped_mean(grads, chosen)) if self.needs_sample_grads else None
        return replace(self._tally.channel(), reduces=reduces)


def clean_part(update: Tensors, scale: float) -> Tensors:
    """Return an update without what noise drowns, which is zeroed; what is clean and zero is kept as the least number.

    A quarter of Gaussian draws lie below 0.32 deviations. A stretch of entries of which a quarter is far smaller than
    that has no noise on it; as slices are long, each stretch goes with the majority around it. Entries far above the
    noise are kept wherever they lie. Where nothing looks clean, everything is kept.
    """
    vector = flatten(update)
    whole = nn.functional.pad(vector.abs().double(), (0, -len(vector) % _STRETCH), value=torch.nan)
    quiet = whole.view(-1, _STRETCH).nanquantile(0.25, dim=1) < _QUIET * scale
    around = nn.functional.avg_pool1d(quiet.double()[None, None], 5, 1, 2, count_include_pad=False)[0, 0] > 0.5
    if not bool(around.any()):
        return update
    clean = around.repeat_interleave(_STRETCH)[: len(vector)] | (vector.abs() > _LOUD * scale)
    least = torch.finfo(vector.dtype).tiny
    kept = torch.where(vector == 0, vector.new_full((), least), vector)
    return unflatten(torch.where(clean, kept, vector.new_zeros(())), update)


def _per_class(batch: Batch, count: int) -> Batch:
    """Return the first `count` images of each class."""
    labels = batch.labels.argmax(1) if batch.labels.ndim == 2 else batch.labels
    kept = torch.cat([(labels == c).nonzero().flatten()[:count] for c in sorted(set(labels.tolist()))])
    return batch.pick(kept)
