"""From a scenario to trials: every defence by every attack, naive and aware, on every target; each with its key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from fedseal.attacks.labels import LABEL_RULES, is_rule, label_rule
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup
from fedseal.core.attack import ATTACKS
from fedseal.core.defence import DEFENCES
from fedseal.core.hashing import hash_tensors
from fedseal.core.identity import file_content, identity_of
from fedseal.core.sources import code_digest
from fedseal.data.partition import PARTITIONERS
from fedseal.defences.pipeline import build_defence, split_pipeline
from fedseal.federation.loss import LOSSES, training_loss
from fedseal.metrics.lpips_choice import check_lpips, lpips_files
from fedseal.metrics.registry import METRICS
from fedseal.modalities.known import measuring_module
from fedseal.models.registry import MODELS
from fedseal.store.identity import data_part, defence_part, entry_part, machine_part, model_part

GROUP = 16
"""Targets attacked as one vectorised batch, where that pays: small models, and devices other than the CPU.

A larger model on the CPU is attacked target by target: it would gain nothing, and an interrupted audit keeps every
target that is finished. On the CPU a target's result does not depend on those beside it (`fedseal.testing` holds every
attack to that); on other devices the batch's shape decides the last bits, and is part of the key.
"""
_SMALL = 200_000
"""Parameters up to which targets are faster together than one by one."""


@dataclass(frozen=True)
class PlannedTrial:
    """One reconstruction to be attempted, and the hash of everything that determines its result."""

    target: int
    key: str


@dataclass(frozen=True)
class Job:
    """Trials of one cell that run as one vectorised batch; they are stored together."""

    defence: str
    attack: str
    aware: bool
    trials: tuple[PlannedTrial, ...]

    def without(self, stored: Collection[str]) -> Job:
        """Return the job with those of its trials only whose keys are not stored."""
        return replace(self, trials=tuple(trial for trial in self.trials if trial.key not in stored))

    @property
    def title(self) -> str:
        """The cell in words."""
        return f"{self.attack} on {self.defence}" + (", known" if self.aware else "")


def check_names(scenario: Scenario) -> None:
    """Refuse a scenario that names unknown attacks, defences, options or label rules, before anything is loaded."""
    training_loss(scenario.loss)
    if scenario.attacker.labels not in {"true", "unknown"}:
        label_rule(scenario.attacker.labels)
    if scenario.client.partition is not None:
        PARTITIONERS.build(scenario.client.partition)
    for metric in scenario.metrics:
        METRICS.build(metric)
    check_lpips(scenario.lpips)
    for attack in scenario.attacks:
        ATTACKS.build(attack)
    for defence in scenario.defences:
        build_defence(defence)


def plan_jobs(setup: Setup) -> tuple[Job, ...]:
    """Return the jobs of a scenario in the order they run: undefended first, cheap cells before expensive ones."""
    scenario = setup.scenario
    base = base_identity(setup)
    on_cpu = next(setup.model.parameters()).device.type == "cpu"
    size = GROUP if not on_cpu or sum(p.numel() for p in setup.model.parameters()) <= _SMALL else 1
    groups = [range(start, min(start + size, scenario.targets)) for start in range(0, scenario.targets, size)]
    defences = {spec: defence_identity(setup, spec) for spec in _unique(scenario.with_control)}
    attacks = {spec: entry_part(ATTACKS, spec) for spec in _unique(scenario.attacks)}
    jobs = []
    for defence, attack in product(defences, attacks):
        for aware, group in product(attackers(scenario, defence), groups):
            cell = identity_of(
                base=base,
                defence=defences[defence],
                attack=attacks[attack],
                aware=aware,
                group=None if on_cpu else [group.start, group.stop],
            )
            trials = tuple(PlannedTrial(target, identity_of(cell=cell, target=target)) for target in group)
            jobs.append(Job(defence, attack, aware, trials))
    return tuple(jobs)


def defence_identity(setup: Setup, spec: str) -> Any:
    """Return what determines a defence, and the training under it where a later round is attacked."""
    part = defence_part(spec)
    return part if setup.staging is None else {**part, "training": setup.staging.identity(spec)}


def base_identity(setup: Setup) -> str:
    """Return the hash of what determines all trials of a set-up, beside defence and attack."""
    return identity_of(**_base_parts(setup))


def identity_parts(setup: Setup) -> dict[str, str]:
    """Return what determines the trials of a set-up as a hash per part, by its name in words."""
    scenario = setup.scenario
    parts = {_PART_WORDS.get(name, name): part for name, part in _base_parts(setup).items()}
    parts |= {f"defence {spec}": defence_identity(setup, spec) for spec in _unique(scenario.with_control)}
    parts |= {f"attack {spec}": entry_part(ATTACKS, spec) for spec in _unique(scenario.attacks)}
    return {name: identity_of(part=part) for name, part in parts.items()}


def code_part() -> str:
    """Return the part of `identity_parts` that needs no set-up: fedseal's own code."""
    return identity_of(part=_code())


