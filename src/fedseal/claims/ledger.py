"""The ledger: what came of each claim, kept as JSON beside its runs, one file per claim.

What came of them where fedseal is made comes with the package, in `decided/`; an outcome of one's own goes before it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedseal.claims.claim import Claim, declared
from fedseal.claims.rules import Contrast, Standing
from fedseal.core.errors import StorageError
from fedseal.core.files import write_atomically
from fedseal.metrics.intervals import Interval


@dataclass(frozen=True)
class CheckOutcome:
    """What one check came to.

    Attributes:
        rule: in words.
        metric: that was compared.
        standing: decided by the rule, or undecided for want of power or values.
        means: of every arm.
        contrasts: what the rule looked at.
        reason: why it is undecided, or what did not run.
        evidence: hash of the trials, trainings or values it rests on.
    """

    rule: str
    metric: str
    standing: Standing
    means: dict[str, Interval]
    contrasts: tuple[Contrast, ...]
    reason: str
    evidence: str


@dataclass(frozen=True)
class Outcome:
    """What a claim came to.

    Attributes:
        id: of the claim.
        declaration: hash of what was declared.
        standing: of all checks together.
        reason: why it is not decided, or what contradicts it.
        checks: in the claim's order, as far as they went.
        ended: when, in UTC by ISO 8601.
        cpu_seconds: of the last call, without other processes'.
    """

    id: str
    declaration: str
    standing: Standing
    reason: str
    checks: tuple[CheckOutcome, ...]
    ended: str
    cpu_seconds: float

    @property
    def why(self) -> str:
        """What contradicts the claim; else why it is not decided, if it is not."""
        if self.standing is not Standing.CONTRADICTED:
            return self.reason
        against = (one.words for check in self.checks for one in check.contrasts if one.holds is False)
        return "; ".join(dict.fromkeys(against)) or self.reason

    @property
    def is_current(self) -> bool:
        """Whether the claim is still declared as it was when this came out."""
        claim = declared().get(self.id)
        return claim is not None and claim.identity == self.declaration


_OUTCOME = TypeAdapter(Outcome)


def save_outcome(directory: Path, outcome: Outcome) -> None:
    """Keep an outcome, whole or not at all."""
    path = _path(directory, outcome.id)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(outcome), indent=1))


def load_outcome(directory: Path, claim: Claim) -> Outcome | None:
    """Return what came of a claim in a directory; None if nobody has tried there."""
    path = _path(directory, claim.id)
    return _read(path) if path.exists() else None


def shipped_outcome(claim: Claim) -> Outcome | None:
    """Return what came of a claim where fedseal is made; None if nothing is shipped."""
    path = resources.files("fedseal.claims").joinpath("decided", f"{claim.id}.json")
    with resources.as_file(path) as file:
        return _read(file) if file.exists() else None


def load_ledger(directory: Path) -> dict[str, Outcome]:
    """Return every outcome there is, in the order of the claims: a directory's own before those of the package."""
    found = {name: load_outcome(directory, claim) or shipped_outcome(claim) for name, claim in declared().items()}
    return {name: outcome for name, outcome in found.items() if outcome is not None}


def _read(path: Path) -> Outcome:
    try:
        return _OUTCOME.validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise StorageError(f"{path} is no outcome of a claim.", hint="Remove it and run the claim again.") from error


def ledger_data(outcomes: dict[str, Outcome]) -> list[dict[str, Any]]:
    """Return claims and outcomes as plain values, one per declared claim."""
    rows = []
    for name, claim in declared().items():
        outcome = outcomes.get(name)
        rows.append(
            {
                "id": name,
                "paper": claim.paper,
                **claim.model_dump(mode="json", exclude={"id"}),
                "declaration": claim.identity,
                "outcome": None if outcome is None else _OUTCOME.dump_python(outcome, mode="json"),
            }
        )
    return rows


def _path(directory: Path, name: str) -> Path:
    return directory / name / "outcome.json"
