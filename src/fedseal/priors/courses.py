"""What one step of training is for each kind of prior, and the state between two steps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.seeds import derive_seed, generator
from fedseal.core.trainable import Saved
from fedseal.priors.networks import DCGAN, AutoEncoder, Critic, Denoiser
from fedseal.priors.patches import PatchMixture
from fedseal.priors.plan import Plan
from fedseal.priors.prior import Kind

_SIGMAS = (0.02, 1.0)
"""Deviations of noise a denoiser learns to remove."""
_SMALLEST, _LARGEST = 8, 64


def engine_for(kind: str, shape: tuple[int, int, int], width: int, latent: int) -> nn.Module:
    """Return an untrained engine."""
    if kind == "patch":
        return PatchMixture(shape[0], latent, width)
    if kind == "ae":
        return AutoEncoder(shape, latent, width)
    if kind == "gan":
        return DCGAN(latent, width, shape[0], side_for(shape))
    return Denoiser(shape[0], width)


def side_for(shape: tuple[int, int, int]) -> int:
    """Return the side a generator draws at, 4 x 2^n: not smaller than the images up to 64 pixels."""
    side = _SMALLEST
    while side < min(max(shape[1:]), _LARGEST):
        side *= 2
    return side


class Course(ABC):
    """A training under way: networks, what optimises them, and how far it is.

    Args:
        images: to train on, [N, C, H, W].
        plan: how.
    """

    def __init__(self, images: Tensor, plan: Plan) -> None:
        self.images, self.plan, self.step = images, plan, 0
        self.source = generator(plan.seed, "prior", plan.kind)
        self.shape = (images.shape[1], images.shape[2], images.shape[3])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(plan.seed, "prior", plan.kind, "weights"))
            self.engine = engine_for(plan.kind, self.shape, plan.width, plan.latent)
            self.networks, self.optimisers = self.begin()

    @abstractmethod
    def begin(self) -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
        """Return the networks that are trained beside or as the engine, and their optimisers, by name."""

    @abstractmethod
    def advance(self) -> Tensor:
        """Take one step; return the loss."""

    def drawn(self) -> Tensor:
        """Return a batch of images, each mirrored or not."""
        chosen = self.images[torch.randint(len(self.images), (self.plan.batch,), generator=self.source)]
        mirrored = torch.rand(len(chosen), 1, 1, 1, generator=self.source) < 0.5
        return torch.where(mirrored, chosen.flip(-1), chosen)

    def descend(self, name: str, loss: Tensor, *, decay: bool = True) -> None:
        """Take a step of the optimiser called `name`; its rate falls along a cosine."""
        optimiser = self.optimisers[name]
        for group in optimiser.param_groups:
            group["lr"] = self.plan.lr * ((1 + math.cos(math.pi * self.step / self.plan.steps)) / 2 if decay else 1)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()

    def state(self) -> Saved:
        """Return everything a step depends on."""
        held = {"engine": self.engine, **self.networks}
        tensors = {f"{part}|{name}": value for part, one in held.items() for name, value in one.state_dict().items()}
        for name, optimiser in self.optimisers.items():
            for place, own in optimiser.state_dict()["state"].items():
                tensors |= {f"adam|{name}|{place}|{key}": value for key, value in own.items()}
        copied = {name: value.clone() for name, value in tensors.items()}
        return Saved({**copied, "source": self.source.get_state()}, {"step": self.step})

    def restore(self, saved: Saved) -> None:
        """Go on from a state."""
        for part, one in {"engine": self.engine, **self.networks}.items():
            one.load_state_dict(_below(saved.tensors, f"{part}|"))
        for name, optimiser in self.optimisers.items():
            moments: dict[int, dict[str, Tensor]] = {}
            for key, value in _below(saved.tensors, f"adam|{name}|").items():
                place, _, entry = key.partition("|")
                moments.setdefault(int(place), {})[entry] = value
            optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
        self.source.set_state(saved.tensors["source"])
        self.step = int(saved.values["step"])


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


class PatchCourse(Course):
    """Expectation and maximisation over random patches, the same in every step."""

    engine: PatchMixture

    def begin(self) -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
        """Draw the patches; the mixture begins with random parts of them."""
        source = generator(self.plan.seed, "prior", "patches")
        wanted = 1000 * self.plan.batch
        some = self.images[torch.randperm(len(self.images), generator=source)[: max(1, wanted // 8)]]
        rows, _ = self.engine.patches(some)
        rows = rows[torch.randperm(len(rows), generator=source)[:wanted]]
        self._rows = rows + torch.randn(rows.shape, generator=source) / 255
        self.engine.begin(self._rows, source)
        return {}, {}

    def advance(self) -> Tensor:
        """Improve the mixture."""
        return torch.tensor(-self.engine.improve(self._rows))


class AutoEncoderCourse(Course):
    """Principal components first, then the decoder's refinement by Adam."""

    engine: AutoEncoder

    def begin(self) -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
        """Set the components of the images and their mirror images."""
        self.engine.set_components(torch.cat([self.images, self.images.flip(-1)]))
        return {}, {"engine": torch.optim.Adam(self.engine.refine.parameters(), self.plan.lr)}

    def advance(self) -> Tensor:
        """Bring decoded images nearer to the originals."""
        images = self.drawn()
        loss = F.mse_loss(self.engine.decode(self.engine.encode(images)), images)
        self.descend("engine", loss)
        return loss.detach()


