"""The verdict: levels, the correction by chance, the worst case, and the sentence."""

from __future__ import annotations

from typing import Any

import pytest

from fedseal.audit.verdict import RiskLevel, judge, level_of
from fedseal.core.errors import UsageError
from fedseal.store.records import TrialRecord

LOW, MEDIUM, HIGH, VERY_HIGH = RiskLevel


def trial(psnr: float | None, chance: float = 5.0, target: int = 0, **values: Any) -> TrialRecord:
    scores: dict[str, Any] = {"status": "failed", "message": "it broke"}
    if psnr is not None:
        scores = {
            "psnr": (psnr,),
            "ssim": (0.5,),
            "mse": (0.1,),
            "psnr_best": (psnr,),
            "baselines": {"noise": (chance - 2,), "mean_image": (chance,)},
        }
    where = {"scenario": "s", "defence": "none", "attack": "ig", "aware": False, "target": target, "key": str(target)}
    return TrialRecord.model_validate(where | scores | values)


def cell(psnrs: list[float | None], **values: Any) -> list[TrialRecord]:
    return [trial(psnr, target=target, **values) for target, psnr in enumerate(psnrs)]


@pytest.mark.parametrize(
    ("psnr", "level"),
    [
        (100.0, VERY_HIGH),
        (20.0, VERY_HIGH),
        (19.999, HIGH),
        (15.0, HIGH),
        (14.999, MEDIUM),
        (10.0, MEDIUM),
        (9.999, LOW),
        (0.0, LOW),
    ],
)
def test_levels_begin_at_10_15_and_20_decibels(psnr: float, level: RiskLevel):
    assert level_of(psnr, 1.0) is level
    assert judge([trial(psnr, chance=-3)]).level is level


def test_what_does_not_beat_chance_is_no_leak():
    assert level_of(30.0, 0.0) is LOW
    assert level_of(30.0, -1.0) is LOW
    assert judge([trial(25.0, chance=26.0)]).level is LOW
    assert judge([trial(25.0, chance=24.0)]).level is VERY_HIGH


def test_chance_must_be_beaten_beyond_the_interval():
    clear = cell([25.0, 25.1, 24.9, 25.0], chance=20.0)
    unclear = cell([40.0, 10.0, 12.0, 26.0], chance=20.0)  # mean 22, but not reliably above 20
    assert judge(clear).level is VERY_HIGH
    assert judge(unclear).level is LOW


def test_the_strongest_baseline_counts():
    records = [trial(21.0, baselines={"noise": (5.0,), "nearest": (20.5,), "flat": (10.0,)})]
    found = judge(records).cells[0]
    assert (found.baseline, found.baseline_psnr) == ("nearest", 20.5)
    assert found.excess is not None
    assert found.excess.mean == pytest.approx(0.5)


def test_images_are_averaged_within_their_batch_first():
    pair = {"psnr": (10.0, 20.0), "baselines": {"noise": (1.0, 1.0), "mean_image": (0.0, 0.0)}}
    found = judge([trial(0).model_copy(update=pair), trial(30, target=1)]).cells[0]
    assert found.psnr is not None
    assert (found.psnr.mean, found.psnr.n) == (22.5, 2)
    assert found.max_psnr == 30


def test_a_row_is_as_bad_as_its_worst_attack_and_attacker():
    records = [
        *cell([12.0], attack="ig", aware=False),
        *cell([18.0], attack="ig", aware=True),
        *cell([16.0], attack="idlg", aware=False),
    ]
    row = judge(records).rows[0]
    assert row.level is HIGH
    assert row.worst is not None
    assert (row.worst.attack, row.worst.aware) == ("ig", True)


def test_a_high_psnr_below_chance_does_not_hide_a_leak():
    records = [*cell([30.0], attack="a", chance=35.0), *cell([16.0], attack="b", chance=5.0)]
    verdict = judge(records)
    assert verdict.level is HIGH
    assert verdict.rows[0].worst is not None
    assert verdict.rows[0].worst.attack == "b"


