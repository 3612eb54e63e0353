"""What attacks ask of a model of text, whoever wrote it: its table of words, and what its linear layers are fed.

Nothing is known of a model but that it takes ids [B, T]. Which layers look at single tokens and which at their context
is tried: one token of a text is changed, and what a layer is fed at other places changes or does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedseal.core.errors import CapabilityError


@dataclass(frozen=True)
class WordTable:
    """The embedding of words.

    Attributes:
        name: of its weight among the model's parameters.
        module: itself.
    """

    name: str
    module: nn.Embedding


@dataclass(frozen=True)
class TokenLayer:
    """A linear layer that is fed one vector per token.

    Attributes:
        name: in the model.
        module: itself.
        group: layers of one group are fed the same vectors.
        alone: whether what it is fed at a place depends on the token there and nothing else.
        placed: whether it depends on the place, too.
        causal: whether it depends on no later token.
    """

    name: str
    module: nn.Module
    group: int
    alone: bool
    placed: bool
    causal: bool


def word_table(model: nn.Module, tokens: int) -> WordTable:
    """Return the embedding that has a row for every token; the first, where there are several."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings >= tokens:
            return WordTable(f"{name}.weight" if name else "weight", module)
    raise CapabilityError(
        f"the model has no embedding with a row for each of {tokens} tokens.",
        hint="Attack a model made of `nn.Embedding`.",
    )


@contextmanager
def fed_with(table: WordTable, words: Tensor) -> Iterator[None]:
    """Let the table answer with given vectors [B, T, D], whatever ids it is asked for."""
    handle = table.module.register_forward_hook(lambda module, inputs, answer: words)
    try:
        yield
    finally:
        handle.remove()


class _Enough(Exception):
    """Ends a forward pass that has shown what it was run for."""


def fed_to(model: nn.Module, layer: nn.Module, ids: Tensor) -> Tensor:
    """Return what a layer is fed for ids, [B, T, D]; the model runs no further than there."""
    found: list[Tensor] = []

    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        found.append(inputs[0].detach())
        raise _Enough

    handle = layer.register_forward_pre_hook(hook)
    try:
        with torch.no_grad():
            model(ids)
    except _Enough:
        pass
    finally:
        handle.remove()
    return found[0]


def token_layers(model: nn.Module, length: int, tokens: int, linear: Sequence[str] = ()) -> list[TokenLayer]:
    """Return the linear layers fed one vector per token, in the order they run.

    Args:
        model: in evaluation mode.
        length: tokens of a text, at least three.
        tokens: how many there are.
        linear: names of further modules to be taken as linear layers, such as those with adapters.
    """
    first = torch.arange(1, length + 1)[None] % max(2, tokens - 2) + 1
    changed, moved = first.clone(), first.roll(1, 1)
    changed[0, 1] = (first[0, 1] + 1) % tokens
    wanted = {name: m for name, m in model.named_modules() if name in linear or _is_linear(m)}
    seen = [_inputs(model, wanted, ids) for ids in (first, changed, moved)]
    groups: list[Tensor] = []
    found = []
    for name, vectors in seen[0].items():
        if vectors.ndim != 3 or vectors.shape[1] != length:
            continue
        other, shifted = seen[1][name], seen[2][name]
        same = [torch.equal(vectors[0, place], other[0, place]) for place in range(length)]
        group = next(
            (n for n, one in enumerate(groups) if one.shape == vectors.shape and torch.equal(one, vectors)), None
        )
        if group is None:
            groups.append(vectors)
            group = len(groups) - 1
        alone = all(same[place] for place in range(length) if place != 1)
        placed = not torch.allclose(vectors[0, :-1], shifted[0, 1:], rtol=1e-6, atol=1e-9)
        found.append(TokenLayer(name, wanted[name], group, alone, placed, same[0]))
    return found


def _inputs(model: nn.Module, wanted: dict[str, nn.Module], ids: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    names = {module: name for name, module in wanted.items()}

    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        found.setdefault(names[module], inputs[0].detach())

    handles = [module.register_forward_pre_hook(hook) for module in wanted.values()]
    try:
        with torch.no_grad():
            model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def rows_of(module: nn.Module, gradient: Tensor) -> Tensor:
    """Return a linear layer's gradient with what it is fed along its rows, [outputs, inputs]."""
    return gradient.T if type(module).__name__ == "Conv1D" else gradient
