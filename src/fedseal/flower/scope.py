"""Which tensors of a model a defence seals: what may leave at all, by patterns of names, trainable ones only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import nn

from fedseal.core.errors import UsageError
from fedseal.core.tensors import Tensors
from fedseal.federation.posthoc import travelling

_LOG = logging.getLogger("fedseal.flower")


@dataclass
class Scope:
    """What is sealed; everything else goes back as it came.

    Attributes:
        include: patterns of names (`*lora_*`), one of which must match.
        exclude: patterns of names, none of which may match.
        model: builds the model, of which only parameters that require gradients are sealed; None asks for no model.
    """

    include: Sequence[str] = ("*",)
    exclude: Sequence[str] = ()
    model: Callable[[], nn.Module] | None = None
    _trainable: frozenset[str] | None = field(default=None, init=False, repr=False)
    _said: bool = field(default=False, init=False, repr=False)

    def sealed(self, state: Tensors) -> list[str]:
        """Return the names of what is sealed, of a state that was received."""
        names = [name for name in travelling(state) if self._holds(name)]
        if not names:
            raise UsageError(
                f"nothing of the model's {len(state)} tensors is left to seal.",
                hint="Check include, exclude and which parameters require gradients.",
            )
        return names

    def say_what_stands_still(self, change: Tensors, everything: Tensors) -> None:
        """Say once what a user may have overlooked: frozen tensors under the defence, training outside of it."""
        if self._said:
            return
        self._said = True
        still = [name for name, tensor in change.items() if not bool(tensor.any())]
        if still and len(still) < len(change):
            _LOG.warning(
                "%d of %d sealed tensors did not change in training (%s, ...): if they are frozen, leave them out by "
                "exclude=[...] or model=..., or the defence acts on them too.",
                len(still), len(change), still[0],
            )  # fmt: skip
        outside = [name for name in travelling(everything) if name not in change and bool(everything[name].any())]
        if outside:
            _LOG.warning("%d tensors outside of the defence's scope changed and do not leave.", len(outside))

    def _holds(self, name: str) -> bool:
        if self.model is not None and self._trainable is None:
            built = self.model()
            self._trainable = frozenset(n for n, p in built.named_parameters() if p.requires_grad)
        return (
            any(fnmatchcase(name, pattern) for pattern in self.include)
            and not any(fnmatchcase(name, pattern) for pattern in self.exclude)
            and (self._trainable is None or name in self._trainable)
        )


def differences(after: Tensors, before: Tensors) -> dict[str, torch.Tensor]:
    """Return how every fractional entry of a state changed."""
    return {name: after[name] - tensor for name, tensor in before.items() if tensor.is_floating_point()}
