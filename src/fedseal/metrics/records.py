"""Records of a table: which cells came back, and what anybody could have guessed."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.core.seeds import generator
from fedseal.data.columns import Columns


def cell_scores(columns: Columns, truth: Tensor, guesses: Tensor) -> Tensor:
    """Return the share of right cells of every guess [K, D] for every record [N, D], in per cent: [N, K]."""
    return 100 * columns.right(truth, guesses).double().mean(2)


def paired(columns: Columns, truth: Tensor, guesses: Tensor) -> Tensor:
    """Return which of as many guesses belongs to each record, one to one, with most cells right in sum."""
    gain = cell_scores(columns, truth, guesses)
    close = torch.cdist(truth.double(), guesses.double().to(truth.device))
    gain = gain - close / (1 + close.max()) * 1e-3  # among equals the closer one
    _, places = linear_sum_assignment(gain.cpu().numpy(), maximize=True)
    return torch.as_tensor(places, dtype=torch.int64, device=guesses.device)


def typical(columns: Columns, rows: Tensor) -> Tensor:
    """Return one record [D] of the most frequent category and the mean number of every column."""
    mean = rows.double().mean(0)
    for column, place in columns.blocks():
        if column.categories:
            mean[place] = torch.nn.functional.one_hot(mean[place].argmax(), column.width).to(mean)
    return mean


def guesses(columns: Columns, originals: Batch, public: Batch, seed: int) -> dict[str, Tensor]:
    """Return what can be guessed of each original without an update, by name: [B, D] each."""
    truth, rows = originals.inputs, public.inputs.to(originals.inputs)
    count = len(truth)
    common = typical(columns, rows).to(truth)
    by_class = {}
    for label in set(originals.labels.tolist()) if not originals.labels.is_floating_point() else set():
        members = rows[public.labels.to(rows.device) == label]
        by_class[label] = typical(columns, members).to(truth) if len(members) else common
    source = generator(seed, "baseline-drawn")
    drawn = torch.empty_like(truth)
    for _, place in columns.blocks():
        chosen = torch.randint(len(rows), (count,), generator=source).to(rows.device)
        drawn[:, place] = rows[chosen][:, place]
    closest = cell_scores(columns, truth, rows).argmax(1)
    return {
        "typical": common.expand(count, -1),
        "class_typical": torch.stack([by_class.get(label, common) for label in _keys(originals.labels)]),
        "drawn": drawn,
        "nearest": rows[closest],
    }


def _keys(labels: Tensor) -> list[int]:
    return [-1] * len(labels) if labels.is_floating_point() else [int(label) for label in labels]
