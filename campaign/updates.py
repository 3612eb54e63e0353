"""Odd updates into every defence: empty, scalar, whole, complex, infinite, constant, mixed precision, not contiguous.

What must hold: a refusal in words, or an update of the same names, shapes and dtypes, finite where it was.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

from campaign.outcomes import Tally, attempt
from fedseal.core.defence import DEFENCES, Defence, RoundContext
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.observation import Update
from fedseal.core.seeds import generator
from fedseal.core.tensors import check_finite, check_real
from fedseal.defences.pipeline import build_defence
from fedseal.federation.posthoc import needs_training, seal_update


def odd_tensors(draw: random.Random) -> dict[str, Tensor]:
    """Return an update with something odd in it."""
    source = torch.Generator().manual_seed(draw.randrange(1 << 30))
    plain = {"w": torch.randn(6, 5, generator=source), "b": torch.randn(6, generator=source)}
    odd: dict[str, Any] = {
        "empty": torch.zeros(0),
        "empty, deep": torch.zeros(3, 0, 2),
        "scalar": torch.tensor(0.5),
        "one entry": torch.ones(1),
        "zeros": torch.zeros(7),
        "equal": torch.full((9,), 0.25),
        "expanded": torch.ones(1).expand(8),
        "transposed": torch.randn(4, 3, generator=source).T,
        "half": torch.randn(5, generator=source).half(),
        "bfloat16": torch.randn(5, generator=source).bfloat16(),
        "double": torch.randn(5, generator=source).double(),
        "whole": torch.arange(5),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "flags": torch.tensor([True, False]),
        "complex": torch.ones(3, dtype=torch.complex64),
        "nan": torch.tensor([float("nan"), 1.0]),
        "infinite": torch.tensor([float("inf"), 1.0]),
        "huge": torch.full((4,), 3e38),
        "tiny": torch.full((4,), 1e-44),
        "needs grad": torch.ones(3, requires_grad=True),
    }
    chosen = draw.sample(sorted(odd), draw.randint(1, 2))
    tensors = plain | {"odd_" + name.replace(", ", "_").replace(" ", "_"): odd[name] for name in chosen}
    if draw.random() < 0.1:
        tensors = {name: tensor for name, tensor in tensors.items() if name not in ("w", "b")}
    return {} if draw.random() < 0.02 else tensors


def odd_updates(count: int, seed: int) -> Tally:
    """Try so many updates, in turn on every defence that acts on a finished update."""
    tally, source = Tally("odd updates"), random.Random(seed)
    names = [name for name in DEFENCES.names() if DEFENCES.entry(name).origin == "fedseal" and _applies(name)]
    for number in range(count):
        name, draw = names[number % len(names)], random.Random(source.random())
        tensors = odd_tensors(draw)
        attempt(
            tally,
            name,
            lambda name=name, tensors=tensors: _sealed(name, tensors),  # type: ignore[misc]
            check=lambda sent, tensors=tensors: _difference(sent, tensors),  # type: ignore[misc]
        )
    return tally


def _applies(name: str) -> bool:
    try:
        defence = build_defence(name)
    except UsageError:  # it needs an option that only its user knows, such as a file
        return False
    return defence.stage != "aggregate" and (not needs_training(defence) or _is_plain(defence))


def _is_plain(defence: Defence) -> bool:
    """Tell whether a defence of gradients asks for nothing but the gradient."""
    return defence.uses("on_gradient") and not defence.traits.reads_batch


def _sealed(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what a defence makes of an update, or of a gradient where it acts on those."""
    defence, source = build_defence(name), generator(0, "campaign")
    if defence.uses("on_gradient"):
        check_real(tensors, "client gradient")
        check_finite(tensors, "client gradient")
        model = nn.Module()
        for key, tensor in tensors.items():
            model.register_parameter(key, nn.Parameter(torch.zeros_like(tensor), requires_grad=True))
        return dict(defence.on_gradient(tensors, RoundContext(model, _no_loss, source)))
    before = {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}
    sealed = seal_update(
        Update(tensors, "delta"),
        defence,
        source,
        before=before,
        round_number=0,
        client="client-0",
        learning_rate=0.1,
    )
    return dict(sealed.update.tensors)


def _no_loss(model: Any, batch: Any) -> Tensor:
    raise CapabilityError("there is no batch to compute a loss on.")


def _difference(sent: dict[str, Tensor], given: dict[str, Tensor]) -> str | None:
    if list(sent) != list(given):
        return f"{list(given)} became {list(sent)}"
    for name, tensor in given.items():
        if sent[name].shape != tensor.shape or sent[name].dtype != tensor.dtype:
            return f"{name}: {tensor.dtype} {list(tensor.shape)} became {sent[name].dtype} {list(sent[name].shape)}"
        if tensor.is_complex() or tensor.dtype == torch.bool:
            return f"{name}: {tensor.dtype} was taken for numbers"
        if not bool(torch.isfinite(sent[name]).all()):
            return f"{name} is not finite"
    return None
