"""Training the evaluation network on public images, and measuring it on others (Sec. 3.3, App. D).

A batch is natural images x mixed with uniform noise v, (1 - r) x + r v, and the network predicts r by binary
cross-entropy (the paper leaves its loss unstated; this has the form of Eq. 5). r is drawn from slightly more than
[0, 1] and clamped, so that pure images and pure noise occur. Images are varied in size, contrast and colour, and a part
is drawn (`structured`), so that data sets of another kind are judged well too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedseal.core.errors import UsageError
from fedseal.core.seeds import derive_seed, generator
from fedseal.core.tensors import check_finite, check_like
from fedseal.core.trainable import Saved, Trainable, Unfinished
from fedseal.core.watcher import Report, Tick
from fedseal.data.dataset import ImageDataset
from fedseal.defences.refiner.evaluator import Architecture, EvaluationNetwork
from fedseal.defences.refiner.structured import structured_images

RATIOS: tuple[float, ...] = tuple(index / 10 for index in range(11))
"""The noise ratios at which a network is measured."""

_GROUPS = 4
_EVERY = 100
_OVERSHOOT = 0.04
_LARGEST = 64
_DRAWN = 4000
_SCALES = (0.75, 1.0, 1.0, 1.0, 1.25, 1.5, 2.0)


@dataclass(frozen=True)
class TrainingPlan:
    """How an evaluation network is trained.

    Attributes:
        architecture: of the network.
        steps: of Adam.
        batch_size: images per step, in four groups of one size and source each.
        learning_rate: at the start; it falls to zero along a cosine.
        structured: share of groups that are drawn images instead of data.
        seed: determines everything.
    """

    architecture: Architecture = "small"
    steps: int = 10_000
    batch_size: int = 128
    learning_rate: float = 2e-3
    structured: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < _GROUPS or self.learning_rate <= 0 or not 0 <= self.structured < 1:
            raise UsageError(
                f"training needs steps >= 1, batch size >= {_GROUPS}, learning rate > 0 and 0 <= structured < 1, "
                f"got {self.steps}, {self.batch_size}, {self.learning_rate:g} and {self.structured:g}."
            )


@dataclass(frozen=True)
class Measured:
    """A network's error on one data set.

    Attributes:
        data: name of the set.
        images: how many were judged.
        predicted: mean prediction at each of `RATIOS`.
        errors: mean absolute error at each of `RATIOS`.
    """

    data: str
    images: int
    predicted: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def error(self) -> float:
        """Mean absolute error over all ratios."""
        return sum(self.errors) / len(self.errors)

    @property
    def is_monotone(self) -> bool:
        """Whether more noise is always predicted as more."""
        return all(low < high for low, high in zip(self.predicted, self.predicted[1:], strict=False))


def mix_with_noise(images: Tensor, ratios: Tensor, source: torch.Generator) -> Tensor:
    """Return (1 - r) x + r v with v uniform in [0, 1], for images [B, C, H, W] and ratios [B] or a scalar."""
    noise = torch.rand(images.shape, generator=source, device=source.device).to(images)
    return torch.lerp(images, noise, ratios.to(images).reshape(-1, 1, 1, 1))


@dataclass(frozen=True)
class EvaluatorFit(Trainable[EvaluationNetwork]):
    """An evaluation network to be trained.

    Attributes:
        data: public data sets; each is drawn from equally often.
        plan: how.
    """

    data: tuple[ImageDataset, ...]
    plan: TrainingPlan

    kind = "evaluator"

    def __post_init__(self) -> None:
        if not self.data:
            raise UsageError(
                "training the evaluation network needs data.", hint="Give --data NAME, for example cifar10."
            )

    @property
    def title(self) -> str:
        """What is trained, in a few words."""
        names = ", ".join(dataset.name for dataset in self.data)
        return f"refiner's evaluator ({self.plan.architecture}) on {names}, {self.plan.steps} steps"

    @property
    def size(self) -> int:
        """Steps of Adam."""
        return self.plan.steps

    def recipe(self) -> Mapping[str, Any]:
        """Return everything that determines the network but code."""
        return {"data": [dataset.images for dataset in self.data], "plan": self.plan}

    def fit(self, report: Report, unfinished: Unfinished) -> EvaluationNetwork:
        """Train, going on from the last state."""
        run = _Run(self.data, self.plan)
        if (state := unfinished.load()) is not None:
            run.restore(state)
        while run.step < self.plan.steps:
            run.advance()
            if run.step % _EVERY == 0 or run.step == self.plan.steps:
                report(Tick(run.step, {"loss": run.mean_loss()}))
                unfinished.save(run.state())
        return run.network.eval().requires_grad_(False)

    def save(self, trained: EvaluationNetwork) -> Saved:
        """Return the weights."""
        return Saved(trained.state_dict())

    def load(self, saved: Saved) -> EvaluationNetwork:
        """Return the network with saved weights."""
        network = EvaluationNetwork(self.plan.architecture)
        check_like(saved.tensors, network.state_dict(), "the evaluation network")
        check_finite(saved.tensors, "the evaluation network")
        network.load_state_dict(dict(saved.tensors))
        return network.eval().requires_grad_(False)


class _Run:
    """Training between two steps."""

    def __init__(self, data: Sequence[ImageDataset], plan: TrainingPlan) -> None:
        self._data, self._plan = data, plan
        self._source = generator(plan.seed, "train-evaluator")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(plan.seed, "train-evaluator", "weights"))
            self.network = EvaluationNetwork(plan.architecture)
        self._adam = torch.optim.Adam(self.network.parameters(), lr=plan.learning_rate)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._adam, plan.steps)
        self._drawn = structured_images(_DRAWN, _LARGEST, self._source) if plan.structured else torch.empty(0)
        self._total, self._counted = torch.zeros(()), 0
        self.step = 0

    def advance(self) -> None:
        """Take one step of Adam over four groups of images."""
        self._adam.zero_grad()
        for _ in range(_GROUPS):
            images = _group(self._data, self._drawn, self._plan, self._source)
            spread = 1 + 2 * _OVERSHOOT
            ratios = (torch.rand(len(images), generator=self._source) * spread - _OVERSHOOT).clamp(0, 1)
            logits = self.network.logits(mix_with_noise(images, ratios, self._source))
            loss = F.binary_cross_entropy_with_logits(logits, ratios) / _GROUPS
            loss.backward()  # type: ignore[no-untyped-call]
            self._total += loss.detach()
        self._adam.step()
        self._schedule.step()
        self._counted += 1
        self.step += 1

    def mean_loss(self) -> float:
        """Return the mean loss since it was last asked for."""
        mean = float(self._total) / max(1, self._counted)
        self._total, self._counted = torch.zeros(()), 0
        return mean

    def state(self) -> Saved:
        """Return the state between two steps, right after the loss was read."""
        moments = {
            f"adam|{index}.{name}": value
            for index, state in self._adam.state_dict()["state"].items()
            for name, value in state.items()
        }
        weights = {f"network|{name}": value for name, value in self.network.state_dict().items()}
        rate = self._adam.param_groups[0]["lr"]
        values = {"step": self.step, "rate": rate}
        return Saved({**weights, **moments, "source": self._source.get_state()}, values)

    def restore(self, saved: Saved) -> None:
        """Go on from a state."""
        held: dict[str, dict[str, Tensor]] = {"network": {}, "adam": {}}
        for key, value in saved.tensors.items():
            part, _, name = key.partition("|")
            held.setdefault(part, {})[name] = value
        self.network.load_state_dict(held["network"])
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in held["adam"].items():
            index, _, name = key.partition(".")
            moments.setdefault(int(index), {})[name] = value
        self._adam.load_state_dict({**self._adam.state_dict(), "state": moments})
        self.step = int(saved.values["step"])
        self._schedule.last_epoch = self.step
        self._adam.param_groups[0]["lr"] = float(saved.values["rate"])
        self._source.set_state(saved.tensors["source"])


def measure_evaluator(
    network: EvaluationNetwork, dataset: ImageDataset, *, images: int = 500, seed: int = 0
) -> Measured:
    """Return a network's predictions and errors on up to `images` random images of a data set."""
    source = generator(seed, "measure-evaluator")
    chosen = torch.randperm(len(dataset), generator=source)[:images]
    batch = dataset.batch(chosen).images
    predicted, errors = [], []
    with torch.no_grad():
        for ratio in RATIOS:
            noisy = mix_with_noise(batch, torch.tensor(ratio), source)
            values = torch.cat([network(part) for part in torch.split(noisy, 64)])
            predicted.append(float(values.mean()))
            errors.append(float((values - ratio).abs().mean()))
    return Measured(dataset.name, len(batch), tuple(predicted), tuple(errors))


