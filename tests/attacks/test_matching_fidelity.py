"""What surrounds the matching attacks' equations: step sizes that arrive, norms as printed, laws that are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedseal.attacks.bayes import Bayes
from fedseal.attacks.dlg import DeepLeakage, ImprovedDeepLeakage
from fedseal.attacks.matching.captures import Captured, CaptureHooks, together
from fedseal.attacks.matching.engine import MatchingAttack
from fedseal.attacks.matching.objectives import Layout, Likelihood
from fedseal.attacks.matching.priors import Priors
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.defence import Defence, NoiseLaw, RoundContext
from fedseal.core.observation import Observation
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig
from fedseal.metrics.image import psnr
from fedseal.models.registry import build_model


class Calls(nn.Module):
    """Two convolutions with any activation between, called as the user likes."""

    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.activation = nn.Conv2d(1, 4, 3), nn.Linear(4, 10), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.activation(self.first(x)).mean((2, 3)))


ACTIVATIONS = [F.relu, torch.relu, lambda x: x.relu(), lambda x: F.relu(x, inplace=True), F.relu6, F.hardswish, F.gelu]
MODULES = [nn.ReLU(), nn.ReLU6(), nn.Hardswish(), nn.Mish(), nn.PReLU(), nn.Softplus()]


@pytest.mark.parametrize("activation", [*ACTIVATIONS, *MODULES])
def test_an_activation_counts_however_it_is_called(activation: Callable[[torch.Tensor], torch.Tensor]):
    model = Calls(activation)
    hooks = CaptureHooks(model, statistics=False, activations=True)
    images = torch.rand(2, 1, 8, 8)
    with hooks.watching():
        model(images)
    assert len(hooks.latest.activations) == 1
    assert torch.equal(hooks.latest.activations[0], activation(model.first(images)))


def test_the_activation_penalty_is_the_l1_norm_of_eq_15_or_its_mean():
    captured = Captured({}, [torch.tensor([[1.0, -2.0], [3.0, 0.0]]), torch.tensor([[-4.0], [2.0]])])
    images = torch.zeros(2, 1, 1, 1)
    assert float(Priors(activation=0.5, activation_norm="l1").value(images, captured, None)) == 0.5 * (6 + 6)
    assert float(Priors(activation=0.5).value(images, captured, None)) == 0.5 * (6 / 4 + 6 / 2)


def test_every_clients_images_enter_the_activation_penalty():
    first, second = Captured({}, [torch.ones(2, 3)]), Captured({}, [5 * torch.ones(2, 3)])
    assert float(Priors(activation=1.0).value(torch.zeros(4, 1, 1, 1), together([first, second]), None)) == 3.0


def _penalty(spec: str, observation: Observation, images: torch.Tensor) -> float:
    attack = ATTACKS.build(spec)
    assert isinstance(attack, MatchingAttack)
    problem = attack._problem(observation)
    _, captured, inputs = problem.update(images.reshape(-1), observation.knowledge.labels)
    return float(problem.prior(inputs, captured))


def test_of_several_local_steps_every_image_is_penalised(observe: Callable):
    seen, truth = observe(Calls(F.relu), batch_size=2, config=RoundConfig(local_steps=2))
    spec = "fedleak:tv=0,activation=1,activation_norm=l1,local_steps=unroll"
    whole = _penalty(spec, seen, truth.images)
    dark = torch.cat([-truth.images[:2], truth.images[2:]])
    assert _penalty(spec, seen, dark) != pytest.approx(whole, rel=1e-3)


def test_the_first_of_several_clients_is_penalised_too(observe: Callable):
    """0.1 took the activations of the last pass alone, which is the last client's."""
    seen, truth = observe(Calls(F.relu), batch_size=4)
    of_two = replace(seen, knowledge=replace(seen.knowledge, clients=2, batch_size=2))
    spec = "fedleak:tv=0,activation=1,activation_norm=l1"
    whole = _penalty(spec, of_two, truth.images)
    for places in (slice(0, 2), slice(2, 4)):
        dark = truth.images.clone()
        dark[places] *= -1
        assert _penalty(spec, of_two, dark) != pytest.approx(whole, rel=1e-3), places


