"""A scenario made real: data split, model built, and what the server observes of each target batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from fedseal.audit.scenario import Scenario
from fedseal.core.batch import IDENTITY, Batch
from fedseal.core.defence import CostReport, Defence
from fedseal.core.errors import InputError
from fedseal.core.hashing import hash_tensors
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.data.dataset import ImageDataset, split_public
from fedseal.data.registry import DATASETS
from fedseal.federation.client import RoundConfig, client_round, set_mode
from fedseal.models.registry import build_model

_DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16}
_MAX_PUBLIC = 2000


@dataclass(frozen=True)
class Target:
    """One attacked round.

    Attributes:
        originals: the private images behind the update, [B * local steps, C, H, W].
        observation: what a naive attacker sees.
        cost: of the defence in this round.
    """

    originals: Batch
    observation: Observation
    cost: CostReport


@dataclass(frozen=True)
class Setup:
    """Everything trials of a scenario share.

    Attributes:
        scenario: what was asked for.
        private: the clients' data.
        public: the attacker's, disjoint from it; baselines are computed on it even if the attacker is not given it.
        model: the global model, in the mode clients use.
        config: how clients train.
        data_hash, weights_hash: contents, for trial keys.
    """

    scenario: Scenario
    private: ImageDataset
    public: Batch
    model: nn.Module
    config: RoundConfig
    data_hash: str
    weights_hash: str

    def batches(self, target: int) -> list[Batch]:
        """Return the batches of one target's local steps; different targets share no image."""
        client = self.scenario.client
        per_target = client.batch_size * client.local_steps
        order = torch.randperm(len(self.private), generator=generator(self.scenario.seed, "targets"))
        indices = order[target * per_target : (target + 1) * per_target]
        like = next(self.model.parameters())
        return [
            self.private.batch(part).to(like.device, like.dtype) for part in torch.split(indices, client.batch_size)
        ]

    def observe(self, defence: Defence, target: int, *, name: str = "") -> Target:
        """Run the client's round on one target and return what the server sees of it.

        Args:
            defence: fresh, as its state belongs to one client.
            target: which batch.
            name: the defence's spec, which separates noise of different defences.
        """
        batches = self.batches(target)
        source = generator(self.scenario.seed, "defence", name, target)
        result = client_round(self.model, batches, self.config, defence, source, client=f"client-{target}")
        originals = Batch(torch.cat([b.images for b in batches]), torch.cat([b.labels for b in batches]))
        server_model = set_mode(defence.wrap_model(self.model), self.config)
        knowledge = self._knowledge(originals, result.bn_statistics)
        return Target(originals, Observation(server_model, result.update, knowledge), result.cost)

    def _knowledge(self, originals: Batch, bn_statistics: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> Knowledge:
        client, attacker = self.scenario.client, self.scenario.attacker
        return Knowledge(
            input_shape=self.private.shape,
            num_classes=len(self.private.classes),
            loss_reduction=attacker.loss_reduction or client.loss_reduction,
            bn_mode=client.bn_mode,
            label_rule=attacker.labels,
            batch_size=client.batch_size if attacker.batch_size else None,
            labels=originals.labels if attacker.labels == "true" else None,
            bn_statistics=bn_statistics if client.bn_mode == "train-exact-stats" else None,
            local_steps=client.local_steps if attacker.local_steps else None,
            learning_rate=client.learning_rate if attacker.learning_rate else None,
            normalisation=self.config.normalisation if attacker.normalisation else None,
            auxiliary=self.public if attacker.public_data else None,
        )


def make_aware(observation: Observation, defence: Defence) -> Observation:
    """Return the observation as an attacker sees it who knows the defence and its parameters."""
    return replace(observation, knowledge=replace(observation.knowledge, defence=defence.attacker_view()))


def build_setup(scenario: Scenario, *, data_root: Path | None = None, device: str = "cpu") -> Setup:
    """Load the data, split it, build and check the model."""
    where = _device(device)
    dataset = DATASETS.build(scenario.data, data_root=data_root)
    private, public = split_public(dataset, scenario.public_fraction, scenario.seed)
    needed = scenario.targets * scenario.client.batch_size * scenario.client.local_steps
    if needed > len(private):
        raise InputError(
            f"{scenario.targets} targets of {scenario.client.local_steps} x {scenario.client.batch_size} images need "
            f"{needed} private images, {dataset.name} leaves {len(private)}.",
            hint="Lower `targets` or `client.batch_size`, or use a larger data set.",
        )
    classes = len(dataset.classes)
    model = build_model(scenario.model, input_shape=dataset.shape, num_classes=classes, seed=scenario.seed)
    model = model.to(where, _DTYPES[scenario.client.dtype])
    config = RoundConfig(
        local_steps=scenario.client.local_steps,
        learning_rate=scenario.client.learning_rate,
        bn_mode=scenario.client.bn_mode,
        train_mode=scenario.client.train_mode,
        loss_reduction=scenario.client.loss_reduction,
        normalisation=dataset.normalisation if scenario.client.normalise else IDENTITY,
    )
    like = next(model.parameters())
    return Setup(
        scenario,
        private,
        public.batch(torch.arange(min(len(public), _MAX_PUBLIC))).to(like.device, like.dtype),
        set_mode(model, config),
        config,
        hash_tensors({"images": dataset.images, "labels": dataset.labels}),
        hash_tensors(model.state_dict()),
    )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"device {name!r} cannot be used: {reason}.", hint="Use --device cpu.") from error
    return device
