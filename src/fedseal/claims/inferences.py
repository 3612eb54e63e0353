"""Inference attacks as a measurement: how well members and attributes are told under each defence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedseal.audit.scenario import Scenario
from fedseal.claims.place import Place
from fedseal.claims.samples import Sample
from fedseal.inference.ask import ask


def inference(
    place: Place,
    *,
    question: str,
    scenario: dict[str, Any],
    defences: dict[str, str],
    rounds: int = 32,
    shadows: int = 32,
    epochs: int = 0,
    scores: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (0, 1, 2, 3),
) -> Iterator[Sample]:
    """Ask a question under each defence; arms are the defences, values the AUC of the best score, groups the seeds.

    `scores` are those that count; all if empty. Scores that look at the model alone are the same under every defence.
    """
    names = {spec: name for name, spec in defences.items()}
    for seed in seeds:
        asked = Scenario(**scenario, defences=list(defences.values()), seed=seed, targets=1)
        found = ask(asked, question, rounds=rounds, epochs=epochs, shadows=shadows, data_root=place.data_root)
        for spec, name in names.items():
            yield Sample(
                name, seed, 0, max(o.auc for o in found if o.defence == spec and (not scores or o.score in scores))
            )
