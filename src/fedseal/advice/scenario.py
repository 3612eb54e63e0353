"""What advice is asked for: a federation as a trade-off has it, the defences to look among, and the limits."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from fedseal.advice.limits import Limits
from fedseal.audit.scenario import ClientConfig, Scenario
from fedseal.core.config_file import PlainName, Texts
from fedseal.core.ranges import Count
from fedseal.federation.simulation.config import FederationConfig
from fedseal.tradeoff.scenario import TradeoffScenario

FAMILIES = (
    "gaussian",
    "dp-sgd",
    "topk",
    "dgp",
    "quantise",
    "adadefense",
    "gaussian+topk",
    "gaussian+quantise",
    "secagg",
    "selective",
)
"""What is looked among by default: everything whose effect takes no training of its own to know."""


_OTHER_SEED = 1000
_CONFIRMED = 4
"""Uploads of other weights that are read before a defence is recommended."""


class AdviceScenario(TradeoffScenario):
    """A federation for which a defence is sought; fields without a word here are `TradeoffScenario`'s.

    Attributes:
        client: how the attacked client computes its update; by default as the federation's clients do.
        defences: families to look among: names, pipelines of names (`gaussian+topk`), whose strengths are searched
            over, or sweeps of one's own (`soteria:ratio=0.3/0.5`).
        limits: see `Limits`.
        trials: defences whose cheap readings are taken.
        front: of these, how many may be trained before the search gives up.
        readings: of the targets of an attacked defence, how many have their uploads read.
        seeds: trainings of a defence that is recommended.
    """

    name: PlainName = "advice"
    defences: Texts = Field(FAMILIES, min_length=1)
    attacks: Texts = Field(("auto:budget=100",), min_length=1)
    targets: Count = 8
    seeds: Count = 4
    limits: Limits = Limits()
    trials: Count = 32
    front: Count = 6
    readings: Count = 2

    @model_validator(mode="before")
    @classmethod
    def _client_of_federation(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "client" in values:
            return values
        given = values.get("federation") or {}
        federation = given if isinstance(given, FederationConfig) else FederationConfig.model_validate(given)
        own = ClientConfig(
            batch_size=federation.batch_size or 1,
            local_steps=federation.local_steps or 1,
            learning_rate=federation.learning_rate,
            bn_mode=federation.bn_mode,
        )
        return values | {"client": own.model_dump()}

    @property
    def at_once(self) -> int:
        """Clients of a round."""
        return self.federation.clients_per_round or self.clients

    def screening(self, specs: tuple[str, ...]) -> Scenario:
        """Return the audit of which only cheap readings are taken, of one target each."""
        return self._held(self.audit(specs, readings=1))

    def confirming(self, specs: tuple[str, ...]) -> Scenario:
        """Return an audit with other weights and batches, of which cheap readings of several targets are taken."""
        again = self.model_copy(update={"seed": self.seed + _OTHER_SEED})
        return self._held(again.audit(specs, readings=min(_CONFIRMED, self.targets)))

    def attacked(self, specs: tuple[str, ...]) -> Scenario:
        """Return the audit of the few that are attacked."""
        return self._held(self.audit(specs, readings=self.readings))

    def _held(self, scenario: Scenario) -> Scenario:
        """Return an audit whose targets are the same whatever the defences in it average or hold."""
        if scenario.client.examples is not None or scenario.client.partition is not None:
            return scenario
        client = scenario.client
        if not any("secagg" in family for family in self.defences) or self.at_once <= client.aggregate:
            return scenario
        widest = client.batch_size * client.local_steps * self.at_once
        return scenario.model_copy(update={"client": client.model_copy(update={"examples": widest})})
