"""Configuration as a defence (FedLeak, Sec. 7): more local steps, larger batches, trained weights.

None of them touches an update: `reshape` puts more data behind it, `wrap_model` sends other weights. Threat model:
honest-but-curious server. Figures of the paper (ResNet10, Lung-Colon): 18.4 dB at one step, 14.3 at eight; 18.4 dB at
batch 16, 16.1 at 64; trained instead of random weights take 1.9 dB at batch 32. Each is a lower bound on what the
scenario says already, never a reduction: `steps=1` and `size=1` leave every scenario as it is and are zero strength.

Cost: what more data per update costs in client time, and in accuracy for many local steps; no bytes.

Known breaks: unrolled matching follows local steps, larger batches need more iterations only; active servers isolate
single samples in any batch.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

from torch import nn

from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundShape
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.models.checkpoint import load_checkpoint

_PAPER = "Fan et al., USENIX Security 2025"


@DEFENCES.register(
    "local-steps", Info("upload the change of several local steps, not one gradient", paper=_PAPER, threat="passive")
)
class LocalSteps(Defence):
    """At least so many SGD steps per round, each on a batch of its own.

    Args:
        steps: 1 leaves the scenario as it is.
    """

    stage = "data"

    def __init__(self, steps: int = 8) -> None:
        if steps < 1:
            raise UsageError(f"local-steps needs steps >= 1, got {steps}.", hint="1 changes nothing.")
        self.steps = steps

    def reshape(self, shape: RoundShape) -> RoundShape:
        """Raise the steps to the configured number."""
        return replace(shape, local_steps=max(shape.local_steps, self.steps))

    def report(self) -> CostReport:
        """Say what the steps cost that no column shows."""
        if self.steps == 1:
            return CostReport()
        return CostReport(
            remarks=(f"at least {self.steps} local steps: clients drift apart, accuracy falls with their number",)
        )

    def attacker_view(self) -> AttackerView:
        """Publish the number of steps; an attacker that knows it unrolls them."""
        return AttackerView(self.name, {"steps": self.steps})


@DEFENCES.register("large-batch", Info("put more images behind every gradient", paper=_PAPER, threat="passive"))
class LargeBatch(Defence):
    """At least so many images per local step.

    Args:
        size: 1 leaves the scenario as it is.
    """

    stage = "data"

    def __init__(self, size: int = 64) -> None:
        if size < 1:
            raise UsageError(f"large-batch needs size >= 1, got {size}.", hint="1 changes nothing.")
        self.size = size

    def reshape(self, shape: RoundShape) -> RoundShape:
        """Raise the batch to the configured size."""
        return replace(shape, batch_size=max(shape.batch_size, self.size))

    def attacker_view(self) -> AttackerView:
        """Publish the size."""
        return AttackerView(self.name, {"size": self.size})


@DEFENCES.register("pretrained", Info("start the federation from trained weights", paper=_PAPER, threat="passive"))
class Pretrained(Defence):
    """The same model with the weights of a checkpoint: trained networks have small, less telling gradients.

    Args:
        checkpoint: a safetensors file with the model's whole state dict; `none` is zero strength. There is no
            default, so that nobody takes random weights for trained ones.
    """

    stage = "model"

    def __init__(self, checkpoint: Path | None) -> None:
        if checkpoint is not None and not checkpoint.is_file():
            raise UsageError(f"pretrained: there is no checkpoint {checkpoint}.", hint="Check the path.")
        self.checkpoint = checkpoint

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Return a copy of the model with the checkpoint's weights; the attacker is sent them like everyone."""
        if self.checkpoint is None:
            return model
        trained = copy.deepcopy(model)
        load_checkpoint(trained, self.checkpoint)
        return trained

    def attacker_view(self) -> AttackerView:
        """Publish the file's name; the weights are in the observation."""
        return AttackerView(self.name, {"checkpoint": self.checkpoint.name} if self.checkpoint else {})
