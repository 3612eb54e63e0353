"""The matching family end to end: undefended attacks succeed, and what cannot work is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedseal.attacks.matching.groups import best_shifts, consensus_of
from fedseal.attacks.matching.priors import bn_distance, total_variation
from fedseal.attacks.matching.surroundings import median_filter
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Normalisation
from fedseal.core.defence import Defence
from fedseal.core.errors import CapabilityError, InputError, TrialError, UsageError
from fedseal.core.observation import Observation, Update
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, record_bn_statistics
from fedseal.metrics.image import psnr
from fedseal.metrics.matching import hungarian
from fedseal.models.registry import build_model


def quality(images: torch.Tensor, truth: torch.Tensor) -> float:
    order = hungarian(truth.float(), images.float())
    return float(psnr(truth.float(), images.float()[order], data_range=1.0).mean())


@pytest.mark.slow
def test_idlg_recovers_every_toy_seed_in_double_precision(toy_net: Callable, observe: Callable) -> None:
    for seed in range(5):
        observation, truth = observe(toy_net(seed), seed=seed, dtype=torch.float64, labels="idlg")
        found = ATTACKS.build("idlg:iterations=400").run(observation, seed=seed)
        assert int(found.labels) == int(truth.labels)
        assert float((found.images - truth.images).square().mean()) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "least"),
    [
        ("dlg:iterations=300", 25),
        ("ig:iterations=500,tv=0.001", 22),
        ("sapag:iterations=600", 15),
        ("gradinversion:iterations=400,restarts=2,match=1", 18),
        ("gradinversion:iterations=300,restarts=2,match=1,group=registration", 17),
        ("bayes:iterations=500,tv=0.1", 18),
        ("fedleak:iterations=400,lr=0.03,blend=0.3", 14),
        ("fedleak-artifact:iterations=120,channels=16", 11),
    ],
)
def test_every_attack_succeeds_undefended(spec: str, least: float, toy_net: Callable, observe: Callable) -> None:
    observation, truth = observe(toy_net(0), labels="identity")
    found = ATTACKS.build(spec).run(observation)
    chance = quality(truth.images.mean((2, 3), keepdim=True).expand_as(truth.images), truth.images)
    assert quality(found.images, truth.images) > max(least, chance - 3)
    assert found.trace[-1][1] < found.trace[0][1]
    assert float(found.images.min()) >= 0
    assert float(found.images.max()) <= 1


def test_targets_and_restarts_run_together_as_they_would_alone(toy_net: Callable, observe: Callable) -> None:
    model = toy_net(0)
    seen = [observe(model, seed=seed, dtype=torch.float64) for seed in range(3)]
    attack = ATTACKS.build("ig:iterations=60,tv=0.001,restarts=2")
    together = attack.run_many([observation for observation, _ in seen], Budget(), [5, 6, 7])
    for (observation, _), seed, result in zip(seen, (5, 6, 7), together, strict=True):
        alone = attack.run(observation, seed=seed)
        assert torch.allclose(alone.images, result.images, atol=1e-6)
        assert alone.objective == pytest.approx(result.objective, rel=1e-6)


def test_the_best_restart_has_the_least_objective(toy_net: Callable, observe: Callable) -> None:
    observation, _ = observe(toy_net(0))
    single = [ATTACKS.build("idlg:iterations=30").run(observation, seed=0).objective]
    many = ATTACKS.build("idlg:iterations=30,restarts=4").run(observation, seed=0).objective
    assert many <= single[0] * 1.001


def test_a_batch_with_inferred_labels(toy_net: Callable, observe: Callable) -> None:
    observation, truth = observe(toy_net(1), batch_size=2, labels="identity", dtype=torch.float64)
    found = ATTACKS.build("idlg:iterations=600,restarts=2").run(observation)
    assert sorted(found.labels.tolist()) == sorted(truth.labels.tolist())
    assert quality(found.images, truth.images) > 25


def test_joint_labels_start_from_the_inferred_ones(toy_net: Callable, observe: Callable) -> None:
    observation, truth = observe(toy_net(0), labels="identity")
    found = ATTACKS.build("ig:iterations=20,labels=joint").run(observation)
    assert found.labels.tolist() == truth.labels.tolist()


def test_normalised_inputs_are_attacked_in_their_own_space(toy_net: Callable, observe: Callable) -> None:
    config = RoundConfig(normalisation=Normalisation((0.3,), (0.25,)))
    observation, truth = observe(toy_net(0), config=config)
    found = ATTACKS.build("idlg:iterations=300").run(observation)
    assert quality(found.images, truth.images) > 25


@pytest.mark.slow
@pytest.mark.parametrize("local_steps", ["average", "unroll"])
def test_local_steps(local_steps: str, toy_net: Callable, observe: Callable) -> None:
    config = RoundConfig(local_steps=2, learning_rate=0.01)
    observation, truth = observe(toy_net(2), config=config, dtype=torch.float64)
    found = ATTACKS.build(f"idlg:iterations=800,restarts=2,local_steps={local_steps}").run(observation)
    assert quality(found.images, truth.images) > (20 if local_steps == "unroll" else 15)


@pytest.mark.slow
def test_awareness_beats_top_k_pruning(toy_net: Callable, observe: Callable) -> None:
    scores = {}
    for aware in (False, True):
        observation, truth = observe(toy_net(0), defence=build_defence("topk:ratio=0.8"), aware=aware)
        found = ATTACKS.build("ig:iterations=600,tv=0.003").run(observation)
        scores[aware] = quality(found.images, truth.images)
    assert scores[True] > scores[False] + 5


@pytest.mark.slow
def test_the_known_noise_law_beats_plain_distance(toy_net: Callable, observe: Callable) -> None:
    defence = build_defence("gaussian:sigma=0.003")
    observation, truth = observe(toy_net(0), defence=defence, aware=True)
    informed = ATTACKS.build("bayes:iterations=500,tv=0.3").run(observation)
    plain = ATTACKS.build("idlg:iterations=300").run(observation)
    assert quality(informed.images, truth.images) > quality(plain.images, truth.images) + 2


def test_batch_statistics_are_zero_distance_at_the_truth() -> None:
    model = build_model("resnet10:width=8", input_shape=(3, 16, 16), num_classes=10, seed=0).train()
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    shuffled = images.flatten(1)[:, torch.randperm(768, generator=torch.Generator().manual_seed(1))].view_as(images)
    statistics = []
    for batch in (images, images, shuffled):
        with record_bn_statistics(model) as recorded, torch.no_grad():
            model(batch)
        statistics.append(dict(recorded))
    assert float(bn_distance(statistics[1], statistics[0], 10.0)) == pytest.approx(0, abs=1e-6)
    assert float(bn_distance(statistics[2], statistics[0], 10.0)) > 0.1


def test_consensus_of_equal_restarts_is_themselves() -> None:
    one = torch.rand(1, 1, 2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    same = one.expand(1, 4, 2, 3, 8, 8)
    for kind in ("mean", "registration"):
        assert torch.allclose(consensus_of(same, kind), same, atol=1e-6)  # type: ignore[arg-type]


def test_registration_finds_a_shift() -> None:
    image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
    moved = image.roll((2, -3), (1, 2))
    assert best_shifts(moved, image).tolist() == [-2, 3]


def test_total_variation_and_median_by_hand() -> None:
    image = torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])
    assert float(total_variation(image)) == pytest.approx(1.0)
    spike = torch.zeros(1, 1, 5, 5)
    spike[..., 2, 2] = 1
    assert float(median_filter(spike, 3).max()) == 0


def test_clear_errors(toy_net: Callable, observe: Callable) -> None:
    observation, _ = observe(toy_net(0))
    zero = Update({name: torch.zeros_like(t) for name, t in observation.update.tensors.items()})
    with pytest.raises(InputError, match="zero everywhere"):
        ATTACKS.build("ig").run(Observation(observation.model, zero, observation.knowledge))
    broken = {name: t.clone() for name, t in observation.update.tensors.items()}
    broken["0.weight"][0] = float("nan")
    with pytest.raises(InputError, match=r"'0\.weight' holds .* NaN"):
        Observation(observation.model, Update(broken), observation.knowledge)
    renamed = {f"other.{name}": t for name, t in observation.update.tensors.items()}
    with pytest.raises(InputError, match="missing"):
        Observation(observation.model, Update(renamed), observation.knowledge)
    reshaped = {name: t.flatten() for name, t in observation.update.tensors.items()}
    with pytest.raises(InputError, match="shape"):
        Observation(observation.model, Update(reshaped), observation.knowledge)
    with pytest.raises(CapabilityError, match="statistics"):
        ATTACKS.build("gradinversion:bn=batch").run(observation)


def test_a_model_without_double_backward_is_named(observe: Callable) -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                raise RuntimeError("this kernel has no second derivative")
            return grad * 2

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(256, 32)
            self.last = nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(Once.apply(torch.tanh(self.first(x.flatten(1)))))

    observation, _ = observe(Net())
    with pytest.raises(CapabilityError, match="twice"):
        ATTACKS.build("idlg:iterations=5").run(observation)
    found = ATTACKS.build("ig:iterations=50").run(observation)  # finite differences need one derivative only
    assert found.trace[-1][1] < found.trace[0][1]


def test_a_start_that_diverges_is_discarded_and_counted(toy_net: Callable, observe: Callable) -> None:
    observation, _ = observe(toy_net(0))
    with pytest.raises(TrialError, match="diverged"):
        replace(ATTACKS.build("bayes:iterations=30"), lr=1e30, tv=1e30).run(observation)  # type: ignore[type-var]


@pytest.mark.parametrize("spec", ["ig:restarts=0", "idlg:iterations=0", "fedleak-artifact:median=4"])
def test_options_without_meaning_are_refused_at_once(spec: str) -> None:
    with pytest.raises(UsageError, match=r"must be|should be"):
        ATTACKS.build(spec)


def test_who_knows_something_of_each_client_still_tells_a_listener_of_all():
    """Batch statistics are of one client each, so targets are attacked one by one; 0.1 told nobody of it."""
    client = {"batch_size": 2, "bn_mode": "train-exact-stats"}
    setup = build_setup(
        Scenario.model_validate({"data": "faces:size=16", "model": "resnet10:width=2", "client": client, "targets": 2})
    )
    model = setup.wrapped_model(Defence(), "none")
    seen = [setup.observe(Defence(), place, model=model).observation for place in range(2)]
    told: list[tuple[float, tuple[int, ...]]] = []
    ATTACKS.build("gradinversion").run_many(
        seen, Budget(2, 1), [0, 1], lambda done, images: told.append((done, tuple(images.shape)))
    )
    assert {shape for _, shape in told} == {(2, 2, 1, 16, 16)}
    done = [share for share, _ in told]
    assert done == sorted(done)
    assert done[0] <= 0.5 < done[-1] == 1.0