def test_a_model_without_activations_is_said_to_have_none(observe: Callable):
    linear = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
    plain = ATTACKS.build("fedleak").run(observe(linear)[0], Budget(2, 1), 0)
    assert any("no activations" in note for note in plain.notes)
    usual = ATTACKS.build("fedleak").run(
        observe(nn.Sequential(nn.Flatten(), nn.Linear(256, 10), nn.ReLU()))[0], Budget(2, 1), 0
    )
    assert not any("no activations" in note for note in usual.notes)


def _falls(model: str, size: int, steps: int, observe: Callable) -> tuple[float, float]:
    """Return by which factors the objectives of `fedleak` and `fedleak-paper`, made comparable, fall by then."""
    shape = (3, size, size)
    seen, _ = observe(build_model(model, input_shape=shape, num_classes=10, seed=0), shape=shape, batch_size=2)
    traces = [
        ATTACKS.build(spec).run(seen, Budget(steps, 1), 0).trace
        for spec in ("fedleak", "fedleak-paper:l1=mean,activation_norm=mean")
    ]
    return traces[0][0][1] / traces[0][-1][1], traces[1][0][1] / traces[1][-1][1]


@pytest.mark.slow
def test_fedleak_moves_by_default_and_as_printed_does_not(observe: Callable):
    default, printed = _falls("lenet-relu", 16, 100, observe)
    assert default > 3
    assert printed < 1.3


@pytest.mark.slow
def test_fedleak_converges_on_its_home_network(observe: Callable):
    """ResNet-10: to a third in 150 steps. The paper's Fig. 6 has most of the way done after a tenth of its iterations;
    its text gives no numbers, so the factor is what was measured: 8 on CIFAR-10 at width 8, and on these images 4 to 6,
    as processors round differently."""
    default, printed = _falls("resnet10:width=8", 32, 150, observe)
    assert default > 3
    assert printed < 1.3


@pytest.mark.slow
def test_fedleak_has_most_of_its_way_behind_it_after_a_tenth_of_its_steps():
    """What the paper says in words of Fig. 6: 1,000 of 10,000 steps recover most, and those after 4,000 hardly more."""
    scenario = {"data": "photos:size=32", "model": "resnet10:width=8", "client": {"batch_size": 2}, "targets": 1}
    setup = build_setup(Scenario.model_validate({**scenario, "attacker": {"labels": "true"}}))
    seen = setup.observe(Defence(), 0).observation
    objective = dict(ATTACKS.build("fedleak").run(seen, Budget(400, 1), 0).trace)
    whole = objective[0] - objective[400]
    assert whole > 0.8 * objective[0]
    assert objective[0] - objective[40] > 0.6 * whole
    assert objective[0] - objective[160] > 0.8 * whole


def test_tuned_fedleak_is_fedleak_with_two_other_numbers(observe: Callable):
    seen, _ = observe(build_model("lenet-relu", input_shape=(1, 16, 16), num_classes=10, seed=0), shape=(1, 16, 16))
    found = [
        ATTACKS.build(spec).run(seen, Budget(4, 1), 0).images
        for spec in ("fedleak-tuned", "fedleak:lr=0.05,tv=3", "fedleak")
    ]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_pixel_can_cross_its_range_within_the_default_budget_of_every_matching_attack():
    for name in ("ig", "fedleak", "fedleak-artifact", "gradinversion", "bayes", "sapag"):
        attack = ATTACKS.build(name)
        assert isinstance(attack, MatchingAttack)
        assert attack.recipe().descent.lr * attack.iterations / 4 > 1, name


def test_dlg_and_idlg_have_their_authors_budget_and_stop_at_the_truth(observe: Callable):
    assert DeepLeakage().iterations == ImprovedDeepLeakage().iterations == 300 * 20
    model = build_model("lenet:init=wide-uniform", input_shape=(1, 16, 16), num_classes=10, seed=0)
    seen, truth = observe(model)
    found = ImprovedDeepLeakage().run(seen, Budget(), 0)
    assert float(psnr(truth.images, found.images, data_range=1.0)) > 35
    assert found.trace[-1][0] <= 6000


