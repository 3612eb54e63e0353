"""FedKL: what is locked, that locks stay with the client and are trained there, and that keys matter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.fedkl import FedKL, KeyLock
from fedseal.federation.client import RoundConfig, client_round, set_mode
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)


def data(seed: int = 0) -> Batch:
    source = generator(seed, "images")
    return Batch(torch.rand(4, *SHAPE, generator=source), torch.randint(4, (4,), generator=source))


def build(spec: str) -> nn.Module:
    return build_model(spec, input_shape=SHAPE, num_classes=4, seed=0)


def wrapped(defence: Defence, spec: str = "resnet10:width=4") -> nn.Module:
    return set_mode(defence.wrap_model(build(spec)), RoundConfig())


def play(model: nn.Module, defence: Defence, seed: int = 0, steps: int = 1) -> Tensors:
    batches = [data(step) for step in range(steps)]
    return client_round(model, batches, RoundConfig(local_steps=steps), defence, generator(seed)).update.tensors


def locks_of(tensors: Tensors) -> dict[str, Tensor]:
    return {name: t for name, t in tensors.items() if ".scale." in name or ".shift." in name}


def test_every_batch_normalisation_is_locked():
    plain, model = build("resnet10:width=4"), wrapped(FedKL(key=8))
    count = sum(isinstance(m, nn.BatchNorm2d) for m in plain.modules())
    locks = [m for m in model.modules() if isinstance(m, KeyLock)]
    assert len(locks) == count
    assert all(list(lock.norm.parameters()) == [] for lock in locks)


def test_a_model_without_normalisation_is_locked_behind_its_first_convolution():
    model = wrapped(FedKL(key=8), "lenet")
    assert isinstance(model[0], nn.Sequential)
    assert [type(m) for m in model[0]] == [nn.Conv2d, KeyLock]
    assert sum(isinstance(m, KeyLock) for m in model.modules()) == 1


def test_a_model_with_neither_is_refused():
    with pytest.raises(CapabilityError, match="fedkl"):
        FedKL().wrap_model(build("mlp"))


@pytest.mark.parametrize("spec", ["lenet", "resnet10:width=4"])
def test_without_a_key_the_model_is_what_it_was(spec: str):
    plain, model = set_mode(build(spec), RoundConfig()), wrapped(FedKL(key=8), spec)
    torch.testing.assert_close(model(data().images), plain(data().images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 3])
def test_locks_are_uploaded_as_zeros(steps: int):
    defence = FedKL(key=8)
    sent = play(wrapped(defence), defence, steps=steps)
    assert len(locks_of(sent)) > 4
    assert not any(bool(t.any()) for t in locks_of(sent).values())
    assert bool(sent["conv1.weight"].any())


@pytest.mark.parametrize("steps", [1, 3])
def test_locks_are_trained_on_the_client(steps: int):
    defence = FedKL(key=8)
    model = wrapped(defence)
    play(model, defence, steps=steps)
    first = defence.state_dict()
    assert first["key"].shape == (8,)
    play(model, defence, steps=steps)
    second = defence.state_dict()
    assert torch.equal(first["key"], second["key"])
    changed = [name for name in locks_of(first) if not torch.equal(first[name], second[name])]
    assert changed


def test_one_step_trains_the_locks_by_their_own_gradient():
    defence = FedKL(key=8)
    model = wrapped(defence)
    play(model, defence)
    start = defence.state_dict()
    own = defence.own_model(model)
    loss = nn.functional.cross_entropy(own(data().images), data().labels)
    names = list(locks_of(start))
    slopes = torch.autograd.grad(loss, [own.get_parameter(name) for name in names])
    play(model, defence)
    for name, slope in zip(names, slopes, strict=True):
        torch.testing.assert_close(defence.state_dict()[name], start[name] - 0.1 * slope)


def test_the_global_model_never_sees_a_lock():
    defence = FedKL(key=8)
    model = wrapped(defence)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    play(model, defence)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    assert all(lock.key is None for lock in model.modules() if isinstance(lock, KeyLock))


def test_clients_have_keys_of_their_own_and_need_them():
    alice, bob = FedKL(key=8), FedKL(key=8)
    model = wrapped(alice)
    play(model, alice, seed=1)
    play(model, bob, seed=2)
    images = data().images
    outputs = [alice.own_model(model)(images), bob.own_model(model)(images), model(images)]
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert torch.equal(outputs[0], alice.own_model(model)(images))


def test_scales_and_shifts_are_those_of_the_key():
    lock = KeyLock(nn.BatchNorm2d(3, affine=False), 3, 5).eval()
    lock.key = torch.rand(5)
    x = torch.randn(2, 3, 4, 4)
    gamma, beta = lock.scale(lock.key).relu().view(1, 3, 1, 1), lock.shift(lock.key).relu().view(1, 3, 1, 1)
    torch.testing.assert_close(lock(x), gamma * lock.norm(x) + beta)


def test_state_is_saved_and_foreign_state_refused():
    defence = FedKL(key=8)
    model = wrapped(defence)
    play(model, defence)
    twin = FedKL(key=8)
    twin.load_state_dict(defence.state_dict())
    assert torch.equal(twin.own_model(model)(data().images), defence.own_model(model)(data().images))
    with pytest.raises(UsageError, match="key of length 9"):
        FedKL(key=9).load_state_dict(defence.state_dict())
    assert "lock parameters" in defence.report().remarks[0]


def test_a_key_of_length_zero_locks_nothing():
    model = build("lenet")
    assert FedKL(key=0).wrap_model(model) is model
    sent, plain = play(model, FedKL(key=0)), play(model, Defence())
    assert all(torch.equal(sent[name], plain[name]) for name in plain)
    with pytest.raises(UsageError, match="fedkl"):
        FedKL(key=-1)
