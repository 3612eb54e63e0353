"""Home grounds: small federations on which attacks are tried."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import nn

from fedseal.core.attack import ATTACKS, Attack, Budget
from fedseal.core.batch import Batch
from fedseal.core.defence import Defence, RoundShape
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import parse_spec
from fedseal.core.seeds import generator
from fedseal.core.threads import one_thread
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, set_mode
from fedseal.federation.cohort import Cohort, federated_model, held_by
from fedseal.federation.rehearsal import rehearsal_of
from fedseal.models.registry import build_model

_SEED = 7
_PUBLIC = 64


@dataclass(frozen=True)
class Home:
    """The ground an attack is made for.

    Attributes:
        model: spec of a registered model.
        shape: C, H, W of its images.
        classes: number of them.
        batch_size: images behind a client's update.
        clients: whose mean the server sees.
        data: spec of a registered data set, which then decides shape and classes; "" for smooth random images.
        budget: enough to succeed, as small as possible.
        quick: what the other checks may spend.
        margin: decibels by which the attack beats the best guess without an update, here.
        scored: images of a batch that must; the attack's best, for one that isolates some.
    """

    model: str = "lenet"
    shape: tuple[int, int, int] = (1, 8, 8)
    classes: int = 10
    batch_size: int = 1
    clients: int = 1
    data: str = ""
    budget: Budget = field(default_factory=lambda: Budget(iterations=5))
    quick: Budget = field(default_factory=lambda: Budget(iterations=3, restarts=2))
    margin: float = 3.0
    scored: int = 0


@dataclass(frozen=True)
class AttackCase:
    """An attack by its spec, and its home ground."""

    spec: str
    home: Home = field(default_factory=Home)

    def __str__(self) -> str:
        return self.spec

    @property
    def name(self) -> str:
        """What refusals must call the attack."""
        return parse_spec(self.spec).name

    def attack(self) -> Attack:
        """Build the attack anew."""
        return ATTACKS.build(self.spec)

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, H, W of the images."""
        return self._drawn(0, 1).images.shape[1:]  # type: ignore[return-value]

    @cached_property
    def classes(self) -> int:
        """Number of classes."""
        return len(DATASETS.build(self.home.data).classes) if self.home.data else self.home.classes

    @cached_property
    def model(self) -> nn.Module:
        """The model every target of the case is computed on."""
        model = build_model(self.home.model, input_shape=self.shape, num_classes=self.classes, seed=_SEED)
        return set_mode(model, RoundConfig())

    @cached_property
    def public(self) -> Batch:
        """Images of the same kind that are nobody's."""
        return self._drawn(-1, _PUBLIC)

    def truth(self, target: int, images: int | None = None) -> Batch:
        """Return the private images of target number `target`."""
        return self._drawn(target, images or self.home.batch_size * self.home.clients)

    def knowledge(self, truth: Batch, clients: int | None = None, batch_size: int | None = None) -> Knowledge:
        """Return all that can be known of a target but its defence."""
        known = Knowledge(
            self.shape,
            self.classes,
            label_rule="true",
            labels=truth.labels,
            batch_size=batch_size or self.home.batch_size,
            clients=clients or self.home.clients,
            local_steps=1,
            learning_rate=RoundConfig().learning_rate,
            normalisation=RoundConfig().normalisation,
            auxiliary=self.public,
        )
        return replace(known, rehearse=rehearsal_of(known, "gradient"))

    def observation(self, target: int, knowledge: Knowledge | None = None) -> tuple[Observation, Batch]:
        """Play the attacked rounds on target number `target`; return what the attack sees, and the truth."""
        truth = self.truth(target)
        known = knowledge or self.knowledge(truth)
        ask = _Round(self, Defence(), truth, known, self.home.clients, self.home.batch_size)
        return self.attack().provoke(self.model, known, ask, target), truth

    def defended(self, target: int, defence: str) -> tuple[Observation, Observation, Batch]:
        """Return what a naive and an aware attacker see of a target under a defence, and the truth."""
        used = build_defence(defence)
        shape = used.reshape(RoundShape(self.home.batch_size, 1, self.home.clients))
        truth = self.truth(target, shape.images)
        known = replace(self.knowledge(truth, shape.clients, shape.batch_size), local_steps=shape.local_steps)
        model = set_mode(federated_model(used, copy.deepcopy(self.model), _SEED), RoundConfig())
        seen = _Round(self, used, truth, known, shape.clients, shape.batch_size)([model])
        rehearse = rehearsal_of(known, seen.update.kind, fresh=partial(build_defence, defence), defence=defence)
        aware = replace(known, defence=used.attacker_view(), rehearse=rehearse)
        return seen, replace(seen, knowledge=aware), truth

    def run(
        self, targets: tuple[int, ...], seeds: tuple[int, ...], budget: Budget | None = None
    ) -> list[Reconstruction]:
        """Attack some targets together, on one thread as audits do."""
        observations = [self.observation(target)[0] for target in targets]
        with one_thread():
            return self.attack().run_many(observations, budget or self.home.quick, list(seeds))

    def _drawn(self, number: int, count: int) -> Batch:
        """Return `count` images that no other number has, with distinct labels as far as there are classes."""
        if self.home.data:
            dataset = DATASETS.build(self.home.data)
            order = torch.randperm(len(dataset), generator=generator(_SEED, "data"))
            first = 0 if number < 0 else _PUBLIC + number * count
            return dataset.batch(order[first : first + count])
        source = generator(_SEED, "data", number)
        shape = self.home.shape
        coarse = torch.rand(count, shape[0], 4, 4, generator=source)
        images = nn.functional.interpolate(coarse, size=shape[1:], mode="bicubic", align_corners=False).clamp(0, 1)
        order = torch.randperm(self.home.classes, generator=source)
        return Batch(images, order.repeat(-(-count // self.home.classes))[:count])


@dataclass
class _Round:
    """Rounds of one target's clients, on the same data each time."""

    case: AttackCase
    defence: Defence
    truth: Batch
    knowledge: Knowledge
    clients: int
    batch_size: int
    number: int = 0

    def __post_init__(self) -> None:
        steps = len(self.truth) // (self.clients * self.batch_size)
        self.config = RoundConfig(local_steps=steps)
        parts = (torch.split(tensor, self.batch_size) for tensor in (self.truth.images, self.truth.labels))
        batches = [Batch(images, labels) for images, labels in zip(*parts, strict=True)]
        held = [
            held_by(f"client-{c}", batches[c * steps : (c + 1) * steps], self.config, self.defence.name)
            for c in range(self.clients)
        ]
        self.cohort = Cohort(held, self.defence, self, strict=True, defences={0: self.defence})

    def __call__(self, models: Sequence[nn.Module]) -> Observation:
        """Play a round."""
        number, self.number = self.number, self.number + 1
        sent = [set_mode(model, self.config) for model in models]
        everyone = range(self.clients)
        seen = self.cohort.play(sent, number, among=everyone, shown=everyone).seen
        assert seen is not None  # a strict cohort raises what is wrong with an answer
        return Observation(sent[0], seen, self.knowledge)

    def prepare(self, client: int) -> torch.Generator:
        """Return what a client's defence prepares its data with."""
        return generator(_SEED, "prepare", client)

    def round(self, client: int, number: int) -> torch.Generator:
        """Return what a client's defence draws from in a round."""
        return generator(_SEED, "round", client, number, int(self.truth.labels.sum()))

    def turns(self, number: int) -> torch.Generator:
        """Return what a round's order of clients is drawn from."""
        return generator(_SEED, "turns", number)
