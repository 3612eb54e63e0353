"""The search for defences worth training: Optuna proposes, cheap readings answer, and a journal keeps both.

Several are proposed at a time, so that their readings can run at once on any engine. What was proposed when the process
was killed is proposed again; its readings that had ended are in the audit's store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedseal.advice.screening import Screened
from fedseal.advice.space import Space, can_be_built
from fedseal.core.identity import identity_of
from fedseal.core.studies import load_optuna, open_study

Screen = Callable[[Sequence[str]], dict[str, Screened | None]]
"""Takes the cheap readings of some defences; None for one that cannot be played."""

_AT_ONCE = 6
_READING, _SPEC, _LOST = "reading", "spec", "lost"


class Search:
    """A study of one federation.

    Args:
        journal: file that keeps it.
        space: to search in.
        identity: of what the readings depend on beside the defence; another one is another study.
        seed: of what is drawn.
    """

    def __init__(self, journal: Path, space: Space, identity: str, seed: int) -> None:
        self._optuna = load_optuna("advice")
        self._space = space
        name = identity_of(what=identity, space=repr(space.families), layers=list(space.layers))[:16]
        self._study: Any = open_study(self._optuna, journal, name, seed, ("minimize",) * 4)
        self._take_up()

    @property
    def found(self) -> tuple[Screened, ...]:
        """What was screened, each defence once, in the order it was."""
        kept = [trial.user_attrs[_READING] for trial in self._study.trials if _READING in trial.user_attrs]
        found = [Screened.model_validate_json(text) for text in kept]
        return tuple({one.defence: one for one in found}.values())

    @property
    def front(self) -> tuple[Screened, ...]:
        """What nothing else beats in all four: exposure, distortion, upload and time."""
        best = {trial.user_attrs.get(_SPEC) for trial in self._study.best_trials}
        return tuple(one for one in self.found if one.defence in best)

    def run(self, trials: int, screen: Screen) -> None:
        """Screen until so many trials have ended, beginning with the usual strengths."""
        if not self._study.trials:
            for settings in self._space.starts():
                self._study.enqueue_trial(settings)
        while (left := trials - self._ended) > 0:
            asked = [self._study.ask() for _ in range(min(left, _AT_ONCE))]
            specs = {trial.number: self._space.draw(trial) for trial in asked}
            for trial in asked:
                trial.set_user_attr(_SPEC, specs[trial.number])
            known: dict[str, Screened | None] = {one.defence: one for one in self.found}
            new = [spec for spec in dict.fromkeys(specs.values()) if spec not in known and can_be_built(spec)]
            known |= screen(new) if new else {}
            for trial in asked:
                self._settle(trial, known.get(specs[trial.number]))

    def _settle(self, trial: Any, reading: Screened | None) -> None:
        if reading is None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            return
        trial.set_user_attr(_READING, reading.model_dump_json())
        self._study.tell(trial, list(reading.objectives))

    @property
    def _ended(self) -> int:
        """Trials that count: those a killed process left behind do not."""
        states = self._optuna.trial.TrialState
        ended = sum(trial.state in (states.COMPLETE, states.FAIL) for trial in self._study.trials)
        return ended - int(self._study.user_attrs.get(_LOST, 0))

    def _take_up(self) -> None:
        """Ask again for what a killed process was asked for and did not answer."""
        states = self._optuna.trial.TrialState
        for trial in self._study.get_trials(states=(states.RUNNING,)):
            self._study.enqueue_trial(trial.params)
            self._study.set_user_attr(_LOST, int(self._study.user_attrs.get(_LOST, 0)) + 1)
            self._study.tell(trial.number, state=states.FAIL)
