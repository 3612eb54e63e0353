"""What leaves a client (`Update`) and everything an attack may look at (`Observation`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import nn

from fedseal.core.knowledge import Knowledge
from fedseal.core.tensors import Tensors, check_finite, check_like

UpdateKind: TypeAlias = Literal["gradient", "delta"]
"""A loss gradient, or the weight change `new - old`."""


@dataclass(frozen=True)
class Update:
    """What a client uploads.

    Example:
        >>> import torch, fedseal
        >>> fedseal.Update({"weight": torch.zeros(2, 3)}, kind="delta").kind
        'delta'

    Attributes:
        tensors: by parameter name; a loss gradient, or the weight change `new - old`.
        kind: which of the two.
    """

    tensors: Tensors
    kind: UpdateKind = "gradient"


@dataclass(frozen=True)
class Observation:
    """The server's view of one client's round: the model it sent, the update it received, and what else it knows.

    Example:
        >>> import torch, fedseal
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
        >>> update = fedseal.Update({name: torch.zeros_like(p) for name, p in model.named_parameters()})
        >>> seen = fedseal.Observation(model, update, fedseal.Knowledge(input_shape=(1, 2, 2), num_classes=2))
        >>> list(seen.parameters)
        ['1.weight', '1.bias']

    Attributes:
        model: the global model as sent, its modules in the mode the client uses; attacks never change it.
        update: as received, after every defence; its tensors are put in the model's order, as files may lose it.
        knowledge: the attacker's capabilities.
        memory: what an active attacker remembers of the model it sent; None for a passive one.
    """

    model: nn.Module
    update: Update
    knowledge: Knowledge
    memory: object = None

    def __post_init__(self) -> None:
        parameters = self.parameters
        check_like(self.update.tensors, parameters, "update")
        check_finite(self.update.tensors, "update")
        if list(self.update.tensors) != list(parameters):
            ordered = {name: self.update.tensors[name] for name in parameters}
            object.__setattr__(self, "update", Update(ordered, self.update.kind))

    @property
    def parameters(self) -> Tensors:
        """The model's trainable parameters, detached, by name."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}
