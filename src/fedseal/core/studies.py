"""Optuna's studies (Akiba et al., KDD 2019), kept in a journal: killed at any time, the same call goes on with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedseal.core.errors import UsageError
from fedseal.core.seeds import derive_seed


def load_optuna(what: str) -> Any:
    """Return the library, quiet; `what` is what cannot be done without it."""
    try:
        import optuna
    except ImportError as error:
        raise UsageError(f"{what} needs Optuna.", hint='Install it with: pip install "fedseal[tune]".') from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_study(optuna: Any, journal: Path, name: str, seed: int, directions: tuple[str, ...] = ("maximize",)) -> Any:
    """Open a study, or go on with the one in the journal; what it draws next depends on how far it is."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
    study = optuna.create_study(storage=storage, study_name=name, directions=list(directions), load_if_exists=True)
    drawn = derive_seed(seed, "sampler", finished_trials(study)) % 2**32
    study.sampler = optuna.samplers.TPESampler(seed=drawn)
    return study


def finished_trials(study: Any) -> int:
    """Return how many trials of a study have ended, one way or the other."""
    return sum(trial.state.is_finished() for trial in study.trials)
