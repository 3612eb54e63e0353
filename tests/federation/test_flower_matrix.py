"""A quickstart under every defence that works in one line: nobody is refused, and it learns as in process.

FedAvg is compared with `simulate`; strategies it does not have, with fedseal's rounds under the strategy's own rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedYogi,
    Krum,
)
from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES
from fedseal.core.errors import FedsealError
from fedseal.core.seeds import derive_seed, generator
from fedseal.data.dataset import ImageDataset
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig
from fedseal.federation.posthoc import needs_training, refuse_joint
from fedseal.federation.sampling import local_indices
from fedseal.federation.simulation import FederationConfig, simulate
from fedseal.federation.simulation.loop import SeededStreams
from fedseal.flower import defend, guard
from fedseal.flower.records import to_tensors
from fedseal.flower.rounds import Seal, opened, train_round

from .server_rules import AdaptiveNoisyMean, AdaptiveServer, NoisyMean, ServerStep, krum

NORMS = ("batch", "group", "dropout")
CLIENTS, ROUNDS, STEPS, SIZE, RATE, SEED = 5, 5, 10, 32, 0.1, 0
CLIP, WEIGHTS = 0.5, 6000
"""About half the norm of a client's first change, so that clipping bites; and the network's weights, roughly."""
NOISE = 0.1 * CLIENTS / WEIGHTS**0.5
"""Noise multiplier with which the norm of the noise is a tenth of `CLIP`: less than what is learned, but no trifle."""


def works_in_one_line(spec: str) -> bool:
    try:
        defence = build_defence(spec)
        refuse_joint(defence, "")
    except FedsealError:  # it needs options, or partners
        return False
    return not needs_training(defence)


ONE_LINE = [*filter(works_in_one_line, DEFENCES.names()), "adadefense:scale=0.01"]
"""AdaDefense twice: at its default five rounds are too few to learn much."""


class Net(nn.Module):
    """A small convolutional network with a choice of normalisation."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, 8, 5, stride=2)]
        layers += {"batch": [nn.BatchNorm2d(8)], "group": [nn.GroupNorm(2, 8)], "dropout": [nn.Dropout(0.1)]}[norm]
        layers += [nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)]
        self.body = nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.body(images)
        return output


def build(norm: str) -> Net:
    torch.manual_seed(SEED)
    return Net(norm)


@pytest.fixture(scope="module")
def digits() -> tuple[list[ImageDataset], Batch]:
    data = DATASETS.build("digits")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED))
    parts = [data.subset(part) for part in torch.split(order[:2000], 2000 // CLIENTS)]
    return parts, data.batch(order[2000:3000])


def accuracy(model: nn.Module, test: Batch, norm: str) -> float:
    model.train(norm == "batch")  # with batch statistics: running ones stay on clients
    with torch.no_grad():
        return 100 * float((model(test.images).argmax(1) == test.labels).float().mean())


Masks = Callable[[int, int], torch.Generator]
"""From a client's place and a round, from 0, to the stream that its dropout is seeded by."""


def masks_of_simulation(place: int, number: int) -> torch.Generator:
    return SeededStreams(SEED, torch.device("cpu")).round(place, number)


def masks_of_rounds(place: int, number: int) -> torch.Generator:
    return generator(SEED, "flower", str(place + 2), number + 1)


def federated(flower: Any, digits: Any, norm: str, strategy: Any, masks: Masks, *mods: Any) -> tuple[float, Any, Any]:
    parts, test = digits
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = build(norm)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        place = int(context.node_config["partition-id"])
        number = int(message.content["config"]["server-round"])
        optimiser = torch.optim.SGD(model.parameters(), RATE)
        model.train()
        drawn = local_indices(len(parts[place]), SIZE, STEPS, SEED, number - 1, place)
        stream = masks(place, number - 1).initial_seed()
        for step, part in enumerate(drawn):
            batch = parts[place].batch(part)
            torch.manual_seed(derive_seed(stream, "client", number - 1, step))  # the masks of the other side
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(batch.images), batch.labels).backward()
            optimiser.step()
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(parts[place])}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    grid = flower.grid(app, CLIENTS)
    outcome = strategy.start(grid=grid, initial_arrays=ArrayRecord(build(norm).state_dict()), num_rounds=ROUNDS)
    model = build(norm)
    model.load_state_dict(to_tensors(outcome.arrays, "result"))
    return accuracy(model, test, norm), strategy, grid


def training(norm: str) -> dict[str, Any]:
    """How clients train, in words of the simulation."""
    return {"bn_mode": "train-nostats" if norm == "batch" else "eval", "train_mode": norm == "dropout"}


def simulated(digits: Any, norm: str, spec: str) -> float:
    parts, test = digits
    config = FederationConfig(
        rounds=ROUNDS, local_steps=STEPS, batch_size=SIZE, learning_rate=RATE, seed=SEED, evaluate_every=ROUNDS,
        **training(norm),
    )  # fmt: skip
    done = simulate(config, build(norm), parts, test, build_defence(spec), workers=1)
    return accuracy(done.model, test, norm)


