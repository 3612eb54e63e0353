"""SME and clients of many local steps: the slope by alpha, what a pass costs, and that it beats one gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedseal.attacks.matching.derivatives import choose_derivatives
from fedseal.attacks.matching.objectives import Cosine
from fedseal.attacks.matching.parameterisation import Pixels
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.matching.problem import Lanes, MatchingProblem, Surrogate
from fedseal.attacks.matching.surroundings import Box
from fedseal.attacks.reading import update_scale
from fedseal.audit.factors import scenarios_of
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.core.errors import UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.optimiser import Optimiser
from fedseal.core.seeds import generator
from fedseal.core.tensors import flatten
from fedseal.federation.client import RoundConfig, client_round
from fedseal.information.upload import Upload, UploadMap
from fedseal.metrics.image import psnr
from fedseal.metrics.matching import hungarian
from fedseal.models.registry import build_model

SHAPE = (1, 8, 8)


def smooth(count: int, seed: int = 0) -> Tensor:
    coarse = torch.rand(count, 1, 3, 3, generator=generator(seed, "pictures"))
    return nn.functional.interpolate(coarse, SHAPE[1:], mode="bilinear", align_corners=True)


def observed(
    config: RoundConfig, batch_size: int = 1, seed: int = 0, spec: str = "lenet:init=wide-uniform"
) -> tuple[Observation, Batch]:
    net = build_model(spec, input_shape=SHAPE, num_classes=4, seed=seed)
    truth = Batch(smooth(batch_size * config.local_steps, seed), torch.arange(batch_size * config.local_steps) % 4)
    parts = [truth.pick(places) for places in torch.arange(len(truth)).split(batch_size)]
    done = client_round(net, parts, config, Defence(), generator(seed))
    known = Knowledge(
        SHAPE,
        4,
        label_rule="true",
        labels=truth.labels,
        batch_size=batch_size,
        local_steps=config.local_steps,
        local_epochs=config.local_epochs,
        learning_rate=config.learning_rate,
        optimiser=config.rule,
    )
    return Observation(net, done.update, known), truth


MANY = RoundConfig(local_steps=4, local_epochs=5, learning_rate=0.1)


class Toy(nn.Module):
    """One weight per pixel, and logits (w.x, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        value = x.flatten(1) @ self.weight
        return torch.stack([value, torch.zeros_like(value)], 1)


def test_the_slope_by_alpha_in_closed_form():
    # g(w) = (p - 1) x with p = 1 / (1 + exp(-w.x)): along the change d, dg/dalpha = p (1 - p) (x.d) x, and a gradient
    # in the direction of x always keeps the angle; so a second image makes the angle depend on alpha.
    model, scale = Toy(), -1.0
    x = torch.tensor([[0.2, 0.9, 0.4], [0.7, 0.1, 0.6]], dtype=torch.float64)
    change = torch.tensor([0.5, -1.0, 0.25], dtype=torch.float64)
    problem = MatchingProblem(
        model,
        {"weight": model.weight.detach()},
        parameterisation=Pixels((2, 1, 1, 3), lambda size, source: torch.zeros(size)),
        num_classes=2,
        objective=Cosine(),
        priors=Priors(),
        scale=scale,
        surrogate=Surrogate(rate=0.1, start=0.5),
    )
    z = torch.cat([x.flatten(), torch.tensor([1.0], dtype=torch.float64)])
    assert problem.size == 7
    assert float(problem.alpha(z)) == pytest.approx(0.6)  # type: ignore[arg-type]
    labels = torch.tensor([0, 0])
    lanes = Lanes((change / scale).unsqueeze(0), labels.unsqueeze(0))
    found = choose_derivatives(problem, "exact", z.unsqueeze(0), lanes)(z.unsqueeze(0), lanes)

    at = model.weight.detach() + 0.6 * change
    p = torch.sigmoid(x @ at)
    g = ((p - 1).unsqueeze(1) * x).mean(0)
    slope = ((p * (1 - p) * (x @ change)).unsqueeze(1) * x).mean(0)
    wanted = -change
    size = g.norm() * wanted.norm()
    assert float(found.values[0]) == pytest.approx(float(1 - g @ wanted / size))
    by_alpha = -(slope @ wanted) / size + (g @ wanted) * (g @ slope) / (g.norm() ** 3 * wanted.norm())
    assert float(found.gradients[0, 6]) == pytest.approx(float(0.1 * by_alpha))


def test_alpha_stays_on_the_way():
    problem = MatchingProblem(
        Toy(),
        {"weight": torch.zeros(3)},
        parameterisation=Pixels((1, 1, 1, 3), lambda size, source: torch.zeros(size)),
        num_classes=2,
        objective=Cosine(),
        priors=Priors(),
        surrogate=Surrogate(rate=0.01),
        soft_labels=True,
    )
    boxed = Box(problem)(torch.full((2, problem.size), 1e6) * torch.tensor([[1.0], [-1.0]]))
    assert [float(problem.alpha(z)) for z in boxed] == pytest.approx([1.0, 0.0])  # type: ignore[arg-type]
    assert float(boxed[0, -1]) == 1e6


def gradients_of_a_step(config: RoundConfig, spec: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many losses one evaluation of an attack computes."""
    seen, _ = observed(config, spec="mlp:width=8")
    attack = ATTACKS.build(spec)
    problem = attack._problem(seen)
    count = 0
    plain = MatchingProblem._loss_on

    def counted(self: MatchingProblem, *arguments: object) -> object:
        nonlocal count
        count += 1
        return plain(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(MatchingProblem, "_loss_on", counted)
    z = torch.cat(
        [torch.zeros(problem.parameterisation.size), torch.zeros(problem.size - problem.parameterisation.size)]
    )
    problem.value(z, flatten(seen.update.tensors) / update_scale(seen), seen.knowledge.labels, 1.0, None)
    return count


def test_a_pass_costs_one_gradient_whatever_the_number_of_local_steps(monkeypatch: pytest.MonkeyPatch):
    few, many = (replace(MANY, local_epochs=epochs) for epochs in (1, 25))
    assert gradients_of_a_step(few, "sme", monkeypatch) == gradients_of_a_step(many, "sme", monkeypatch) == 1


def test_unrolling_costs_one_for_every_local_step(monkeypatch: pytest.MonkeyPatch):
    assert gradients_of_a_step(MANY, "ig:local_steps=unroll", monkeypatch) == 20


RULES = [
    Optimiser(),
    Optimiser(momentum=0.9),
    Optimiser(momentum=0.5, weight_decay=0.1),
    Optimiser("adam"),
]


def by(rule: Optimiser) -> RoundConfig:
    rate = 0.01 if rule.name == "adam" else 0.1
    return replace(
        MANY, learning_rate=rate, optimiser=rule.name, momentum=rule.momentum, weight_decay=rule.weight_decay
    )


@pytest.mark.parametrize("rule", RULES, ids=Optimiser.describe)
def test_unrolled_steps_of_the_true_images_are_the_client_s_own(rule: Optimiser):
    seen, truth = observed(by(rule), spec="mlp:width=8")
    problem = ATTACKS.build("ig:local_steps=unroll")._problem(seen)
    change, _, _ = problem.update(truth.images.flatten(), truth.labels)
    wanted = flatten(seen.update.tensors) / update_scale(seen)
    assert float((change - wanted).norm() / wanted.norm()) < 1e-3


@pytest.mark.parametrize("rule", RULES, ids=Optimiser.describe)
def test_the_ideal_reading_follows_passes_and_rules(rule: Optimiser):
    config = by(rule)
    seen, truth = observed(config, spec="mlp:width=8")
    mapped = UploadMap(Upload(seen.model, truth, truth, seen.update.tensors, config), torch.float32)
    sent, wanted = flatten(mapped(mapped.point)), flatten(seen.update.tensors)
    assert float((sent - wanted).norm() / wanted.norm()) < 1e-3


def test_a_client_of_several_passes_trains_as_one_of_torch():
    config = by(RULES[2])
    seen, truth = observed(config, spec="mlp:width=8")
    local = build_model("mlp:width=8", input_shape=SHAPE, num_classes=4, seed=0)
    before = {name: p.detach().clone() for name, p in local.named_parameters()}
    steps = torch.optim.SGD(local.parameters(), 0.1, momentum=0.5, weight_decay=0.1)
    for _ in range(5):
        for image, label in zip(truth.images.split(1), truth.labels.split(1), strict=True):
            steps.zero_grad()
            nn.functional.cross_entropy(local(image), label).backward()
            steps.step()
    for name, parameter in local.named_parameters():
        torch.testing.assert_close(seen.update.tensors[name], parameter.detach() - before[name], rtol=1e-4, atol=1e-6)


def reached(spec: str, seeds: range, config: RoundConfig, iterations: int) -> list[float]:
    scores = []
    for seed in seeds:
        seen, truth = observed(config, 4, seed)
        found = ATTACKS.build(spec).run(seen, Budget(iterations=iterations), seed).images
        matched = found[hungarian(truth.images, found)]
        scores.append(float(psnr(truth.images, matched, data_range=1.0).mean()))
    return scores


@pytest.mark.slow
def test_on_twenty_local_steps_it_beats_one_gradient_at_the_start():
    same = "lr=0.1,tv=0.001,alpha_lr=0.003"
    surrogate = reached(f"sme:{same}", range(3), MANY, 300)
    average = reached(f"sme:{same},local_steps=average", range(3), MANY, 300)
    assert all(one > other + 1 for one, other in zip(surrogate, average, strict=True)), (surrogate, average)


def test_a_gradient_is_matched_where_it_is():
    seen, _ = observed(RoundConfig())
    problem = ATTACKS.build("sme")._problem(seen)
    assert problem.surrogate is None
    assert problem.is_one_gradient


def test_the_attack_says_where_on_the_way_it_matched():
    seen, _ = observed(MANY)
    found = ATTACKS.build("sme").run(seen, Budget(iterations=3), 0)
    assert any("of the way from the model sent" in note for note in found.notes)


def test_an_audit_takes_passes_and_rules_as_factors_and_tells_the_attacker():
    made = scenarios_of(
        {
            "data": "faces:size=8",
            "client": {"local_steps": 2, "local_epochs": [1, 3], "optimiser": ["sgd", "adam"]},
            "targets": 1,
        }
    )
    assert [(one.client.local_epochs, one.client.optimiser) for one in made] == [
        (1, "sgd"),
        (1, "adam"),
        (3, "sgd"),
        (3, "adam"),
    ]
    ledger = build_setup(made[-1]).observe(Defence(), 0).observation.knowledge.ledger()
    assert ledger["local steps"] == "2 in each of 3 passes over the same batches"
    assert ledger["optimiser"] == "Adam"
    untold = made[-1].model_copy(update={"attacker": made[-1].attacker.model_copy(update={"optimiser": False})})
    ledger = build_setup(untold).observe(Defence(), 0).observation.knowledge.ledger()
    assert ledger["optimiser"] == "not given; taken for plain SGD"


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ({"optimiser": "adam", "momentum": 0.9}, "momentum is of sgd"),
        ({"local_epochs": 0}, "local_epochs"),
        ({"momentum": 1.0}, "momentum"),
    ],
)
def test_what_a_client_cannot_do_is_refused_in_words(client: dict[str, object], said: str):
    with pytest.raises((UsageError, ValueError), match=said):
        Scenario(client=client)  # type: ignore[arg-type]


def test_passes_are_of_first_rounds():
    with pytest.raises(ValueError, match=r"set client\.local_steps"):
        Scenario(client={"local_epochs": 2}, stage={"round": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(("aggregate", "said"), [(2, True), (1, False)])
def test_who_cannot_unroll_several_clients_says_that_steps_were_averaged(aggregate: int, said: bool):
    client = {"batch_size": 1, "local_steps": 2, "aggregate": aggregate}
    given = {"data": "faces:size=8", "model": "mlp:width=8", "client": client, "targets": 1}
    seen = build_setup(Scenario.model_validate(given)).observe(Defence(), 0).observation
    notes = ATTACKS.build("ig:local_steps=unroll").run(seen, Budget(1, 1), 0).notes
    assert any("averaged, not unrolled: the update is the mean of 2 clients" in note for note in notes) is said
    course = "whose course nobody can follow: only the mean of 2 clients is seen"
    assert (course in seen.knowledge.ledger()["local steps"]) is said
