"""`auto`: what AutoAttack (Croce and Hein, ICML 2020) is to robustness; nothing to set but what it may spend.

Threat model: passive server.
Attacks in closed form where the structure allows, looking updates up, the learned inversion, and a search whose
settings win a race on shadow targets (`race`). Which answer is given is decided by the attacker's own expectation of
its PSNR, learned on shadows from how well answers explain updates, and which one is held beside a line-up by how far
answers point at shadows' originals among other public images; without public images there are no shadows, and the best
explanation is given. The truth is never looked at. Work on shadows is done once per model, defence, public data and
budget, and kept.

Cost: per target the budget's iterations and what the closed forms take; on shadows, once, six to ten budgets of
one target, ten to fourteen for one who knows the defence, and all that `learned` and `retrieval` prepare.

Known breaks: public images unlike the private ones, by which shadows teach the wrong trust; without any, an update
under noise is explained best by images that fit the noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, TypeAlias

from torch import Tensor

from fedseal.attacks.auto.members import CLOSED, SEARCHES, family_of
from fedseal.attacks.auto.race import Line, Member, Trust, attempt, judge, race, trusts
from fedseal.attacks.auto.spending import iterations_for, parse_budget
from fedseal.attacks.explaining import Mismatch
from fedseal.attacks.learned.library import Lesson, learned
from fedseal.attacks.prepared import PreparedAttack
from fedseal.attacks.shadow.study import tuned_specs
from fedseal.attacks.shadow.targets import play_shadows, split_public
from fedseal.core.attack import ATTACKS, Budget, Listener
from fedseal.core.batch import Batch
from fedseal.core.errors import TrialError
from fedseal.core.knowledge import Rehearse
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.sources import code_digest
from fedseal.core.trainable import Saved, Unfinished
from fedseal.core.watcher import Report

Parted: TypeAlias = tuple[Batch, Batch]
"""The public images that become shadows, and the rest."""

_SHADOWS = 4
_SEED = 0


@dataclass(frozen=True)
class _Plan:
    """Who answers the targets, and what to expect of each; nothing where there were no shadows."""

    members: tuple[Member, ...]
    trust: Mapping[Member, Trust]


@dataclass(frozen=True)
class _Answer:
    """What a member found, and how badly that explains the update."""

    member: Member
    found: Reconstruction
    mismatch: float


@ATTACKS.register(
    "auto",
    Info(
        "everything a passive server can try, tuned on updates of its own, the best by its own expectation",
        threat="passive",
        needs=("batch_size",),
    ),
)
@dataclass(frozen=True)
class AutoAttack(PreparedAttack):
    """All members, the best answer.

    Attributes:
        budget: of the search, per target: iterations, as `600`, or a time, as `90s` or `10m`, which a model of cost
            turns into iterations; a scenario's `iterations` go before it.
    """

    any_loss: ClassVar[bool] = True

    budget: str = "600"

    def __post_init__(self) -> None:
        """Refuse a budget that is none."""
        parse_budget(self.budget)

    def answers(
        self, observations: Sequence[Observation], budget: Budget, seeds: Sequence[int], listener: Listener | None
    ) -> list[Reconstruction]:
        """Prepare on shadows, unless that was done before, let every member answer, and give the best answers."""
        first = observations[0]
        spent = Budget(budget.iterations or iterations_for(self.budget, first), budget.restarts)
        parted = None if _is_personal(first) else split_public(first, _SHADOWS, _SEED)
        plan = _unprepared(first) if parted is None else self._prepared(first, parted, spent)
        if parted is not None:
            observations = [_with_public(observation, parted[1]) for observation in observations]
        found: list[list[_Answer]] = [[] for _ in observations]
        mismatches = [Mismatch(observation) for observation in observations]
        for number, member in enumerate(plan.members):
            heard = _Part(listener, number, len(plan.members)) if listener is not None else None
            for place, answer in enumerate(attempt(member, observations, spent, seeds, heard)):
                if answer is not None:
                    found[place].append(_Answer(member, answer, mismatches[place](answer.images, answer.labels)))
        return [_best(answers, plan.trust) for answers in found]

    def _prepared(self, observation: Observation, parted: Parted, spent: Budget) -> _Plan:
        """Judge all members on shadows, or find what an earlier run has found."""
        knowledge = observation.knowledge
        public, rehearse = knowledge.auxiliary, knowledge.rehearse
        assert public is not None
        assert rehearse is not None
        searches = _searches(observation, public, rehearse)
        members = [*CLOSED, *searches]
        options = {
            "spent": spent,
            "members": members,
            "code": [code_digest(entry.modules, entry=entry.name) for entry in map(ATTACKS.find, members)],
            "labels": "given" if knowledge.labels is not None else knowledge.label_rule,
            "aware": knowledge.defence is not None,
            "statistics": knowledge.bn_statistics is not None,
        }
        trust = learned(_Experience(observation, public, rehearse, parted, searches, spent, options))
        return _Plan(tuple(trust), trust) if trust else _unprepared(observation)


class _Experience(Lesson[dict[Member, Trust]]):
    """What to expect of each member that answers shadows, and which search wins the race."""

    kind: ClassVar[str] = "auto"

    def __init__(
        self,
        observation: Observation,
        public: Batch,
        rehearse: Rehearse,
        parted: Parted,
        searches: Sequence[str],
        spent: Budget,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(observation.model, public, rehearse, options)
        self._observation = observation
        self._parted = parted
        self._searches = searches
        self._spent = spent

    @property
    def title(self) -> str:
        return f"experience with {_SHADOWS} shadow targets"

    def fit(self, report: Report, unfinished: Unfinished) -> dict[Member, Trust]:
        shadows = play_shadows(self._observation, *self._parted, _SEED)
        judged = {member: judge(member, shadows, self._spent) for member in _closed(self._observation)}
        sound = {member: record for member, record in judged.items() if record is not None}
        budget = self._spent
        return trusts(sound | race(shadows, self._searches, budget.iterations or 1, budget.restarts, sound.values()))

    def save(self, trained: dict[Member, Trust]) -> Saved:
        return Saved({}, {"trust": [[asdict(member), asdict(one)] for member, one in trained.items()]})

    def load(self, saved: Saved) -> dict[Member, Trust]:
        return {
            Member(**member): Trust(Line(**one["picture"]), Line(**one["likeness"]))
            for member, one in saved.values["trust"]
        }


def _searches(observation: Observation, public: Batch, rehearse: Rehearse) -> tuple[str, ...]:
    """Return the searches to race: those of the network's family, and what was tuned for this very set-up."""
    known = SEARCHES[family_of(observation.model)]
    tuned = tuned_specs(observation.model, public, rehearse)
    return tuple(dict.fromkeys([*tuned, *known]))


