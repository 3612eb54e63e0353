"""Defences inside of Lightning's loop: a callback."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from fedseal.core.errors import UsageError
from fedseal.core.observation import Update
from fedseal.hooks.training import Criterion, SealedTraining

_PRECISIONS = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class SealedCallback(Callback):
    """Seals the training of a module with one optimiser whose batches are [inputs, labels].

    Args:
        defence: a spec.
        criterion: the loss that the module's `training_step` computes on what the module answers.
        options: of `SealedTraining`; loader, precision and accumulation are the trainer's.
    """

    def __init__(self, defence: str, criterion: Criterion = cross_entropy, **options: Any) -> None:
        self._defence = defence
        self._criterion = criterion
        self._options = options
        self.sealed: SealedTraining | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the hooks on the trainer's optimiser."""
        if len(trainer.optimizers) != 1:
            raise UsageError(f"a sealed module has one optimiser, this one has {len(trainer.optimizers)}.")
        loader = trainer.train_dataloader
        self.sealed = SealedTraining(
            self._defence,
            pl_module,
            trainer.optimizers[0],
            self._criterion,
            loader=loader if isinstance(loader, DataLoader) else None,
            accumulate=trainer.accumulate_grad_batches,
            autocast=_PRECISIONS.get(str(trainer.precision)),
            **self._options,
        )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Put what the defence makes of a batch in its place."""
        if not isinstance(batch, list) or len(batch) != 2:
            raise UsageError(
                f"a sealed batch is a list [inputs, labels], this one is a {type(batch).__name__}.",
                hint="PyTorch's own collate function makes such lists.",
            )
        assert self.sealed is not None, "training has started"
        batch[0], batch[1] = self.sealed.batch(batch[0], batch[1])

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Take the hooks off; `update` remains."""
        if self.sealed is not None:
            self.sealed.close()

    def update(self) -> Update:
        """Return what may leave after `fit`."""
        if self.sealed is None:
            raise UsageError("nothing was trained yet.", hint="Call trainer.fit(...) with this callback first.")
        return self.sealed.update()
