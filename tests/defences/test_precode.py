"""PRECODE: the divergence, where it is inserted, when it is stochastic, and how it is passed by."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.defences.precode import Bottleneck, BottleneckedClassifier, Precode, called_modules, divergence_bits
from fedseal.federation.client import RoundConfig, client_round, set_mode
from fedseal.models.registry import build_model
from fedseal.models.structure import output_layer

SHAPE = (1, 12, 12)


def data(count: int = 3, seed: int = 0) -> Batch:
    source = generator(seed, "images")
    return Batch(torch.rand(count, *SHAPE, generator=source), torch.randint(4, (count,), generator=source))


def wrapped(defence: Defence, spec: str = "lenet", config: RoundConfig | None = None) -> nn.Module:
    model = build_model(spec, input_shape=SHAPE, num_classes=4, seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return set_mode(defence.wrap_model(model), config or RoundConfig())


def test_the_divergence_is_that_of_torch_in_bits():
    mu, sigma = torch.randn(7, 5, generator=generator(0)), torch.rand(7, 5, generator=generator(1)) + 0.1
    normal, prior = torch.distributions.Normal(mu, sigma), torch.distributions.Normal(0.0, 1.0)
    expected = torch.distributions.kl_divergence(normal, prior).sum(1).mean() / math.log(2)
    torch.testing.assert_close(divergence_bits(mu, sigma), expected)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("lenet", "7"),
        ("mlp:width=20", "5"),
        ("resnet10:width=4", "fc"),
        ("convnet:width=4", "27"),
        ("vit-tiny:width=12,depth=1", "head"),
    ],
)
def test_it_is_inserted_before_the_classifier(spec: str, name: str):
    model = wrapped(Precode(k=6), spec)
    place = model.get_submodule(name)
    assert isinstance(place, BottleneckedClassifier)
    last = output_layer(model, data(2).images, 4)
    assert last is not None
    assert last.module is place.classifier


def test_order_of_calls_beats_order_of_registration():
    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(9, 4), nn.Linear(144, 9)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.body(x.flatten(1)).relu())
            return out

    assert called_modules(Reversed()) == ["body", "head"]
    assert isinstance(Precode(k=3).wrap_model(Reversed()).head, BottleneckedClassifier)


def test_a_model_that_cannot_be_traced_is_taken_in_its_own_order():
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(144, 9), nn.Linear(9, 4)

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.body(x.flatten(1))
            if bool(hidden.sum() > 0):
                hidden = hidden + 1
            out: Tensor = self.head(hidden)
            return out

    assert isinstance(Precode(k=3).wrap_model(Branching()).head, BottleneckedClassifier)


def test_a_bare_linear_model_is_wrapped_as_a_whole():
    assert isinstance(Precode(k=3).wrap_model(nn.Linear(5, 2)), BottleneckedClassifier)


def test_a_model_without_a_linear_end_is_refused():
    with pytest.raises(CapabilityError, match="Conv2d"):
        Precode().wrap_model(nn.Sequential(nn.Linear(12, 12), nn.Conv2d(1, 4, 12), nn.Flatten()))


def test_it_adds_three_d_k_weights_and_says_so():
    defence = Precode(k=256)
    model = wrapped(defence, "mlp:width=1024,depth=1")
    result = client_round(model, [data()], RoundConfig(), defence, generator(0))
    added = 3 * 1024 * 256 + 2 * 256 + 1024
    assert result.cost.remarks == (f"precode adds {added:,} parameters to the model",)
    plain = build_model("mlp:width=1024,depth=1", input_shape=SHAPE, num_classes=4, seed=0)
    assert sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in plain.parameters()) == added


def test_two_passes_differ_in_training_only():
    model, images = wrapped(Precode(k=6)), data().images
    model.train()
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


def test_prediction_can_be_stochastic_as_in_the_reference():
    model, images = wrapped(Precode(k=6, deterministic_eval=False)), data().images
    with torch.no_grad():
        assert not torch.equal(model(images), model(images))
    assert torch.equal(model(images), model(images))  # under gradients: an attacker's copy


@pytest.mark.parametrize("train_mode", [False, True])
def test_a_clients_step_is_stochastic_whatever_its_mode(train_mode: bool):
    config = RoundConfig(train_mode=train_mode)
    model = wrapped(Precode(k=6), config=config)
    uploads = [
        client_round(model, [data()], config, Precode(k=6), generator(seed)).update.tensors for seed in (1, 1, 2)
    ]
    for name in uploads[0]:
        assert torch.equal(uploads[0][name], uploads[1][name])
    assert not torch.equal(uploads[0]["0.weight"], uploads[2]["0.weight"])


def test_the_loss_holds_beta_times_the_divergence_once():
    defence = Precode(k=6, beta=0.5)
    model = wrapped(defence)
    model(data().images)
    bottleneck = next(m for m in model.modules() if isinstance(m, Bottleneck))
    h = model[:7](data().images)
    mu, raw = bottleneck.encoder(h).chunk(2, -1)
    expected = 0.5 * divergence_bits(mu, nn.functional.softplus(raw))
    term = defence.extra_loss(model)
    assert term is not None
    torch.testing.assert_close(term, expected)
    assert defence.extra_loss(model) is None


def test_beta_changes_the_encoders_gradient():
    model = wrapped(Precode(k=6))
    weak, strong = (
        client_round(model, [data()], RoundConfig(), Precode(k=6, beta=beta), generator(0)).update.tensors
        for beta in (0.0, 1.0)
    )
    assert not torch.equal(weak["7.bottleneck.encoder.weight"], strong["7.bottleneck.encoder.weight"])
    assert torch.equal(weak["7.classifier.weight"], strong["7.classifier.weight"])


def test_a_used_model_can_be_copied_and_the_copy_is_nobodys():
    model = wrapped(Precode(k=6))
    bottleneck = next(m for m in model.modules() if isinstance(m, Bottleneck))
    bottleneck.draw_from(generator(0))
    model(data().images)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(data().images), twin(data().images))


def test_width_zero_inserts_nothing():
    model = build_model("lenet", input_shape=SHAPE, num_classes=4, seed=0)
    assert Precode(k=0).wrap_model(model) is model
    assert Precode(k=0).extra_loss(model) is None


def test_the_layers_before_it_stay_open():
    defence = Precode()
    model = wrapped(defence, "mlp:width=64")
    batch = data(1)
    done = client_round(model, [batch], RoundConfig(), defence, generator(0))
    known = Knowledge(SHAPE, 4, label_rule="true", batch_size=1, labels=batch.labels, local_steps=1)
    found = ATTACKS.build("first-layer").run_many([Observation(model, done.update, known)], Budget(), [0])[0]
    assert float((found.images - batch.images).abs().max()) < 1e-4


def test_matching_attacks_run_on_it_with_several_lanes():
    defence = Precode(k=6, deterministic_eval=False)
    model, batch = wrapped(defence), data(1)
    done = client_round(model, [batch], RoundConfig(), defence, generator(0))
    known = Knowledge(
        SHAPE, 4, label_rule="true", batch_size=1, labels=batch.labels, local_steps=1, defence=defence.attacker_view()
    )
    found = ATTACKS.build("ig").run_many([Observation(model, done.update, known)], Budget(3, 2), [0])[0]
    assert bool(torch.isfinite(found.images).all())


@pytest.mark.parametrize("option", ["k=-1", "beta=-1", "beta=nan"])
def test_nonsense_is_refused(option: str):
    with pytest.raises(UsageError, match="precode"):
        build_defence(f"precode:{option}")
