"""The verdict: four readings, the worst victim, states that are no level, and the sentence."""

from __future__ import annotations

from typing import Any

import pytest

from fedseal.audit.cells import Cell
from fedseal.audit.levels import RiskLevel, State, level_of
from fedseal.audit.verdict import cell_fails, judge
from fedseal.core.errors import UsageError
from fedseal.information.proven import ProvenReading
from fedseal.report.words import ideal_words
from fedseal.store.readings import ReadingRecord
from fedseal.store.records import TrialRecord

LOW, MEDIUM, HIGH, VERY_HIGH = RiskLevel
WIGGLE = (0.0, 0.3, -0.2, 0.1, -0.3, 0.2, 0.15, -0.25)


def trial(psnr: float | None, chance: float = 5.0, target: int = 0, **values: Any) -> TrialRecord:
    scores: dict[str, Any] = {"status": "failed", "message": "it broke"}
    if psnr is not None:
        scores = {
            "psnr": (psnr,),
            "ssim": (0.5,),
            "mse": (0.1,),
            "psnr_best": (psnr,),
            "baselines": {"noise": (chance - 2,), "mean_image": (chance,)},
            "ranks": {"correlation": (60,), "mse": (70,)},
            "line_up": (200,),
            "twins": (0,),
            "stranger_psnr": (psnr + 1,),
            "label_accuracy": 0.0,
            "label_chance": 0.1,
        }
    where = {"scenario": "s", "defence": "none", "attack": "ig", "aware": False, "target": target, "key": str(target)}
    return TrialRecord.model_validate(where | scores | values)


def cell(psnrs: list[float | None], **values: Any) -> list[TrialRecord]:
    return [trial(psnr, target=target, **values) for target, psnr in enumerate(psnrs)]


def around(psnr: float, n: int = 8, **values: Any) -> list[TrialRecord]:
    """Return trials that vary a little around a mean."""
    return cell([psnr + WIGGLE[i % 8] for i in range(n)], **values)


def reading(psnr_db: float | None, prior_db: float | None = 12.0, **values: Any) -> ReadingRecord:
    base = {"key": "k", "scenario": "s", "defence": "none", "target": 0, "psnr_db": psnr_db, "prior_db": prior_db}
    return ReadingRecord.model_validate(base | values)


def proof(advantage: float) -> ProvenReading:
    return ProvenReading("update", 1, 0.5, 1e-5, advantage, {20.0: 0.01}, {20.0: 0.02}, 50)


def only(records: list[TrialRecord], *readings: ReadingRecord, **values: Any) -> Cell:
    found = judge(records, readings, **values).cells
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("psnr", "level"),
    [(100.0, VERY_HIGH), (20.0, VERY_HIGH), (19.999, HIGH), (15.0, HIGH), (14.999, MEDIUM), (10.0, MEDIUM), (9.9, LOW)],
)
def test_levels_begin_at_10_15_and_20_decibels(psnr: float, level: RiskLevel):
    assert level_of(psnr) is level


def test_what_reliably_beats_the_best_attainable_guess_is_found():
    found = only(around(25.0, chance=20.0))
    assert (found.state, found.level, found.decided) == (State.LEAK, VERY_HIGH, "found")
    assert only(around(12.0, chance=9.0)).level is MEDIUM
    unclear = only(cell([35.0, 10.0, 12.0, 26.0], chance=20.0))  # mean above 20, but not reliably
    assert not unclear.leaks


def test_oracle_guesses_decide_nothing():
    oracle = {"noise": (5.0,), "mean_image": (11.0,), "nearest": (40.0,), "flat": (39.0,)}
    found = only([r.model_copy(update={"baselines": oracle}) for r in around(18.0)])
    assert (found.baseline, found.level) == ("mean_image", HIGH)


def test_the_class_mean_is_attainable_only_with_the_right_labels():
    guesses = {"mean_image": (11.0,), "class_mean": (17.9,)}
    blind = only([r.model_copy(update={"baselines": guesses, "label_accuracy": 0.0}) for r in around(18.0)])
    knowing = only([r.model_copy(update={"baselines": guesses, "label_accuracy": 1.0}) for r in around(18.0)])
    assert blind.baseline_psnr == pytest.approx(11.0)
    assert blind.decided == "found"
    assert (knowing.baseline, knowing.baseline_psnr) == ("class_mean", pytest.approx(17.9))
    assert knowing.decided != "found"


