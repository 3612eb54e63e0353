"""What a model draws at random while it computes, as a variable: recorded once, then given.

A stochastic bottleneck's noise is unknown to whoever reads the upload. To treat it as such, it must be an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Draws(TorchFunctionMode):
    """Records what `torch.randn` returns, or returns what it is given instead.

    Args:
        given: in the order they are asked for; None records.

    Attributes:
        recorded: what was drawn.
    """

    def __init__(self, given: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.recorded: list[Tensor] = []
        self._given = None if given is None else list(given)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Stand in for `torch.randn`; leave everything else alone."""
        if func is not torch.randn:
            return func(*args, **(kwargs or {}))
        if self._given is not None:
            return self._given.pop(0)
        drawn = func(*args, **(kwargs or {}))
        self.recorded.append(drawn.detach().clone())
        return drawn