def _closed(observation: Observation) -> list[Member]:
    """Return the attacks in closed form, for one who knows the defence also as one who ignores it."""
    ways = (True, False) if observation.knowledge.defence is not None else (True,)
    return [Member(spec, aware) for spec in CLOSED for aware in ways]


def _unprepared(observation: Observation) -> _Plan:
    """Return the plan of an attacker without shadows: all that can be tried, and the family's first search."""
    search = Member(SEARCHES[family_of(observation.model)][0], True)
    ways = [search] if observation.knowledge.defence is None else [search, Member(search.spec, False)]
    return _Plan((*_closed(observation), *ways), {})


def _best(answers: Sequence[_Answer], trust: Mapping[Member, Trust]) -> Reconstruction:
    """Return the answer of which most is expected, or, if nothing can be expected, that which explains most.

    For a line-up the attacker keeps the answer that is expected to point best, where that is another one.
    """
    if not answers:
        raise TrialError("no attack in `auto` had an answer.", hint="Try single ones to see why, such as `ig`.")
    trusted = [one for one in answers if one.member in trust]
    if not trusted:
        best = min(answers, key=lambda one: one.mismatch)
        return replace(best.found, objective=best.mismatch, notes=(_credit(best, answers), *best.found.notes))
    best = max(trusted, key=lambda one: trust[one.member].picture.expects(one.mismatch))
    pointing = max(trusted, key=lambda one: trust[one.member].likeness.expects(one.mismatch))
    expected = trust[best.member].picture.expects(best.mismatch)
    said = f"{_credit(best, answers)}; {expected:.1f} dB expected, as on the attacker's own shadow targets"
    if pointing is best:
        return replace(best.found, objective=-expected, notes=(said, *best.found.notes))
    told = f"beside a line-up the attacker holds the answer of {pointing.member}, which points better on its shadows"
    likenesses = pointing.found.images
    return replace(best.found, objective=-expected, likenesses=likenesses, notes=(said, told, *best.found.notes))


def _credit(best: _Answer, answers: Sequence[_Answer]) -> str:
    return f"by {best.member}, of {len(answers)} answers"


def _is_personal(observation: Observation) -> bool:
    """Tell whether what is known of the defence serves this observation only, and no shadow."""
    view = observation.knowledge.defence
    return view is not None and view.personal


def _with_public(observation: Observation, public: Batch) -> Observation:
    return replace(observation, knowledge=replace(observation.knowledge, auxiliary=public))


class _Part:
    """Tells a listener of one member's progress as a part of the whole."""

    def __init__(self, listener: Listener, number: int, count: int) -> None:
        self._listener = listener
        self._number = number
        self._count = count

    def __call__(self, done: float, images: Tensor) -> None:
        self._listener((self._number + done) / self._count, images)
