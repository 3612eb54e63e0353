"""Limits are read as people write them, hopeless trainings end, and the answer says what is known and no more."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fedseal.advice.early import Hopeless
from fedseal.advice.limits import Limits
from fedseal.advice.outcome import Advice, Attacked, Candidate, Figure, Trained, keep, open_advice, within
from fedseal.advice.scenario import AdviceScenario
from fedseal.advice.screening import Screened
from fedseal.advice.search import Search
from fedseal.advice.sentences import paragraph
from fedseal.advice.space import Space, can_be_built, usable
from fedseal.audit.cells import Cell, Ideal, Row
from fedseal.audit.levels import RiskLevel, State
from fedseal.core.errors import InputError, StorageError, UsageError
from fedseal.federation.simulation import RoundRecord
from fedseal.report.advice import front_chart, render_advice_html
from fedseal.report.pieces import piece_of

NOISE = "gaussian:sigma=0.1"


def test_limits_are_read_as_people_write_them():
    limits = Limits.model_validate(
        {"max_accuracy_loss": "2%", "max_upload": "0.5x", "max_time": "any", "aim": "Very-High"}
    )
    assert limits.kept == pytest.approx(98)
    assert limits.max_upload == 0.5
    assert math.isinf(limits.max_time)
    assert limits.level is RiskLevel.VERY_HIGH


@pytest.mark.parametrize("wrong", [{"max_accuracy_loss": "200%"}, {"max_upload": "little"}, {"aim": "safe"}])
def test_a_limit_that_means_nothing_is_refused(wrong: dict[str, str]):
    with pytest.raises(ValidationError):
        Limits.model_validate(wrong)


def test_a_header_does_not_count_against_an_upload_of_the_same_size():
    assert Limits(max_upload=1).allows_upload(1.002)
    assert not Limits(max_upload=1).allows_upload(1.1)


def test_the_attacked_client_trains_as_the_federation_does():
    scenario = AdviceScenario.model_validate({"federation": {"algorithm": "fedsgd", "batch_size": 3}})
    assert scenario.client.batch_size == 3
    given = AdviceScenario.model_validate({"federation": {"batch_size": 3}, "client": {"batch_size": 1}})
    assert given.client.batch_size == 1


def test_targets_are_the_same_whether_a_sum_of_clients_is_read_or_not():
    scenario = AdviceScenario(clients=5, defences=("gaussian", "secagg"))
    alone, together = scenario.screening((NOISE,)), scenario.screening((NOISE, "secagg:clients=5"))
    assert alone.client == together.client


def rounds(*accuracies: float) -> list[RoundRecord]:
    return [
        RoundRecord(round=i, clients=("a",), bytes_up=1, bytes_down=1, seconds=1.0, accuracy=value)
        for i, value in enumerate(accuracies)
    ]


def test_a_training_far_behind_its_twin_is_stopped_and_one_that_may_catch_up_is_not():
    hopeless = Hopeless({0: [(n, 0.8) for n in range(1, 11)]}, 10, 98.0)
    assert hopeless(NOISE, 0, rounds(0.1)) == ""  # too early to tell
    assert "stopped after 5 of 10 rounds with 20.0%" in hopeless(NOISE, 0, rounds(0.1, 0.1, 0.1, 0.1, 0.2))
    assert hopeless(NOISE, 0, rounds(0.1, 0.1, 0.3, 0.5, 0.7)) == ""
    assert hopeless("none", 0, rounds(*[0.0] * 9)) == ""


def test_a_space_names_defences_that_exist_and_begins_with_the_computed_noise():
    space = usable(("gaussian", "secagg", "selective", "gaussian+topk"), 1, ("fc", "conv"), 0.2)
    assert "secagg" not in space.families  # nobody to add up with
    asked = [settings["gaussian.sigma"] for settings in space.starts() if settings["family"] == "gaussian"]
    assert asked == pytest.approx([0.2, 0.4, 0.8, 2.4])
    with pytest.raises(UsageError):
        usable(("gausian",), 2, (), None)


def cheap(defence: str, gain: float, distance: float = 1.0, **values: Any) -> Screened:
    level = "low" if gain <= 1 else "high"
    known = {"ideal_db": 12 + gain, "prior_db": 12.0, "gain_db": gain, "level": level, "distance": distance}
    return Screened.model_validate({"defence": defence, "upload": 1.0, **known, **values})


class Readings:
    """Answers as cheap readings would: the stronger the noise, the less an update holds."""

    def __init__(self, most: int = 10**6) -> None:
        self.asked: list[str] = []
        self.most = most

    def __call__(self, specs: Any) -> dict[str, Screened | None]:
        if len(self.asked) + len(specs) > self.most:
            raise KeyboardInterrupt
        self.asked += specs
        sigma = {spec: float(spec.partition("sigma=")[2].split("+")[0]) for spec in specs}
        return {spec: cheap(spec, 0.05 / sigma[spec], sigma[spec]) for spec in specs}


def test_a_search_that_was_killed_goes_on_without_asking_twice(tmp_path: Path):
    space = Space(("gaussian",), 4)
    broken, going_on = Readings(most=6), Readings()
    with pytest.raises(KeyboardInterrupt):
        Search(tmp_path / "journal", space, "here", 0).run(14, broken)
    search = Search(tmp_path / "journal", space, "here", 0)
    search.run(14, going_on)
    assert broken.asked
    assert not set(broken.asked) & set(going_on.asked)
    assert len(search.found) >= len(broken.asked) + len(going_on.asked) - 1
    again = Readings()
    Search(tmp_path / "journal", space, "here", 0).run(14, again)
    assert again.asked == []
    Search(tmp_path / "journal", space, "elsewhere", 0).run(3, again)
    assert again.asked  # another federation's readings are none of ours


def test_what_cannot_be_built_is_no_candidate():
    assert can_be_built("gaussian:sigma=1+topk:ratio=0.9")
    assert not can_be_built("topk:ratio=0.9,feedback=true+gaussian:sigma=1")


LOW = Attacked(
    state="low", level="low", decided="ideal", attack="auto", found_db=9.0, guess_db=11.0, batches=8, within=True
)
LEAK = Attacked(state="leak", level="high", decided="found", attack="auto", found_db=19.0, guess_db=11.0, batches=8)


def trained(kept: float, **values: Any) -> Trained:
    return Trained(accuracy=Figure(mean=0.9 * kept, n=4), kept=Figure(mean=kept, n=4), time=1.1, learnt=True, **values)


def advice(*candidates: Candidate, **values: Any) -> Advice:
    plain = Candidate(screened=cheap("none", 30, 0.001), trained=trained(100), attacked=LEAK)
    return Advice(scenario=AdviceScenario(), candidates=(plain, *candidates), **values)


def test_a_recommendation_comes_with_four_readings_and_its_costs():
    found = advice(Candidate(screened=cheap(NOISE, 0.5), trained=trained(99), attacked=LOW), recommended=NOISE)
    text = paragraph(found)
    assert text.startswith(f"Take {NOISE}. Its risk is low by the audit (ideal).")
    for part in (
        "found: 9.0 dB",
        "Found: 9.0 dB",
        "singled out",
        "ideal: 12.5 dB",
        "proven: nothing",
        "89.1 % (4 seeds)",
        "1.00x",
    ):
        assert part.lower() in text.lower()


def test_where_only_strong_noise_is_safe_it_says_what_that_costs():
    safe = Candidate(screened=cheap(NOISE, 0.5), trained=trained(61), attacked=LOW)
    text = paragraph(advice(safe, nearest=(NOISE,)))
    assert text.startswith("No defence among the 1 looked at keeps 98 % of the accuracy")
    assert "gaussian:sigma=0.1 (low)" in text
    assert "61.0 % of the undefended accuracy" in text


def test_where_nothing_is_safe_it_says_so():
    leaky = Candidate(screened=cheap("topk:ratio=0.9", 20), trained=trained(99), attacked=LEAK)
    text = paragraph(advice(leaky, nearest=("topk:ratio=0.9",)))
    assert "None that was attacked is shown to be low, whatever it costs." in text
    assert "enough for 32.0 dB where a guess has 12.0" in text


def row(state: State, level: RiskLevel | None, ideal_db: float) -> Row:
    ideal = Ideal(ideal_db, ideal_db, 8.0, ideal_db - 8.0, "", ())
    cell = Cell("s", NOISE, "auto", True, (), ideal=ideal, state=state, level=level)
    return Row("s", NOISE, (cell,), cell)


def test_what_is_not_shown_is_never_low_and_is_as_bad_as_what_its_update_holds():
    unshown = row(State.NOT_SHOWN, None, 12.0)
    assert not within(unshown, RiskLevel.LOW)
    assert within(unshown, RiskLevel.MEDIUM)
    assert not within(row(State.NOT_SHOWN, None, 17.0), RiskLevel.MEDIUM)
    assert not within(row(State.TOO_FEW, None, 8.5), RiskLevel.LOW)
    assert within(row(State.LOW, RiskLevel.LOW, 8.5), RiskLevel.LOW)
    assert not within(row(State.LEAK, RiskLevel.HIGH, 17.0), RiskLevel.MEDIUM)


def test_stopped_and_unlearnt_trainings_are_never_affordable():
    limits = Limits(max_accuracy_loss=0.5)
    assert Candidate(screened=cheap(NOISE, 0.5), trained=trained(99)).affordable(limits)
    assert not Candidate(screened=cheap(NOISE, 0.5), trained=trained(99, stopped="stopped")).affordable(limits)
    blind = trained(99).model_copy(update={"learnt": False})
    assert not Candidate(screened=cheap(NOISE, 0.5), trained=blind).affordable(limits)
    assert not Candidate(screened=cheap(NOISE, 0.5, upload=24.0), trained=trained(99)).affordable(limits)


def test_advice_is_read_back_as_it_was_and_damage_is_told(tmp_path: Path):
    told = advice(Candidate(screened=cheap(NOISE, 0.5), trained=trained(99), attacked=LOW), recommended=NOISE)
    keep(told, tmp_path)
    assert open_advice(tmp_path) == told
    (tmp_path / "advice.json").write_text("{")
    with pytest.raises(StorageError, match="damaged"):
        open_advice(tmp_path)
    with pytest.raises(InputError, match="holds no advice"):
        open_advice(tmp_path / "elsewhere")


def test_advice_that_recommends_nothing_is_not_put_to_work(tmp_path: Path):
    keep(advice(nearest=("none",)), tmp_path)
    with pytest.raises(UsageError, match="recommends no defence"):
        piece_of(tmp_path, "flower")


def test_the_page_has_the_answer_and_every_defence_and_escapes_them():
    one = Candidate(screened=cheap("<b>x", 0.5), trained=trained(99), attacked=LOW, front=True)
    found = advice(one, recommended="<b>x", layers={"fc": 30.0, "conv": 12.1})
    page = render_advice_html(found.model_copy(update={"paragraph": paragraph(found)}))
    assert "<b>x" not in page
    assert "&lt;b&gt;x" in page
    assert "encrypt, freeze or noise it" in page
    assert len(front_chart(found).spots) == 2
