"""Training everything a scenario's attacks and defences need beforehand, so that its audit finds it in the library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fedseal.audit.plan import attackers, check_names
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup, aware_of, build_setup
from fedseal.core.attack import ATTACKS, Attack
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.trainable import Trainable
from fedseal.core.watcher import Watcher
from fedseal.defences.pipeline import build_defence
from fedseal.preparation import Library, library


@dataclass(frozen=True)
class Prepared:
    """What was asked for.

    Attributes:
        title: of what is ready now.
        wanted_by: the attack or defence that declares it.
        found: whether it was in the library already.
        path: where it lies.
    """

    title: str
    wanted_by: str
    found: bool
    path: Path | None


def prepare(
    scenario: Scenario, *, data_root: Path | None = None, device: str = "cpu", watcher: Watcher | None = None
) -> list[Prepared]:
    """Train what a scenario's attacks and defences declare and the library lacks; killed, the same call goes on.

    Each attack is asked for every defence and every attacker of the audit: a defence may change the model, and who
    knows it may learn from it. What they share is trained once. An attack that a threat model rules out is left out,
    with a remark.
    """
    check_names(scenario)
    listener = watcher or Watcher()
    books, done = library(), {}
    for own in scenario.by_weights():
        for wanted_by, wanted in _declared(build_setup(own, data_root=data_root, device=device), listener):
            if wanted.identity not in done:
                done[wanted.identity] = _ready(books, wanted_by, wanted, listener)
    if not done:
        raise UsageError(
            "nothing in this scenario is prepared beforehand.",
            hint="`fedseal list attacks` says which attacks are trained, for example seer.",
        )
    return list(done.values())


def prepared_files(setup: Setup) -> list[Path]:
    """Return the files of what a set-up's attacks and defences declare, as far as the library holds them."""
    books, found = library(), []
    for _, wanted in _declared(setup, Watcher()):
        path = books.path(wanted)
        if path is None or not path.is_file():
            break  # what comes after it may be declared with its help
        found.append(path)
    return list(dict.fromkeys(found))


def _ready(books: Library, wanted_by: str, wanted: Trainable[Any], watcher: Watcher) -> Prepared:
    found = books.find(wanted) is not None
    if not found:
        books.get(wanted, watcher)
    return Prepared(wanted.title, wanted_by, found, books.path(wanted))


def _declared(setup: Setup, watcher: Watcher) -> Iterator[tuple[str, Trainable[Any]]]:
    """Yield what is declared, with who declares it; each is ready before the next is asked for."""
    defences = dict.fromkeys(setup.scenario.with_control)
    for spec in (spec for spec in defences if build_defence(spec).uses("trainables")):
        for held, source in setup.client_data(spec):
            yield from ((spec, one) for one in build_defence(spec).trainables(held, source))
    attacks = {spec: ATTACKS.build(spec) for spec in setup.scenario.attacks}
    declaring = {spec: one for spec, one in attacks.items() if type(one).trainables is not Attack.trainables}
    for (spec, attack), defence in product(declaring.items(), defences):
        for aware in attackers(setup.scenario, defence):
            try:
                yield from ((spec, one) for one in _of_attack(setup, attack, defence, aware))
            except CapabilityError as error:
                watcher.remarked("warning", f"{spec} on {defence} is not prepared: {error}")


def _of_attack(setup: Setup, attack: Attack, defence: str, aware: bool) -> Iterable[Trainable[Any]]:
    built = build_defence(defence)
    knowledge = setup.granted(built, defence)
    if aware:
        knowledge = aware_of(knowledge, built, defence)
    return attack.trainables(setup.wrapped_model(built, defence), knowledge)
