"""The server plays clients itself, and what it plays is what clients do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.defence import Defence, RoundShape
from fedseal.core.errors import InputError
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round, set_mode
from fedseal.federation.rehearsal import Rehearsal
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)


def net(spec: str = "lenet-relu") -> nn.Module:
    return build_model(spec, input_shape=SHAPE, num_classes=4, seed=3)


def batches(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = generator(1, "rehearsal-test")
    return torch.rand(count, size, *SHAPE, generator=source), torch.randint(4, (count, size), generator=source)


def rehearse(rehearsal: Rehearsal, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, seed: int = 0):
    chunks = list(rehearsal(model, images, labels, seed))
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}


@pytest.mark.parametrize("spec", ["lenet-relu", "vit-tiny:depth=1", "convbn:width=4"])
@pytest.mark.parametrize(("defence", "steps"), [("none", 1), ("none", 3), ("topk:ratio=0.7", 1), ("topk:ratio=0.7", 2)])
def test_rehearsed_updates_are_those_of_clients(spec: str, defence: str, steps: int):
    config = RoundConfig(local_steps=steps, normalisation=Normalisation((0.4,), (0.3,)))
    model = set_mode(net(spec), config)
    images, labels = batches(3, 2 * steps)
    played = rehearse(
        Rehearsal(config, RoundShape(2, steps), lambda: build_defence(defence), defence), model, images, labels
    )
    for index in range(3):
        own = [Batch(*part) for part in zip(images[index].split(2), labels[index].split(2), strict=True)]
        real = client_round(model, own, config, build_defence(defence), generator(0)).update.tensors
        for name, value in real.items():
            torch.testing.assert_close(played[name][index], value, rtol=1e-3, atol=1e-5)


def test_random_defences_draw_anew_for_each_client_and_alike_for_each_seed():
    config = RoundConfig()
    rehearsal = Rehearsal(config, RoundShape(1), lambda: build_defence("gaussian:sigma=0.1"), "gaussian:sigma=0.1")
    images, labels = batches(1, 1)
    twice = images.expand(2, -1, -1, -1, -1), labels.expand(2, -1)
    one, same, other = (rehearse(rehearsal, net(), *twice, seed)["0.weight"] for seed in (5, 5, 6))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one[0], one[1])


def test_defences_that_look_at_batches_run_their_own_round():
    config = RoundConfig()
    images, labels = batches(2, 2)
    plain = rehearse(Rehearsal(config, RoundShape(2)), net(), images, labels)
    mixed = rehearse(Rehearsal(config, RoundShape(2), lambda: build_defence("dp-sgd"), "dp-sgd"), net(), images, labels)
    assert not torch.allclose(plain["0.weight"], mixed["0.weight"])


def test_an_aggregate_is_the_mean_of_its_clients():
    config = RoundConfig()
    images, labels = batches(1, 3)
    together = rehearse(Rehearsal(config, RoundShape(1, 1, 3)), net(), images, labels)
    alone = rehearse(Rehearsal(config, RoundShape(1)), net(), images[0][:, None], labels[0][:, None])
    for name, value in together.items():
        torch.testing.assert_close(value[0], alone[name].mean(0))


def test_the_model_is_not_touched_and_modes_are_the_clients():
    config = RoundConfig(bn_mode="train-nostats")
    model = set_mode(net("convbn:width=4"), config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rehearse(Rehearsal(config, RoundShape(2)), model, *batches(2, 2))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


def test_a_state_of_one_rehearsed_client_never_meets_another():
    class Counting(Defence):
        def __init__(self) -> None:
            self.rounds = 0

        def on_update(self, update, context):
            self.rounds += 1
            return {name: value * self.rounds for name, value in update.items()}

    images, labels = batches(1, 1)
    many = rehearse(
        Rehearsal(RoundConfig(), RoundShape(1), Counting, "counting"),
        net(),
        images.expand(4, -1, -1, -1, -1),
        labels.expand(4, -1),
    )
    assert torch.equal(many["0.weight"][0], many["0.weight"][3])


def test_who_does_not_know_the_defence_rehearses_without_it():
    aware = Rehearsal(RoundConfig(), RoundShape(1), lambda: build_defence("topk:ratio=0.9"), "topk:ratio=0.9")
    assert aware.plain().identity != aware.identity
    assert "topk" in aware.describe()
    assert "no defence" in aware.plain().describe()


def test_a_batch_without_its_own_dimension_is_refused():
    with pytest.raises(InputError, match=r"\[N, B, C, H, W\]"):
        list(Rehearsal(RoundConfig(), RoundShape(1))(net(), torch.rand(2, *SHAPE), torch.zeros(2), 0))