def _code() -> str:
    return code_digest(["fedseal.audit.trials"])


def named_files(setup: Setup) -> tuple[Path, ...]:
    """Return the files that specs of a scenario name, and those of trainings that are attacked."""
    scenario = setup.scenario
    options = [MODELS.resolve(scenario.model), *(METRICS.resolve(spec) for spec in scenario.metrics)]
    options += [ATTACKS.resolve(spec) for spec in scenario.attacks]
    options += [DEFENCES.resolve(part) for spec in scenario.with_control for part in split_pipeline(spec)]
    if scenario.client.partition is not None:
        options.append(PARTITIONERS.resolve(scenario.client.partition))
    found = [value for one in options for value in one.values() if isinstance(value, Path)]
    if setup.staging is not None and setup.staging.ground.trained is not None:
        found += map(setup.staging.ground.trained, _unique(scenario.with_control))
    return tuple(dict.fromkeys(path for path in found if path.expanduser().is_file()))


CODE = "the code of fedseal"
"""The name of that part."""
_PART_WORDS = {
    "code": CODE,
    "machine": "PyTorch or the kind of device",
    "lpips": "the weights of LPIPS",
    "model": "the model or its code",
    "metrics": "further metrics",
    "measures": "how it is measured",
    "labels": "the label rule",
}


def _base_parts(setup: Setup) -> dict[str, Any]:
    scenario = setup.scenario
    named_otherwise = {
        "name",
        "about",
        "levels",
        "control",
        "data",
        "model",
        "stage",
        "defences",
        "attacks",
        "metrics",
        "lpips",
        "targets",
        "readings",
        "weight_seeds",
    }
    settings = scenario.model_dump(mode="json", exclude=named_otherwise)
    settings["attacker"].pop("aware")
    _leave_out_unset(settings)
    dealt = scenario.client.partition
    return dict(
        scenario=settings,
        loss=None if scenario.loss in LOSSES else code_digest([scenario.loss.partition(":")[0]]),
        labels=entry_part(LABEL_RULES, scenario.attacker.labels) if is_rule(scenario.attacker.labels) else None,
        metrics={spec: entry_part(METRICS, spec) for spec in scenario.metrics},  # records call them by these words
        images_per_target=setup.images_per_target,
        data=data_part(setup.private, setup.data_hash),
        **({} if dealt is None else {"partition": entry_part(PARTITIONERS, dealt)}),
        strangers=hash_tensors({"images": setup.strangers.inputs, "labels": setup.strangers.labels}),
        model=model_part(scenario.model, setup.model),
        lpips=[file_content(path) for path in lpips_files(scenario.lpips)],
        machine=machine_part(next(setup.model.parameters()).device),
        measures=code_digest([measuring_module(setup.private.modality)]),
        code=_code(),
    )


def _leave_out_unset(settings: dict[str, Any]) -> None:
    """Remove keys that came later, where they say what was so before: trials without them keep their names."""
    client, attacker = settings["client"], settings["attacker"]
    if client["partition"] is None:
        for key in ("partition", "population", "member"):
            del client[key]
    for key, plain in (("local_epochs", 1), ("optimiser", "sgd"), ("momentum", 0.0), ("weight_decay", 0.0)):
        if client[key] == plain:
            del client[key]
    for key in ("bn_statistics", "lengths", "optimiser"):
        if attacker[key]:
            del attacker[key]


def attackers(scenario: Scenario, defence: str) -> tuple[bool, ...]:
    """Return which attackers try a defence; where there is none, there is nothing to be aware of."""
    if defence == "none":
        return (False,)
    return {"naive": (False,), "aware": (True,), "both": (False, True)}[scenario.attacker.aware]


def _unique(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))