def test_blank_and_duplicate_images_do_not_swamp_the_mean():
    """Two blank images among eight, which the mean image equals: 42.8 dB was called low."""
    records = around(42.8, chance=12.0)
    blank = {"baselines": {"noise": (8.0,), "mean_image": (100.0,)}}
    records[0], records[1] = (r.model_copy(update=blank) for r in records[:2])
    assert only(records).level is VERY_HIGH


def test_seven_of_eight_picked_out_are_a_high_risk_whatever_the_psnr():
    records = [
        r.model_copy(update={"ranks": {"correlation": (1 if i < 7 else 9,), "mse": (90,)}})
        for i, r in enumerate(around(8.3, chance=15.0))
    ]
    found = only(records, reading(12.1))
    assert (found.level, found.decided) == (HIGH, "singled out")
    assert "picked out of 200: 7 of 8 (chance 0.5 %)" in judge(records).sentence()
    few = [r.model_copy(update={"ranks": {"correlation": (1 if i < 3 else 99,)}}) for i, r in enumerate(around(8.3))]
    assert only(few).level is MEDIUM


def test_ranks_that_are_merely_good_are_a_leak_too():
    """A mean colour leaks: never first, always in the first third."""
    records = [r.model_copy(update={"ranks": {"correlation": (20 + i,)}}) for i, r in enumerate(around(9.0, n=16))]
    assert only(records, reading(12.1)).level is MEDIUM


@pytest.mark.parametrize("psnrs", [[60.0, 60.0, *[6.0] * 9], [*[8.0] * 49, 45.0]])
def test_the_worst_victim_counts(psnrs: list[float | None]):
    records = [r.model_copy(update={"stranger_psnr": (14.0,)}) for r in cell(psnrs, chance=12.0)]
    found = only(records, reading(12.1))
    assert (found.level, found.decided) == (VERY_HIGH, "worst victim")
    assert found.victims is not None
    assert (found.victims.count, found.victims.n) == (sum(p is not None and p > 15 for p in psnrs), len(psnrs))


def test_victims_within_a_batch_are_not_diluted():
    """CAH on batches of 64: ten of 256 images came back, and the mean said low."""
    base = trial(0)
    scores = [tuple([50.0] * (3 if t < 2 else 2) + [6.0] * (61 if t < 2 else 62)) for t in range(4)]
    records = [
        base.model_copy(
            update={
                "target": t,
                "psnr": s,
                "psnr_best": s,
                "ssim": (0.1,) * 64,
                "baselines": {"mean_image": (12.0,) * 64},
                "stranger_psnr": (13.0,) * 64,
                "ranks": {"mse": (100,) * 64},
                "line_up": (200,) * 64,
                "twins": (0,) * 64,
            }
        )
        for t, s in enumerate(scores)
    ]
    found = only(records, reading(12.0))
    assert found.level is VERY_HIGH
    assert found.victims is not None
    assert (found.victims.count, found.victims.n) == (10, 256)


def test_an_original_closer_than_its_own_strangers_is_no_victim_if_another_stranger_is_closer():
    """One of many exceeds its own line-up by chance; it must exceed them all."""
    records = [r.model_copy(update={"stranger_psnr": (10.0 + i,)}) for i, r in enumerate(around(12.0, chance=14.0))]
    assert only(records).victims is not None
    assert only(records).victims.count == 0  # type: ignore[union-attr]


def test_without_strangers_a_victim_must_beat_every_oracle():
    bare: dict[str, Any] = {"ranks": {}, "line_up": (), "twins": (), "stranger_psnr": ()}
    records = [r.model_copy(update=bare) for r in cell([60.0, *[8.0] * 7], chance=12.0)]
    assert only(records).decided == "worst victim"
    blank = {"baselines": {"flat": (100.0,), "mean_image": (12.0,)}}
    assert only([records[0].model_copy(update=blank), *records[1:]]).victims.count == 0  # type: ignore[union-attr]


def test_labels_are_a_reading_of_their_own():
    records = [r.model_copy(update={"label_accuracy": 1.0}) for r in around(8.0, chance=15.0)]
    found = only(records, reading(12.0))
    assert (found.level, found.decided) == (MEDIUM, "labels")
    assert "reads 100% of the labels (guessing gives 10%)" in judge(records).sentence()
    given = [r.model_copy(update={"label_chance": None}) for r in records]
    assert only(given, reading(12.0)).labels is None
    assert only(given, reading(12.0)).state is State.LOW


