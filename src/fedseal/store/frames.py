"""Records as pandas frames, for those who analyse runs themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fedseal.core.errors import UsageError
from fedseal.store.readings import ReadingRecord
from fedseal.store.records import TrialRecord

if TYPE_CHECKING:
    from pandas import DataFrame

Per: TypeAlias = Literal["image", "trial"]

_NOT_COLUMNS = {"trace", "notes", "knowledge"}


def trial_frame(
    records: Sequence[TrialRecord],
    readings: Sequence[ReadingRecord] = (),
    per: Per = "image",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> DataFrame:
    """Return trials as a frame: one row per original image, or one per trial with the means of its images.

    Columns are the record's fields; those that are mappings are spread (`baselines.nearest`, `cost.bytes_up`), and what
    an ideal reader of the same upload gets is added (`reading.psnr_db`), as are the keys in which the settings of the
    scenarios, by name, differ (`scenario.client.batch_size`). A trial without a result is one row with its status and
    message.
    """
    if per not in ("image", "trial"):
        raise UsageError(f"a frame has rows per 'image' or per 'trial', not per {per!r}.")
    known = {(r.scenario, r.defence, r.weight_seed, r.target): _reading(r) for r in readings}
    varied = _varied(settings or {})
    return make_frame(
        [
            row
            | varied.get(record.scenario, {})
            | known.get((record.scenario, record.defence, record.weight_seed, record.target), {})
            for record in records
            for row in _rows(record, per)
        ]
    )


def make_frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return rows as a frame, or say how to get pandas."""
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise UsageError("frames need pandas.", hint="Install it: pip install 'fedseal[frames]'.") from error
    return DataFrame(list(rows))


def _rows(record: TrialRecord, per: Per) -> Iterator[dict[str, Any]]:
    columns = dict(_flat(record.model_dump(exclude=_NOT_COLUMNS)))
    images = len(record.psnr)
    readings = {name for name, value in columns.items() if _is_reading(value) and len(value) in (0, images)}
    plain = {name: value for name, value in columns.items() if name not in readings and not isinstance(value, tuple)}
    if images == 0 or per == "trial":
        yield plain | {name: fmean(columns[name]) if columns[name] else None for name in readings} | {"images": images}
        return
    for image in range(images):
        yield plain | {"image": image} | {name: columns[name][image] for name in readings if columns[name]}


def _reading(reading: ReadingRecord) -> dict[str, Any]:
    columns = _flat(
        reading.model_dump(exclude={"key", "scenario", "defence", "target", "weight_seed", "remarks", "artefact"})
    )
    return {f"reading.{name}": value for name, value in columns}


def _varied(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return of each scenario the keys in which they differ, with their values."""
    flat = {name: dict(_flat(values, "scenario.")) for name, values in settings.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    differing = [key for key in keys if len({repr(values.get(key)) for values in flat.values()}) > 1]
    return {name: {key: values.get(key) for key in differing} for name, values in flat.items()}


def _is_reading(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, int | float) for item in value)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", tuple(value) if isinstance(value, list) else value
