"""What a defence reports of its costs is what an independent measurement finds: bytes both ways, seconds, epsilon."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import ndtr

from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES, Defence, RoundContext
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.federation.cohort import Held
from fedseal.federation.simulation import FederationConfig, simulate
from fedseal.federation.simulation.listener import RoundListener, SeenUpload
from fedseal.federation.wire.payload import decode, encode
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)
CLIENTS = 4
OPTIONS = {"lids": "lids:epochs=1,cache=false"}
SPECS = [OPTIONS.get(name, name) for name in DEFENCES.names() if name not in {"pretrained", "secagg"}]
HIDING = {"secagg", "selective-encryption"}


def _data(client: int, images: int = 8) -> Held:
    source = generator(client, "images")
    return Held(Batch(torch.rand(images, *SHAPE, generator=source), torch.arange(images) % 4))


class Scales(RoundListener):
    """Puts every upload on a scale: as bytes, from which it comes back whole."""

    def __init__(self) -> None:
        self.bytes = 0

    def inspects(self, number: int) -> bool:
        return True

    def uploaded(self, model: Any, upload: SeenUpload) -> None:
        payload = encode(upload.update.tensors)
        again = decode(payload)
        assert all(torch.equal(again[name], tensor) for name, tensor in upload.update.tensors.items())
        self.bytes += len(payload)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec not in HIDING])
def test_reported_bytes_are_those_of_real_payloads(spec: str):
    model = build_model("lenet-relu", input_shape=SHAPE, num_classes=4, seed=0)
    config = FederationConfig(
        algorithm="fedavg", rounds=1, local_steps=1, batch_size=4, vectorise="never", bn_mode="train-nostats"
    )
    listener, defence = Scales(), build_defence(spec)
    result = simulate(config, model, [_data(c) for c in range(CLIENTS)], _data(9).data, defence, listener=listener)
    (record,) = result.history.rounds
    if defence.uses("broadcast"):
        assert record.bytes_up > listener.bytes  # and what clients tell each other: its own test below
        return
    assert record.bytes_up == listener.bytes
    if build_defence(spec).report().bytes_down is None:
        trained = [p for p in result.model.parameters() if p.requires_grad]
        shared = [b for b in result.model.buffers() if b.is_floating_point()]
        raw = sum(tensor.numel() * tensor.element_size() for tensor in trained)
        whole = raw + sum(tensor.numel() * tensor.element_size() for tensor in shared)
        headers = 64 * (len(trained) + len(shared) + 1)
        assert raw <= record.bytes_down / CLIENTS <= whole + headers


DENSE, WHOLE = 1.0, 32
PAPERS = {
    "none": (DENSE, WHOLE),
    "gaussian": (DENSE, WHOLE),
    "topk:ratio=0.5": (0.5, WHOLE),
    "topk:ratio=0.9": (0.1, WHOLE),
    "topk:ratio=0.99": (0.01, WHOLE),
    "dgp:k1=0.05,k2=0.75": (0.2, WHOLE),
    "dgp:k1=0.03,k2=0.45": (0.52, WHOLE),
    "quantise:bits=1": (DENSE, 1),
    "quantise:bits=4,rounding=nearest": (DENSE, 4),
    "quantise:bits=8": (DENSE, 8),
    "quantise:bits=12": (DENSE, 12),
    "topk:ratio=0.9+quantise:bits=8": (0.1, 8),
}
"""By spec, the share of entries that its paper sends, and the bits it sends of each."""
PER_TENSOR = 48
"""Bytes for a name, a shape and a scale."""


def _papers_bits(sent: np.ndarray[Any, Any], share: float, bits: int) -> float:
    """Return what an upload of a tensor takes by its paper, in bits: values, and the shortest known way to say where.

    Positions: a bit for every entry, 32 for every index, or as many as tell one of C(n, k) choices apart. What rounding
    has made zero need not be sent, where that is shorter.
    """
    size, there = sent.size, int(np.count_nonzero(sent))
    assert there <= math.ceil(round(share * size, 6))
    if share < DENSE and bits == WHOLE:
        assert abs(there - share * size) <= 1 or size < 100  # of small ones the middle may be nothing
    choices = (math.lgamma(size + 1) - math.lgamma(there + 1) - math.lgamma(size - there + 1)) / math.log(2)
    return min(size * bits, there * bits + min(size, 32 * there, choices))


@pytest.mark.parametrize("spec", PAPERS)
def test_reported_bytes_are_those_the_papers_count(spec: str):
    """Counted from the shapes alone, by none of our code: values at their width, positions by a bound on any code."""
    share, bits = PAPERS[spec]
    model = build_model("lenet-sigmoid", input_shape=(1, 28, 28), num_classes=10, seed=0)
    config = FederationConfig(algorithm="fedsgd", rounds=1, batch_size=None, vectorise="never")
    sent: list[dict[str, np.ndarray[Any, Any]]] = []

    class Kept(RoundListener):
        def inspects(self, number: int) -> bool:
            return True

        def uploaded(self, model: Any, upload: SeenUpload) -> None:
            sent.append({name: tensor.numpy() for name, tensor in upload.update.tensors.items()})

    data = Held(Batch(torch.rand(8, 1, 28, 28, generator=generator(0, "images")), torch.arange(8) % 10))
    history = simulate(config, model, [data], data.data, build_defence(spec), listener=Kept()).history
    (upload,) = sent
    assert len(upload) == len(list(model.parameters()))
    counted = sum(_papers_bits(array, share, bits) for array in upload.values()) / 8
    reported = history.rounds[0].bytes_up
    assert 0.97 * counted <= reported <= 1.06 * counted + PER_TENSOR * len(upload), (reported, counted)


class Slow(Defence):
    """Takes a known time in each hook."""

    pause = 0.05

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        time.sleep(self.pause)
        return batch

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        time.sleep(self.pause)
        return update


def test_reported_seconds_are_those_spent_in_hooks():
    model = build_model("lenet-relu", input_shape=SHAPE, num_classes=4, seed=0)
    config = FederationConfig(rounds=2, local_steps=3, batch_size=4, vectorise="never")
    started = time.perf_counter()
    history = simulate(config, model, [_data(0)], _data(9).data, Slow()).history
    whole = time.perf_counter() - started
    spent = sum(record.hook_seconds for record in history.rounds)
    slept = 2 * (3 + 1) * Slow.pause
    assert slept <= spent <= sum(record.seconds for record in history.rounds) <= whole


CLOCKED = ("on_batch", "on_sample_grads", "on_gradient", "on_update")


@pytest.mark.parametrize("spec", ["soteria", "svdefense", "outpost", "topk:ratio=0.9", "dp-sgd", "refiner"])
def test_reported_seconds_of_a_real_defence_are_those_of_a_clock_around_its_hooks(spec: str):
    clocked: list[float] = []
    defence = build_defence(spec)
    kind = type(defence)

    def around(hook: str) -> Callable[..., Any]:
        def run(self: Defence, *arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return getattr(kind, hook)(self, *arguments)
            finally:
                clocked.append(time.perf_counter() - started)

        return run

    hooks = {hook: around(hook) for hook in CLOCKED if defence.uses(hook)}
    defence.__class__ = type(f"Clocked{kind.__name__}", (kind,), hooks)
    model = build_model("lenet-relu", input_shape=SHAPE, num_classes=4, seed=0)
    config = FederationConfig(algorithm="fedsgd", rounds=3, batch_size=None, vectorise="never")
    history = simulate(config, model, [_data(0)], _data(9).data, defence).history
    reported = sum(record.hook_seconds for record in history.rounds)
    assert clocked
    assert sum(clocked) <= reported <= 1.5 * sum(clocked) + 0.05


def test_reported_epsilon_is_that_of_dp_accounting_where_batches_are_poisson_samples():
    """DP-SGD of several rounds on a twentieth of the data each, against Google's loss distributions within 1 %."""
    pld = pytest.importorskip("dp_accounting.pld")
    event = pytest.importorskip("dp_accounting.dp_event")
    sigma, delta, rate, rounds, steps, images = 1.1, 1e-5, 0.05, 4, 5, 200
    data = _data(0, images).data
    model = build_model("mlp:width=4", input_shape=SHAPE, num_classes=4, seed=0)
    defence = build_defence(
        f"dp-sgd:sigma={sigma},clip=1,delta={delta},sample_rate={rate},batch_size={round(rate * images)}"
    )
    config = RoundConfig(local_steps=steps)
    for number in range(rounds):
        drawn = torch.rand(steps, images, generator=generator(number, "poisson")) < rate
        batches = [data.pick(torch.nonzero(chosen).flatten()) for chosen in drawn]
        done = client_round(model, batches, config, defence, generator(number, "noise"), round_number=number)
    accountant = pld.PLDAccountant()
    accountant.compose(event.PoissonSampledDpEvent(rate, event.GaussianDpEvent(sigma)), rounds * steps)
    assert done.cost.epsilon_accounted == pytest.approx(accountant.get_epsilon(delta), rel=0.01)


