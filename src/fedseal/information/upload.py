"""One attacked upload as the auditor knows it, and the map from images to that upload."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedseal.core.batch import Batch
from fedseal.core.channel import Channel
from fedseal.core.defence import Defence, Loss
from fedseal.core.errors import CapabilityError
from fedseal.core.observation import Observation
from fedseal.core.tensors import Tensors
from fedseal.federation.client import RoundConfig
from fedseal.federation.loss import client_loss
from fedseal.information.draws import Draws


def no_extra(model: nn.Module) -> Tensor | None:
    """Add nothing to the loss."""
    return None


@dataclass(frozen=True)
class Upload:
    """What a server was sent, and the truth behind it.

    Attributes:
        model: as the client trained it, in its mode, with parts that never left the client.
        private: the images the reading is about.
        fed: what the model was fed: `clients` x `local_steps` batches of one size, in this order.
        observed: what the server sees, by parameter name.
        config: how the clients train.
        channel: what the defence lets through.
        clients: whose mean is seen.
        extra_loss: what the defence adds to the loss just computed on a model.
    """

    model: nn.Module
    private: Batch
    fed: Batch
    observed: Tensors
    config: RoundConfig = field(default_factory=RoundConfig)
    channel: Channel = field(default_factory=Channel)
    clients: int = 1
    extra_loss: Callable[[nn.Module], Tensor | None] = no_extra


class PlainNorm(nn.Module):
    """Batch normalisation in plain operations, which every derivative mode knows, and without statistics to update.

    Args:
        norm: whose mode, statistics and affine part are used.
    """

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.weight: nn.Parameter | None = norm.weight
        self.bias: nn.Parameter | None = norm.bias
        self.eps = norm.eps
        self.running_mean: Tensor | None
        self.running_var: Tensor | None
        self.register_buffer("running_mean", None if norm.training else norm.running_mean)
        self.register_buffer("running_var", None if norm.training else norm.running_var)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [B, channels, ...]."""
        dims = [0, *range(2, x.ndim)]
        shape = (1, -1, *[1] * (x.ndim - 2))
        mean = x.mean(dims) if self.running_mean is None else self.running_mean
        centred = x - mean.view(shape)
        variance = centred.square().mean(dims) if self.running_var is None else self.running_var
        result: Tensor = centred * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            result = result * self.weight.view(shape)
        return result if self.bias is None else result + self.bias.view(shape)


