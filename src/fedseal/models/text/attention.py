"""Attention written out, so that it can be differentiated twice and vectorised; with the q, k, v of every paper."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedseal.core.errors import UsageError

MASKED = -1e9
"""Added to a score that must not count."""


class Attention(nn.Module):
    """Self-attention of several heads; queries, keys and values are projections of their own.

    Args:
        width: of a token.
        heads: that share it.
        dropout: of the attention's weights.
        bias: of the projections.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0, *, bias: bool = True) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"{heads} heads do not share a width of {width}.", hint="Let the width be a multiple.")
        self.heads = heads
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, mask: Tensor, turn: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return what tokens [B, T, D] take from each other.

        Args:
            tokens: of the texts.
            mask: added to the scores [B or 1, 1, T or 1, T].
            turn: cosines and sines [T, D / heads / 2] by which queries and keys are turned (rotary positions).
        """
        query, key, value = (self._parted(part(tokens)) for part in (self.query, self.key, self.value))
        if turn is not None:
            query, key = turned(query, *turn), turned(key, *turn)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) + mask
        mixed = self.dropout(scores.softmax(-1)) @ value
        joined: Tensor = self.output(mixed.transpose(1, 2).reshape(tokens.shape))
        return joined

    def _parted(self, tokens: Tensor) -> Tensor:
        return tokens.reshape(*tokens.shape[:2], self.heads, -1).transpose(1, 2)


def turned(parts: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn neighbouring entries of queries or keys [B, H, T, D] by their position's angles [T, D / 2]."""
    even, odd = parts[..., ::2], parts[..., 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)


def seen(ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask [B, 1, 1, T] that hides the filler behind short texts."""
    return ((ids == 0).to(dtype) * MASKED)[:, None, None, :]


def earlier(length: int, like: Tensor) -> Tensor:
    """Return the mask [1, 1, T, T] that hides what comes later."""
    hidden = max(MASKED, torch.finfo(like.dtype).min)  # half precision has no number as low
    return torch.full((length, length), hidden, dtype=like.dtype, device=like.device).triu(1)[None, None]
