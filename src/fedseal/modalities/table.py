"""Tables: cells and whole records recovered, what could be guessed of them, line-ups of records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.core.errors import InputError
from fedseal.core.reconstruction import Reconstruction
from fedseal.data.columns import TOLERANCE, Columns
from fedseal.metrics.labels import label_accuracy
from fedseal.metrics.records import cell_scores, guesses, paired
from fedseal.metrics.scales import CELLS
from fedseal.metrics.singling import line_up
from fedseal.modalities.measures import Case, Measured, Measures
from fedseal.modalities.passages import pack_words


@dataclass(frozen=True)
class TableMeasures(Measures):
    """Measures of tables."""

    def describe(self) -> dict[str, str]:
        """Say when a cell counts as recovered."""
        return {"cells": f"a category is right if it is the likeliest, a number within {TOLERANCE} deviations"}

    def progress(self, originals: Sequence[Batch], guesses: Tensor) -> dict[str, float]:
        """Return the root mean squared difference of encoded entries, each original to its closest guess."""
        apart = [
            torch.cdist(batch.inputs.double(), rows.double()) for batch, rows in zip(originals, guesses, strict=True)
        ]
        width = originals[0].inputs.shape[1] ** 0.5
        return {"distance": fmean(float(one.amin(1).mean()) / width for one in apart)}

    def measure(self, case: Case, answer: Reconstruction) -> Measured:
        """Score cells under the one pairing with most of them right; `kept` shows records as their table would."""
        columns = case.encoding
        if not isinstance(columns, Columns):
            raise InputError("a table is measured by its columns, and none are known.")
        truth = case.originals.inputs
        found = answer.images.detach().to(truth)
        matched = found[paired(columns, truth, found)[: len(truth)]]
        right = torch.diagonal(columns.right(truth, matched)).T.double()  # [B, columns]
        scores = cell_scores(columns, truth, found)
        kinds = torch.tensor([bool(column.categories) for column in columns.columns])
        made = guesses(columns, case.originals, case.public, case.seed)
        fields: dict[str, Any] = {
            "scale": CELLS.name,
            "psnr": tuple((100 * right.mean(1)).tolist()),
            "mse": tuple((truth - matched).square().mean(1).tolist()),
            "psnr_best": tuple(scores.amax(1).tolist()),
            "label_accuracy": label_accuracy(case.originals.labels, answer.labels),
            "baselines": {
                name: tuple(cell_scores(columns, truth, rows).diagonal().tolist()) for name, rows in made.items()
            },
            "isolated": answer.isolated,
            "metrics": {
                "record recovered": tuple((right.mean(1) == 1).double().tolist()),
                **{
                    name: tuple((100 * right[:, chosen].mean(1)).tolist())
                    for name, chosen in (("categories", kinds), ("numbers", ~kinds))
                    if bool(chosen.any())
                },
            },
            **self._line_up(case, columns, found),
        }
        words = pack_words(columns.words(truth), columns.words(matched))
        return Measured(fields, {"originals": truth.float(), "reconstructions": matched.float(), **words})

    def _line_up(self, case: Case, columns: Columns, found: Tensor) -> dict[str, Any]:
        """Rank records among strangers by their encoded entries; nothing, where strangers are too few."""
        ranked = line_up(_grid(case.originals), _cells(found), _grid(case.strangers), by_class=case.by_class)
        if ranked is None:
            return {}
        others = cell_scores(columns, case.strangers.inputs.to(found), found).amax(1)
        allowed = torch.ones(len(case.originals), len(others), dtype=torch.bool)
        if case.by_class:
            allowed = case.originals.labels.cpu()[:, None] == case.strangers.labels.cpu()[None]
        best = torch.where(allowed, others.cpu(), -torch.inf).amax(1)
        return {
            "ranks": ranked.ranks,
            "line_up": ranked.sizes,
            "twins": ranked.twins,
            "stranger_psnr": tuple(best.tolist()),
        }


def _cells(rows: Tensor) -> Tensor:
    return rows.clamp(0, 1).view(len(rows), 1, 1, -1)


def _grid(batch: Batch) -> Batch:
    """Return rows as pictures of one line, whose entries are compared one by one."""
    return Batch(_cells(batch.inputs), batch.labels)
