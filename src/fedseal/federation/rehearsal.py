"""The server plays clients itself: its own images in, updates as clients would send them out.

A server has the model and public images, and one that knows the defence has its code. So before it attacks, it can
make as many pairs of images and updates as it likes, the defence a black box with fresh randomness and fresh state for
each. Nothing private enters. Clients train as in any round; where that can be done in one `vmap`, it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from fedseal.core.batch import IDENTITY, Batch, joined
from fedseal.core.defence import Defence, RoundShape
from fedseal.core.errors import InputError
from fedseal.core.identity import classes_in, identity_of
from fedseal.core.knowledge import Knowledge
from fedseal.core.modality import IMAGE, modality
from fedseal.core.observation import UpdateKind
from fedseal.core.seeds import generator
from fedseal.core.sources import code_digest
from fedseal.core.tensors import Tensors
from fedseal.federation.client import RoundConfig, set_mode
from fedseal.federation.cohort import Answer, Assignment, Cohort, Held, Strategy, held_by
from fedseal.federation.cohort.one_by_one import InTurn
from fedseal.federation.cohort.vectorised import can_vectorise, train_together

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
        modality: what clients hold.
    """

    config: RoundConfig
    shape: RoundShape
    fresh: Callable[[], Defence] = Defence
    defence: str = "none"
    modality: str = IMAGE

    @property
    def identity(self) -> str:
        """The hash of what determines the updates beside model, batches and seed."""
        return identity_of(
            config=self.config,
            shape=self.shape,
            defence=self._template,
            code=code_digest([__name__, *classes_in(self._template)]),
        )

    def plain(self) -> Rehearsal:
        """Return the rehearsal of an attacker who does not know the defence."""
        return Rehearsal(self.config, self.shape, modality=self.modality)

    def describe(self) -> str:
        """Return what is rehearsed, in words for the knowledge ledger."""
        held = "images" if self.modality == IMAGE else "data"
        how = "no defence" if self.defence == "none" else f"`{self.defence}` as a black box"
        return f"the server plays clients itself, with its public {held} and {how}"

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, seed: int) -> Iterator[dict[str, Tensor]]:
        """Yield updates of batches, stacked [n, ...] per parameter, in order and as many at once as memory allows.

        Args:
            model: as the server sent it; not changed.
            images: [N, B, C, H, W]; with B all images behind an update, in the order of clients, then local steps. With
                another B, a single client's single step is played on them.
            labels: [N, B], or [N, B, K] of flags or values.
            seed: of the clients' and the defences' randomness; the updates do not depend on how many are asked for.
        """
        if (self.modality == IMAGE and images.ndim != 5) or labels.shape[:2] != images.shape[:2]:
            raise InputError(f"a rehearsal needs images [N, B, C, H, W], got {list(images.shape)}.")
        whole = images.shape[1] == self.shape.images
        shape = self.shape if whole else RoundShape(images.shape[1])
        stage = _Stage(
            set_mode(copy.deepcopy(model), self.config),
            replace(
                self.config,
                local_steps=shape.local_steps,
                upload=self.config.kind,
                local_epochs=self.config.local_epochs if whole else 1,
            ),
            shape,
            self._template,
            seed,
            self.modality,
        )
        like = next(iter(model.parameters()))
        size = stage.at_once
        for start in range(0, len(images), size):
            part = modality(self.modality).moved(images[start : start + size], like.device, like.dtype)
            yield stage.play(part, labels[start : start + size].to(like.device), start)

    @cached_property
    def _template(self) -> Defence:
        return self.fresh()


def rehearsal_of(
    knowledge: Knowledge,
    kind: UpdateKind,
    *,
    train_mode: bool = False,
    fresh: Callable[[], Defence] = Defence,
    defence: str = "none",
) -> Rehearsal | None:
    """Return how an attacker with this knowledge plays clients; None if it says too little.

    Args:
        knowledge: what the attacker is granted.
        kind: of the updates.
        train_mode: whether dropout and the like are active at the clients.
        fresh, defence: see `Rehearsal`.
    """
    size, steps, rate = knowledge.batch_size, knowledge.local_steps, knowledge.learning_rate
    if size is None or (kind == "delta" and (steps is None or rate is None)):
        return None
    config = RoundConfig(
        local_steps=steps or 1,
        learning_rate=rate or RoundConfig.learning_rate,
        bn_mode=knowledge.bn_mode,
        train_mode=train_mode,
        loss=knowledge.loss,
        loss_reduction=knowledge.loss_reduction,
        normalisation=knowledge.normalisation or IDENTITY,
        upload=kind,
        momentum=knowledge.rule.momentum,
        weight_decay=knowledge.rule.weight_decay,
        optimiser=knowledge.rule.name,
        local_epochs=(knowledge.local_epochs or 1) if kind == "delta" else 1,
    )
    return Rehearsal(config, RoundShape(size, steps or 1, knowledge.clients or 1), fresh, defence, knowledge.modality)


