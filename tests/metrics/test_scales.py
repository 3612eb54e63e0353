"""Scores of other data than images: the verdict is the same, in other units."""

from __future__ import annotations

import pytest

from fedseal.audit.levels import RiskLevel, level_of
from fedseal.audit.verdict import judge
from fedseal.core.errors import UsageError
from fedseal.metrics.scales import PSNR, TOKENS, register_scale, scale_called
from fedseal.store.records import TrialRecord


def trial(target: int, score: float, guess: float, defence: str = "none") -> TrialRecord:
    scores = {"psnr": (score,), "psnr_best": (score,), "baselines": {"frequent": (guess,), "nearest": (99.0,)}}
    return TrialRecord(
        key=f"{defence}/{target}",
        scenario="notes",
        defence=defence,
        attack="words",
        aware=False,
        target=target,
        scale="tokens",
        label_accuracy=1.0,
        **scores,
    )


def test_levels_begin_where_the_scale_says() -> None:
    assert [level_of(value, TOKENS) for value in (29, 30, 60, 90)] == list(RiskLevel)
    assert level_of(16.0) is RiskLevel.HIGH
    assert level_of(16.0, TOKENS) is RiskLevel.LOW


def test_text_that_comes_back_is_a_leak_told_in_per_cent() -> None:
    verdict = judge([trial(i, 92.0 + i, 20.0) for i in range(5)])
    assert verdict.level is RiskLevel.VERY_HIGH
    assert "rebuilds its texts at 94.0 % (guessing without the update gives 20.0)" in verdict.sentence()


def test_words_that_anybody_guesses_are_no_leak() -> None:
    (row,) = judge([trial(i, 35.0 + i, 35.0 + i) for i in range(5)]).rows
    assert row.level is None  # above a threshold, and no better than a guess


def test_scales_are_known_by_name_and_never_overwritten() -> None:
    assert scale_called("psnr") is PSNR
    with pytest.raises(UsageError, match="no scale called 'litres'"):
        scale_called("litres")
    with pytest.raises(UsageError, match="registered already"):
        register_scale(type(PSNR)(**{**vars(TOKENS), "unit": "pieces"}))
