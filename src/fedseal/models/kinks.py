"""Freezing the kinks of a network: which ReLU is on and which pixel wins a pooling stays as it was.

The second-order product d/dx <grad_w L, v> ignores how a small step moves kinks, as their derivative is zero almost
everywhere. A finite difference in the weights would see them move, so the choices made at w are recorded and replayed
at w + h v.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_RELU: set[Any] = {torch.relu, torch.relu_, F.relu, F.relu_, Tensor.relu, Tensor.relu_}
_LEAKY: set[Any] = {F.leaky_relu, F.leaky_relu_}
_pool_with_indices: Any = F.max_pool2d
_POOL: set[Any] = {F.max_pool2d, torch.max_pool2d}


class FrozenKinks(TorchFunctionMode):
    """Records the choices of ReLU, leaky ReLU and max-pooling in a first pass, and repeats them in later ones.

    Use as a context manager around each forward pass; `rewind` before every pass after the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._choices: list[Tensor] = []
        self._next = 0
        self._recording = True

    def rewind(self) -> None:
        """Repeat the recorded choices from the start."""
        self._recording, self._next = False, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RELU:
            return args[0] * self._choice(lambda: (args[0] > 0).to(args[0].dtype))
        if func in _LEAKY:
            slope = kwargs.get("negative_slope", args[1] if len(args) > 1 else 0.01)
            one = args[0].new_ones(())
            return args[0] * self._choice(lambda: torch.where(args[0] > 0, one, one * slope))
        if func in _POOL:
            plain = {key: value for key, value in kwargs.items() if key not in {"input", "return_indices"}}
            x: Tensor = args[0] if args else kwargs["input"]
            indices = self._choice(lambda: _pool_with_indices(x, *args[1:], **plain, return_indices=True)[1])
            return x.flatten(2).gather(2, indices.flatten(2)).view(indices.shape)
        return func(*args, **kwargs)

    def _choice(self, make: Callable[[], Tensor]) -> Tensor:
        if self._recording:
            with torch.no_grad():
                self._choices.append(make())
            return self._choices[-1]
        self._next += 1
        return self._choices[self._next - 1]
