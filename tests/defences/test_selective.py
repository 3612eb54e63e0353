"""Chosen layers are encrypted, frozen, pruned or noised; the others are sent as they are."""

from __future__ import annotations

import pytest
import torch

from fedseal.core.defence import RoundContext
from fedseal.core.errors import UsageError
from fedseal.defences.selective import Selective

UPDATE = {"conv.weight": torch.arange(1.0, 101.0), "conv.bias": torch.ones(4), "fc.weight": torch.full((5,), 2.0)}


@pytest.fixture
def context() -> RoundContext:
    def no_loss(model: object, batch: object) -> torch.Tensor:
        raise AssertionError("layers are chosen without a loss")

    return RoundContext(torch.nn.Linear(1, 1), no_loss, torch.Generator().manual_seed(0))


def test_the_server_reads_nothing_of_an_encrypted_layer_and_all_of_the_others(context: RoundContext):
    defence = Selective(encrypt="conv")
    seen = defence.server_view(defence.on_update(UPDATE, context))
    assert not seen["conv.weight"].any()
    assert torch.equal(seen["fc.weight"], UPDATE["fc.weight"])
    assert defence.protocol_bytes(UPDATE) == 104 * 92


def test_a_frozen_layer_is_not_sent(context: RoundContext):
    sent = Selective(freeze="fc").on_update(UPDATE, context)
    assert not sent["fc.weight"].any()
    assert torch.equal(sent["conv.weight"], UPDATE["conv.weight"])


def test_a_pruned_layer_keeps_its_largest_entries(context: RoundContext):
    sent = Selective(prune="conv", ratio=0.9).on_update(UPDATE, context)
    assert torch.nonzero(sent["conv.weight"]).flatten().tolist() == list(range(90, 100))


def test_noise_has_the_declared_size_where_it_is_declared(context: RoundContext):
    defence = Selective(noise="conv", sigma=3.0)
    left = defence.on_update(UPDATE, context)["conv.weight"] - UPDATE["conv.weight"]
    assert 2.2 < float(left.std()) < 3.9
    channel = defence.attacker_view().carried()
    assert channel.variance is not None
    stated = channel.variance(UPDATE, UPDATE)
    assert float(stated["conv.weight"].min()) == 9.0
    assert not stated["fc.weight"].any()


def test_all_layers_have_one_name_and_an_unknown_one_is_refused(context: RoundContext):
    everything = Selective(encrypt="*").server_view(UPDATE)
    assert not any(tensor.any() for tensor in everything.values())
    with pytest.raises(UsageError, match="no layer 'convv'"):
        Selective(encrypt="convv").on_update(UPDATE, context)


def test_without_layers_nothing_changes(context: RoundContext):
    defence = Selective()
    sent = defence.server_view(defence.on_update(UPDATE, context))
    assert all(torch.equal(sent[name], UPDATE[name]) for name in UPDATE)
