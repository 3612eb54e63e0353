"""Server and client agree on who scales an upload, for every defence: rounds of a linear model, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.pipeline import build_defence
from fedseal.federation.cohort import Answer, Cohort, CohortRound, Held
from fedseal.federation.simulation import FederationConfig
from fedseal.federation.simulation.listener import RoundListener
from fedseal.federation.simulation.loop import Federation
from fedseal.models.layers import with_head

SHAPE = (1, 6, 6)
ROUNDS, FEW, RATE, MOMENTUM = 20, 4, 0.3, 0.5
OPTIONS = {"lids": "lids:epochs=1,cache=false", "precode": "precode:k=4", "secagg": "secagg:clients=2"}
SPECS = [OPTIONS.get(name, name) for name in DEFENCES.names() if name not in {"pretrained", "soteria", "fedkl"}]
"""Without a file; Soteria and FedKL act on layers that a linear model does not have."""


def _data(client: int) -> Held:
    return Held(Batch(torch.rand(8, *SHAPE, generator=generator(client, "images")), torch.arange(8) % 3))


def _linear() -> nn.Module:
    torch.manual_seed(0)
    return with_head([], SHAPE, 3)


def _federation(spec: str, *, clients: int, momentum: float, algorithm: str) -> Federation:
    config = FederationConfig(
        algorithm=algorithm,  # type: ignore[arg-type]
        rounds=ROUNDS,
        batch_size=None,
        local_steps=None if algorithm == "fedsgd" else 1,
        learning_rate=RATE,
        server_momentum=momentum,
        vectorise="never",
    )
    return Federation(config, _linear(), [_data(c) for c in range(clients)], _data(9).data, build_defence(spec))


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("spec", SPECS)
def test_the_server_moves_the_model_by_what_was_uploaded(spec: str, algorithm: str, monkeypatch: pytest.MonkeyPatch):
    """Gradients by the learning rate, changes by 1, both with momentum; what is a step already as it is."""
    uploads: list[Tensors] = []
    whole: Callable[..., CohortRound] = Cohort.play

    def play(self: Cohort, *arguments: Any, taken: Callable[[Answer], None] | None = None, **named: Any) -> CohortRound:
        def note(answer: Answer) -> None:
            assert answer.update is not None
            uploads.append({name: tensor.clone() for name, tensor in answer.update.tensors.items()})

        uploads.clear()
        return whole(self, *arguments, taken=note, **named)

    monkeypatch.setattr(Cohort, "play", play)
    if spec == "local-steps" and algorithm == "fedsgd":
        pytest.skip("several local steps are no FedSGD")
    federation = _federation(spec, clients=2, momentum=MOMENTUM, algorithm=algorithm)
    defence = build_defence(spec)
    speed: dict[str, Tensor] = {}
    for number in range(FEW):
        before = _weights(federation.model)
        federation.play(number, RoundListener())
        assert len(uploads) == 2
        mean = defence.on_aggregate({name: (uploads[0][name] + uploads[1][name]) / 2 for name in uploads[0]})
        factor = 1.0 if algorithm == "fedavg" else -1.0 if defence.traits.rescales else -RATE
        for name, after in _weights(federation.model).items():
            change = factor * mean[name].to(before[name])
            if not defence.traits.rescales:
                change = speed[name] = MOMENTUM * speed.get(name, torch.zeros_like(change)) + change
            assert torch.allclose(after, before[name] + change, atol=1e-6), (name, number)


def _none(state: dict[str, Any], gradient: Tensor) -> Tensor:
    return RATE * gradient


def _adam(state: dict[str, Any], gradient: Tensor) -> Tensor:
    """Kingma and Ba's step with AdaDefense's scale of 1e-3: no learning rate of anybody else's."""
    state["r"] = state.get("r", 0) + 1
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * gradient.square()
    mean, square = state["m"] / (1 - 0.9 ** state["r"]), state["v"] / (1 - 0.999 ** state["r"])
    return 1e-3 * mean / (square.sqrt() + 1e-8)


def _middle(state: dict[str, Any], gradient: Tensor) -> Tensor:
    """DGP with error feedback: P = g + e, the middle of P by magnitude is sent, e keeps the rest."""
    full = gradient + state.get("e", torch.zeros_like(gradient))
    order = full.abs().flatten().argsort(descending=True)
    size = full.numel()
    top, bottom = -(-size // 20), round(0.75 * size)
    sent = torch.zeros(size).index_fill(0, order[top : size - bottom], 1.0).view_as(full) * full
    state["e"] = full - sent
    return RATE * sent


def _largest(state: dict[str, Any], gradient: Tensor) -> Tensor:
    kept = -(-gradient.numel() // 2)
    chosen = gradient.abs().flatten().topk(kept).indices
    return RATE * torch.zeros(gradient.numel()).index_fill(0, chosen, 1.0).view_as(gradient) * gradient


FORMULAS = {
    "none": _none,
    "quantise:bits=32": _none,
    "gaussian:sigma=0,clip=inf": _none,
    "dp-sgd:sigma=0,clip=1e6": _none,
    "refiner:epsilon=0": _none,
    "lids:samples=1": _none,
    "topk:ratio=0.5": _largest,
    "dgp": _middle,
    "adadefense": _adam,
}


@pytest.mark.parametrize("spec", FORMULAS)
def test_a_defended_training_is_the_papers_formula(spec: str):
    """Twenty rounds of one client, computed here by hand from the gradient of a linear model."""
    federation = _federation(spec, clients=1, momentum=0.0, algorithm="fedsgd")
    data = _data(0).data
    by_hand = _linear()
    states: dict[str, dict[str, Any]] = {}
    for number in range(ROUNDS):
        federation.play(number, RoundListener())
        loss = F.cross_entropy(by_hand(data.images), data.labels)
        names = [name for name, _ in by_hand.named_parameters()]
        gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for name, parameter, gradient in zip(names, by_hand.parameters(), gradients, strict=True):
                parameter -= FORMULAS[spec](states.setdefault(name, {}), gradient)
    expected = _weights(by_hand)
    for name, found in _weights(federation.model).items():
        assert torch.allclose(found, expected[name], atol=2e-5), name
    moved = max(float((expected[name] - start).abs().max()) for name, start in _weights(_linear()).items())
    assert moved > 1e-2  # it has gone somewhere
