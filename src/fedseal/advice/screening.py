"""Cheap readings of a defence: what its update holds, what is proven, what it sends and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from pydantic import BaseModel, ConfigDict

from fedseal.advice.limits import Limits
from fedseal.audit.cells import Ideal
from fedseal.audit.levels import RiskLevel
from fedseal.audit.run import Run
from fedseal.audit.verdict import ideals_of

UNKNOWN_DB = 99.0
"""Gain that is reckoned with where nobody can say what an update holds."""


class Screened(BaseModel):
    """What is known of a defence without training and attack.

    Attributes:
        defence: its spec.
        ideal_db, prior_db: what an ideal attacker finds, and has without the update; None where nobody can say.
        gain_db: the most that an upload adds to the prior.
        level: that the ideal reading stands for; empty where there is none.
        reason: why there is no reading.
        proven: what is proven, in words; empty where nothing is.
        proven_low: whether that alone makes it low.
        upload: bytes, in those of the plain update; what a real protocol adds is counted.
        dense_bytes, protocol_bytes: of the plain update, and what a real protocol adds.
        seconds: of a client's round in the defence's own code.
        distance: of what is sent from the true update, in the latter's norm; None if unknown.
        per_layer: what each layer's part of the update holds, in dB.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    defence: str
    ideal_db: float | None = None
    prior_db: float | None = None
    gain_db: float | None = None
    level: str = ""
    reason: str = ""
    proven: str = ""
    proven_low: bool = False
    upload: float = 1.0
    dense_bytes: int = 1
    protocol_bytes: int = 0
    seconds: float = 0.0
    distance: float | None = None
    per_layer: Mapping[str, float] = {}

    def may_meet(self, limits: Limits) -> bool:
        """Return whether it may be within a level, for all that is known without attack."""
        if self.proven_low:
            return True
        return bool(self.level) and RiskLevel.parse(self.level) <= limits.level

    @property
    def exposure(self) -> float:
        """Gain of an ideal attacker in dB, at least 0; nothing where it is proven, much where nobody can say."""
        return 0.0 if self.proven_low else max(0.0, UNKNOWN_DB if self.gain_db is None else self.gain_db)

    @property
    def objectives(self) -> tuple[float, float, float, float]:
        """What the search brings down: exposure, distortion as a stand-in for accuracy, upload and time."""
        return self.exposure, UNKNOWN_DB if self.distance is None else self.distance, self.upload, self.seconds


def screened(run: Run, defence: str) -> Screened | None:
    """Return what a run without trials says of a defence; None where it could not be played."""
    name = run.scenarios[0].name
    ideal = ideals_of(run.readings).get((name, defence))
    if ideal is None or not any(record.cost for record in ideal.records):
        return None
    costs = [record.cost for record in ideal.records if record.cost]
    proof = run.proofs.get(name, {}).get(defence)
    distances = [cost["gradient_distance"] for cost in costs if cost["gradient_distance"] is not None]
    sent = fmean((cost["bytes_up"] + cost["protocol_bytes"]) / cost["dense_bytes"] for cost in costs)
    return Screened(
        defence=defence,
        ideal_db=ideal.psnr_db,
        prior_db=ideal.prior_db,
        gain_db=ideal.gain_db,
        level=_level(ideal),
        reason=ideal.reason,
        proven="" if proof is None else proof.sentence(),
        proven_low=proof is not None and proof.is_low,
        upload=sent,
        dense_bytes=costs[0]["dense_bytes"],
        protocol_bytes=costs[0]["protocol_bytes"],
        seconds=fmean(cost["seconds"] for cost in costs),
        distance=fmean(distances) if distances else None,
        per_layer=ideal.records[0].per_layer,
    )


def _level(ideal: Ideal) -> str:
    return "" if ideal.level is None else ideal.level.words
