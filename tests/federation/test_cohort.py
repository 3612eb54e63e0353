"""A round is played in one place: order of the hooks, who hears whom, what counts, and nothing of it forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from fedseal.core.batch import Batch, joined
from fedseal.core.defence import Defence, RoundContext
from fedseal.core.errors import InputError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.federation.client import RoundConfig, plain_update
from fedseal.federation.cohort import Client, Cohort, Held, held_by
from fedseal.federation.cohort.traffic import dense_bytes, message_bytes

SHAPE = (1, 6, 6)


@dataclass(frozen=True)
class Seeded:
    seed: int = 0

    def prepare(self, client: int) -> torch.Generator:
        return generator(self.seed, "prepare", client)

    def round(self, client: int, number: int) -> torch.Generator:
        return generator(self.seed, "round", client, number)

    def turns(self, number: int) -> torch.Generator:
        return generator(self.seed, "turns", number)


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 4))


def batch(seed: int, size: int = 2) -> Batch:
    source = generator(seed, "images")
    return Batch(torch.rand(size, *SHAPE, generator=source), torch.randint(4, (size,), generator=source))


def cohort(defence: Defence, count: int = 3, **options: Any) -> Cohort:
    clients = [held_by(f"client-{index}", [batch(index)], RoundConfig(), defence.name) for index in range(count)]
    return Cohort(clients, defence, Seeded(), **options)


LOG: list[str] = []


class Telling(Defence):
    """Writes down which hook is called, of whom; the first of a round speaks for all."""

    def __init__(self) -> None:
        self.client = ""
        self.heard: list[int] = []

    def prepare(self, dataset: Batch, generator: torch.Generator) -> Batch:
        LOG.append("prepare")
        return Batch(1 - dataset.images, dataset.labels)

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        LOG.append(f"on_batch {context.client}")
        return batch

    def on_gradient(self, gradient: Tensors, context: RoundContext) -> Tensors:
        LOG.append(f"on_gradient {context.client}")
        return gradient

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        LOG.append(f"on_update {context.client}")
        self.client = context.client
        return update

    def broadcast(self) -> Tensors | None:
        LOG.append(f"broadcast {self.client}")
        return None if self.heard else {"mask": torch.ones(40)}

    def receive(self, message: Tensors, round_number: int) -> None:
        self.heard.append(round_number)

    def server_view(self, update: Tensors) -> Tensors:
        LOG.append("server_view")
        return update

    def on_aggregate(self, update: Tensors) -> Tensors:
        LOG.append("on_aggregate")
        return update


def test_every_hook_is_called_in_the_order_of_the_contract() -> None:
    LOG.clear()
    done = cohort(Telling()).play([net()], 0, shown=(0, 1, 2))
    order = done.indices
    per_client = [
        [*(["prepare"] if place == 0 else []), f"on_batch client-{index}", f"on_gradient client-{index}"]
        + [f"on_update client-{index}", f"broadcast client-{index}"]
        + (["prepare", "prepare"] if place == 0 else [])  # they must be there to be told
        for place, index in enumerate(order)
    ]
    assert [entry for part in per_client for entry in part] + ["server_view", "on_aggregate"] == LOG


def test_data_are_prepared_once_and_whole_and_are_what_is_fed() -> None:
    LOG.clear()
    whole, small = batch(7, 6), [0, 3]
    client = Client("client-0", Held(whole), RoundConfig(), lambda data, number: [data.batch(torch.tensor(small))])
    played = Cohort([client], Telling(), Seeded())
    for number in range(3):
        (answer,) = played.play([net()], number, shown=(0,)).answers
        assert torch.equal(answer.fed[0].images, 1 - whole.images[small])
    assert LOG.count("prepare") == 1


def test_who_begins_is_drawn_anew_every_round_where_the_first_decides() -> None:
    first = [cohort(Telling(), 4).play([net()], number).indices[0] for number in range(30)]
    assert set(first) == {0, 1, 2, 3}
    assert cohort(Defence(), 4).play([net()], 0).indices == [0, 1, 2, 3]


def test_a_broadcast_costs_its_sender_bytes_up_and_everyone_else_bytes_down() -> None:
    played = cohort(Telling())
    done = played.play([net()], 0, shown=(0, 1, 2))
    size, sender = message_bytes({"mask": torch.ones(40)}), done.indices[0]
    assert done.told == {sender: size}
    assert done.heard == dict.fromkeys({0, 1, 2} - {sender}, size)
    assert done.bytes_up == sum(answer.bytes_up for answer in done.answers) + size
    for answer in done.answers:
        cost, mine = done.cost(answer), answer.assignment.index == sender
        assert cost.bytes_up == answer.bytes_up + (size if mine else 0)
        assert cost.bytes_down == (None if mine else dense_bytes(net()) + size)


def test_counters_in_a_broadcast_are_counted_as_they_are() -> None:
    plain = message_bytes({"m": torch.ones(5)})
    assert message_bytes({"m": torch.ones(5), "rounds": torch.tensor(3)}) == plain + 8
    assert message_bytes({"rounds": torch.tensor(3)}) == 8


def test_each_client_may_be_sent_a_model_of_its_own() -> None:
    models = [net(seed) for seed in range(3)]
    done = cohort(Defence()).play(models, 0, shown=(2, 0))
    for answer, index in zip(done.answers, (2, 0), strict=True):
        assert answer.update is not None
        expected = plain_update(models[index], [batch(index)], RoundConfig(), generator(0)).tensors
        assert all(torch.equal(answer.update.tensors[name], tensor) for name, tensor in expected.items())
    with pytest.raises(InputError, match="2 models cannot be sent to 3 clients"):
        cohort(Defence()).play(models[:2], 0)


def test_only_those_who_are_asked_take_part_and_only_those_shown_are_looked_at() -> None:
    done = cohort(Defence(), 5).play([net()], 0, among=(4, 1, 2), shown=(1, 4))
    assert done.indices == [4, 1, 2]
    assert [answer.assignment.index for answer in done.answers] == [1, 4]
    single = {index: plain_update(net(), [batch(index)], RoundConfig(), generator(0)).tensors for index in range(5)}
    assert done.seen is not None
    assert done.aggregate is not None
    for name, tensor in done.seen.tensors.items():
        torch.testing.assert_close(tensor, (single[1][name] + single[4][name]) / 2)
        torch.testing.assert_close(done.aggregate.tensors[name], sum(single[i][name] for i in (4, 1, 2)) / 3)


class Poison(Defence):
    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return {n: t * float("nan") if context.client == "client-1" else t for n, t in update.items()}


def test_garbage_is_dropped_with_its_reason_or_raised_where_every_answer_matters() -> None:
    done = cohort(Poison()).play([net()], 0)
    assert done.indices == [0, 2]
    ((name, reason),) = done.dropped
    assert name == "client-1"
    assert "NaN" in reason
    with pytest.raises(InputError, match="NaN"):
        cohort(Poison(), strict=True).play([net()], 0)


def test_a_round_in_which_nobody_answers_has_no_aggregate() -> None:
    done = cohort(Defence()).play([net()], 0, among=())
    assert done.aggregate is None
    assert done.seen is None


class Shuffling(Defence):
    def prepare(self, dataset: Batch, generator: torch.Generator) -> Batch:
        return Batch(dataset.images.flip(-1), dataset.labels)


def test_given_batches_are_found_again_in_what_a_defence_made_of_the_whole_data() -> None:
    whole = batch(3, 8)
    own = [Batch(whole.images[part], whole.labels[part]) for part in ([5, 2], [0, 7])]
    client = held_by("client-0", own, RoundConfig(local_steps=2), "shuffling", dataset=whole)
    (answer,) = Cohort([client], Shuffling(), Seeded()).play([net()], 0, shown=(0,)).answers
    assert torch.equal(joined(answer.fed).images, whole.images[[5, 2, 0, 7]].flip(-1))
    foreign = held_by("client-0", [batch(4)], RoundConfig(), "shuffling", dataset=whole)
    with pytest.raises(InputError, match="2 of the 2 images given are not among it"):
        Cohort([foreign], Shuffling(), Seeded(), strict=True).play([net()], 0)


def test_half_precision_is_averaged_in_single() -> None:
    many = cohort(Defence(), 40).play([net().half()], 0)
    exact = cohort(Defence(), 40).play([net().half().float()], 0)
    assert many.aggregate is not None
    assert exact.aggregate is not None
    for name, tensor in many.aggregate.tensors.items():
        assert tensor.dtype == torch.float16
        largest = exact.aggregate.tensors[name].abs().max()
        assert float((tensor.float() - exact.aggregate.tensors[name]).abs().max() / largest) < 2e-3