def differentiable_copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy with plain batch normalisation and dropout at its mean, under the same parameter names."""
    return _plain(copy.deepcopy(model)).to(dtype)


def _plain(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm):
        return PlainNorm(module)
    if isinstance(module, _DropoutNd):
        module.eval()
    for name, child in module.named_children():
        setattr(module, name, _plain(child))
    return module


class UploadMap:
    """Maps the images behind an upload, and what its clients drew, to what passes to the server.

    The variable is one vector: all images, then all draws. Local steps are unrolled; several clients are averaged.

    Args:
        upload: where to linearise.
        dtype: to compute in.
        seed: of a client's draws, whose values do not matter: the reader does not know them.
    """

    def __init__(self, upload: Upload, dtype: torch.dtype, seed: int = 0) -> None:
        if len(upload.fed) % (upload.clients * upload.config.local_steps):
            raise CapabilityError(
                "the batches behind the upload differ in size, which the ideal reading does not follow."
            )
        self._upload = upload
        self._model = differentiable_copy(upload.model, dtype)
        self.parameters = {n: p.detach() for n, p in self._model.named_parameters() if p.requires_grad}
        self._loss = self._with_extra(
            client_loss(upload.config.normalisation, upload.config.loss_reduction, upload.config.loss)
        )
        like = next(iter(self.parameters.values()))
        self._labels = upload.fed.labels.to(like.device)
        if self._labels.is_floating_point():
            self._labels = self._labels.to(dtype)
        self._observed = {name: tensor.detach() for name, tensor in upload.observed.items()}
        images = upload.fed.images.detach().to(like.device, dtype)
        self.shape = images.shape
        self._draws = self._recorded(images, torch.Generator(like.device).manual_seed(seed))
        self.point = torch.cat([images.reshape(-1), *(draw.reshape(-1).to(dtype) for draw in self._draws)])

    @property
    def drawn(self) -> int:
        """How many numbers of the variable are draws; the last ones."""
        return sum(draw.numel() for draw in self._draws)

    def __call__(self, point: Tensor) -> dict[str, Tensor]:
        """Return what passes to the server, without noise, for images and draws [D]."""
        passed = [self._upload.channel.through(update, self._observed) for update in self.updates(point)]
        return {name: torch.stack([one[name] for one in passed]).mean(0) for name in self.parameters}

    def plain(self, point: Tensor) -> dict[str, Tensor]:
        """Return what the server would see without the defence."""
        updates = self.updates(point)
        return {name: torch.stack([one[name] for one in updates]).mean(0) for name in self.parameters}

    def updates(self, point: Tensor) -> list[dict[str, Tensor]]:
        """Return each client's update before its defence touches it."""
        sizes = [self.shape.numel(), *(draw.numel() for draw in self._draws)]
        images, *drawn = torch.split(point, sizes)
        given = [part.view_as(draw) for part, draw in zip(drawn, self._draws, strict=True)]
        with Draws(given) if given else nullcontext():
            return self._train(images.view(self.shape))

    def variance(self) -> dict[str, Tensor]:
        """Return the variance the defence adds to each entry of what the server sees."""
        channel, clients = self._upload.channel, self._upload.clients
        zero = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        if channel.variance is None or (channel.cancels and clients > 1):
            return zero
        with torch.no_grad():
            own = [channel.variance(update, self._observed) for update in self.updates(self.point)]
        return {name: torch.stack([one[name] for one in own]).mean(0) / clients for name in zero}

    def _recorded(self, images: Tensor, source: torch.Generator) -> list[Tensor]:
        if self._upload.channel.draws is None:
            return []
        self._upload.channel.draws(self._model, source)
        draws = Draws()
        with draws:
            self._train(images)
        return draws.recorded

    def _train(self, images: Tensor) -> list[dict[str, Tensor]]:
        config, clients = self._upload.config, self._upload.clients
        size = len(images) // (clients * config.local_steps)
        batches = list(zip(torch.split(images, size), torch.split(self._labels, size), strict=True))
        steps = config.local_steps
        return [self._client(batches[client * steps : (client + 1) * steps]) for client in range(clients)]

    def _client(self, batches: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        config = self._upload.config
        weights: Tensors = self.parameters
        course = config.rule.begin()
        gradient: dict[str, Tensor] = {}
        for images, labels in [batch for _ in range(config.local_epochs) for batch in batches]:
            gradient = self._gradient(weights, images, labels)
            if config.kind == "delta":
                directions = course.directions(weights, gradient)
                weights = {name: w - config.learning_rate * directions[name] for name, w in weights.items()}
        if config.kind == "gradient":
            return gradient
        return {name: weights[name] - before for name, before in self.parameters.items()}

    def _gradient(self, weights: Tensors, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        reduces = self._upload.channel.reduces
        if reduces is None:
            return dict(grad(self._value)(dict(weights), images, labels))
        each = vmap(grad(self._value), in_dims=(None, 0, 0))
        return dict(reduces(each(dict(weights), images.unsqueeze(1), labels.unsqueeze(1))))

    def _value(self, weights: Tensors, images: Tensor, labels: Tensor) -> Tensor:
        def bound(inputs: Tensor) -> Tensor:
            output: Tensor = functional_call(self._model, dict(weights), (inputs,))
            return output

        return self._loss(bound, Batch(images, labels))

    def _with_extra(self, loss: Loss) -> Loss:
        def total(classifier: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
            value = loss(classifier, batch)
            extra = self._upload.extra_loss(self._model)
            return value if extra is None else value + extra

        return total


def upload_behind(
    observation: Observation, defence: Defence, config: RoundConfig, private: Batch, fed: Batch, clients: int = 1
) -> Upload:
    """Return an observed upload with the truth behind it.

    Args:
        observation: what the server saw.
        defence: of the client, or of the first one, after the round.
        config: how the clients train.
        private: the images the reading is about.
        fed: what the model was fed instead, by a defence that changes data.
        clients: whose mean was seen.
    """
    return Upload(
        defence.own_model(observation.model),
        private,
        fed,
        observation.update.tensors,
        config,
        defence.attacker_view().carried(),
        clients,
        defence.extra_loss,
    )
