"""The advisor: screen many defences cheaply, train those that may do, attack what keeps its accuracy, and answer.

All it does is audits and trainings, in `audit/` and `training/` below its directory, and a study that says which. So a
killed search goes on where it was, and asked again with other limits it does only what these need.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from fedseal.advice.early import Hopeless
from fedseal.advice.outcome import Advice, Attacked, Candidate, Figure, Trained, attacked, keep
from fedseal.advice.scenario import AdviceScenario
from fedseal.advice.screening import Screened, screened
from fedseal.advice.search import Search
from fedseal.advice.sentences import paragraph
from fedseal.advice.space import usable
from fedseal.audit.cells import NEAR_PRIOR_DB
from fedseal.audit.levels import RiskLevel
from fedseal.audit.run import Run
from fedseal.audit.runner import EngineName, run_audit
from fedseal.audit.scenario import Scenario
from fedseal.core.errors import UsageError
from fedseal.core.files import PathText
from fedseal.core.identity import identity_of
from fedseal.core.watcher import Severity, Task, Tick, Watcher
from fedseal.defences.pipeline import split_pipeline
from fedseal.training.run import TrainingRun
from fedseal.training.runner import run_training
from fedseal.training.scenario import TrainingScenario

_PER_FAMILY = 2
"""Strengths of one family that are trained, at most, as long as others wait."""
_MARGIN = 0.6
"""Of what counts as low, the most that an upload may hold with other weights: what is low by a hair is low by luck."""
_TRIED = 3
"""Defences that are trained or attacked to name one that comes near in some way, at most."""


def run_advice(
    scenario: AdviceScenario,
    directory: PathText,
    *,
    data_root: PathText | None = None,
    device: str = "cpu",
    workers: int = 1,
    engine: EngineName = "local",
    address: str | None = None,
    command: str = "fedseal advise",
    watcher: Watcher | None = None,
) -> Advice:
    """Look for a defence within a scenario's limits, as far as `directory` does not hold it, and return the advice.

    Args:
        scenario: the federation, the defences to look among, and the limits.
        directory: of everything it leaves; the same federation there again resumes, with other limits too.
        data_root: where local data sets lie.
        device: where everything runs.
        workers: processes of readings and attacks, threads of trainings.
        engine: of readings and attacks; `address` is that of a cluster.
        address: see `engine`.
        command: what to print as the way to reproduce it.
        watcher: told of progress.
    """
    started = time.process_time()
    shared: dict[str, Any] = {"data_root": data_root, "device": device, "workers": workers, "command": command}
    advisor = _Advisor(
        scenario, Path(directory), shared, {"engine": engine, "address": address}, _Quieter(watcher or Watcher())
    )
    advice = advisor.run()
    advice = advice.model_copy(update={"command": command, "cpu_seconds": round(time.process_time() - started, 1)})
    keep(advice, Path(directory))
    return advice


class _Quieter(Watcher):
    """Passes everything on, but a remark only once: every step of a search finds the same federation remarkable."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._said: set[str] = set()

    def planned(self, what: str, total: int, done: int) -> None:
        """Take how much work there is."""
        self._watcher.planned(what, total, done)

    def remarked(self, severity: Severity, text: str) -> None:
        """Take something a person should read now, if it is new."""
        if text not in self._said:
            self._said.add(text)
            self._watcher.remarked(severity, text)

    def started(self, task: Task) -> None:
        """Take a task that starts."""
        self._watcher.started(task)

    def advanced(self, task: Task, tick: Tick) -> None:
        """Take how far a task is."""
        self._watcher.advanced(task, tick)

    def finished(self, task: Task, count: int) -> None:
        """Take a task that ended."""
        self._watcher.finished(task, count)


