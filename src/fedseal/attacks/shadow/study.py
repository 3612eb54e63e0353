"""Tuning an attack on shadows with Optuna (Akiba et al., KDD 2019): studies that are kept, resumed and found again.

A study belongs to a model, public images, a way of rehearsing (hence a defence) and an attack with a budget. Its trials
are in a journal in the cache; the best settings lie beside it, where `auto` finds them, with or without Optuna.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import nn

from fedseal.attacks.shadow.ranges import Choice, Range, tunable, with_options
from fedseal.attacks.shadow.targets import play_shadows, split_public
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.core.errors import CapabilityError, FedsealError
from fedseal.core.files import write_atomically
from fedseal.core.hashing import hash_json
from fedseal.core.identity import identity_of
from fedseal.core.knowledge import Rehearse
from fedseal.core.observation import Observation
from fedseal.core.seeds import derive_seed
from fedseal.core.specs import parse_spec
from fedseal.core.studies import finished_trials, load_optuna, open_study
from fedseal.data.places import cache_directory

Heard = Callable[[int, str, float], None]
"""Told the number of a finished trial, its spec and its score in dB."""

_FAILED = -100.0


@dataclass(frozen=True)
class Tuned:
    """What a study came to.

    Attributes:
        spec: the attack with the best settings found.
        quality: mean PSNR in dB on the shadows.
        untuned: the same for the attack as it was given.
        trials: in the study so far.
    """

    spec: str
    quality: float
    untuned: float
    trials: int


def tune(
    observation: Observation,
    spec: str,
    *,
    trials: int = 24,
    iterations: int = 300,
    shadows: int = 4,
    seed: int = 0,
    heard: Heard | None = None,
) -> Tuned:
    """Tune an attack's open options on shadows of an observation; the same call again goes on from where it was.

    Args:
        observation: whose model and knowledge count; its update is not looked at.
        spec: the attack; options it gives are kept.
        trials: the study is to have in all.
        iterations: of the attack, on each shadow.
        shadows: played.
        seed: of shadows and sampler.
        heard: told of each trial.
    """
    optuna = load_optuna("tuning an attack")
    ranges = tunable(spec)
    parted = split_public(observation, shadows, seed)
    if parted is None:
        raise CapabilityError(
            "tuning needs public images to make shadow targets of, and to know how clients train.",
            hint="Grant `public_data`, with at least eight times as many images as are behind an update.",
        )
    played = play_shadows(observation, *parted, seed)
    seeds = [derive_seed(seed, "tune", number) for number in range(len(played.observations))]

    def quality(settings: str) -> float:
        try:
            answers = ATTACKS.build(settings).run_many(played.observations, Budget(iterations), seeds)
        except CapabilityError:
            raise
        except FedsealError:  # it diverged
            return _FAILED
        return fmean(played.scores(answers))

    def objective(trial: Any) -> float:
        settings = with_options(spec, {name: _suggest(trial, name, ranges[name]) for name in ranges})
        trial.set_user_attr("spec", settings)
        score = quality(settings)
        if heard is not None:
            heard(trial.number, settings, score)
        return score

    public, rehearse = observation.knowledge.auxiliary, observation.knowledge.rehearse
    assert public is not None
    assert rehearse is not None
    determined_by = {"attack": spec, "iterations": iterations, "shadows": shadows, "seed": seed}
    name = f"{parse_spec(spec).name}-{hash_json(determined_by)[:8]}"
    directory = _directory(observation.model, public, rehearse)
    study = open_study(optuna, directory / f"{name}.journal", name, seed)
    if "untuned" not in study.user_attrs:
        study.set_user_attr("untuned", quality(spec))
    study.optimize(objective, n_trials=max(0, trials - finished_trials(study)))
    best, untuned = study.best_trial, float(study.user_attrs["untuned"])
    found = Tuned(best.user_attrs["spec"], float(best.value or _FAILED), untuned, finished_trials(study))
    if untuned >= found.quality:
        found = replace(found, spec=spec, quality=untuned)
    write_atomically(directory / f"{name}.json", json.dumps({"spec": found.spec, "quality": found.quality}))
    return found


def tuned_specs(model: nn.Module, public: Batch, rehearse: Rehearse) -> tuple[str, ...]:
    """Return the settings that studies of this very set-up have found, the best first."""
    records = [json.loads(path.read_text()) for path in sorted(_directory(model, public, rehearse).glob("*.json"))]
    return tuple(record["spec"] for record in sorted(records, key=lambda record: -record["quality"]))


def _directory(model: nn.Module, public: Batch, rehearse: Rehearse) -> Path:
    content = {"images": public.images, "labels": public.labels}
    return cache_directory() / "studies" / identity_of(model=model, public=content, how=rehearse.identity)[:32]


def _suggest(trial: Any, name: str, among: Range) -> str:
    if isinstance(among, Choice):
        return str(trial.suggest_categorical(name, list(among.values)))
    return f"{trial.suggest_float(name, among.low, among.high, log=True):.4g}"
