"""How probable texts are: by pairs of neighbours in public texts, or by a language model that was trained on others."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedseal.attacks.text.ordering import Bigrams
from fedseal.core.batch import Batch
from fedseal.core.fetched import STORIES_SIZES
from fedseal.core.tokeniser import FILLER, Tokeniser
from fedseal.data.text.pretrained import stories_tokeniser
from fedseal.models.text.pretrained import stories15m

Prior: TypeAlias = Literal["n-gram", "stories15m"]
Fluency: TypeAlias = Callable[[Tensor], Tensor]
"""From ids [N, T] to the mean negative logarithm of each text's tokens given the ones before, [N]."""


def fluency_of(prior: Prior, tokeniser: Tokeniser, public: Batch | None) -> Fluency | None:
    """Return how probable texts are to an attacker; None for pairs of words without public texts to count them in."""
    if prior == "stories15m":
        return _by_stories(tokeniser)
    if public is None:
        return None
    pairs = Bigrams(tokeniser.content(public.inputs.cpu()), tokeniser.size)
    return lambda ids: torch.tensor([pairs.loss(text) for text in tokeniser.content(ids)])


def _by_stories(tokeniser: Tokeniser) -> Fluency:
    """Let stories15M read what the clients' tokeniser shows, in tokens of its own."""
    model, own = _stories()

    def losses(ids: Tensor) -> Tensor:
        texts = tokeniser.show(ids)
        told = torch.tensor([bool(text) for text in texts])
        found = own.encode([text or "." for text in texts], cut=True)
        found = found[:, : int((found != FILLER).sum(1).max())]
        with torch.no_grad():
            logits: Tensor = model(found[:, :-1])
        each = nn.functional.cross_entropy(logits.mT, found[:, 1:], reduction="none", ignore_index=FILLER)
        counted = (found[:, 1:] != FILLER).sum(1).clamp(min=1)
        return torch.where(told, each.sum(1) / counted, 0.0)

    return losses


@lru_cache(maxsize=1)
def _stories() -> tuple[nn.Module, Tokeniser]:
    tokeniser = stories_tokeniser(STORIES_SIZES[-1])
    return stories15m((tokeniser.length,), tokeniser).eval().requires_grad_(False), tokeniser