class _Advisor:
    """One search; its state is in the directory but for what was asked for in this call."""

    def __init__(
        self, scenario: AdviceScenario, place: Path, shared: dict[str, Any], where: dict[str, Any], watcher: Watcher
    ) -> None:
        self._scenario, self._limits, self._place = scenario, scenario.limits, place
        self._shared, self._where, self._watcher = shared, where, watcher
        self._pool: dict[str, Screened] = {}
        self._trained: dict[str, Trained] = {}
        self._attacked: dict[str, Attacked] = {}
        self._noise: float | None = None
        self._caution = ""
        place.mkdir(parents=True, exist_ok=True)

    def run(self) -> Advice:
        """Screen, train, attack, and answer."""
        plain = self._screen(["none"])["none"]
        if plain is None:
            raise UsageError(
                "the undefended round cannot be played, so nothing can be compared with it.",
                hint="Run `fedseal audit` on the federation first.",
            )
        self._pool["none"] = plain
        search = self._search(plain)
        search.run(self._scenario.trials, self._screen)
        self._pool |= {one.defence: one for one in search.found}
        front = {one.defence for one in search.front}
        self._watcher.remarked("note", f"{len(search.found)} defences screened, {len(front)} of them beaten by none.")
        self._train([])
        chosen = None if self._caution else self._choose()
        nearest = () if self._caution or chosen is not None else self._nearest()
        advice = Advice(
            scenario=self._scenario,
            candidates=tuple(self._candidate(name, name in front) for name in self._pool),
            recommended=chosen,
            nearest=nearest,
            layers=plain.per_layer,
            caution=self._caution,
        )
        return advice.model_copy(update={"paragraph": paragraph(advice)})

    # --- cheap readings

    def _search(self, plain: Screened) -> Search:
        scenario = self._scenario
        layers = sorted(plain.per_layer, key=lambda name: -plain.per_layer[name])
        space = usable(scenario.defences, scenario.at_once, layers, self._noise)
        determined = scenario.screening(("none",)).model_dump(mode="json", exclude={"name", "defences", "attacks"})
        return Search(self._place / "study.journal", space, identity_of(scenario=determined), scenario.seed)

    def _screen(self, specs: Sequence[str]) -> dict[str, Screened | None]:
        run = self._audit(self._scenario.screening(tuple(specs)), only_read=True)
        if "none" in specs:
            sigmas = [record.sigma_for.get("low") for record in run.readings if record.defence == "none"]
            self._noise = next((sigma for sigma in sigmas if sigma), None)
        return {spec: screened(run, spec) for spec in specs}

    def _confirmed(self, defence: str) -> bool:
        """Return whether a defence may still be within the aim on other weights, batches and draws of noise."""
        asked = self._scenario.confirming((defence,))
        again = screened(self._audit(asked, only_read=True, part="confirmation"), defence)
        if again is None or not again.may_meet(self._limits):
            return False
        return self._limits.level is not RiskLevel.LOW or again.exposure <= _MARGIN * NEAR_PRIOR_DB

    def _audit(self, scenario: Scenario, *, only_read: bool = False, part: str = "audit") -> Run:
        return run_audit(
            [scenario],
            self._place / part,
            **self._shared,
            **self._where,
            watcher=self._watcher,
            only_read=only_read,
        )

    # --- trainings

    def _train(self, specs: Sequence[str], *, seeds: int = 1, to_the_end: bool = False) -> None:
        """Train defences with the first seeds, after their undefended twins; hopeless ones are stopped unless told."""
        asked = self._scenario.training(())
        twins = asked.model_copy(update={"seeds": asked.seeds[:seeds]})
        plain = self._train_as(twins, None)
        rounds = self._scenario.federation.rounds
        stop = None if to_the_end else Hopeless(_curves(plain), rounds, self._limits.kept)
        run = self._train_as(twins.model_copy(update={"defences": ("none", *specs)}), stop) if specs else plain
        self._caution = self._caution or run.caution
        for spec in ("none", *specs):
            self._trained[spec] = _summary(run, self._pool[spec])

    def _train_as(self, scenario: TrainingScenario, stop: Hopeless | None) -> TrainingRun:
        return run_training(scenario, self._place / "training", **self._shared, watcher=self._watcher, stop=stop)

    # --- choices

    def _choose(self) -> str | None:
        """Return the defence that keeps most of the accuracy among those within all limits."""
        limits, promising = self._limits, self._promising()
        fitting = [one for one in promising if limits.allows_upload(one.upload)]
        self._train([one.defence for one in _varied(fitting, self._scenario.front) if one.defence != "none"])
        for defence in self._by_accuracy(limits.kept):
            if self._beaten(defence):
                continue
            self._train([defence] if defence != "none" else [], seeds=self._scenario.seeds)
            if not self._candidate(defence).affordable(limits) or not self._confirmed(defence):
                continue
            if self._attack(defence):
                return defence
        return None

    def _promising(self) -> list[Screened]:
        """Return what may be within the aim for all that is known without attack, least distorted first."""
        may = [one for one in self._pool.values() if one.may_meet(self._limits)]
        return sorted(may, key=lambda one: one.objectives[1])

    def _by_accuracy(self, least: float) -> list[str]:
        """Return what was trained to its end and keeps enough with the first seed, most first."""
        kept = {name: self._candidate(name).kept for name in self._trained if self._pool[name].may_meet(self._limits)}
        enough = {name: value for name, value in kept.items() if value is not None and value >= least}
        return sorted(enough, key=lambda name: -enough[name])

    def _nearest(self) -> tuple[str, ...]:
        """Return what comes closest: safe at the cost of accuracy, safe at the cost of bytes, and leaky but cheap."""
        near = [self._safe(self._small_enough()), self._safe(self._too_large()), self._cheap()]
        return tuple(dict.fromkeys(name for name in near if name is not None))

    def _small_enough(self) -> list[str]:
        """Return what may be within the aim and sends no more than it may: trained ones by accuracy, then the rest."""
        fitting = [one.defence for one in self._promising() if self._limits.allows_upload(one.upload)]
        reached = {name: self._trained[name].accuracy for name in fitting if name in self._trained and name != "none"}
        known = sorted(reached, key=lambda name: -(found.mean if (found := reached[name]) is not None else 0.0))
        return [*known, *(name for name in fitting if name not in self._trained)]

    def _too_large(self) -> list[str]:
        large = [one for one in self._promising() if not self._limits.allows_upload(one.upload)]
        return [one.defence for one in sorted(large, key=lambda one: (one.upload, one.objectives[1]))]

    def _safe(self, names: Sequence[str]) -> str | None:
        """Return the first of a few that an audit holds to be within the aim, trained to its end."""
        for name in islice((name for name in names if not self._beaten(name)), _TRIED):
            if self._confirmed(name) and self._attack(name):
                self._train([name], to_the_end=True)
                return name
        return None

    def _cheap(self) -> str | None:
        """Return the defence that keeps the accuracy within the limits and whose update holds least."""
        leaky = [
            one
            for one in self._pool.values()
            if one.defence != "none" and not one.may_meet(self._limits) and self._limits.allows_upload(one.upload)
        ]
        for one in sorted(leaky, key=lambda one: (one.exposure, one.objectives[1]))[:_TRIED]:
            self._train([one.defence])
            if self._candidate(one.defence).affordable(self._limits):
                self._attack(one.defence)
                return one.defence
        return None

    def _beaten(self, defence: str) -> bool:
        """Return whether a defence of the family that distorts as much or more was attacked and is outside the aim."""
        own = self._pool[defence]
        return any(
            not found.within
            and _family(name) == _family(defence)
            and self._pool[name].objectives[1] >= own.objectives[1]
            for name, found in self._attacked.items()
        )

    def _attack(self, defence: str) -> bool:
        """Audit a defence beside those that were before; return whether it is within the aim."""
        if defence not in self._attacked:
            asked = tuple(dict.fromkeys((*self._attacked, defence)))
            run = self._audit(self._scenario.attacked(asked))
            rows = {row.defence: row for row in run.verdict().rows}
            for name in asked:
                found = attacked(rows[name], self._limits.level) if name in rows else None
                if found is not None:
                    self._attacked[name] = found
        found = self._attacked.get(defence)
        return found is not None and found.within

    def _candidate(self, defence: str, front: bool = False) -> Candidate:
        return Candidate(
            screened=self._pool[defence],
            front=front,
            trained=self._trained.get(defence),
            attacked=self._attacked.get(defence),
        )