@pytest.mark.parametrize(
    ("spec", "clipped"),
    [("dp-sgd:clip=1", "whole"), ("gaussian:clip=1", "whole"), ("fed-cdp:clip=1", "tensors")],
)
def test_reported_epsilon_is_an_independent_accountants(spec: str, clipped: str):
    """On all of a client's data: T releases, each of one vector or of one a tensor, are one of sensitivity sqrt(T) C or
    sqrt(T tensors) C, whose delta is known exactly."""
    sigma, rounds, delta = 4.0, 6, 1e-5
    model = build_model("lenet-relu", input_shape=SHAPE, num_classes=4, seed=0)
    config = FederationConfig(algorithm="fedsgd", rounds=rounds, batch_size=None, vectorise="never")
    defence = build_defence(f"{spec},sigma={sigma}")
    history = simulate(config, model, [_data(0)], _data(9).data, defence).history
    releases = rounds * (1 if clipped == "whole" else len(list(model.parameters())))
    mu = math.sqrt(releases) / sigma

    def excess(epsilon: float) -> float:
        """Balle and Wang 2018, Theorem 5: the Gaussian mechanism's delta at epsilon, less the one that is allowed."""
        low, high = ndtr(mu / 2 - epsilon / mu), ndtr(-mu / 2 - epsilon / mu)
        return float(low - math.exp(epsilon) * high - delta)

    assert history.epsilon == pytest.approx(brentq(excess, 1e-6, 50), rel=1e-3)
