"""`auto` tries everything, trusts what its own shadows teach it, and never looks at the truth."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedseal.attacks.auto import race
from fedseal.attacks.auto.attack import _Answer, _best
from fedseal.attacks.auto.members import MEMBERS, SEARCHES, family_of
from fedseal.attacks.auto.race import Line, Member, Record, Trust, attempt, naive, trusts
from fedseal.attacks.auto.spending import iterations_for
from fedseal.attacks.shadow.ranges import RANGES, tunable
from fedseal.attacks.shadow.study import tune, tuned_specs
from fedseal.attacks.shadow.targets import play_shadows, split_public
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup, build_setup, make_aware
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.defences.pipeline import build_defence
from fedseal.metrics.image import psnr
from fedseal.metrics.matching import hungarian
from fedseal.models.registry import build_model
from fedseal.preparation import forget


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path))
    forget()
    return tmp_path


def set_up(model: str = "mlp:width=32", **changes) -> Setup:
    values = {"data": "digits", "model": model, "attacker": {"public_images": 80}} | changes
    return build_setup(Scenario.model_validate(values))


def see(setup: Setup, targets: int = 2, defence: str = "none", aware: bool = False):
    model = setup.wrapped_model(build_defence(defence))
    seen = [setup.observe(build_defence(defence), t, model=model, name=defence) for t in range(targets)]
    observations = [
        make_aware(one.observation, build_defence(defence), defence) if aware else one.observation for one in seen
    ]
    return observations, [one.originals.images for one in seen]


def quality(answers, originals) -> float:
    paired = [(truth, one.images[hungarian(truth, one.images)]) for truth, one in zip(originals, answers, strict=True)]
    return float(torch.cat([psnr(truth, images, data_range=1.0) for truth, images in paired]).mean())


def attack(name: str, observations: list[Observation], iterations: int = 16):
    return ATTACKS.build(name).run_many(observations, Budget(iterations), list(range(len(observations))))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        "mlp:width=32",
        "lenet-relu",
        "lenet:init=wide-uniform",
    ],
)
def test_auto_is_as_good_as_its_best_member_at_equal_iterations(model: str):
    setup = set_up(model)
    observations, originals = see(setup)
    single = {}
    for spec in MEMBERS:
        found = attempt(Member(spec, True), observations, Budget(48), [0, 1])
        if all(answer is not None for answer in found):
            single[spec] = quality(found, originals)
    assert quality(attack("auto", observations, 48), originals) >= max(single.values()) - 1.5, single


@pytest.mark.slow
def test_one_who_knows_the_defence_is_not_weaker_than_one_who_does_not():
    setup = set_up("lenet-relu")
    unaware, originals = see(setup, defence="topk:ratio=0.95")
    aware, _ = see(setup, defence="topk:ratio=0.95", aware=True)
    assert quality(attack("auto", aware), originals) >= quality(attack("auto", unaware), originals) - 0.5


def test_without_public_images_the_best_explanation_is_given():
    setup = set_up(attacker={"public_data": False})
    observations, originals = see(setup)
    answers = attack("auto", observations)
    assert quality(answers, originals) > 60  # the first layer is linear
    assert all("first-layer" in one.notes[0] or "rgap" in one.notes[0] for one in answers)


def test_auto_answers_batches_and_weight_changes():
    setup = set_up("lenet-relu", client={"batch_size": 2, "local_steps": 2})
    observations, _ = see(setup)
    assert all(one.images.shape == (4, 1, 28, 28) for one in attack("auto", observations, 8))


def test_alone_and_together_are_the_same_to_the_bit_and_shadows_are_played_once():
    observations, _ = see(set_up())
    together = attack("auto", observations)

    class Counting:
        calls = 0
        identity = observations[0].knowledge.rehearse.identity

        def plain(self):
            return self

        def __call__(self, *arguments):
            Counting.calls += 1
            return observations[0].knowledge.rehearse(*arguments)

    counted = [replace(one, knowledge=replace(one.knowledge, rehearse=Counting())) for one in observations]
    for index, one in enumerate(counted):
        (answer,) = ATTACKS.build("auto").run_many([one], Budget(16), [index])
        assert torch.equal(answer.images, together[index].images)
        assert answer.objective == together[index].objective
    assert Counting.calls == 0


def test_shadows_are_never_learned_from():
    (observation,), _ = see(set_up(), targets=1)
    images, rest = split_public(observation, 4, 0)
    shadows = play_shadows(observation, images, rest, 0)
    assert len(shadows.observations) == 4
    assert len(rest) == 76
    for shadow in shadows.observations:
        assert shadow.knowledge.auxiliary is rest
        assert shadow.knowledge.labels is None
    same = (images.images[:, None] - rest.images[None]).flatten(2).abs().amax(2)
    assert bool((same > 0).any(1).all())
    assert not bool((images.images[:, None] == rest.images[None]).flatten(2).all(2).any()), "a shadow is in the rest"


def test_shadows_know_what_the_attacker_knows_and_their_own_truth():
    setup = set_up(
        "convbn:width=4", client={"batch_size": 2, "bn_mode": "train-exact-stats"}, attacker={"labels": "true"}
    )
    (observation,), _ = see(setup, targets=1)
    images, rest = split_public(observation, 2, 0)
    first = play_shadows(observation, images, rest, 0).observations[0]
    assert torch.equal(first.knowledge.labels, images.labels[:2])
    assert first.knowledge.bn_statistics.keys() == observation.knowledge.bn_statistics.keys()
    real = observation.knowledge.bn_statistics
    assert any(not torch.equal(first.knowledge.bn_statistics[name][0], real[name][0]) for name in real)


def test_too_few_public_images_leave_no_shadows():
    (observation,), _ = see(set_up(attacker={"public_images": 7}), targets=1)
    assert split_public(observation, 4, 0) is None
    assert attack("auto", [observation], 4)[0].images.shape == (1, 1, 28, 28)


def test_who_ignores_the_defence_forgets_its_view_and_its_rehearsal():
    (observation,), _ = see(set_up(), targets=1, defence="topk:ratio=0.5", aware=True)
    forgotten = naive(observation).knowledge
    assert forgotten.defence is None
    assert forgotten.rehearse.identity != observation.knowledge.rehearse.identity


def trusted(**members: tuple[list[float], list[float]]) -> dict[str, Line]:
    judged = {Member(name, True): Record.of(*pair, pair[1]) for name, pair in members.items()}
    assert all(trust.picture == trust.likeness for trust in trusts(judged).values()), "both are judged by one rule"
    return {member.spec: trust.picture for member, trust in trusts(judged).items()}


def test_a_better_explanation_is_never_expected_to_be_worse():
    steady = ([0.1, 0.1, 0.1], [12.0, 12.0, 12.0])
    trust = trusted(search=([1e-1, 1e-2, 1e-3], [10.0, 20.0, 30.0]), steady=steady)["search"]
    assert trust.expects(1e-4) > trust.expects(1e-2) > trust.expects(1.0)
    assert trust.expects(1e-2) == pytest.approx(20.0)
    misled = trusted(fitted=([0.3, 0.2, 0.1], [14.0, 13.0, 12.0]), steady=steady)["fitted"]  # as where noise is fitted
    assert misled.expects(0.01) == misled.expects(0.5) == pytest.approx(13.0)


def test_a_target_hard_to_explain_for_all_does_not_change_who_is_trusted():
    """Measured on ViT-tiny: `learned` is better on every shadow, and varied more with how hard they are."""
    trust = trusted(
        learned=([0.003, 0.001, 0.004, 0.004], [13.9, 18.5, 13.9, 13.0]),
        retrieval=([0.003, 0.004, 0.003, 0.007], [13.5, 14.8, 12.4, 11.8]),
    )
    for hard in (0.001, 0.01, 0.1):
        assert trust["learned"].expects(1.4 * hard) > trust["retrieval"].expects(hard)
    assert trust["learned"].expects(0.1) < trust["retrieval"].expects(1e-4)


def test_the_closest_picture_and_the_best_likeness_may_be_two_answers():
    flat, sharp = (Reconstruction(torch.full((1, 1, 2, 2), value), torch.tensor([0]), 0.0) for value in (0.5, 1.0))
    answers = [_Answer(Member("learned", True), flat, 0.1), _Answer(Member("ig", True), sharp, 0.1)]
    smooth = Trust(Line(-1.0, 13.0, 0.0), Line(-1.0, -0.2, 0.0))
    pointing = Trust(Line(-1.0, 9.0, 0.0), Line(-1.0, 0.3, 0.0))
    given = _best(answers, {answers[0].member: smooth, answers[1].member: pointing})
    assert torch.equal(given.images, flat.images)
    assert given.likenesses is not None
    assert torch.equal(given.likenesses, sharp.images)
    assert "learned" in given.notes[0]
    assert "line-up" in given.notes[1]
    assert _best(answers, {answers[1].member: pointing}).likenesses is None
    assert _best(answers, {}).likenesses is None


def test_searches_are_ranked_as_pictures_and_as_likenesses_alike(monkeypatch: pytest.MonkeyPatch):
    records = {"blurred": (14.0, -0.3), "both": (13.0, 0.2), "sharp": (8.0, 0.1)}
    judged = {name: Record.of([0.1], [score], [pointed]) for name, (score, pointed) in records.items()}
    monkeypatch.setattr(race, "judge", lambda member, *_: judged[member.spec])
    ranked = race._ranked([Member(name, True) for name in ("sharp", "blurred", "both")], None, 1, None)
    assert [member.spec for member in ranked] == ["both", "blurred", "sharp"]


@pytest.mark.parametrize(("closed", "longest"), [(9.0, 60), (30.0, 120)])
def test_half_a_budget_does_not_decide_against_a_search(
    monkeypatch: pytest.MonkeyPatch, closed: float, longest: int
) -> None:
    spent: list[int] = []

    def judged(member: Member, shadows: object, budget: Budget) -> Record:
        assert budget.iterations is not None
        spent.append(budget.iterations)
        return Record.of([0.1], [10.0], [0.0])

    monkeypatch.setattr(race, "judge", judged)
    (observation,), _ = see(set_up(), targets=1)
    shadows = play_shadows(observation, *split_public(observation, 4, 0), 0)
    race.race(shadows, ["ig", "idlg"], 120, None, [Record.of([0.1], [closed], [0.0])])
    assert max(spent) == longest


def test_with_one_member_or_one_shadow_there_is_nothing_to_learn_a_slope_from():
    assert trusted() == {}
    assert trusted(only=([0.1, 0.01], [10.0, 20.0]))["only"].slope == 0
    assert trusted(one=([0.1], [10.0]), other=([0.01], [20.0]))["one"].slope == 0


def test_a_time_is_turned_into_iterations_without_a_clock():
    small, large = (see(set_up(model), targets=1)[0][0] for model in ("mlp:width=32", "lenet"))
    assert iterations_for("60s", small) == iterations_for("1m", small)
    assert iterations_for("60s", small) > iterations_for("60s", large) > 20
    assert iterations_for("2m", large) >= 2 * iterations_for("1m", large)
    assert iterations_for("600", large) == 600


@pytest.mark.parametrize("budget", ["", "0", "-3", "5 minutes", "1e3", "10d"])
def test_a_budget_that_is_none_is_refused(budget: str):
    with pytest.raises(UsageError, match="budget"):
        type(ATTACKS.build("auto"))(budget)


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("lenet", "smooth"),
        ("lenet-relu", "kinked"),
        ("resnet10:width=4", "normalised"),
        ("vit-tiny:depth=1", "attention"),
    ],
)
def test_every_network_has_a_family_with_searches_that_can_be_built(model: str, family: str):
    built = build_model(model, input_shape=(3, 32, 32), num_classes=10, seed=0)
    assert family_of(built) == family
    assert all(ATTACKS.build(spec) for spec in SEARCHES[family])


def test_every_member_is_a_passive_attack():
    assert {ATTACKS.find(spec).info.threat for spec in MEMBERS} == {"passive"}


def test_tuning_resumes_helps_and_is_found_by_auto(own_cache: Path):
    pytest.importorskip("optuna")
    (observation,), _ = see(set_up("lenet-relu"), targets=1)
    spec = "ig:schedule=cosine,start=normal,signed=true"
    first = tune(observation, spec, trials=2, iterations=6, shadows=2)
    heard = []
    second = tune(observation, spec, trials=4, iterations=6, shadows=2, heard=lambda *told: heard.append(told))
    assert (first.trials, second.trials, len(heard)) == (2, 4, 2)
    assert second.quality >= first.quality >= first.untuned
    knowledge = observation.knowledge
    assert tuned_specs(observation.model, knowledge.auxiliary, knowledge.rehearse) == (second.spec,)
    again = tune(observation, spec, trials=4, iterations=6, shadows=2, heard=lambda *told: heard.append(told))
    assert again == second
    assert len(heard) == 2


def test_tuning_without_optuna_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    (observation,), _ = see(set_up(), targets=1)
    with pytest.raises(UsageError, match=r"fedseal\[tune\]"):
        tune(observation, "ig")


def test_tuning_without_public_images_is_refused():
    pytest.importorskip("optuna")
    (observation,), _ = see(set_up(attacker={"public_data": False}), targets=1)
    with pytest.raises(CapabilityError, match="public images"):
        tune(observation, "ig")


def test_an_attack_without_open_options_cannot_be_tuned():
    assert set(tunable("ig:lr=0.1")) == {"tv", "schedule", "start", "signed"} <= set(RANGES)
    with pytest.raises(UsageError, match="no option that can be tuned"):
        tunable("first-layer")
