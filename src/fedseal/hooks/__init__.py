"""Defences inside of a training loop of one's own: any optimiser, precision, schedule, framework.

`SealedTraining` puts a defence's hooks around the batches and steps of a loop; `poisson_loader` samples batches as
differentially private accounts assume it. `lightning` and `trainer` do the same for Lightning and for Hugging Face's
Trainer.
"""

from __future__ import annotations

from fedseal.hooks.sampling import poisson_loader
from fedseal.hooks.training import SealedTraining, sealed_model

__all__ = ["SealedTraining", "poisson_loader", "sealed_model"]