def test_failed_trials_are_counted_and_never_averaged():
    verdict = judge(cell([22.0, None, 22.0, None]))
    found = verdict.cells[0]
    assert verdict.failed == 2
    assert (len(found.failed), len(found.succeeded)) == (2, 2)
    assert found.psnr is not None
    assert (found.psnr.mean, found.psnr.n) == (22.0, 2)
    assert verdict.level is VERY_HIGH


def test_refused_trials_are_no_failures_and_no_result():
    refused = cell([None], attack="first-layer", status="refused", message="not linear")
    verdict = judge([*refused, *cell([12.0])])
    assert verdict.failed == 0
    assert verdict.level is MEDIUM
    assert verdict.cells[0].refused is not None
    assert verdict.cells[0].level is None
    nothing = judge(refused)
    assert nothing.level is None
    assert nothing.rows[0].worst is None


@pytest.mark.parametrize("records", [[], cell([None, None]), cell([None], status="refused")])
def test_the_sentence_when_nothing_succeeded(records: list[TrialRecord]):
    assert judge(records).sentence() == "Nothing could be judged: no trial succeeded."


def test_the_sentence_of_an_undefended_run():
    assert judge(cell([22.04], chance=11.5)).sentence() == (
        "Undefended, this federation's risk is very high: an attacker using ig rebuilds its images at 22.0 dB PSNR "
        "(guessing without the update gives 11.5)."
    )


def test_the_sentence_of_one_defence():
    sentence = judge(cell([12.0], defence="topk", aware=True)).sentence()
    assert sentence.startswith("The defence audited is topk: with it the risk is medium: a defence-aware attacker")
    assert "Undefended" not in sentence


def test_the_sentence_names_the_safest_defence():
    records = [
        *cell([25.0]),
        *cell([18.0], defence="weak"),
        *cell([6.0], defence="strong"),
        *cell([12.0], defence="strong", attack="idlg"),
        *cell([None], defence="broken"),
    ]
    sentence = judge(records).sentence()
    assert "Undefended, this federation's risk is very high" in sentence
    assert "The safest defence audited is strong: with it the risk is medium" in sentence
    assert "using idlg" in sentence


def test_of_several_scenarios_the_worst_counts():
    records = [
        *cell([9.0], scenario="easy"),
        *cell([6.0], scenario="easy", defence="brittle"),
        *cell([8.0], scenario="easy", defence="solid"),
        *cell([25.0], scenario="hard"),
        *cell([24.0], scenario="hard", defence="brittle"),
        *cell([11.0], scenario="hard", defence="solid"),
    ]
    verdict = judge(records)
    assert verdict.level is VERY_HIGH
    assert [(row.scenario, row.defence, row.level) for row in verdict.rows] == [
        ("easy", "none", LOW),
        ("easy", "brittle", LOW),
        ("easy", "solid", LOW),
        ("hard", "none", VERY_HIGH),
        ("hard", "brittle", VERY_HIGH),
        ("hard", "solid", MEDIUM),
    ]
    sentence = verdict.sentence()
    assert "risk is very high" in sentence
    assert "The safest defence audited is solid: with it the risk is medium" in sentence


def test_one_defence_in_two_scenarios_is_one_defence():
    records = [*cell([9.0], scenario="a", defence="topk"), *cell([12.0], scenario="b", defence="topk")]
    assert judge(records).sentence().startswith("The defence audited is topk: with it the risk is medium")


def test_the_same_records_give_the_same_intervals():
    records = cell([20.0, 22.0, 24.0, 21.0])
    assert judge(records).cells[0].psnr == judge(records).cells[0].psnr


@pytest.mark.parametrize(
    ("text", "level"),
    [("low", LOW), ("Medium", MEDIUM), (" HIGH ", HIGH), ("very-high", VERY_HIGH), ("very high", VERY_HIGH)],
)
def test_levels_are_parsed(text: str, level: RiskLevel):
    assert RiskLevel.parse(text) is level
    assert RiskLevel.parse(level.words) is level


@pytest.mark.parametrize("text", ["", "extreme", "3", "words", "highh"])
def test_unknown_levels_are_refused_with_the_known_ones(text: str):
    with pytest.raises(UsageError) as caught:
        RiskLevel.parse(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint == "Use one of low, medium, high, very-high."
