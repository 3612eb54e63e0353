"""Which module measures which kind of input."""

from __future__ import annotations

from fedseal.core.errors import UsageError
from fedseal.core.modality import IMAGE, TABLE, TEXT
from fedseal.metrics.lpips_choice import LpipsChoice
from fedseal.modalities.image import ImageMeasures
from fedseal.modalities.measures import Measures
from fedseal.modalities.table import TableMeasures
from fedseal.modalities.text import TextMeasures

_MEASURES: dict[str, type[ImageMeasures | TableMeasures | TextMeasures]] = {
    IMAGE: ImageMeasures,
    TABLE: TableMeasures,
    TEXT: TextMeasures,
}


def measures_of(modality: str, lpips: LpipsChoice = "auto") -> Measures:
    """Return how a modality is measured, images by the network of LPIPS that was chosen."""
    found = _known(modality)
    return found.load(lpips) if issubclass(found, ImageMeasures) else found()


def measuring_module(modality: str) -> str:
    """Return where it is written how a modality is measured."""
    return _known(modality).__module__


def _known(modality: str) -> type[ImageMeasures | TableMeasures | TextMeasures]:
    if modality not in _MEASURES:
        raise UsageError(f"nothing is known of how inputs of the kind {modality!r} are measured.")
    return _MEASURES[modality]
