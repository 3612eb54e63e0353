"""A scenario made real: data split, model built, and what the server observes of each target batch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from fedseal.audit.exchange import Exchange, TargetRound, TargetStreams, first_round
from fedseal.audit.scenario import Scenario
from fedseal.audit.stage import Ground, Staging, scenario_ground, trained_ground
from fedseal.audit.targets import Targets, held_by_default, images_per_target
from fedseal.core.attack import Attack
from fedseal.core.batch import IDENTITY, Batch, joined
from fedseal.core.defence import CostReport, Defence, RoundShape
from fedseal.core.devices import find_device
from fedseal.core.hashing import hash_tensors
from fedseal.core.identity import identity_of
from fedseal.core.knowledge import Knowledge
from fedseal.core.modality import TEXT
from fedseal.core.observation import Observation, UpdateKind
from fedseal.data.dataset import Dataset, split_public
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, set_mode
from fedseal.federation.cohort import federated_model
from fedseal.federation.fitting import fitting_model, with_targets
from fedseal.federation.loss import is_class
from fedseal.federation.rehearsal import Rehearsal, rehearsal_of
from fedseal.models.registry import output_size

_DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16}


@dataclass(frozen=True)
class Target:
    """One attacked round.

    Attributes:
        originals: the private images behind the update, [B * local steps * clients, C, H, W].
        fed: what the model was fed instead, by a defence that changes data; the originals otherwise.
        observation: what a naive attacker sees; of the last round, if an active one asked for several.
        cost: of the defence in this round.
        defence: the first client's, as the round left it.
        config: how the clients train.
        clients: whose mean is seen.
        cosine: between what the first client uploaded and its undefended upload; None where there is none.
    """

    originals: Batch
    fed: Batch
    observation: Observation
    cost: CostReport
    defence: Defence
    config: RoundConfig
    clients: int
    cosine: float | None = None


@dataclass(frozen=True)
class Setup:
    """Everything trials of a scenario share.

    Attributes:
        scenario: what was asked for.
        private: the clients' data.
        public: the attacker's, disjoint from it; baselines are computed on it even if the attacker is not given it.
        model: the global model, in the mode clients use.
        config: how clients train.
        images_per_target: as many as the hungriest defence needs, so that all start from the same images.
        strangers: private images that are nobody's target, held back from attacks, priors and baselines, to rank
            originals among; of each class, where the attacker is given the labels.
        data_hash, weights_hash: contents, for trial keys.
        staging: trains up to the attacked round; None if a first round is attacked.
    """

    scenario: Scenario
    private: Dataset
    public: Batch
    model: nn.Module
    config: RoundConfig
    images_per_target: int
    strangers: Batch
    data_hash: str
    weights_hash: str
    staging: Staging | None = None

    @cached_property
    def outputs(self) -> int:
        """How many the model has; one for each class, unless it has more, or one logit for two."""
        return output_size(self.model, self.private.probe())

    @property
    def by_class(self) -> bool:
        """Whether originals are told apart among strangers of their class: the attacker is given the classes."""
        return self.scenario.attacker.labels == "true" and is_class(self.private.labels)

    def shape(self, defence: Defence) -> RoundShape:
        """Return how much data is behind an update under a defence."""
        client = self.scenario.client
        return defence.reshape(RoundShape(client.batch_size, client.local_steps, client.aggregate))

    def wrapped_model(self, defence: Defence, name: str = "") -> nn.Module:
        """Return the model clients are sent under a defence: a copy, seeded where the defence adds to it.

        Args:
            defence: fresh.
            name: its spec, which names its training where a later round is attacked.
        """
        if self.staging is not None:
            return set_mode(self.staging.model(defence, name or defence.name), self.config)
        return set_mode(federated_model(defence, copy.deepcopy(self.model), self.scenario.seed), self.config)

    @cached_property
    def targets(self) -> Targets:
        """Whose images are behind which target."""
        return Targets(self.private, self.scenario, self.images_per_target)

    def batches(self, target: int, shape: RoundShape) -> list[Batch]:
        """Return the batches of one target's clients and local steps; different targets share no image."""
        used = shape.batch_size * shape.local_steps
        like = next(self.model.parameters())
        return [
            self.private.batch(part).to(like.device, like.dtype)
            for places in self.targets.clients(target, shape)
            for part in torch.split(places[:used], shape.batch_size)
        ]

    def holdings(self, target: int, defence: Defence) -> list[Batch] | None:
        """Return all that each client of a target holds, what it uses first; None if that is all."""
        shape = self.shape(defence)
        held = self.targets.clients(target, shape)
        used = shape.batch_size * shape.local_steps
        if len(held[0]) <= used or not (self.scenario.client.examples or held_by_default(defence)):
            return None
        like = next(self.model.parameters())
        return [self.private.batch(places).to(like.device, like.dtype) for places in held]

    def client_data(self, spec: str) -> Iterator[tuple[Batch, torch.Generator]]:
        """Yield what every client of every target holds, and what a defence of that spec prepares it with.

        Where a round of a training is attacked it yields nothing: the training prepares its clients' data itself.
        """
        if self.staging is not None:
            return
        defence = build_defence(spec)
        shape = self.shape(defence)
        for target in range(self.scenario.targets):
            streams = TargetStreams(self.scenario.seed, (spec, target))
            if (whole := self.holdings(target, defence)) is not None:
                yield from ((data, streams.prepare(client)) for client, data in enumerate(whole))
                continue
            held = iter(self.batches(target, shape))
            for client in range(shape.clients):
                yield joined(list(islice(held, shape.local_steps))), streams.prepare(client)

    def granted(self, defence: Defence, name: str) -> Knowledge:
        """Return what an attacker who does not know the defence is granted before the first target's round."""
        played = self._round(defence, 0, name)
        return self._knowledge(played.shape, played.originals, {})

    def observe(
        self,
        defence: Defence,
        target: int,
        *,
        model: nn.Module | None = None,
        name: str = "",
        attack: Attack | None = None,
        seed: int = 0,
        draw: int = 0,
        aware: bool = False,
    ) -> Target:
        """Run the round of one target's client, or clients, and return what the server sees of it.

        Args:
            defence: fresh, as its state belongs to one client; each further client of an aggregate gets a copy.
            target: which batch.
            model: from `wrapped_model`, if several targets are to share it.
            name: the defence's spec, which separates noise of different defences.
            attack: whose server sends the model; one that is active alters it, and may ask for several rounds.
            seed: of what such an attack draws.
            draw: play the same images again with other randomness of the clients; only for first rounds.
            aware: whether such an attack knows the defence when it sends its model.
        """
        model = model or self.wrapped_model(defence, name)
        played = self._round(defence, target, name, draw)
        about = partial(self._knowledge, played.shape, played.originals)
        exchange = Exchange(played, about)
        if attack is None:
            observation = exchange([model])
        else:
            known = aware_of(about({}), build_defence(name), name) if aware else about({})
            observation = attack.provoke(model, known, exchange, seed)
        own = played.cohort.defence(played.clients[0])
        return Target(
            exchange.originals,
            exchange.fed,
            observation,
            exchange.cost,
            own,
            played.config,
            played.shape.clients,
            exchange.cosine,
        )

    def fed_with_public(self, spec: str, images: int) -> Iterator[tuple[Batch, Batch]]:
        """Play first rounds of clients who hold public images; yield what models were fed, and those images.

        Args:
            spec: of the defence.
            images: to use at most.
        """
        shape = self.shape(build_defence(spec))
        model = self.wrapped_model(build_defence(spec), spec)
        config = replace(self.config, local_steps=shape.local_steps)
        for number in range(min(images, len(self.public)) // shape.images):
            own = self.public.pick(slice(number * shape.images, (number + 1) * shape.images))
            batches = [own.pick(places) for places in torch.split(torch.arange(len(own)), shape.batch_size)]
            streams = TargetStreams(self.scenario.seed, (spec, "public", number))
            played = first_round(batches, shape, config, build_defence(spec), streams, f"public-{number}")
            exchange = Exchange(played, partial(self._knowledge, shape, own))
            exchange([model])
            yield exchange.fed, own

    def _round(self, defence: Defence, target: int, name: str, draw: int = 0) -> TargetRound:
        """Return the attacked round of one target: a first one, or one of a training."""
        if self.staging is not None:
            return self.staging.target(defence, name or defence.name, target)
        shape = self.shape(defence)
        config = replace(self.config, local_steps=shape.local_steps)
        streams = TargetStreams(self.scenario.seed, (name, target, draw) if draw else (name, target))
        batches, held = self.batches(target, shape), self.holdings(target, defence)
        return first_round(batches, shape, config, defence, streams, f"client-{target}", held)

    def _knowledge(
        self, shape: RoundShape, originals: Batch, bn_statistics: dict[str, tuple[torch.Tensor, torch.Tensor]]
    ) -> Knowledge:
        client, attacker = self.scenario.client, self.scenario.attacker
        knowledge = Knowledge(
            input_shape=self.private.shape,
            num_classes=self.outputs,
            loss=self.scenario.loss,
            loss_reduction=attacker.loss_reduction or client.loss_reduction,
            bn_mode=client.bn_mode if attacker.bn_statistics or client.bn_mode == "eval" else "train-nostats",
            label_rule=attacker.labels,
            batch_size=shape.batch_size if attacker.batch_size else None,
            labels=originals.labels if attacker.labels == "true" else None,
            bn_statistics=bn_statistics if self._sends_statistics and shape.clients == 1 else None,
            clients=shape.clients,
            local_steps=shape.local_steps if attacker.local_steps else None,
            learning_rate=client.learning_rate if attacker.learning_rate else None,
            local_epochs=client.local_epochs if attacker.local_steps else None,
            optimiser=client.rule if attacker.optimiser else None,
            normalisation=self.config.normalisation if attacker.normalisation else None,
            auxiliary=self.public if attacker.public_data else None,
            modality=self.private.modality,
            encoding=self.private.encoding,
            lengths=(originals.inputs != 0).sum(1).cpu() if attacker.lengths and originals.modality == TEXT else None,
        )
        return replace(knowledge, rehearse=rehearsal_of(knowledge, self._kind(shape), train_mode=client.train_mode))

    @property
    def _sends_statistics(self) -> bool:
        return self.scenario.client.bn_mode == "train-exact-stats" and self.scenario.attacker.bn_statistics

    def _kind(self, shape: RoundShape) -> UpdateKind:
        return replace(self.config, local_steps=shape.local_steps).kind


def make_aware(observation: Observation, defence: Defence, spec: str | None = None) -> Observation:
    """Return the observation as an attacker sees it who knows the defence and its parameters (`aware_of`)."""
    return replace(observation, knowledge=aware_of(observation.knowledge, defence, spec))


def aware_of(knowledge: Knowledge, defence: Defence, spec: str | None = None) -> Knowledge:
    """Return the knowledge of an attacker who knows the defence and its parameters.

    With the defence's `spec` the attacker rehearses with a fresh one too.
    """
    knowledge = replace(knowledge, defence=defence.attacker_view())
    if spec is not None and isinstance(knowledge.rehearse, Rehearsal):
        rehearse = replace(knowledge.rehearse, fresh=partial(build_defence, spec), defence=spec)
        knowledge = replace(knowledge, rehearse=rehearse)
    return knowledge


@dataclass(frozen=True)
class Loaded:
    """Data that several scenarios of one run share: sets are read, hashed and split once, parts of them kept once.

    Args:
        data_root: where local data sets lie.
    """

    data_root: Path | None = None
    _sets: dict[str, tuple[Dataset, str]] = field(default_factory=dict)
    _parts: dict[tuple[str, float, int], tuple[Dataset, Dataset]] = field(default_factory=dict)
    _batches: dict[tuple[int, bytes], tuple[Dataset, Batch]] = field(default_factory=dict)

    def dataset(self, spec: str) -> tuple[Dataset, str]:
        """Return a data set and the hash of its content."""
        if spec not in self._sets:
            found = DATASETS.build(spec, data_root=self.data_root)
            self._sets[spec] = found, _content(found)
        return self._sets[spec]

    def split(self, dataset: Dataset, scenario: Scenario) -> tuple[Dataset, Dataset]:
        """Return the private and the public part of a scenario's data, whose labels may be as its loss has them."""
        if dataset is not self.dataset(scenario.data)[0]:
            return split_public(dataset, scenario.public_fraction, scenario.seed)
        key = (scenario.data, scenario.public_fraction, scenario.seed)
        if key not in self._parts:
            self._parts[key] = split_public(dataset, scenario.public_fraction, scenario.seed)
        return self._parts[key]

    def batch(self, data: Dataset, places: Tensor) -> Batch:
        """Return what lies at some places of a data set: factors have hundreds of scenarios with the same images."""
        key = (id(data), places.numpy().tobytes())
        if key not in self._batches:
            self._batches[key] = data, data.batch(places)  # who is named by an id has to live as long
        return self._batches[key][1]


def build_setup(
    scenario: Scenario,
    *,
    data_root: Path | None = None,
    device: str = "cpu",
    stages: Path | None = None,
    loaded: Loaded | None = None,
) -> Setup:
    """Load the data, split it, build and check the model.

    Args:
        scenario: what is asked for.
        data_root: where local data sets lie.
        device: where everything is computed.
        stages: where the state of trainings is kept, if a later round is attacked; in memory, if None.
        loaded: data that other scenarios use too.
    """
    loaded = loaded or Loaded(data_root)
    where, granted = find_device(device), scenario.attacker.public_images
    if scenario.stage is not None and scenario.stage.checkpoint is not None:
        ground, private, config = trained_ground(scenario, data_root=data_root, device=device)
        model, content = ground.model, _content(private)
        public = ground.test.pick(slice(granted))
    else:
        dataset, content = loaded.dataset(scenario.data)
        config = _round_config(scenario, dataset)
        model = fitting_model(scenario.model, dataset, scenario.loss, scenario.weight_seed)
        dataset = with_targets(dataset, model, scenario.loss)
        private, rest = loaded.split(dataset, scenario)
        public = loaded.batch(rest, torch.arange(min(len(rest), granted)))
        model, ground = model.to(where, _DTYPES[scenario.client.dtype]), None
    like = next(model.parameters())
    public = public.to(like.device, like.dtype)
    if scenario.stage is not None and ground is None:
        ground = scenario_ground(scenario, private, model, public, config)
    staging = None if ground is None or scenario.stage is None else _staging(scenario, ground, stages)
    images = images_per_target(scenario, len(private))
    taken = None if staging is None else staging.attacked(scenario.with_control)
    strangers = loaded.batch(private, Targets(private, scenario, images).strangers(taken))
    return Setup(
        scenario,
        private,
        public,
        set_mode(model, config),
        config,
        images,
        strangers.to(like.device, like.dtype),
        content,
        hash_tensors(model.state_dict()),
        staging,
    )


def _content(data: Dataset) -> str:
    """Return the hash of what a data set holds, and of how its inputs are made."""
    content = data.digest("images")
    return content if data.encoding is None else identity_of(content=content, encoding=data.encoding.identity)


def _round_config(scenario: Scenario, dataset: Dataset) -> RoundConfig:
    client = scenario.client
    return RoundConfig(
        local_steps=client.local_steps,
        local_epochs=client.local_epochs,
        learning_rate=client.learning_rate,
        optimiser=client.optimiser,
        momentum=client.momentum,
        weight_decay=client.weight_decay,
        bn_mode=client.bn_mode,
        train_mode=client.train_mode,
        loss=scenario.loss,
        loss_reduction=client.loss_reduction,
        normalisation=dataset.normalisation if client.normalise else IDENTITY,
    )


def _staging(scenario: Scenario, ground: Ground, stages: Path | None) -> Staging:
    assert scenario.stage is not None
    client = scenario.client
    plain = RoundShape(client.batch_size, client.local_steps, client.aggregate)
    return Staging(scenario.stage, ground, lambda defence: defence.reshape(plain), stages)
