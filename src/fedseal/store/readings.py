"""The record of an ideal reading, as it is stored and read back: once per scenario, defence and target."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class ReadingRecord(BaseModel):
    """What an upload holds, computed by `fedseal.information`; fields without a word here are `IdealReading`'s.

    Attributes:
        key: content hash of everything that determines the reading.
        scenario: name of the set-up.
        defence: spec of the defence pipeline.
        target: index of the batch.
        weight_seed: of the model's weights.
        sigma_for: standard deviation of Gaussian noise on every entry of this upload that would bring the reading down
            to a level, by the level in dB, or to what counts as `low`; only for undefended uploads, None where no noise
            does it.
        cost: the defence's cost report of the round as plain data, with the bytes of the dense update
            (`dense_bytes`) and what a real protocol adds to an upload (`protocol_bytes`).
        artefact: file with the `pixel_map` [B, C, H, W], relative to the run's directory.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    key: str
    scenario: str
    defence: str
    target: int
    weight_seed: int = 0
    psnr_db: float | None
    prior_db: float | None = None
    reason: str = ""
    method: Literal["exact", "matrix-free"] | None = None
    error_db: float = 0.0
    dimensions: int = 0
    effective: float | None = None
    fed_db: float | None = None
    refuted: bool = False
    per_layer: dict[str, float] = {}
    sigma_for: dict[str, float | None] = {}
    cost: dict[str, Any] = {}
    seconds: float = 0.0
    remarks: tuple[str, ...] = ()
    artefact: str | None = None