def test_labels_read_by_everybody_leak_however_many_attackers_read_them():
    """Eight of eight where a guess has 54 % is p = 0.007: a leak also where two kinds of attacker were tried."""
    read = {"label_accuracy": 1.0, "label_chance": 0.54}
    for awareness in ([False], [False, True]):
        records = [r for aware in awareness for r in around(8.0, 8, chance=9.0, aware=aware, **read)]
        (row,) = judge(records).rows
        assert row.labels is not None
        assert row.labels.leaked


def test_low_needs_the_ideal_reading_or_a_proof():
    records = around(8.0, chance=12.0)
    assert only(records).state is State.NO_POWER  # nothing was computed: never low
    low = only(records, reading(12.9, 12.0))
    assert (low.state, low.level, low.decided) == (State.LOW, LOW, "ideal")
    assert only(records, reading(13.1, 12.0)).state is not State.LOW
    assert only(records, reading(12.9, 12.0, error_db=0.3)).state is not State.LOW
    assert only(records, reading(12.5, 12.0), reading(30.0, 12.0, target=1)).state is not State.LOW
    assert only(records, reading(None, reason="no view.")).state is not State.LOW
    assert only(records, reading(12.5, None)).state is not State.LOW  # without public data the prior is unknown
    assert only(records, proofs={("s", "none"): proof(0.05)}).decided == "proven"
    assert only(records, proofs={("s", "none"): proof(0.5)}).state is not State.LOW
    assert only(records, reading(30.0), proofs={("s", "none"): proof(0.05)}).state is not State.LOW  # they contradict


def test_not_shown_needs_a_control_that_breaks():
    quiet = around(8.0, chance=12.0, defence="topk")
    held = reading(19.0, 12.0, defence="topk")
    shown = judge([*around(25.0), *quiet], [held]).rows[1]
    assert (shown.state, shown.level) == (State.NOT_SHOWN, None)
    blunt = judge([*around(8.0, chance=12.0), *quiet], [held])
    assert [row.state for row in blunt.rows] == [State.NO_POWER, State.NO_POWER]
    other = judge([*around(25.0, attack="dlg"), *quiet], [held]).rows[1]
    assert other.state is State.NO_POWER  # another attack's control does not count
    low = judge([*around(8.0, chance=12.0), *quiet], [reading(12.2, defence="topk")]).rows[1]
    assert low.state is State.LOW  # nothing is held, so there was nothing to find


def test_one_step_far_below_chance_is_a_failed_attack():
    found = only(around(5.0, chance=14.0))
    assert (found.state, found.attack_failed) == (State.NO_POWER, True)
    assert "far worse than a guess" in judge(around(5.0, chance=14.0)).sentence()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_than_four_trials_are_too_few(n: int):
    found = only(around(25.0, n=n), reading(12.0))
    assert (found.state, found.level) == (State.TOO_FEW, None)
    assert found.psnr is not None
    assert found.psnr.low is None
    assert "too few" in judge(around(25.0, n=n)).sentence()


def test_a_victim_among_too_few_still_fails_a_limit():
    records = [r.model_copy(update={"stranger_psnr": (14.0,)}) for r in cell([60.0, 60.0])]
    found = only(records)
    assert found.state is State.TOO_FEW
    assert cell_fails(found, HIGH, strict=False)


def test_weight_seeds_are_a_level_of_their_own():
    seeds = [r.model_copy(update={"weight_seed": s}) for s in range(3) for r in around(25.0 + s, n=4)]
    found, pooled = only(seeds).psnr, only(around(26.0, n=12)).psnr
    assert found is not None
    assert pooled is not None
    assert (found.n, pooled.n) == (3, 12)
    assert (found.high or 0) - (found.low or 0) > 4 * ((pooled.high or 0) - (pooled.low or 0))


def test_images_are_averaged_within_their_batch_first():
    pair = {
        "psnr": (10.0, 20.0),
        "psnr_best": (10.0, 20.0),
        "baselines": {"noise": (1.0, 1.0), "mean_image": (0.0, 0.0)},
    }
    found = only([trial(0).model_copy(update=pair), trial(30, target=1)])
    assert found.psnr is not None
    assert (found.psnr.mean, found.psnr.n) == (22.5, 2)
    assert found.max_psnr == 30


def test_a_row_is_as_bad_as_its_worst_attack_and_attacker():
    records = [*around(12.0), *around(18.0, aware=True), *around(16.0, attack="idlg")]
    row = judge(records).rows[0]
    assert row.level is HIGH
    assert row.worst is not None
    assert (row.worst.attack, row.worst.aware) == ("ig", True)