def _varied(found: Sequence[Screened], count: int) -> list[Screened]:
    """Return the first of a list, at most a few of one family as long as others wait."""
    families: dict[str, int] = {}
    first: list[Screened] = []
    later: list[Screened] = []
    for one in found:
        family = _family(one.defence)
        families[family] = families.get(family, 0) + 1
        (first if families[family] <= _PER_FAMILY else later).append(one)
    return [*first, *later][:count]


def _family(defence: str) -> str:
    """Return a defence without its options."""
    return "+".join(part.partition(":")[0] for part in split_pipeline(defence))


def _curves(run: TrainingRun) -> dict[int, Sequence[tuple[int, float]]]:
    return {one.seed: one.history.curve for one in run.trainings if one.defence == "none" and one.history is not None}


def _summary(run: TrainingRun, screened: Screened) -> Trained:
    """Return what a training came to; of a stopped one, how far it got."""
    utility = next(one for one in run.utilities if one.defence == screened.defence)
    stopped = [one for one in utility.trainings if one.rounds]
    if utility.accuracy is None:
        measured = [record.accuracy for one in stopped for record in one.rounds if record.accuracy is not None]
        reached = Figure(mean=100 * measured[-1]) if measured else None
        return Trained(accuracy=reached, stopped=utility.refused)
    sent = utility.bytes_up
    return Trained(
        accuracy=Figure.of(utility.accuracy, 100.0),
        kept=None if utility.pmm is None else Figure.of(utility.pmm),
        upload=None if sent is None else (sent + screened.protocol_bytes) / screened.dense_bytes,
        time=_slower(run, screened.defence),
        stopped=stopped[0].refused if stopped else "",
        learnt=utility.learnt,
    )


def _slower(run: TrainingRun, defence: str) -> float | None:
    """Return the median time of a round in that of an undefended one."""
    times = {}
    for name in ("none", defence):
        histories = [one.history for one in run.trainings if one.defence == name and one.history is not None]
        times[name] = [record.seconds for history in histories for record in history.rounds]
    return median(times[defence]) / median(times["none"]) if all(times.values()) else None
