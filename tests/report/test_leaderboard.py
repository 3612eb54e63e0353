"""Boards compare what can be compared: one federation, one class of utility or time."""

from __future__ import annotations

from pathlib import Path

from fedseal.advice.outcome import Advice, Attacked, Candidate, Figure, Trained, keep
from fedseal.advice.scenario import AdviceScenario
from fedseal.advice.screening import Screened
from fedseal.audit.run import Run
from fedseal.report.leaderboard import Leaderboard, rank_attacks, rank_defences, render_leaderboard, write_leaderboard


def entry(name: str, kept: float, standing: str, gain: float) -> Candidate:
    level = standing if standing in {"low", "high"} else ""
    return Candidate(
        screened=Screened(defence=name, gain_db=gain, distance=1.0),
        trained=Trained(accuracy=Figure(mean=kept), kept=Figure(mean=kept), learnt=True),
        attacked=Attacked(state=standing if not level else "leak", level=level),
    )


def test_defences_are_ranked_among_those_that_keep_as_much_and_unknown_is_behind_low(tmp_path: Path) -> None:
    candidates = (
        entry("leaky", 99, "high", 20),
        entry("unknown", 99, "not shown", 2),
        entry("sound", 98.5, "low", 0.5),
        entry("lossy", 70, "low", 0.1),
        Candidate(screened=Screened(defence="untried")),
    )
    boards = list(rank_defences(Advice(scenario=AdviceScenario(), candidates=candidates)))
    assert [[line.name for line in board.lines] for board in boards] == [["sound", "unknown", "leaky"], ["lossy"]]
    assert boards[1].title == "keeps less than 80 %"
    keep(Advice(scenario=AdviceScenario(), candidates=candidates), tmp_path)
    text = render_leaderboard(Leaderboard(tuple(boards), ()))
    assert text.index("`sound`") < text.index("`unknown`") < text.index("`leaky`")
    assert "No run of this kind" in text


def test_attacks_are_ranked_by_what_they_gain_within_a_time(run: Run, tmp_path: Path) -> None:
    boards = list(rank_attacks(run))
    assert boards
    for board in boards:
        gains = [float(line.figures[1].split()[0].replace("−", "-").replace("∞", "inf")) for line in board.lines]
        assert gains == sorted(gains, reverse=True)
        assert "faces" in board.setting
    paths = write_leaderboard(Leaderboard((), tuple(boards)), tmp_path)
    assert [path.name for path in paths] == ["leaderboard.md", "leaderboard.html"]
    assert "<table" in paths[1].read_text()
