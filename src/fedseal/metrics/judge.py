"""A judge for RLA: a classifier trained on images that neither clients nor attacker hold."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fedseal.core.batch import Batch
from fedseal.core.errors import UsageError
from fedseal.core.seeds import generator


def train_judge(
    model: nn.Module, data: Batch, *, epochs: int = 30, batch_size: int = 64, learning_rate: float = 2e-3, seed: int = 0
) -> nn.Module:
    """Train a classifier in place on images in [0, 1], flipped at random, and return it ready to judge.

    Args:
        model: maps images [N, C, H, W] to logits.
        data: disjoint from what it will judge, and from what made it.
        epochs: passes through the data; the learning rate falls to zero along a cosine.
        batch_size: images per step of Adam.
        learning_rate: at the start.
        seed: of order and flips.
    """
    if epochs < 1 or batch_size < 2 or len(data) < 2:
        raise UsageError("a judge needs at least two images, batches of two and one epoch.")
    source = generator(seed, "judge")
    steps = epochs * max(1, len(data) // batch_size)
    adam = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, learning_rate, total_steps=steps)
    model.train()
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < batch_size:
            order = torch.randperm(len(data), generator=source)
        chosen, order = order[:batch_size], order[batch_size:]
        flips = torch.rand(len(chosen), 1, 1, 1, generator=source).to(data.images) < 0.5
        images = data.images[chosen]
        loss = F.cross_entropy(model(torch.where(flips, images.flip(-1), images)), data.labels[chosen])
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        schedule.step()
    return model.eval().requires_grad_(False)