def in_process(digits: Any, norm: str, spec: str, server: ServerStep) -> float:
    """Train by fedseal's own rounds and a server's rule as its paper has it: no Flower, no messages."""
    parts, test = digits
    model, defences = build(norm), [build_defence(spec) for _ in parts]
    config = RoundConfig(local_steps=STEPS, learning_rate=RATE, **training(norm))
    for number in range(ROUNDS):
        changes = []
        for place, part in enumerate(parts):
            batches = [part.batch(one) for one in local_indices(len(part), SIZE, STEPS, SEED, number, place)]
            client = str(place + 2)  # as Flower numbers them
            seal = Seal(defences[place], generator(SEED, "flower", client, number + 1), number, client)
            with opened(seal):
                train_round(model, batches, config, dataset=part.batch())
            assert seal.result is not None
            changes.append(torch.cat([seal.result.change()[name].flatten() for name, _ in model.named_parameters()]))
        step = server(torch.stack(changes), number + 1)
        nn.utils.vector_to_parameters(
            nn.utils.parameters_to_vector(model.parameters()).detach() + step, model.parameters()
        )
    return accuracy(model, test, norm)


def check(
    flower: Any,
    digits: Any,
    norm: str,
    spec: str,
    made: Any,
    expected: Callable[[], float],
    masks: Masks = masks_of_simulation,
    outside: Sequence[Any] = (),
) -> None:
    np.random.seed(SEED)  # what Flower's wrappers draw their noise from
    mods = [*outside, defend(spec, seed=SEED)]
    inside, strategy, grid = federated(flower, digits, norm, guard(made), masks, *mods)
    refused = [reply.error.reason for reply in grid.replies if reply.has_error()]
    assert refused == []
    assert strategy.dropped == []
    beside = expected()
    print(f"{norm} {spec} {type(strategy.inner).__name__}: Flower {inside:.1f} %, in process {beside:.1f} %")
    assert inside == pytest.approx(beside, abs=3.0)


def fedavg() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0)


def test_a_quickstart_learns_in_flower_as_in_the_simulation(flower: Any, digits: Any):
    check(flower, digits, "batch", "topk:ratio=0.9", fedavg(), lambda: simulated(digits, "batch", "topk:ratio=0.9"))


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("spec", ONE_LINE)
def test_every_defence_of_one_line_learns_in_flower_as_in_the_simulation(
    flower: Any, digits: Any, norm: str, spec: str
):
    check(flower, digits, norm, spec, fedavg(), lambda: simulated(digits, norm, spec))


@dataclass(frozen=True)
class Rule:
    """A strategy of Flower's, the rule it follows, and a mod its clients need before all others."""

    flower: Callable[[], Any]
    paper: Callable[[nn.Module], ServerStep]
    outside: tuple[Any, ...] = ()


def fixed(state: nn.Module) -> ServerStep:
    return NoisyMean(NOISE, CLIP, state, SEED)


def adaptive(state: nn.Module) -> ServerStep:
    return AdaptiveNoisyMean(AdaptiveNoisyMean.split(NOISE, CLIENTS), CLIP, state, SEED)


STRATEGIES = {
    "adam": Rule(lambda: FedAdam(fraction_evaluate=0.0, eta=0.01), lambda _: AdaptiveServer(0.01, yogi=False)),
    "yogi": Rule(lambda: FedYogi(fraction_evaluate=0.0, eta=0.01), lambda _: AdaptiveServer(0.01, yogi=True)),
    "krum": Rule(lambda: Krum(fraction_evaluate=0.0, num_malicious_nodes=1), lambda _: krum),
    "dp-server-fixed": Rule(lambda: DifferentialPrivacyServerSideFixedClipping(fedavg(), NOISE, CLIP, CLIENTS), fixed),
    "dp-client-fixed": Rule(
        lambda: DifferentialPrivacyClientSideFixedClipping(fedavg(), NOISE, CLIP, CLIENTS), fixed, (fixedclipping_mod,)
    ),
    "dp-server-adaptive": Rule(
        lambda: DifferentialPrivacyServerSideAdaptiveClipping(fedavg(), NOISE, CLIENTS, CLIP), adaptive
    ),
    "dp-client-adaptive": Rule(
        lambda: DifferentialPrivacyClientSideAdaptiveClipping(fedavg(), NOISE, CLIENTS, CLIP),
        adaptive,
        (adaptiveclipping_mod,),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("spec", ONE_LINE)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_learns_in_flower_as_its_rule_does_in_process(
    flower: Any, digits: Any, norm: str, spec: str, strategy: str
):
    rule = STRATEGIES[strategy]
    expected = lambda: in_process(digits, norm, spec, rule.paper(build(norm)))  # noqa: E731
    check(flower, digits, norm, spec, rule.flower(), expected, masks_of_rounds, rule.outside)
