"""Which images a report shows: the best recovered ones of a cell, beside their originals.

With `redact`, no artefact is opened: a good reconstruction is the original, so neither may leave the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from safetensors import SafetensorError
from torch import Tensor

from fedseal.audit.cells import Cell
from fedseal.audit.run import Run
from fedseal.metrics.scales import CELLS, PSNR
from fedseal.report.passages import Passage, compared, compared_cells
from fedseal.report.png import data_uri
from fedseal.store.records import TrialRecord


@dataclass(frozen=True)
class Pair:
    """An original and its reconstruction.

    Attributes:
        target: index of the attacked batch.
        index: of the image within it.
        psnr, ssim: of the reconstruction; ssim is None where it was not measured.
        original, reconstruction: data URIs; None where withheld or missing.
        text: of data that is words, both of them with their differences; None where withheld, missing, or images.
    """

    target: int
    index: int
    psnr: float
    ssim: float | None
    original: str | None = None
    reconstruction: str | None = None
    text: Passage | None = None


@dataclass(frozen=True)
class Gallery:
    """The best recovered images of a cell.

    Attributes:
        cell: whose images.
        pairs: best recovered first.
        total: number of images the cell attacked.
        state: `shown`, `redacted` (withheld on request) or `missing` (no artefact holds them).
    """

    cell: Cell
    pairs: tuple[Pair, ...]
    total: int
    state: Literal["shown", "redacted", "missing"]


def build_gallery(run: Run, cell: Cell, *, limit: int, redact: bool) -> Gallery:
    """Return up to `limit` pairs of a cell, best recovered first."""
    ranked = [(psnr, record, index) for record in cell.succeeded for index, psnr in enumerate(record.psnr)]
    ranked.sort(key=lambda entry: -entry[0] if entry[0] == entry[0] else float("inf"))
    if cell.scale is not PSNR:
        return _passages(run, cell, ranked[:limit], len(ranked), redact=redact)
    opened: dict[str, tuple[Tensor, Tensor] | None] = {}
    pairs = []
    for psnr, record, index in ranked[:limit]:
        if not redact and record.key not in opened:
            opened[record.key] = _open_images(run, record)
        pairs.append(_pair(record, index, psnr, opened.get(record.key)))
    shown = any(pair.original is not None for pair in pairs)
    return Gallery(cell, tuple(pairs), len(ranked), "redacted" if redact else "shown" if shown else "missing")


def _passages(run: Run, cell: Cell, best: list[tuple[float, TrialRecord, int]], total: int, *, redact: bool) -> Gallery:
    """Return the best recovered samples of a cell that are words."""
    opened = {record.key: None if redact else _open_words(run, record) for _, record, _ in best}
    pairs = []
    compare = compared_cells if cell.scale is CELLS else compared
    for score, record, index in best:
        words = opened[record.key]
        shown = None if words is None or index >= len(words[0]) else compare(words[0][index], words[1][index])
        pairs.append(Pair(record.target, index, score, None, text=shown))
    seen = any(pair.text is not None for pair in pairs)
    return Gallery(cell, tuple(pairs), total, "redacted" if redact else "shown" if seen else "missing")


def _open_words(run: Run, record: TrialRecord) -> tuple[list[list[str]], list[list[str]]] | None:
    try:
        return run.texts(record)
    except (OSError, ValueError, SafetensorError):
        return None


def _open_images(run: Run, record: TrialRecord) -> tuple[Tensor, Tensor] | None:
    try:
        images = run.images(record)
    except (OSError, KeyError, SafetensorError):
        return None  # a report without a picture is better than none; the page says that it is missing
    if images is None or any(tensor.ndim != 4 for tensor in images):
        return None
    return images


def _pair(record: TrialRecord, index: int, psnr: float, images: tuple[Tensor, Tensor] | None) -> Pair:
    ssim = record.ssim[index] if index < len(record.ssim) else None
    if images is None or index >= min(map(len, images)):
        return Pair(record.target, index, psnr, ssim)
    originals, reconstructions = images
    return Pair(record.target, index, psnr, ssim, data_uri(originals[index]), data_uri(reconstructions[index]))
