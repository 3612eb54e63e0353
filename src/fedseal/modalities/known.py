"""Which module measures which kind of input."""

from __future__ import annotations

from fedseal.core.errors import UsageError
from fedseal.core.modality import IMAGE
from fedseal.modalities.image import ImageMeasures
from fedseal.modalities.measures import Measures


def measures_of(modality: str) -> Measures:
    """Return how a modality is measured."""
    if modality == IMAGE:
        return ImageMeasures.load()
    raise UsageError(f"nothing is known of how inputs of the kind {modality!r} are measured.")
