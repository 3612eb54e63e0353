"""A round is played in one place: what a client sends is the same, bit for bit, whoever lets it train.

The same client, data, batches and randomness go through the audit's exchange, the in-process training, Flower's
`train_round` and NVFlare's filter, under every registered defence that each of them allows.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from fedseal.audit.exchange import Exchange, TargetRound
from fedseal.core.batch import Batch, joined
from fedseal.core.defence import DEFENCES, Defence, RoundShape
from fedseal.core.errors import CapabilityError
from fedseal.core.knowledge import Knowledge
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, plain_update, set_mode
from fedseal.federation.cohort import Client, Cohort, Held, federated_model
from fedseal.federation.posthoc import needs_training, refuse_joint
from fedseal.federation.sampling import local_indices
from fedseal.federation.simulation import FederationConfig, RoundListener, SeenUpload, simulate
from fedseal.federation.simulation.loop import SeededStreams
from fedseal.models.registry import build_model
from fedseal.testing.rounds import SHAPE, same_bits

SEED, SIZE, BATCH, CLASSES, RATE = 0, 6, 3, 4, 0.1
SPECS = [
    {"lids": "lids:samples=3,epochs=2,cache=false", "large-batch": "large-batch:size=5"}.get(name, name)
    for name in DEFENCES.names()
    if all(p.default is not p.empty for p in DEFENCES.entry(name).parameters.values())
]


def data_of(client: int) -> Batch:
    images = torch.rand(SIZE, *SHAPE, generator=generator(client, "images"))
    return Batch(images, torch.arange(SIZE) % CLASSES)


class World:
    """One round of a federation under a defence, for every way to play it."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        defence = build_defence(spec)
        self.shape = defence.reshape(RoundShape(BATCH, 1, 3 if defence.uses("broadcast") else 1))
        self.bare = build_model("lenet-relu", input_shape=SHAPE, num_classes=CLASSES, seed=0)
        self.federation = FederationConfig(
            algorithm="fedavg",
            rounds=1,
            clients_per_round=None,
            local_steps=1,
            batch_size=BATCH,
            learning_rate=RATE,
            bn_mode="eval",
            train_mode=False,
            vectorise="never",
            weighting="uniform",
            seed=SEED,
        )
        self.config: RoundConfig = self.federation.round_config(self.shape.local_steps)
        self.streams = SeededStreams(SEED, torch.device("cpu"))

    @property
    def model(self) -> nn.Module:
        return set_mode(federated_model(build_defence(self.spec), copy.deepcopy(self.bare), SEED), self.config)

    def batches(self, client: int) -> list[Batch]:
        places = local_indices(SIZE, self.shape.batch_size, self.shape.local_steps, SEED, 0, client)
        return [Held(data_of(client)).batch(part) for part in places]

    def trained(self) -> list[Tensors]:
        """Return what the simulation's server sees of each client."""
        seen: dict[str, Tensors] = {}

        class Looking(RoundListener):
            def inspects(self, round_number: int) -> bool:
                return True

            def uploaded(self, model: nn.Module, upload: SeenUpload) -> None:
                seen[upload.client] = upload.update.tensors

        clients = [Held(data_of(client)) for client in range(self.shape.clients)]
        history = simulate(
            self.federation, self.bare, clients, data_of(9), build_defence(self.spec), listener=Looking(), workers=1
        ).history
        assert not history.dropped, history.dropped
        return [seen[f"client-{client}"] for client in range(self.shape.clients)]

    def audited(self, client: int) -> Tensors:
        """Return what an audit's server sees of one client among the others."""
        clients = [
            Client(f"client-{i}", Held(data_of(i)), self.config, lambda data, number, i=i: self.batches(i))  # type: ignore[misc]
            for i in range(self.shape.clients)
        ]
        cohort = Cohort(clients, build_defence(self.spec), self.streams, strict=True)
        knowledge = Knowledge(SHAPE, CLASSES)
        everyone = tuple(range(self.shape.clients))
        played = TargetRound(cohort, (client,), everyone, 0, joined(self.batches(client)), self.shape, self.config)
        return Exchange(played, lambda _: knowledge)([self.model]).update.tensors

    def in_flower(self) -> Tensors:
        from fedseal.flower.rounds import Seal, opened, train_round

        seal = Seal(
            build_defence(self.spec), self.streams.round(0, 0), 0, "client-0", preparing=self.streams.prepare(0)
        )
        with opened(seal):
            return train_round(self.model, self.batches(0), self.config, dataset=data_of(0)).round.update.tensors

    def in_nvflare(self, monkeypatch: pytest.MonkeyPatch) -> Tensors:
        from nvflare.apis.dxo import DXO, DataKind, from_shareable
        from nvflare.apis.fl_constant import ReservedKey
        from nvflare.apis.fl_context import FLContext
        from nvflare.apis.shareable import Shareable

        from fedseal.nvflare import DefenceFilter

        monkeypatch.setattr("fedseal.nvflare.defend.generator", lambda *path: self.streams.round(0, 0))
        own = plain_update(self.model, self.batches(0), self.config, generator(0), client="client-0").tensors
        context = FLContext()
        context.set_prop(ReservedKey.IDENTITY_NAME, "client-0", private=False, sticky=False)
        sealed = DefenceFilter(self.spec, RATE).process(
            DXO(DataKind.WEIGHT_DIFF, dict(own)).update_shareable(Shareable()), context
        )
        sent: dict[str, Any] = from_shareable(sealed).data
        return sent


@pytest.mark.parametrize("spec", SPECS)
def test_a_client_sends_the_same_whoever_plays_its_round(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(spec)
    uploads = world.trained()
    assert len(uploads) == world.shape.clients
    for client, upload in enumerate(uploads):
        assert same_bits(world.audited(client), upload), f"the audit's {client}"
    defence = build_defence(spec)
    if alone(defence):
        assert same_bits(world.in_flower(), uploads[0]), "Flower's"
        if not needs_training(defence):
            pytest.importorskip("nvflare")
            assert same_bits(world.in_nvflare(monkeypatch), uploads[0]), "NVFlare's"


def alone(defence: Defence) -> bool:
    """Return whether one client can apply a defence by itself; frameworks refuse the others."""
    try:
        refuse_joint(defence, "something else")
    except CapabilityError:
        return False
    return True


def test_every_way_is_walked_by_some_defence() -> None:
    built = [build_defence(spec) for spec in SPECS]
    assert sum(alone(defence) for defence in built) > 15
    assert sum(alone(defence) and not needs_training(defence) for defence in built) > 5
    assert any(defence.uses("broadcast") for defence in built)
    assert any(defence.uses("prepare") for defence in built)
