"""What a server sees of sums: means of clients, what is sent in clear, and noise that cancels."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.batch import Batch
from fedseal.core.defence import Defence, RoundContext, RoundShape
from fedseal.core.errors import InputError, UsageError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, flatten
from fedseal.defences.aggregation import CancellingNoise, SecureAggregation, SelectiveEncryption
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.federation.server import mean_update
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)


def no_loss(model: object, batch: object) -> Tensor:
    raise AssertionError("these defences need no loss")


def context(client: str = "client-0", seed: int | None = 0, number: int = 0) -> RoundContext:
    return RoundContext(nn.Linear(1, 1), no_loss, generator(seed), number, client=client)


def update_of(seed: int = 0, scale: float = 1.0) -> dict[str, Tensor]:
    source = generator(seed, "update")
    return {
        "weight": scale * torch.randn(40, 30, generator=source),
        "bias": scale * 1e-3 * torch.randn(40, generator=source),
        "dead": torch.zeros(25),
    }


def cosine(one: Tensors, other: Tensors) -> float:
    return float(torch.cosine_similarity(flatten(one).double(), flatten(other).double(), dim=0))


def scenario(*defences: str, **changes: object) -> Scenario:
    return Scenario.model_validate(
        {
            "data": "digits",
            "model": "lenet",
            "targets": 2,
            "client": {"batch_size": 2, **changes},
            "attacks": ["dlg"],
            "defences": list(defences),
        }
    )


# secure aggregation


@pytest.mark.parametrize(("had", "asked", "seen"), [(1, 3, 3), (5, 3, 5), (4, 1, 4), (1, 1, 1)])
def test_secagg_is_a_lower_bound_on_the_clients_of_a_sum(had: int, asked: int, seen: int):
    shape = SecureAggregation(asked).reshape(RoundShape(7, 2, had))
    assert shape == RoundShape(7, 2, seen)


def test_the_server_sees_the_mean_of_what_the_clients_would_have_sent():
    setup = build_setup(scenario("secagg:clients=3"))
    target = setup.observe(build_defence("secagg:clients=3"), 0)
    assert target.observation.knowledge.clients == 3
    assert len(target.originals) == 6
    parts = torch.split(target.originals.images, 2), torch.split(target.originals.labels, 2)
    alone = [
        client_round(setup.model, [Batch(images, labels)], setup.config, Defence(), generator(0)).update
        for images, labels in zip(*parts, strict=True)
    ]
    expected = mean_update(alone).tensors
    for name, tensor in target.observation.update.tensors.items():
        torch.testing.assert_close(tensor, expected[name])


def test_secagg_says_what_it_leaves_out():
    remarks = " ".join(SecureAggregation().report().remarks)
    assert "32-bit" in remarks
    assert "8 bytes per parameter" in remarks
    assert SecureAggregation(1).report().remarks == ()


# selective encryption


@given(st.floats(0, 1), st.integers(0, 4))
def test_the_share_of_encrypted_entries_is_exact_even_among_ties(ratio: float, distinct: int):
    update = {"a": (torch.arange(60.0) % (distinct + 1)).view(6, 10), "b": torch.zeros(37)}
    seen = SelectiveEncryption(ratio).server_view(update)
    hidden = flatten({name: torch.signbit(t) & (t == 0) for name, t in seen.items()})
    assert int(hidden.sum()) == max(round(ratio * 97), int(ratio > 0))  # one at least


def test_the_largest_entries_are_hidden_and_the_others_untouched():
    update = update_of()
    seen = SelectiveEncryption(0.8).server_view(update)
    values, clear = flatten(update), flatten(seen)
    hidden = torch.signbit(clear) & (clear == 0)
    assert int(hidden.sum()) == round(0.8 * values.numel())
    assert float(values[~hidden].abs().max()) <= float(values[hidden].abs().min())
    assert torch.equal(clear[~hidden], values[~hidden])
    assert list(seen) == list(update)


def test_per_tensor_every_tensor_has_its_share():
    seen = SelectiveEncryption(0.5, per_tensor=True).server_view(update_of())
    counts = {name: int((torch.signbit(t) & (t == 0)).sum()) for name, t in seen.items()}
    assert counts == {"weight": 600, "bias": 20, "dead": 12}


def test_the_aware_attacker_matches_what_is_in_clear_zeros_included():
    update = {"w": torch.tensor([5.0, -4.0, 0.0, 1.0, -0.0])}
    defence = SelectiveEncryption(0.4)
    seen = defence.server_view(update)
    assert seen["w"].tolist() == [0, 0, 0, 1, 0]
    assert torch.signbit(seen["w"]).tolist() == [True, True, False, False, False]
    simulated = defence.attacker_view().simulate({"w": torch.full((5,), 7.0)}, seen)
    assert simulated["w"].tolist() == [0, 0, 7, 7, 7]


def test_one_common_set_comes_from_the_previous_aggregate_and_is_saved():
    defence = SelectiveEncryption(0.5, common=True)
    first, second = {"w": torch.tensor([4.0, 3.0, 2.0, 1.0])}, {"w": torch.tensor([1.0, 2.0, 3.0, 4.0])}
    assert defence.server_view(first)["w"].tolist() == [0, 0, 2, 1]
    assert defence.on_aggregate(first) is first
    assert defence.server_view(second)["w"].tolist() == [0, 0, 3, 4]
    restored = SelectiveEncryption(0.5, common=True)
    restored.load_state_dict(defence.state_dict())
    assert restored.server_view(second)["w"].tolist() == [0, 0, 3, 4]
    own = SelectiveEncryption(0.5)
    own.on_aggregate(first)
    assert own.state_dict() == {}
    assert own.server_view(second)["w"].tolist() == [1, 2, 0, 0]


def test_a_foreign_state_is_refused():
    with pytest.raises(InputError, match="keeps no state"):
        SelectiveEncryption().load_state_dict({"w": torch.ones(1, dtype=torch.bool)})
    with pytest.raises(InputError, match="booleans"):
        SelectiveEncryption(common=True).load_state_dict({"w": torch.ones(1)})


def test_selective_encryption_hides_in_an_audit():
    setup = build_setup(scenario("selective-encryption"))
    plain = setup.observe(Defence(), 0).observation.update.tensors
    seen = setup.observe(build_defence("selective-encryption"), 0).observation.update.tensors
    share = float((flatten(seen) != 0).double().mean())
    assert 0 < share <= 0.2 + 1e-3
    assert cosine(seen, plain) < 0.2


# cancelling noise


def pair_of(c: float, one: Tensors, other: Tensors, *, seed: int | None = 0) -> tuple[Tensors, Tensors]:
    first = CancellingNoise(c)
    second = copy.deepcopy(first)
    sent = first.on_update(one, context("client-3-0", seed))
    return sent, second.on_update(other, context("client-3-1", 99))


@pytest.mark.parametrize("c", [3.0, 10.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 2.0])
def test_one_upload_is_hidden_and_the_mean_is_not(c: float, scale: float):
    one, other = update_of(1), update_of(2, scale)
    sent = pair_of(c, one, other)
    assert abs(cosine(sent[0], one)) < 0.3
    assert abs(cosine(sent[1], other)) < 0.3
    for name in one:
        peak = max(float(one[name].abs().max()), 1e-3 * float(one["weight"].abs().max()))
        mean, expected = (sent[0][name] + sent[1][name]) / 2, (one[name] + other[name]) / 2
        assert float((mean - expected).abs().max()) <= 1e-5 * max(peak, float(other[name].abs().max()))


def test_dead_layers_are_hidden_too():
    sent = pair_of(3.0, update_of(1), update_of(2))
    assert bool((sent[0]["dead"] != 0).all())


def test_whole_rounds_of_a_real_network_cancel():
    model = build_model("lenet:init=wide-uniform", input_shape=SHAPE, num_classes=4, seed=0)
    source = generator(0, "images")
    batches = [
        Batch(torch.rand(2, *SHAPE, generator=source), torch.randint(4, (2,), generator=source)) for _ in range(4)
    ]
    plain = [client_round(model, [b], RoundConfig(), Defence(), generator(0)).update for b in batches]
    first = CancellingNoise(clients=4)
    members = [first] + [copy.deepcopy(first) for _ in range(3)]
    sent = [
        client_round(model, [b], RoundConfig(), member, generator(number), client=f"client-0-{number}").update
        for number, (b, member) in enumerate(zip(batches, members, strict=True))
    ]
    for mine, true in zip(sent, plain, strict=True):
        assert abs(cosine(mine.tensors, true.tensors)) < 0.3
    got, expected = flatten(mean_update(sent).tensors), flatten(mean_update(plain).tensors)
    assert float((got - expected).norm() / expected.norm()) < 1e-5


def test_an_audit_sees_the_clean_mean_or_one_noised_upload():
    specs = ("cancelling-noise", "cancelling-noise:view=client", "secagg:clients=2")
    setup = build_setup(scenario(*specs))
    both, lone, ideal = (setup.observe(build_defence(spec), 1, name=spec).observation for spec in specs)
    assert both.knowledge.clients == ideal.knowledge.clients == 2
    assert lone.knowledge.clients == 1
    assert cosine(both.update.tensors, ideal.update.tensors) == pytest.approx(1, abs=1e-6)
    assert abs(cosine(lone.update.tensors, setup.observe(Defence(), 1).observation.update.tensors)) < 0.3


@pytest.mark.parametrize(("had", "seen"), [(1, 2), (2, 2), (3, 4), (4, 4)])
def test_everyone_gets_a_partner(had: int, seen: int):
    assert CancellingNoise().reshape(RoundShape(clients=had)).clients == seen
    alone = CancellingNoise(view="client").reshape(RoundShape(clients=had)).clients
    assert alone == (1 if had == 1 else seen)
    assert CancellingNoise(c=0).reshape(RoundShape(clients=had)).clients == had


def test_noise_is_private_and_fresh():
    update = update_of()
    sent = [pair_of(3.0, update, update, seed=seed)[0]["weight"] for seed in (1, 1, 2, None, None)]
    assert torch.equal(sent[0], sent[1])
    assert len({tuple(s.reshape(-1)[:5].tolist()) for s in sent}) == 4
    defence = CancellingNoise()
    rounds = [defence.on_update(update, context(number=number, seed=number)) for number in range(2)]
    assert not torch.equal(rounds[0]["weight"], rounds[1]["weight"])


def test_noise_has_the_declared_deviation():
    update = {"w": torch.full((400, 400), 0.5)}
    noise = CancellingNoise(c=3.0).on_update(update, context())["w"] - 0.5
    assert float(noise.std()) == pytest.approx(1.5, rel=0.01)


def test_a_client_without_its_partner_is_told():
    with pytest.raises(InputError, match=r"client-0-1 has heard nothing.*even-numbered client"):
        CancellingNoise().on_update(update_of(), context("client-0-1"))
    first = CancellingNoise()
    second = copy.deepcopy(first)
    first.on_update(update_of(), context("client-0-0", number=0))
    with pytest.raises(InputError, match="round 1"):
        second.on_update(update_of(), context("client-0-1", number=1))
    first.on_update(update_of(), context("client-0-0"))
    second.on_update(update_of(), context("client-0-1"))
    with pytest.raises(InputError, match="heard nothing"):  # a letter is read once
        second.on_update(update_of(), context("client-0-1"))
    first.on_update(update_of(), context("client-0-0"))
    with pytest.raises(InputError, match="same tensors"):
        second.on_update({"w": torch.ones(2)}, context("client-0-1"))
    with pytest.raises(InputError, match="no number"):
        first.on_update(update_of(), context("alice"))


def test_pairs_do_not_disturb_each_other():
    first = CancellingNoise(clients=4)
    members = [copy.deepcopy(first) for _ in range(4)]
    updates = [update_of(seed) for seed in range(4)]
    sent: dict[int, Tensors] = {}
    for number in (0, 2, 3, 1):
        sent[number] = members[number].on_update(updates[number], context(f"c-{number}", seed=number))
    total = sum(sent[number]["weight"] for number in range(4))
    expected = sum(update["weight"] for update in updates)
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-4)


# all of them


@pytest.mark.parametrize("spec", ["secagg:clients=1", "selective-encryption:ratio=0", "cancelling-noise:c=0"])
def test_zero_strength_is_the_identity(spec: str):
    defence, update, shape = build_defence(spec), update_of(), RoundShape(3, 2, 1)
    assert defence.on_update(update, context()) is update
    assert defence.server_view(update) is update
    assert defence.reshape(shape) == shape
    assert defence.attacker_view().simulate(update, update) is update
    assert defence.report().remarks == ()


@pytest.mark.parametrize(
    "spec",
    [
        "secagg:clients=0",
        "selective-encryption:ratio=1.1",
        "selective-encryption:ratio=nan",
        "selective-encryption:ratio=-0.1",
        "cancelling-noise:clients=3",
        "cancelling-noise:clients=0",
        "cancelling-noise:c=-1",
        "cancelling-noise:c=inf",
        "cancelling-noise:c=nan",
    ],
)
def test_nonsense_is_refused(spec: str):
    with pytest.raises(UsageError, match=spec.split(":")[0]):
        build_defence(spec)


def test_everything_may_be_encrypted():
    seen = SelectiveEncryption(1.0).server_view(update_of())
    assert not bool(flatten(seen).any())
    assert math.isfinite(float(flatten(seen).sum()))
