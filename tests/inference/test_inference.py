"""What updates tell without being inverted: far above chance where it must be, at chance where nothing can be known."""

from __future__ import annotations

import json

import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from fedseal.audit.scenario import Scenario
from fedseal.cli import app
from fedseal.core.errors import UsageError
from fedseal.inference.ask import ask
from fedseal.inference.outcome import Outcome, judged, sentence

TABLE = Scenario(data="census:rows=900", model="mlp:width=64", client={"batch_size": 5}, targets=1, defences=("none",))
WORK = Scenario(
    data="census:rows=300,target=work", model="mlp:width=64", client={"batch_size": 5}, targets=1, defences=("none",)
)
FACES = Scenario(data="faces:size=8", model="mlp:width=32", client={"batch_size": 4}, targets=1, defences=("none",))


def by_score(found: tuple[Outcome, ...]) -> dict[str, Outcome]:
    return {one.score: one for one in found}


def test_members_of_an_overfit_model_are_told_by_loss_and_gradient():
    found = by_score(ask(WORK, "membership", rounds=10, epochs=100, shadows=8))
    assert found["loss"].auc > 0.9
    assert found["norm"].auc > 0.9
    assert found["reference"].auc > 0.8
    untouched = by_score(ask(WORK, "membership", rounds=10, shadows=8))
    for score in ("loss", "norm", "reference"):
        assert untouched[score].auc_low <= 0.5 <= untouched[score].auc_high


def test_an_untouched_model_knows_no_members_but_an_update_names_them():
    found = by_score(ask(TABLE, "membership", rounds=32, shadows=16))
    for score in ("loss", "norm"):
        assert found[score].auc_low <= 0.5 <= found[score].auc_high
        assert found[score].level == "not shown"  # that a score fails shows nothing of another
    assert sentence(tuple(found.values())).startswith("none: high. At one false alarm in a hundred the score")
    assert found["alignment"].auc_low > 0.55
    assert found["calibrated"].auc_low > 0.6


def test_noise_brings_an_update_back_to_chance():
    loud = TABLE.model_copy(update={"defences": ("gaussian:sigma=100",)})
    found = by_score(ask(loud, "membership", rounds=24, shadows=8))
    assert found["calibrated"].auc_low <= 0.5 <= found["calibrated"].auc_high


def test_low_is_what_is_proven_and_never_what_was_merely_not_found():
    private = TABLE.model_copy(update={"defences": ("dp-sgd:sigma=20,clip=1", "gaussian:sigma=100,clip=inf")})
    told = {(one.defence, one.score): one for one in ask(private, "membership", rounds=21, shadows=8)}
    proven = told["dp-sgd:sigma=20,clip=1", "alignment"]
    assert proven.proven == pytest.approx(norm.cdf(norm.ppf(0.01) + 2 / 20), rel=1e-6)  # one record in another's place
    assert proven.level == "low"
    assert "Proven: at 1% false alarms no attacker finds more than 1.3%" in sentence([proven])
    assert told["gaussian:sigma=100,clip=inf", "alignment"].level in ("not shown", "ranked, not named")
    (batch,) = ask(private.model_copy(update={"defences": ("dp-sgd:sigma=20,clip=1",)}), "property:high", rounds=4)
    assert batch.proven == pytest.approx(norm.cdf(norm.ppf(0.01) + 2 * 5 / 20), rel=1e-6)  # five records replaced


def test_a_model_trained_on_the_members_is_beyond_what_the_update_proves():
    private = WORK.model_copy(update={"defences": ("dp-sgd:sigma=20,clip=1",)})
    found = by_score(ask(private, "membership", rounds=10, epochs=100, shadows=8))
    assert found["loss"].proven is None
    assert found["loss"].auc > 0.9


def test_an_attribute_of_faces_is_read_and_a_drawn_one_is_not():
    (bright,) = ask(FACES, "attribute:bright", rounds=40, shadows=60)
    (chance,) = ask(FACES, "attribute:chance", rounds=40, shadows=60)
    assert bright.auc_low > 0.6
    assert chance.auc_low <= 0.5 <= chance.auc_high


def test_columns_and_shares_of_classes_are_read_off_updates_of_tables():
    (sex,) = ask(TABLE, "attribute:sex=female", rounds=60, shadows=120)
    (rich,) = ask(TABLE, "property:high", rounds=40, shadows=60)
    assert sex.auc_low > 0.55
    assert rich.auc_low > 0.6


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("age", "nobody can be asked 'age'"),
        ("attribute:", "nobody can be asked"),
        ("attribute:shoe=big", "no column 'shoe'"),
        ("attribute:sex=male2", "no value 'male2'"),
        ("property:poor", "no class 'poor'"),
    ],
)
def test_questions_nobody_can_answer_are_refused_in_words(question: str, words: str):
    with pytest.raises(UsageError, match=words):
        ask(TABLE, question, rounds=2, shadows=8)


def test_more_rounds_than_records_are_refused():
    with pytest.raises(UsageError, match="need 10000"):
        ask(TABLE, "membership", rounds=1000)


def test_rates_and_areas_are_those_of_their_definitions():
    perfect = judged("q", "none", "s", [*range(200)], [i >= 100 for i in range(200)])
    assert (perfect.auc, perfect.rates[0].found, perfect.level) == (1.0, 1.0, "very high")
    assert len(perfect.rates) == 1  # a hundred noes cannot tell one in a thousand
    even = judged("q", "none", "s", [1.0] * 200, [i % 2 == 0 for i in range(200)])
    assert even.auc == 0.5
    assert even.rates[0].found == 0
    assert even.level == "not shown"
    one = judged("q", "none", "s", [*range(100), 50.5, 98.5, 99.5], [*[False] * 100, True, True, True])
    assert one.rates[0].found == pytest.approx(2 / 3)  # at most one of a hundred noes above the threshold


def test_the_command_prints_figures_and_json():
    call = ["infer", "property:high", "--data", "census:rows=300", "--model", "mlp:width=8", "--batch-size", "4"]
    call += ["--defence", "none", "--rounds", "8", "--shadows", "8"]
    shown = CliRunner().invoke(app, call)
    assert shown.exit_code == 0, shown.output
    assert "AUC" in shown.output
    assert "none: too few. With 4 noes" in shown.output
    data = json.loads(CliRunner().invoke(app, [*call, "--json"]).stdout)
    assert data[0]["yes"] == 4
    assert data[0]["level"] == "too few"
