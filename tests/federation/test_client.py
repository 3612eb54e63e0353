"""A client's round: its update against plain autograd and plain SGD, and what else it reports."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.defence import Defence, RoundContext
from fedseal.core.errors import InputError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, flatten
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import (
    ClientRound,
    RoundConfig,
    client_round,
    plain_update,
    record_bn_statistics,
    sample_gradients,
    set_mode,
    train,
)
from fedseal.federation.loss import cross_entropy_loss
from fedseal.federation.wire import encode
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)
NORMALISATION = Normalisation((0.3,), (0.7,))


def model_of(spec: str = "lenet") -> nn.Module:
    return build_model(spec, input_shape=SHAPE, num_classes=4, seed=0).double()


def batch_of(size: int = 3, seed: int = 0) -> Batch:
    source = generator(seed, "images")
    images = torch.rand(size, *SHAPE, generator=source, dtype=torch.float64)
    return Batch(images, torch.randint(4, (size,), generator=source))


def batches_of(count: int, size: int = 3) -> list[Batch]:
    return [batch_of(size, seed) for seed in range(count)]


def round_of(
    model: nn.Module, batches: list[Batch], config: RoundConfig, defence: Defence | None = None, seed: int = 0
) -> ClientRound:
    return client_round(model, batches, config, defence or Defence(), generator(seed, "test"))


def assert_close(actual: Tensors, expected: Tensors) -> None:
    assert list(actual) == list(expected)
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("normalisation", [Normalisation(), NORMALISATION])
def test_one_step_uploads_the_gradient(reduction, normalisation: Normalisation):
    model, batch = model_of(), batch_of()
    loss = F.cross_entropy(
        model((batch.images - normalisation.mean[0]) / normalisation.std[0]), batch.labels, reduction=reduction
    )
    values = torch.autograd.grad(loss, list(model.parameters()))
    config = RoundConfig(loss_reduction=reduction, normalisation=normalisation)
    result = round_of(model, [batch], config)
    assert result.update.kind == "gradient"
    assert_close(result.update.tensors, dict(zip(dict(model.named_parameters()), values, strict=True)))


@pytest.mark.parametrize("steps", [2, 5])
def test_more_steps_upload_the_change_of_plain_sgd(steps: int):
    model, batches = model_of(), batches_of(steps)
    local = copy.deepcopy(model)
    optimiser = torch.optim.SGD(local.parameters(), lr=0.3)
    for batch in batches:
        optimiser.zero_grad()
        F.cross_entropy(local(batch.images), batch.labels).backward()
        optimiser.step()
    before = dict(model.named_parameters())
    expected = {name: (p - before[name]).detach() for name, p in local.named_parameters()}
    result = round_of(model, batches, RoundConfig(local_steps=steps, learning_rate=0.3))
    assert result.update.kind == "delta"
    assert_close(result.update.tensors, expected)


def test_momentum_is_that_of_plain_sgd():
    model, batches = model_of("mlp:width=8"), batches_of(4)
    local = copy.deepcopy(model)
    optimiser = torch.optim.SGD(local.parameters(), lr=0.3, momentum=0.9)
    for batch in batches:
        optimiser.zero_grad()
        F.cross_entropy(local(batch.images), batch.labels).backward()
        optimiser.step()
    before = dict(model.named_parameters())
    expected = {name: (p - before[name]).detach() for name, p in local.named_parameters()}
    result = round_of(model, batches, RoundConfig(local_steps=4, learning_rate=0.3, momentum=0.9))
    assert_close(result.update.tensors, expected)


def test_one_step_may_upload_its_weight_change():
    model, batch = model_of("mlp:width=8"), batch_of()
    gradient = round_of(model, [batch], RoundConfig(learning_rate=0.3)).update
    change = round_of(model, [batch], RoundConfig(learning_rate=0.3, upload="delta")).update
    assert (gradient.kind, change.kind) == ("gradient", "delta")
    assert_close(change.tensors, {name: -0.3 * value for name, value in gradient.tensors.items()})
    with pytest.raises(InputError, match="3 local steps have no one gradient"):
        RoundConfig(local_steps=3, upload="gradient")


def test_a_workspace_is_overwritten_by_the_model_and_shares_nothing_with_the_update():
    model, batches, config = model_of("mlp:width=8"), batches_of(2), RoundConfig(local_steps=2)
    workspace = model_of("mlp:width=8")
    first = train(model, batches, config, Defence(), generator(0), workspace=workspace).update.tensors
    kept = {name: value.clone() for name, value in first.items()}
    again = train(model, batches, config, Defence(), generator(0), workspace=workspace).update.tensors
    assert_close(again, round_of(model, batches, config).update.tensors)
    assert_close(first, kept)


def test_a_weight_change_points_downhill_and_a_gradient_uphill():
    model, batch = model_of("mlp:width=8"), batch_of()
    gradient = round_of(model, [batch], RoundConfig()).update.tensors
    delta = round_of(model, [batch, batch], RoundConfig(local_steps=2, learning_rate=1e-3)).update.tensors
    cosine = F.cosine_similarity(flatten(gradient), flatten(delta), dim=0)
    assert float(cosine) < -0.99
    assert float(flatten(delta).norm()) == pytest.approx(2e-3 * float(flatten(gradient).norm()), rel=0.01)


def test_the_global_model_is_not_changed():
    model = set_mode(model_of("convnet:width=2"), RoundConfig(bn_mode="train-nostats"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    round_of(model, batches_of(2), RoundConfig(local_steps=2, bn_mode="train-nostats"))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_frozen_parameters_are_not_uploaded_and_unused_ones_are_zero():
    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.frozen = (nn.Linear(144, 4).double() for _ in range(3))
            self.frozen.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.used(x.flatten(1)) + self.frozen(x.flatten(1))
            return output

    update = round_of(Partial(), [batch_of()], RoundConfig()).update.tensors
    assert list(update) == ["used.weight", "used.bias", "unused.weight", "unused.bias"]
    assert not bool(update["unused.weight"].any())
    assert bool(update["used.weight"].any())


def test_as_many_batches_as_steps():
    with pytest.raises(InputError, match="3 local steps need as many batches, got 2"):
        round_of(model_of(), batches_of(2), RoundConfig(local_steps=3))


@pytest.mark.parametrize("spec", ["lenet", "mlp:width=8"])
def test_the_mean_of_sample_gradients_is_the_batch_gradient(spec: str):
    model, batch = model_of(spec), batch_of(5)
    samples = sample_gradients(model, batch, cross_entropy_loss(NORMALISATION, "mean"))
    assert {len(values) for values in samples.values()} == {5}
    gradient = round_of(model, [batch], RoundConfig(normalisation=NORMALISATION)).update.tensors
    assert_close({name: values.mean(0) for name, values in samples.items()}, gradient)


class Reducing(Defence):
    """Averages per-sample gradients as the client would."""

    needs_sample_grads = True


def test_a_defence_that_reduces_sample_gradients_gets_them():
    model, batch = model_of(), batch_of()
    plain = round_of(model, [batch], RoundConfig()).update.tensors
    assert_close(round_of(model, [batch], RoundConfig(), Reducing()).update.tensors, plain)


def test_batch_normalisation_statistics_are_those_of_the_batch():
    model, batch = build_model("convnet:width=2", input_shape=(1, 28, 28), num_classes=4, seed=0).double(), None
    batch = Batch(torch.rand(3, 1, 28, 28, dtype=torch.float64), torch.tensor([0, 1, 2]))
    result = round_of(model, [batch], RoundConfig(bn_mode="train-exact-stats"))
    first = model[0](batch.images)
    mean, variance = result.bn_statistics["1"]
    torch.testing.assert_close(mean, first.mean((0, 2, 3)), rtol=0, atol=1e-12)
    torch.testing.assert_close(variance, ((first - mean.view(1, -1, 1, 1)) ** 2).mean((0, 2, 3)), rtol=0, atol=1e-12)
    assert len(result.bn_statistics) == 8
    assert round_of(model, [batch], RoundConfig(bn_mode="eval")).bn_statistics == {}


def test_recording_statistics_leaves_no_hooks():
    model = model_of("convnet:width=2").train()
    with record_bn_statistics(model) as recorded:
        model(batch_of().images)
    assert len(recorded) == 8
    assert all(not module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("mode", ["eval", "train-nostats", "train-exact-stats"])
@pytest.mark.parametrize("train", [False, True])
def test_modes_of_batch_normalisation_and_the_rest_are_set_apart(mode, train: bool):
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(), nn.Sequential(nn.BatchNorm2d(1)))
    set_mode(model, RoundConfig(bn_mode=mode, train_mode=train))
    assert model[0].training == model[2][0].training == (mode != "eval")
    assert model[1].training == train


def test_dropout_repeats_by_seed_and_differs_between_steps():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 4)).double()
    batch, config = batch_of(), RoundConfig(train_mode=True)
    before = torch.get_rng_state()
    one, same, other = (round_of(model, [batch], config, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert_close(one.update.tensors, same.update.tensors)
    assert not torch.equal(one.update.tensors["2.weight"], other.update.tensors["2.weight"])
    plain = plain_update(model, [batch], config, generator(1, "test"))
    assert_close(one.update.tensors, plain.tensors)  # the round it is compared with drops the same units
    seen: list[Tensor] = []
    model[1].register_forward_hook(lambda module, inputs, output: seen.append(output == 0))
    round_of(model, [batch, batch], RoundConfig(local_steps=2, train_mode=True))
    assert not torch.equal(seen[0], seen[1])


def test_sample_gradients_go_through_dropout():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 4)).double()
    result = round_of(model, [batch_of()], RoundConfig(train_mode=True), Reducing())
    assert bool(result.update.tensors["2.weight"].any())


@pytest.mark.parametrize("spec", ["none", "topk:ratio=0.9", "gaussian:sigma=0.01", "gaussian:sigma=0.01+topk"])
def test_the_cost_report_is_filled(spec: str):
    result = round_of(model_of(), [batch_of()], RoundConfig(), build_defence(spec))
    cost, update = result.cost, flatten(result.update.tensors)
    assert cost.bytes_up == len(encode(result.update.tensors))
    assert cost.density == pytest.approx(float((update != 0).double().mean()))
    assert cost.gradient_distance is None  # nobody trained twice to know it
    assert 0 <= cost.seconds < 1
    assert cost.state_bytes == 0
    assert (cost.epsilon_nominal is not None) == ("gaussian" in spec)


def test_pruning_saves_bytes():
    plain, pruned = (
        round_of(model_of(), [batch_of()], RoundConfig(), build_defence(spec)).cost.bytes_up
        for spec in ("none", "topk:ratio=0.9")
    )
    assert plain is not None
    assert pruned is not None
    assert pruned < plain / 4


@pytest.mark.parametrize("spec", ["none", "gaussian:sigma=0.01", "topk"])
def test_a_gradient_that_is_not_finite_is_refused_by_name_before_a_defence_spreads_it(spec: str):
    class Poisoned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(144, 3).double(), nn.Linear(3, 4).double()
            nn.init.constant_(self.first.bias, -10)  # below zero for every image, whatever the weights

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x.flatten(1)).sqrt().nan_to_num()  # the root's slope is NaN where it is
            output: Tensor = self.second(hidden)
            return output

    with pytest.raises(InputError, match=r"client gradient: tensor 'first\.weight' holds"):
        round_of(Poisoned(), [batch_of()], RoundConfig(), build_defence(spec))


def test_a_defence_that_makes_nan_is_refused():
    class Dividing(Defence):
        def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
            return {name: tensor / 0 for name, tensor in update.items()}

    with pytest.raises(InputError, match=r"client update: tensor '0\.weight' holds"):
        round_of(model_of(), [batch_of()], RoundConfig(), Dividing())


class Recorder(Defence):
    """Writes down which hooks are called, in order, and what they are told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        self.calls.append(("on_batch", context.step))
        return Batch(1 - batch.images, batch.labels)

    def on_gradient(self, gradient: Tensors, context: RoundContext) -> Tensors:
        self.calls.append(("on_gradient", context.step))
        return gradient

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        self.calls.append(("on_update", context.round))
        assert context.client == "alice"
        return update


def test_hooks_are_called_in_the_order_of_the_contract():
    defence, batches = Recorder(), batches_of(2)
    config = RoundConfig(local_steps=2)
    result = client_round(model_of(), batches, config, defence, generator(0), round_number=7, client="alice")
    assert defence.calls == [
        ("on_batch", 0),
        ("on_gradient", 0),
        ("on_batch", 1),
        ("on_gradient", 1),
        ("on_update", 7),
    ]
    assert torch.equal(result.fed[1].images, 1 - batches[1].images)