def test_failed_trials_are_counted_and_never_averaged():
    verdict = judge(cell([22.0, None, 22.0, None]))
    found = verdict.cells[0]
    assert verdict.failed == 2
    assert (len(found.failed), len(found.succeeded)) == (2, 2)
    assert found.psnr is not None
    assert (found.psnr.mean, found.psnr.n) == (22.0, 2)


def test_nothing_but_failures_is_not_judged():
    verdict = judge(cell([None, None]))
    assert (verdict.level, verdict.standing, verdict.judged) == (None, None, ())
    assert verdict.sentence() == "Nothing could be judged: no trial succeeded."
    refused = [trial(None, status="refused", message="no")]
    assert judge(refused).cells[0].refused is not None
    assert judge(refused).rows[0].worst is None


def test_the_control_is_shown_and_never_fails_a_limit():
    records = [*around(25.0), *around(8.0, chance=12.0, defence="topk")]
    verdict = judge(records, [reading(12.0, defence="topk")], asked={"s": ("topk",)})
    assert verdict.rows[0].control
    assert verdict.level is LOW
    assert not verdict.fails(MEDIUM)
    assert judge(records, asked={"s": ("none", "topk")}).fails(MEDIUM)


def test_limits_judge_leaks_and_strict_ones_what_the_update_holds():
    control, quiet = around(25.0), around(8.0, chance=12.0, defence="topk")
    asked = {"s": ("topk",)}
    for held, limit, fails, strictly in (
        (19.0, MEDIUM, False, True),
        (14.0, HIGH, False, False),
        (14.0, MEDIUM, False, True),
        (None, VERY_HIGH, False, True),
        (19.0, LOW, True, True),
    ):
        verdict = judge([*control, *quiet], [reading(held, defence="topk")], asked=asked)
        assert verdict.unsettled
        assert verdict.fails(limit) is fails
        assert verdict.fails(limit, strict=True) is strictly


def test_a_reading_that_may_be_far_higher_bounds_nothing_from_above():
    """Solves that were stopped say what an upload holds at least: no ground to pass a strict limit on."""
    records = [*around(25.0), *around(8.0, chance=12.0, defence="topk")]
    verdict = judge(records, [reading(14.0, defence="topk", error_db=50.0)], asked={"s": ("topk",)})
    ideal = verdict.rows[1].ideal
    assert ideal is not None
    assert ideal.at_least
    assert ideal.level is None
    assert verdict.fails(HIGH, strict=True)
    assert ideal_words(ideal) == "at least 14.0 dB (prior 12.0)"
    narrow = judge(records, [reading(14.0, defence="topk", error_db=0.5)], asked={"s": ("topk",)})
    assert not narrow.fails(HIGH, strict=True)
    assert narrow.rows[1].ideal is not None
    assert ideal_words(narrow.rows[1].ideal) == "14.0 dB (prior 12.0)"
    high = judge(records, [reading(21.0, defence="topk", error_db=50.0)], asked={"s": ("topk",)}).rows[1].ideal
    assert high is not None
    assert high.level is VERY_HIGH


def test_the_sentence_names_what_decided_and_calls_nothing_unsettled_safest():
    records = [
        *around(25.0),
        *around(18.0, defence="weak"),
        *around(6.0, chance=12.0, defence="quiet"),
        *cell([None], defence="broken"),
    ]
    sentence = judge(records).sentence()
    assert sentence.startswith("Undefended, this federation's risk is very high, by what an attack found")
    assert "No defence audited is shown to be low; the nearest is quiet" in sentence
    assert "safest" not in sentence
    low = judge(records, [reading(12.0, defence="quiet")]).sentence()
    assert "The safest defence audited is quiet: with it the risk is low, by the ideal reading" in low
    held = judge(records, [reading(19.0, defence="quiet")]).sentence()
    assert "not shown: the update holds enough for 19.0 dB, the prior alone for 12.0; no attack we ran" in held


def test_of_several_scenarios_the_worst_counts():
    records = [
        *around(25.0, scenario="easy"),
        *around(16.0, scenario="easy", defence="solid"),
        *around(25.0, scenario="hard"),
        *around(24.0, scenario="hard", defence="brittle"),
        *around(16.0, scenario="easy", defence="brittle"),
        *around(11.0, scenario="hard", defence="solid"),
    ]
    sentence = judge(records).sentence()
    assert "Of the defences audited the mildest is solid: with it the risk is high" in sentence


def test_the_same_records_give_the_same_intervals():
    assert judge(around(20.0)).cells[0].psnr == judge(around(20.0)).cells[0].psnr


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
