"""A claim of a paper: its words and numbers, the experiments that check it, and the rules that decide it.

Declarations lie in `declared/`, a file per paper whose `settings` all its audits and trainings share, and are fixed
before anything runs: `Claim.identity` is printed with every outcome, to be compared with what was committed.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedseal.claims.rules import AnyRule
from fedseal.core.config_file import Texts, validate_config, with_values
from fedseal.core.errors import UsageError
from fedseal.core.identity import identity_of
from fedseal.core.specs import near_matches
from fedseal.core.yaml_text import read_yaml

PAPERS = {
    "F": ("fedleak", "FedLeak (Fan et al., USENIX Security 2025)"),
    "R": ("refiner", "Refiner (Fan et al., USENIX Security 2025)"),
    "D": ("dgp", "Dual Gradient Pruning"),
    "A": ("adadefense", "AdaDefense"),
    "L": ("lids", "LIDS (Lin et al., Deceive-to-Defend)"),
}
"""By the first letter of a claim: the file of its declaration, and the paper."""

Axis: TypeAlias = Literal["attack", "defence", "level", "knowledge"]
"""What tells arms of an experiment apart; `level` is that of a factor, `knowledge` is `naive` or `aware`."""


class Power(BaseModel):
    """What must hold for an experiment to say anything: an arm that an attack succeeds on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: str = "gain"
    rule: AnyRule


class Check(BaseModel):
    """One experiment and its rule.

    Attributes:
        audit: a scenario with factors as `fedseal audit` takes it; `attacks` and `defences` may be mappings of short
            names to specs, which are the arms then.
        train: a scenario of `fedseal train`; `defences` may be a mapping likewise.
        measure: `name` and options of a measurement of `fedseal.claims.measures`.
        metric: that is compared: see `experiments.METRICS`; a measurement has one of its own.
        by: what tells arms apart; of anything else that varies, the strongest attack by its mean is taken per arm.
        rule: what decides.
        power: what must hold for the check to say anything.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    audit: dict[str, Any] | None = None
    train: dict[str, Any] | None = None
    measure: dict[str, Any] | None = None
    metric: str = "psnr"
    by: tuple[Axis, ...] = ("attack",)
    rule: AnyRule
    power: Power | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        by = {"by": (values["by"],)} if isinstance(values.get("by"), str) else {}
        measure = values.get("measure")
        return {"metric": measure.get("name", "")} | values | by if isinstance(measure, dict) else values | by

    @model_validator(mode="after")
    def _one_experiment(self) -> Self:
        if sum(one is not None for one in (self.audit, self.train, self.measure)) != 1:
            raise ValueError("a check has one of audit, train and measure")
        return self

    @property
    def kind(self) -> Literal["audit", "train", "measure"]:
        """What the experiment is."""
        return "audit" if self.audit is not None else "train" if self.train is not None else "measure"


class Claim(BaseModel):
    """A claim with its checks.

    Attributes:
        id: as in the ledger: a letter for the paper and a number.
        where: in the paper.
        claim: in our words.
        published: its numbers.
        checks: must all hold; without any, the claim is not decided here.
        home: how the check's setting differs from the paper's.
        needs: what a machine must have that this one may lack, in words; names of data sets are looked for.
        data: data sets that must be at hand.
        remark: how an outcome that contradicts the paper was looked into. Written after it, so no part of the identity.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[FRDAL]\d+$")
    where: str
    claim: str
    published: str
    checks: tuple[Check, ...] = ()
    home: str = ""
    needs: str = ""
    data: Texts = ()
    remark: str = ""

    @model_validator(mode="after")
    def _checked_or_said_why(self) -> Self:
        if not self.checks and not self.needs:
            raise ValueError("a claim without a check says what it needs")
        return self

    @property
    def paper(self) -> str:
        """Its paper's name."""
        return PAPERS[self.id[0]][1]

    @property
    def identity(self) -> str:
        """A hash of all that was declared before the run."""
        return identity_of(claim=json.dumps(self.model_dump(mode="json", exclude={"remark"}), sort_keys=True))[:12]


@cache
def declared() -> dict[str, Claim]:
    """Return every declared claim by its name, papers in the order of `PAPERS`."""
    found: dict[str, Claim] = {}
    for letter, (file, _) in PAPERS.items():
        source = f"claims/declared/{file}.yaml"
        text = resources.files("fedseal.claims").joinpath("declared", f"{file}.yaml").read_text(encoding="utf-8")
        claims = read_yaml(text, source)[1]
        settings = claims.pop("settings", {})
        for name, values in claims.items():
            if not name.startswith(letter):
                raise UsageError(f"{source}: {name} is no claim of this paper.")
            checks = [_with_settings(check, settings) for check in values.get("checks", ())]
            own = {"id": name, **values, "checks": checks}
            found[name] = validate_config(own, Claim, source=f"{source}, {name}", command="claims")
    return found


def _with_settings(check: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return a check whose scenario has what its file's `settings` say of every audit, or of every training."""
    kinds = [kind for kind in check if kind in settings]
    return check | {kind: with_values(settings[kind], check[kind]) for kind in kinds}


def find_claims(names: tuple[str, ...] | list[str]) -> tuple[Claim, ...]:
    """Return claims by name; a paper's letter stands for all of its, nothing for all there are."""
    claims = declared()
    chosen: dict[str, Claim] = {}
    for name in names or list(PAPERS):
        wanted = name.upper()
        matching = [wanted] if wanted in claims else [one for one in claims if wanted in PAPERS and one[0] == wanted]
        if not matching:
            raise UsageError(f"there is no claim {name!r}.", hint=near_matches(wanted, list(claims)))
        chosen |= {one: claims[one] for one in matching}
    return tuple(chosen.values())
