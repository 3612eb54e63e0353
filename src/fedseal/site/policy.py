"""`policy.yaml`: what may leave a site, in the site's own words; whoever submits a run has no say in it.

    federation: heart-study
    data: ward-7
    seal:
      default: gaussian:clip=1.0,sigma=0.05
      allow:
        - {defence: gaussian, options: {clip: {max: 1.0}, sigma: {min: 0.05}}}
    budget: {rounds: 100, epsilon: 8.0}
    detector: {on_alarm: refuse}
    leave:
      messages: [train, evaluate]
      metrics:
        num-examples: {min: 1, max: 100000, step: 1}

Every part has a default, except what seals. `docs/sealing.md` describes the keys.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedseal.core.config_file import PlainName, Texts

Kind: TypeAlias = Literal["train", "evaluate", "query"]
"""What a server may ask for, as Flower calls it."""

MAX_METRICS = 64


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Range(_Part):
    """Between which numbers an option must lie, or which words it may be.

    Attributes:
        min, max: bounds, both allowed; None for none.
        one_of: words or numbers that are allowed.
    """

    min: float | None = None
    max: float | None = None
    one_of: tuple[float | str | bool, ...] | None = None

    def admits(self, value: Any) -> bool:
        """Return whether an option may have this value; what cannot be compared may not."""
        if self.one_of is not None and value not in self.one_of:
            return False
        if self.min is None and self.max is None:
            return True
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            return False
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def __str__(self) -> str:
        words = []
        if self.min is not None:
            words.append(f"at least {self.min:g}")
        if self.max is not None:
            words.append(f"at most {self.max:g}")
        if self.one_of is not None:
            words.append("one of " + ", ".join(map(str, self.one_of)))
        return " and ".join(words) or "anything"


class AllowedDefence(_Part):
    """A defence a run may ask for, and how strong it must be.

    Attributes:
        defence: its name; a module of the app's own never is one.
        options: by name; those that are not named may be anything the defence takes.
    """

    defence: str
    options: dict[str, Range] = Field(default_factory=dict)


class SealRules(_Part):
    """What an update is sealed with.

    Attributes:
        default: spec applied where the run asks for none.
        allow: what a run may ask for instead, by the key `defence` of its config; alone or composed by `+`.
    """

    default: str
    allow: tuple[AllowedDefence, ...] = ()


class BudgetRules(_Part):
    """What the site spends on a federation and data set, over all runs.

    Attributes:
        rounds: updates that may leave.
        replies: answers of any kind, refusals of an app's answer included: each of them may carry something.
        epsilon: of all updates that left, by the site's own count; needs a defence that is differentially private.
        delta: at which epsilon is stated.
    """

    rounds: int | None = Field(default=None, ge=0)
    replies: int | None = Field(default=None, ge=0)
    epsilon: float | None = Field(default=None, gt=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)


class RiskRules(_Part):
    """The most risk the site takes, shown by an audit of its own.

    Attributes:
        maximum: a defence above it is refused, and so is one that the audit says nothing of.
        evidence: `report.json` of `fedseal audit`.
    """

    maximum: Literal["low", "medium", "high"] = "low"
    evidence: Path


class DetectorRules(_Part):
    """Whether the received model is looked at before the app runs.

    Attributes:
        on_alarm: `refuse` answers without running the app, `warn` logs, `off` does not look.
        model: spec or `package.module:attribute` of the architecture the site agreed to; received weights must fit it.
            Without it, layers are told by the shapes of the weights.
        input_shape, num_classes: of that model.
        ignore: patterns of layers that are no linear maps, such as embeddings, where the model is not given.
    """

    on_alarm: Literal["refuse", "warn", "off"] = "refuse"
    model: str | None = None
    input_shape: tuple[int, int, int] | None = None
    num_classes: int | None = Field(default=None, ge=1)
    ignore: Texts = ()


class MetricRule(_Part):
    """A number that may leave beside the update: clamped into its range, rounded to its step.

    Attributes:
        min, max: its range.
        step: what it is rounded to; the finer, the more an app can hide in it.
    """

    min: float
    max: float
    step: float = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> MetricRule:
        if self.min > self.max:
            raise ValueError("min is above max")
        return self

    @property
    def bits(self) -> float:
        """What an app can write into the number, at most."""
        return math.log2(math.floor((self.max - self.min) / self.step + 1e-9) + 1)

    def rounded(self, value: float) -> float:
        """Return the number that leaves in the place of `value`: one of 2**bits."""
        most = math.floor((self.max - self.min) / self.step + 1e-9)
        place = min(max(round((value - self.min) / self.step), 0), most)
        found = self.min + place * self.step
        return int(found) if self.step.is_integer() and self.min.is_integer() else found


class LeaveRules(_Part):
    """What may leave.

    Attributes:
        messages: which requests are answered at all.
        tensors: patterns (`*`, `?`) of parameters whose change leaves; the others go back as they came.
        metrics: numbers that leave beside an update or an evaluation, by name.
        surplus: what happens to an answer that holds more: `refuse` it, or `remove` the rest.
        max_norm: an update of a larger L2 norm is refused; None for no limit.
    """

    messages: tuple[Kind, ...] = ("train", "evaluate")
    tensors: Texts = ("*",)
    metrics: dict[str, MetricRule] = Field(
        default_factory=lambda: {"num-examples": MetricRule(min=1, max=1_000_000, step=1)}, max_length=MAX_METRICS
    )
    surplus: Literal["refuse", "remove"] = "refuse"
    max_norm: float | None = Field(default=None, gt=0)

    @property
    def bits(self) -> float:
        """What an app can write into all metrics of one answer, at most."""
        return sum(rule.bits for rule in self.metrics.values())


class Policy(_Part):
    """A site's policy.

    Attributes:
        federation, site, data: whose budgets and defence's state are kept, in the site's ledger.
        ledger: where that lies; beside the policy if it is not said.
        seal, budget, risk, detector, leave: the rules.
    """

    federation: PlainName = "default"
    site: PlainName = "site"
    data: PlainName = "default"
    ledger: Path | None = None
    seal: SealRules
    budget: BudgetRules = BudgetRules()
    risk: RiskRules | None = None
    detector: DetectorRules = DetectorRules()
    leave: LeaveRules = Field(default_factory=LeaveRules)