class GanCourse(Course):
    """Generator against critic by the hinge loss, images shifted by a few pixels before the critic sees them."""

    engine: DCGAN

    def begin(self) -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
        """Make a critic; both have Adam with DCGAN's betas."""
        for module in self.engine.modules():
            if isinstance(module, nn.ConvTranspose2d):
                nn.init.normal_(module.weight, 0.0, 0.02)
        self._critic = Critic(self.shape[0], self.plan.width, side_for(self.shape))
        self._side = side_for(self.shape)
        networks: dict[str, nn.Module] = {"engine": self.engine, "critic": self._critic}
        optimisers: dict[str, torch.optim.Optimizer] = {
            name: torch.optim.Adam(one.parameters(), self.plan.lr, betas=(0.5, 0.999)) for name, one in networks.items()
        }
        return {"critic": self._critic}, optimisers

    def advance(self) -> Tensor:
        """Teach the critic, then the generator."""
        self.engine.train()
        real = self.drawn()
        if real.shape[2:] != (self._side, self._side):
            real = F.interpolate(real, size=(self._side, self._side), mode="bilinear", align_corners=False)
        noise = torch.randn(len(real), self.engine.latent, generator=self.source)
        fake = self.engine.decode(noise)
        scores = self._critic(self._shifted(real)), self._critic(self._shifted(fake.detach()))
        judged = F.relu(1 - scores[0]).mean() + F.relu(1 + scores[1]).mean()
        self.descend("critic", judged, decay=False)
        drawn = -self._critic(self._shifted(fake)).mean()
        self.descend("engine", drawn, decay=False)
        total: Tensor = (judged + drawn).detach()
        return total

    def _shifted(self, images: Tensor) -> Tensor:
        """Shift the batch by up to an eighth of its side, so that few images are not learnt by heart."""
        most = self._side // 8
        down, right = (torch.randint(-most, most + 1, (2,), generator=self.source)).tolist()
        padded = F.pad(images, (most, most, most, most))
        side = self._side
        return padded[:, :, most + down : most + down + side, most + right : most + right + side]


class DiffusionCourse(Course):
    """Noise of random deviations is removed; what is kept is the average of the weights over the last steps."""

    engine: Denoiser

    def begin(self) -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
        """Train a copy; the engine is its average."""
        self._network = Denoiser(self.shape[0], self.plan.width)
        self.engine.load_state_dict(self._network.state_dict())
        return {"network": self._network}, {"network": torch.optim.Adam(self._network.parameters(), self.plan.lr)}

    def advance(self) -> Tensor:
        """Remove noise from a batch, errors weighed by how much there was."""
        images = self.drawn()
        low, high = (math.log(one) for one in _SIGMAS)
        sigma = (low + (high - low) * torch.rand(len(images), generator=self.source)).exp()
        noisy = images + sigma.view(-1, 1, 1, 1) * torch.randn(images.shape, generator=self.source)
        errors = (self._network(noisy, sigma) - images).square().flatten(1).mean(1)
        loss: Tensor = (errors * (sigma.square() + 0.25) / (0.5 * sigma).square()).mean()
        self.descend("network", loss)
        share = min(0.99, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for mine, its in zip(self.engine.parameters(), self._network.parameters(), strict=True):
                mine.lerp_(its, 1 - share)
        return loss.detach()


COURSES: Mapping[Kind, type[Course]] = {
    "patch": PatchCourse,
    "ae": AutoEncoderCourse,
    "gan": GanCourse,
    "diffusion": DiffusionCourse,
}
"""How each kind is trained."""
