"""A received checkpoint, loaded and looked at: what `fedseal detect` does."""

from __future__ import annotations

from pathlib import Path

import torch

from fedseal.core.errors import UsageError
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.detection.detector import Detection, detect
from fedseal.models.checkpoint import load_checkpoint
from fedseal.models.registry import build_model


def inspect_checkpoint(
    model: str,
    checkpoint: Path | None,
    *,
    data: str | None = None,
    input_shape: tuple[int, int, int] | None = None,
    num_classes: int | None = None,
    batch_size: int = 16,
    train_mode: bool = False,
    seed: int = 0,
    data_root: Path | None = None,
) -> Detection:
    """Build a model, load the weights that were received, and look at them.

    Args:
        model: spec or `package.module:attribute`.
        checkpoint: safetensors file with the received weights; None for the model's own initial ones.
        data: spec of the data the client would train on; without it only the weights are looked at.
        input_shape: C, H, W; needed without data.
        num_classes: likewise.
        batch_size: samples drawn from the data.
        train_mode: whether batch normalisation uses the batch's statistics.
        seed: of that draw, and of initial weights.
        data_root: where local data sets lie.
    """
    dataset = None if data is None else DATASETS.build(data, data_root=data_root)
    shape = input_shape if dataset is None else dataset.shape
    classes = num_classes if dataset is None else len(dataset.classes)
    if shape is None or classes is None:
        raise UsageError(
            "the model cannot be built without knowing what it is for.",
            hint="Give --data, or --input-shape and --classes.",
        )
    built = build_model(model, input_shape=shape, num_classes=classes, seed=seed)
    if checkpoint is not None:
        load_checkpoint(built, checkpoint)
    built.train(train_mode)
    if dataset is None:
        return detect(built)
    chosen = torch.randperm(len(dataset), generator=generator(seed, "detect"))[:batch_size]
    return detect(built, dataset.batch(chosen), normalisation=dataset.normalisation)
