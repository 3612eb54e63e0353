"""Which module measures which kind of input."""

from __future__ import annotations

from fedseal.core.errors import UsageError
from fedseal.core.modality import IMAGE, TABLE, TEXT
from fedseal.metrics.lpips_choice import LpipsChoice
from fedseal.modalities.image import ImageMeasures
from fedseal.modalities.measures import Measures
from fedseal.modalities.table import TableMeasures
from fedseal.modalities.text import TextMeasures


def measures_of(modality: str, lpips: LpipsChoice = "auto") -> Measures:
    """Return how a modality is measured, images by the network of LPIPS that was chosen."""
    if modality == IMAGE:
        return ImageMeasures.load(lpips)
    if modality == TABLE:
        return TableMeasures()
    if modality == TEXT:
        return TextMeasures()
    raise UsageError(f"nothing is known of how inputs of the kind {modality!r} are measured.")
