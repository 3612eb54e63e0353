"""What a defence reports of its costs is what an independent measurement finds: bytes both ways, seconds, epsilon."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch
from scipy.optimize import brentq
from scipy.special import ndtr

from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES, Defence, RoundContext
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.pipeline import build_defence
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


def test_reported_epsilon_is_an_independent_accountants():
    """DP-SGD on all of a client's data: T releases are one of sensitivity sqrt(T) C, whose delta is known exactly."""
    sigma, rounds, delta = 4.0, 6, 1e-5
    model = build_model("lenet-relu", input_shape=SHAPE, num_classes=4, seed=0)
    config = FederationConfig(algorithm="fedsgd", rounds=rounds, batch_size=None, vectorise="never")
    defence = build_defence(f"dp-sgd:sigma={sigma},clip=1,delta={delta}")
    history = simulate(config, model, [_data(0)], _data(9).data, defence).history
    mu = math.sqrt(rounds) / sigma

    def excess(epsilon: float) -> float:
        """Balle and Wang 2018, Theorem 5: the Gaussian mechanism's delta at epsilon, less the one that is allowed."""
        low, high = ndtr(mu / 2 - epsilon / mu), ndtr(-mu / 2 - epsilon / mu)
        return float(low - math.exp(epsilon) * high - delta)

    assert history.epsilon == pytest.approx(brentq(excess, 1e-6, 50), rel=1e-3)