def test_annealing_starts_in_proportion_to_the_noise():
    starts = {}
    for sigma in (1e-4, 1e-3, 1e-2, 1.0):
        view = build_defence(f"gaussian:sigma={sigma}").attacker_view()
        starts[sigma] = Bayes().recipe().under(view).descent.anneal
    assert starts[1e-3] / starts[1e-4] == pytest.approx(100)
    assert starts[1e-2] == starts[1.0] == 1.0


def test_the_law_of_rounding_is_the_quantisers_own():
    values = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.5
    for rounding in ("nearest", "stochastic"):
        defence = build_defence(f"quantise:bits=5,rounding={rounding}")
        context = RoundContext(nn.Linear(1, 1), F.cross_entropy, torch.Generator().manual_seed(1))
        sent = defence.on_update({"w": values}, context)["w"]
        law = defence.attacker_view().rounding
        assert law is not None
        assert float(law(sent)) == pytest.approx(float((sent - values).square().mean()), rel=0.05)


def test_a_rounded_tensors_likelihood_has_its_own_variance():
    layout = Layout((2, 1))
    observed, dummy = torch.tensor([1.0, 0.0, 10.0]), torch.tensor([1.5, 0.0, 11.0])
    likelihood = Likelihood(NoiseLaw("gaussian", 0.1), rounding=lambda tensor: tensor.abs().amax().square())
    expected = 0.25 / (2 * 1.01) + 1.0 / (2 * 100.01)
    assert float(likelihood.distance(dummy, observed, layout, None)) == pytest.approx(expected)


def test_what_was_withheld_must_not_have_been_worth_sending():
    layout = Layout((4,))
    observed = torch.tensor([3.0, -2.0, 0.0, 0.0])
    law = NoiseLaw("gaussian", 0.5)
    largest, middle = Likelihood(law, mask="largest"), Likelihood(law, mask="middle")
    fits = torch.tensor([0.0, 0.0, 1.9, -2.0])
    assert float(largest.withheld(fits, observed, layout)) == 0.0
    assert float(largest.withheld(torch.tensor([0.0, 0.0, 2.5, 9.0]), observed, layout)) == (0.25 + 49) / 0.5
    assert float(middle.withheld(torch.tensor([0.0, 0.0, 2.5, 9.0]), observed, layout)) == 0.25 / 0.5
    assert float(Likelihood(law).withheld(fits, observed, layout)) == 0.0
    assert float(largest.withheld(fits, torch.zeros(4), layout)) == 0.0


@pytest.mark.parametrize(
    "spec", ["topk:ratio=0.8", "dgp", "quantise:bits=4", "quantise:bits=4,rounding=nearest,scale=l2"]
)
def test_bayes_runs_under_the_laws_of_masks_and_quantisers(spec: str, observe: Callable):
    model = build_model("lenet", input_shape=(1, 16, 16), num_classes=10, seed=0)
    seen = [observe(model, defence=build_defence(spec), aware=True, seed=seed)[0] for seed in (0, 1)]
    for result in ATTACKS.build("bayes").run_many(seen, Budget(5, 1), [0, 1]):
        assert torch.isfinite(result.images).all()
        assert result.objective < float("inf")


@pytest.mark.slow
def test_less_noise_never_helps_the_client_against_who_knows_its_law(observe: Callable):
    """C16: the aware attack did better under more noise (14.9 dB at 1e-2, 12.8 at 1e-4)."""
    model = build_model("lenet-relu", input_shape=(3, 16, 16), num_classes=10, seed=0)
    means = []
    for sigma in (1e-4, 1e-3, 1e-2):
        pairs = [
            observe(model, shape=(3, 16, 16), defence=build_defence(f"gaussian:sigma={sigma}"), aware=True, seed=seed)
            for seed in range(4)
        ]
        found = ATTACKS.build("bayes").run_many([seen for seen, _ in pairs], Budget(1000, 1), range(4))
        means.append(
            sum(float(psnr(t.images, f.images, data_range=1.0)) for (_, t), f in zip(pairs, found, strict=True)) / 4
        )
    assert means[0] > means[1] - 0.3 > means[2] - 0.6
