"""Server and client agree on who scales an upload, for every defence: rounds of a linear model, step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig
from fedseal.federation.cohort import Answer, Cohort, CohortRound, Held
from fedseal.federation.simulation import FederationConfig
from fedseal.federation.simulation.listener import RoundListener
from fedseal.federation.simulation.loop import Federation
from fedseal.models.layers import with_head

from .cases import CASES

SHAPE = (1, 6, 6)
ROUNDS, RATE, MOMENTUM = 20, 0.3, 0.5
CHECKPOINT = "pretrained:checkpoint=FILE"
OPTIONS = {
    "fedkl": "fedkl:key=4",
    "lids": "lids:epochs=1,cache=false",
    "precode": "precode:k=4",
    "pretrained": CHECKPOINT,
    "secagg": "secagg:clients=2",
}
SPECS = [OPTIONS.get(name, name) for name in DEFENCES.names()]
CONVOLUTIONAL = ("soteria", "fedkl")
"""They act on layers that a linear model does not have."""
ZEROS = [zero for case in CASES for zero in case.zeros]
"""Every defence at the strength at which it does nothing."""


def _data(client: int) -> Held:
    return Held(Batch(torch.rand(8, *SHAPE, generator=generator(client, "images")), torch.arange(8) % 3))


def _model(spec: str = "", seed: int = 0) -> nn.Module:
    """Return a linear model, or one with a convolution in front where a defence asks for it."""
    torch.manual_seed(seed)
    body = [nn.Conv2d(1, 2, 3, stride=2), nn.Sigmoid()] if spec.startswith(CONVOLUTIONAL) else []
    return with_head(body, SHAPE, 3)


@pytest.fixture
def named(tmp_path: Path) -> Callable[[str], str]:
    """Return what puts the name of a checkpoint of other weights into a spec that asks for one."""

    def put(spec: str) -> str:
        if "FILE" in spec:
            save_file(_model(seed=1).state_dict(), tmp_path / "trained.safetensors")
        return spec.replace("FILE", str(tmp_path / "trained.safetensors"))

    return put


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
    return Federation(config, _model(spec), [_data(c) for c in range(clients)], _data(9).data, build_defence(spec))


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("spec", SPECS)
def test_the_server_moves_the_model_by_what_was_uploaded(
    spec: str, algorithm: str, monkeypatch: pytest.MonkeyPatch, named: Callable[[str], str]
):
    """Gradients by the learning rate, changes by 1, both with momentum; what is a step already as it is."""
    spec = named(spec)
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
    for number in range(ROUNDS):
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
    **dict.fromkeys(ZEROS, _none),
    "dp-sgd:sigma=0,clip=1e6": _none,
    CHECKPOINT: _none,
    "topk:ratio=0.5": _largest,
    "dgp": _middle,
    "adadefense": _adam,
}


@pytest.mark.parametrize("spec", FORMULAS)
def test_a_defended_training_is_the_papers_formula(spec: str, named: Callable[[str], str]):
    """Twenty rounds of one client, computed here by hand from the gradient of a small model."""
    federation = _federation(named(spec), clients=1, momentum=0.0, algorithm="fedsgd")
    data = _data(0).data
    by_hand = _model(spec, seed=1 if spec == CHECKPOINT else 0)
    begun = _weights(by_hand)
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
    moved = max(float((expected[name] - start).abs().max()) for name, start in begun.items())
    assert moved > 1e-2  # it has gone somewhere


def test_soteria_withholds_the_columns_its_paper_scores_highest():
    """|r_f| / |dr_f/dx|, one feature and one image at a time; half of the columns of the head go, and nothing else."""
    spec = "soteria:ratio=0.5,method=exact"
    federation = _federation(spec, clients=1, momentum=0.0, algorithm="fedsgd")
    data = _data(0).data
    by_hand = _model(spec)
    head = by_hand[-1]
    for number in range(ROUNDS):
        federation.play(number, RoundListener())
        images = data.images.clone().requires_grad_()
        features = by_hand[:-1](images)
        score = torch.zeros(features.shape[1])
        for feature in range(features.shape[1]):
            (slopes,) = torch.autograd.grad(features[:, feature].sum(), images, retain_graph=True)
            score[feature] = (features[:, feature].abs() / slopes.flatten(1).norm(dim=1)).mean()
        hidden = score.argsort(descending=True)[: features.shape[1] // 2]
        loss = F.cross_entropy(by_hand(data.images), data.labels)
        gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(by_hand.parameters(), gradients, strict=True):
                parameter -= RATE * (gradient.index_fill(1, hidden, 0.0) if parameter is head.weight else gradient)
    expected = _weights(by_hand)
    for name, found in _weights(federation.model).items():
        assert torch.allclose(found, expected[name], atol=2e-5), name


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_fedkls_locks_never_move_at_the_server(algorithm: str):
    """What a client would do to its key is not known outside: its formula cannot be computed by hand, its zeros can."""
    federation = _federation("fedkl:key=4", clients=2, momentum=MOMENTUM, algorithm=algorithm)
    begun = _weights(federation.model)
    for number in range(ROUNDS):
        federation.play(number, RoundListener())
    still = {name for name, value in _weights(federation.model).items() if torch.equal(value, begun[name])}
    assert still == {name for name in begun if ".scale." in name or ".shift." in name}
    assert len(still) == 4


@pytest.mark.parametrize("rate", [RATE, 0.01])
@pytest.mark.parametrize("spec", ["none", "topk:ratio=0.5", "dgp", "adadefense", "adadefense:variant=yogi"])
def test_flowers_clients_send_a_gradient_by_their_rate_and_a_step_as_it_is(spec: str, rate: float):
    """The weights a Flower client replies with: 20 rounds of one that goes on from them, through the open seal."""
    rounds = pytest.importorskip("fedseal.flower.rounds")
    defence, batch = build_defence(spec), _data(0).data
    model = _model(spec)
    sizes = []
    for number in range(ROUNDS):
        before = _weights(model)
        seal = rounds.Seal(defence, generator(0, "seal", number), number, "client")
        with rounds.opened(seal):
            trained = rounds.train_round(model, [batch], RoundConfig(learning_rate=rate))
        upload = trained.round.update
        assert upload.kind == "gradient"
        factor = 1.0 if spec.startswith("adadefense") else rate
        for name, tensor in upload.tensors.items():
            assert torch.allclose(trained.weights[name], before[name] - factor * tensor, atol=1e-7), (name, number)
        sizes.append(max(float((trained.weights[name] - before[name]).abs().max()) for name in before))
        model.load_state_dict(trained.weights)
    if spec == "adadefense":
        assert max(sizes) < 1.2e-3  # Adam's step of 1e-3, whatever the clients' rate


def test_flowers_clients_send_a_change_as_it_is():
    rounds = pytest.importorskip("fedseal.flower.rounds")
    model, data = _model(), _data(0).data
    seal = rounds.Seal(build_defence("topk:ratio=0.5"), generator(0, "seal"), 0, "client")
    with rounds.opened(seal):
        trained = rounds.train_round(model, [data, data], RoundConfig(local_steps=2, learning_rate=RATE))
    assert trained.round.update.kind == "delta"
    for name, tensor in trained.round.update.tensors.items():
        assert torch.allclose(trained.weights[name], _weights(model)[name] + tensor, atol=1e-7)