@dataclass(frozen=True)
class _Streams:
    """The randomness of one rehearsed round's clients."""

    seed: int
    number: int

    def prepare(self, client: int) -> torch.Generator:
        return generator(self.seed, "rehearsal", self.number, "prepare", client)

    def round(self, client: int, number: int) -> torch.Generator:
        return generator(self.seed, "rehearsal", self.number, "round", number, client)

    def turns(self, number: int) -> torch.Generator:
        return generator(self.seed, "rehearsal", self.number, "turns", number)


class _Stage:
    """A model in the clients' mode on which batches are played.

    Args:
        model: an own copy.
        config: how clients train.
        shape: of what is behind one update.
        template: the defence before its first round.
        seed: of all randomness.
        modality: of the batches.
    """

    def __init__(
        self,
        model: nn.Module,
        config: RoundConfig,
        shape: RoundShape,
        template: Defence,
        seed: int,
        modality: str = IMAGE,
    ) -> None:
        self._model = model
        self._config = config
        self._shape = shape
        self._template = template
        self._seed = seed
        self._modality = modality
        self._train: Strategy | None = None

    @property
    def at_once(self) -> int:
        """How many updates are held at once."""
        weights = sum(p.numel() * p.element_size() for p in self._model.parameters())
        return max(1, min(_MOST, _MEMORY // (weights * self._shape.clients)))

    def play(self, images: Tensor, labels: Tensor, first: int) -> dict[str, Tensor]:
        """Return what the server sees of n rounds, [n, ...] per parameter.

        Args:
            images: [n, B, C, H, W].
            labels: [n, B].
            first: number of the first round, which names its randomness.
        """
        rounds = [
            [
                Batch(inputs, targets, self._modality)
                for inputs, targets in zip(*(torch.split(part, self._shape.batch_size) for part in one), strict=True)
            ]
            for one in zip(images, labels, strict=True)
        ]
        if self._shape.clients > 1 and self._template.uses("broadcast"):  # what one tells, the others hear
            return _stacked([self._play_one(batches, first + number) for number, batches in enumerate(rounds)])
        if self._train is None:
            vectorised = can_vectorise(self._model, self._template, self._config, rounds[0][0])
            self._train = partial(train_together, measure=_unmeasured) if vectorised else InTurn(measure=_unmeasured)
        answers = self._train(self._assignments(rounds, first), 0, statistics=False)
        uploads = _stacked([_sound(answer) for answer in answers])
        if self._shape.clients > 1:
            several = (-1, self._shape.clients)
            uploads = {name: value.reshape(*several, *value.shape[1:]).mean(1) for name, value in uploads.items()}
        if not self._template.uses("server_view"):
            return uploads
        each = [{name: value[index] for name, value in uploads.items()} for index in range(len(images))]
        return _stacked([self._template.server_view(one) for one in each])

    def _assignments(self, rounds: Sequence[Sequence[Batch]], first: int) -> Iterator[Assignment]:
        """Yield what every client of every round does, each with a defence of its own."""
        steps = self._shape.local_steps
        for number, batches in enumerate(rounds):
            streams = _Streams(self._seed, first + number)
            for client in range(self._shape.clients):
                defence, own = copy.deepcopy(self._template), batches[client * steps : (client + 1) * steps]
                if defence.uses("prepare"):
                    whole = joined(own)
                    prepared = defence.prepare(whole, streams.prepare(client))
                    own = held_by("client", own, self._config, defence.name).choose(Held(prepared), 0)
                yield Assignment(
                    client, f"client-{client}", self._model, tuple(own), self._config, defence, streams.round(client, 0)
                )

    def _play_one(self, batches: Sequence[Batch], number: int) -> Tensors:
        """Return what the server sees of one round of clients that talk to each other."""
        steps, name = self._shape.local_steps, self._template.name
        parts = [batches[start : start + steps] for start in range(0, len(batches), steps)]
        clients = [held_by(f"client-{place}", part, self._config, name) for place, part in enumerate(parts)]
        cohort = Cohort(clients, self._template, _Streams(self._seed, number), strict=True)
        seen = cohort.play([self._model], 0, shown=range(len(cohort)), statistics=False).seen
        assert seen is not None  # a strict cohort raises what is wrong with an answer
        return seen.tensors


def _unmeasured(tensors: Tensors) -> int:
    return 0


def _sound(answer: Answer) -> Tensors:
    if answer.error is not None:
        raise answer.error
    assert answer.update is not None
    return answer.update.tensors


def _stacked(updates: Sequence[Tensors]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in updates]) for name in updates[0]}
