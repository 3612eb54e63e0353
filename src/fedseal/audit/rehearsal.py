"""The server plays clients itself: its own images in, updates as clients would send them out.

A server has the model and public images, and one that knows the defence has its code. So before it attacks, it can
make as many pairs of images and updates as it likes, the defence a black box with fresh randomness and fresh state for
each. Nothing private enters. Where a client's step is nothing but a gradient, many are played in one `vmap`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedseal.core.batch import Batch
from fedseal.core.defence import Defence, RoundContext, RoundShape
from fedseal.core.errors import InputError
from fedseal.core.hashing import hash_json
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.federation.client import RoundConfig, set_mode, train
from fedseal.federation.loss import cross_entropy_loss

_MEMORY = 128 << 20
"""Bytes that the updates yielded at once may take, roughly."""
_MOST = 256


@dataclass(frozen=True)
class Rehearsal:
    """Plays clients with the attacker's own batches; see `core.knowledge.Rehearse`.

    Attributes:
        config: how clients train, as far as the attacker knows.
        shape: how much data is behind an update.
        fresh: makes a defence without any state; called once, copied for each client.
        defence: its spec, for the identity; "none" for an attacker who does not know of one.
    """

    config: RoundConfig
    shape: RoundShape
    fresh: Callable[[], Defence] = Defence
    defence: str = "none"

    @property
    def identity(self) -> str:
        """The hash of what determines the updates beside model, batches and seed."""
        return hash_json({"config": asdict(self.config), "shape": asdict(self.shape), "defence": self.defence})

    def plain(self) -> Rehearsal:
        """Return the rehearsal of an attacker who does not know the defence."""
        return Rehearsal(self.config, self.shape)

    def describe(self) -> str:
        """Return what is rehearsed, in words for the knowledge ledger."""
        how = "no defence" if self.defence == "none" else f"`{self.defence}` as a black box"
        return f"the server plays clients itself, with its public images and {how}"

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, seed: int) -> Iterator[dict[str, Tensor]]:
        """Yield updates of batches, stacked [n, ...] per parameter, in order and as many at once as memory allows.

        Args:
            model: as the server sent it; not changed.
            images: [N, B, C, H, W]; with B all images behind an update, in the order of clients, then local steps. With
                another B, a single client's single step is played on them.
            labels: [N, B].
            seed: of the clients' and the defences' randomness; the updates do not depend on how many are asked for.
        """
        if images.ndim != 5 or labels.shape != images.shape[:2]:
            raise InputError(f"a rehearsal needs images [N, B, C, H, W], got {list(images.shape)}.")
        whole = images.shape[1] == self.shape.images
        shape = self.shape if whole else RoundShape(images.shape[1])
        stage = _Stage(
            set_mode(copy.deepcopy(model), self.config),
            replace(self.config, local_steps=shape.local_steps, upload=self.config.kind),
            shape,
            self._template,
            seed,
        )
        like = next(iter(model.parameters()))
        size = stage.at_once
        for start in range(0, len(images), size):
            part = images[start : start + size].to(like.device, like.dtype)
            yield stage.play(part, labels[start : start + size].to(like.device), start)

    @cached_property
    def _template(self) -> Defence:
        return self.fresh()


class _Stage:
    """A model in the clients' mode on which batches are played.

    Args:
        model: an own copy.
        config: how clients train.
        shape: of what is behind one update.
        template: the defence before its first round.
        seed: of all randomness.
    """

    def __init__(self, model: nn.Module, config: RoundConfig, shape: RoundShape, template: Defence, seed: int) -> None:
        self._model = model
        self._config = config
        self._shape = shape
        self._template = template
        self._seed = seed
        self._workspace = copy.deepcopy(model)
        self._loss = cross_entropy_loss(config.normalisation, config.loss_reduction)
        self._vectorised: bool | None = None

    @property
    def at_once(self) -> int:
        """How many updates are played at once."""
        weights = sum(p.numel() * p.element_size() for p in self._model.parameters())
        return max(1, min(_MOST, _MEMORY // (weights * self._shape.clients)))

    def play(self, images: Tensor, labels: Tensor, first: int) -> dict[str, Tensor]:
        """Return what the server sees of n rounds, [n, ...] per parameter.

        Args:
            images: [n, B, C, H, W].
            labels: [n, B].
            first: number of the first round, which names its randomness.
        """
        clients, steps = self._shape.clients, self._shape.local_steps
        batches = images.reshape(len(images) * clients, steps, -1, *images.shape[2:])
        targets = labels.reshape(len(labels) * clients, steps, -1)
        if self._vectorised is None:
            self._vectorised = self._is_plain() and self._can_vectorise(batches, targets)
        if self._vectorised:
            uploads = self._defended(self._together(batches, targets), batches, targets, first)
        else:
            each = [
                self._train(Batch(images, labels), first * clients + number)
                for number, (images, labels) in enumerate(
                    zip(batches.flatten(1, 2), targets.flatten(1, 2), strict=True)
                )
            ]
            uploads = {name: torch.stack([one[name] for one in each]) for name in each[0]}
        if clients > 1:
            uploads = {name: value.reshape(-1, clients, *value.shape[1:]).mean(1) for name, value in uploads.items()}
        if not self._template.uses("server_view"):
            return uploads
        return _stacked([self._template.server_view(one) for one in _unstacked(uploads)])

    def _is_plain(self) -> bool:
        """Return whether a client's round is a gradient, or SGD steps, and what hooks make of the result."""
        defence, delta = self._template, self._config.kind == "delta"
        hooks = ["prepare", "on_batch", "extra_loss", "broadcast", *(["on_gradient", "on_update"] if delta else [])]
        if defence.needs_sample_grads or defence.reads_batch or any(defence.uses(hook) for hook in hooks):
            return False
        return not any(module.training for module in self._model.modules() if not list(module.children()))

    def _can_vectorise(self, batches: Tensor, targets: Tensor) -> bool:
        try:
            self._together(batches[:1].expand(2, *batches.shape[1:]), targets[:1].expand(2, *targets.shape[1:]))
        except RuntimeError:  # what `vmap` raises for an operation without a rule, or one that draws or writes
            return False
        return True

    def _together(self, batches: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return gradients or weight changes [K, ...] of K clients' batches [K, steps, b, C, H, W]."""
        start = {name: p.detach() for name, p in self._model.named_parameters() if p.requires_grad}

        def loss(weights: Tensors, images: Tensor, labels: Tensor) -> Tensor:
            def bound(inputs: Tensor) -> Tensor:
                output: Tensor = functional_call(self._model, dict(weights), (inputs,))
                return output

            return self._loss(bound, Batch(images, labels))

        def one(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            if self._config.kind == "gradient":
                gradient: dict[str, Tensor] = grad(loss)(start, images[0], labels[0])
                return gradient
            weights, velocity = dict(start), {name: torch.zeros_like(value) for name, value in start.items()}
            for step in range(self._shape.local_steps):
                direction = grad(loss)(weights, images[step], labels[step])
                velocity = {name: self._config.momentum * v + direction[name] for name, v in velocity.items()}
                weights = {name: w - self._config.learning_rate * velocity[name] for name, w in weights.items()}
            return {name: weights[name] - value for name, value in start.items()}

        result: dict[str, Tensor] = vmap(one)(batches, targets)
        return result

    def _defended(self, raw: dict[str, Tensor], batches: Tensor, targets: Tensor, first: int) -> dict[str, Tensor]:
        """Pass each client's gradient through a defence of its own."""
        if not (self._template.uses("on_gradient") or self._template.uses("on_update")):
            return raw
        sent = []
        for number, gradient in enumerate(_unstacked(raw)):
            defence = copy.deepcopy(self._template)
            context = RoundContext(
                self._model,
                self._loss,
                generator(self._seed, "rehearsal", first * self._shape.clients + number),
                learning_rate=self._config.learning_rate,
                client=f"client-{number}",
                batch=Batch(batches[number, -1], targets[number, -1]),
                kind=self._config.kind,
            )
            sent.append(defence.on_update(defence.on_gradient(gradient, context), context))
        return _stacked(sent)

    def _train(self, data: Batch, number: int) -> Tensors:
        """Return one client's upload, by the very round clients run."""
        defence = copy.deepcopy(self._template)
        source = generator(self._seed, "rehearsal", number)
        if defence.uses("prepare"):
            data = defence.prepare(data, generator(self._seed, "rehearsal", number, "prepare"))
        size = len(data) // self._shape.local_steps
        parts = zip(torch.split(data.images, size), torch.split(data.labels, size), strict=True)
        return train(
            self._model,
            [Batch(*part) for part in parts],
            self._config,
            defence,
            source,
            client=f"client-{number}",
            workspace=self._workspace,
            statistics=False,
        ).update.tensors


def _unstacked(tensors: Tensors) -> Iterator[dict[str, Tensor]]:
    count = len(next(iter(tensors.values())))
    return ({name: value[index] for name, value in tensors.items()} for index in range(count))


def _stacked(updates: Sequence[Tensors]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in updates]) for name in updates[0]}
