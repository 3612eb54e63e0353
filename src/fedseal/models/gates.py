"""Linear layers and the gates behind them, found by how derivatives pass, never by the kind of a module.

A unit behind which a ReLU stands passes a sample's derivative on exactly where it is positive. That is tried with
probes: whatever the model calls its ReLU, and wherever it calls it, the derivative at the layer's output says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

PROBES = 8


@dataclass(frozen=True)
class LinearGate:
    """A linear layer that sees one row per sample.

    Attributes:
        name: its dotted name in the model.
        module: the layer.
        gated: whether derivatives pass a unit exactly where it is positive, as behind ReLU.
        on_input: whether its rows are the flattened inputs themselves, not features of them.
    """

    name: str
    module: nn.Linear
    gated: bool
    on_input: bool

    @property
    def weight_name(self) -> str:
        """Name of the weight among the model's parameters."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def bias_name(self) -> str | None:
        """Name of the bias among the model's parameters, if it has one."""
        if self.module.bias is None:
            return None
        return f"{self.name}.bias" if self.name else "bias"


def linear_gates(model: nn.Module, shape: tuple[int, ...]) -> list[LinearGate]:
    """Return the linear layers that see one row per sample, in order of execution.

    Args:
        model: in the mode it is attacked in; nothing of it is changed.
        shape: of one input.
    """
    seen: list[tuple[str, nn.Linear, Tensor, Tensor]] = []
    names = {module: name for name, module in model.named_modules()}

    def hook(module: nn.Linear, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        output = output if output.requires_grad else output.requires_grad_()
        seen.append((names[module], module, inputs[0].detach(), output))
        return output

    like = next(model.parameters())
    source = torch.Generator().manual_seed(0)
    probes = torch.rand(PROBES, *shape, generator=source).to(like)
    handles = [m.register_forward_hook(hook) for m in model.modules() if isinstance(m, nn.Linear)]
    try:
        with torch.enable_grad():
            answer = model(probes)
            weights = torch.randn(answer.shape, generator=source).to(answer)
            total = (answer * weights).sum()
            outputs = [output for *_, output in seen]
            slopes = torch.autograd.grad(total, outputs, allow_unused=True) if outputs else ()
    finally:
        for handle in handles:
            handle.remove()
    return [
        LinearGate(name, module, _gated(output.detach(), slope), _same(given, probes))
        for (name, module, given, output), slope in zip(seen, slopes, strict=True)
        if given.ndim == 2 and len(given) == PROBES and slope is not None
    ]


def _gated(output: Tensor, slope: Tensor) -> bool:
    """Tell whether derivatives are zero where outputs are negative, and elsewhere hardly ever."""
    off, passed = output < 0, slope != 0
    if not bool(off.any()) or bool(off.all()):
        return False
    return not bool(passed[off].any()) and float(passed[~off].float().mean()) > 0.5


def _same(given: Tensor, probes: Tensor) -> bool:
    return given.shape == (len(probes), probes[0].numel()) and bool((given == probes.flatten(1)).all())
