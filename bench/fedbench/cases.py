"""What is measured: the same federation for every engine."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.seeds import generator
from fedseal.models.registry import build_model

SHAPE = (3, 32, 32)
CLASSES = 10


@dataclass(frozen=True)
class Case:
    """A federation: every client takes `steps` SGD steps on batches of `batch` of its `examples` images."""

    model: str
    clients: int
    steps: int
    batch: int
    examples: int = 64
    learning_rate: float = 0.01

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.model}, {self.clients} clients, {self.steps} x {self.batch} images"


def initial_model(case: Case) -> nn.Module:
    """Return the global model, the same for every engine."""
    return build_model(case.model, input_shape=SHAPE, num_classes=CLASSES, seed=0)


def client_data(case: Case, client: int) -> Batch:
    """Return a client's images; random, as the time does not depend on what they show."""
    source = generator(client, "bench")
    images = torch.rand(case.examples, *SHAPE, generator=source)
    return Batch(images, torch.randint(CLASSES, (case.examples,), generator=source))