def _group(data: Sequence[ImageDataset], drawn: Tensor, plan: TrainingPlan, source: torch.Generator) -> Tensor:
    """Return images [B / 4, C, H, W] of one source, varied in size, contrast and colour."""
    count = plan.batch_size // _GROUPS
    draw = torch.rand(4, generator=source)
    if float(draw[0]) < plan.structured:
        images = _cropped(drawn[torch.randint(len(drawn), (count,), generator=source)], int(24 + 25 * draw[1]), source)
    else:
        images = _natural(data[int(draw[1] * len(data))], count, source)
    if float(draw[2]) < 0.3:
        images = images.mean(1, keepdim=True)
    if float(draw[3]) < 0.3:
        images = _restretched(images, source)
    return images


def _natural(dataset: ImageDataset, count: int, source: torch.Generator) -> Tensor:
    images = dataset.batch(torch.randint(len(dataset), (count,), generator=source)).images
    side = min(images.shape[-2:])
    scale = _SCALES[int(torch.randint(len(_SCALES), (), generator=source))]
    wanted = min(int(side * scale), _LARGEST)
    if wanted != side:
        nearest = wanted == 2 * side and bool(torch.rand((), generator=source) < 0.3)
        size = [round(length * wanted / side) for length in images.shape[-2:]]
        images = (
            F.interpolate(images, size=size, mode="nearest")
            if nearest
            else F.interpolate(images, size=size, mode="bilinear", align_corners=False)
        )
    return images.flip(-1) if bool(torch.rand((), generator=source) < 0.5) else images


def _cropped(images: Tensor, size: int, source: torch.Generator) -> Tensor:
    """Return one random window of `size` pixels of all images."""
    top, left = torch.randint(images.shape[-1] - size + 1, (2,), generator=source).tolist()
    return images[..., top : top + size, left : left + size]


def _restretched(images: Tensor, source: torch.Generator) -> Tensor:
    """Change each image's contrast by 0.3 to 2, and turn some into their negative."""
    middle = images.mean((1, 2, 3), keepdim=True)
    factors = 0.3 + 1.7 * torch.rand(len(images), 1, 1, 1, generator=source)
    signs = torch.where(torch.rand(len(images), 1, 1, 1, generator=source) < 0.25, -1.0, 1.0)
    centre = torch.where(signs < 0, 1 - middle, middle)
    return (centre + factors * signs * (images - middle)).clamp(0, 1)
