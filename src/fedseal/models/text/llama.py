"""The Llama architecture, as small as stories15M: rotary positions, root-mean-square norms, gated units, tied head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.models.text.attention import Attention, earlier


class RootMeanSquare(nn.Module):
    """Divide a token by the root of its mean square; no mean is taken off."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens [..., D] of equal size."""
        return tokens * torch.rsqrt(tokens.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class LlamaBlock(nn.Module):
    """One layer."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention_norm = RootMeanSquare(width)
        self.attention = Attention(width, heads, bias=False)
        self.norm = RootMeanSquare(width)
        self.gate = nn.Linear(width, inner, bias=False)
        self.inner = nn.Linear(width, inner, bias=False)
        self.outer = nn.Linear(inner, width, bias=False)

    def forward(self, tokens: Tensor, mask: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Return tokens [B, T, D], changed."""
        tokens = tokens + self.attention(self.attention_norm(tokens), mask, turn)
        units = self.norm(tokens)
        done: Tensor = tokens + self.outer(F.silu(self.gate(units)) * self.inner(units))
        return done


class Llama(nn.Module):
    """Ids [B, T] to logits [B, T, tokens] of what comes next; words in and out share one table.

    The filler only ever stands behind a text, where no earlier token looks; so it needs no mask.
    """

    def __init__(self, vocabulary: int, width: int = 288, layers: int = 6, heads: int = 6, inner: int = 768) -> None:
        super().__init__()
        self.turns = width // heads // 2
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, inner) for _ in range(layers))
        self.norm = RootMeanSquare(width)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        tokens = self.words(ids)
        angles = torch.arange(ids.shape[1], device=tokens.device, dtype=torch.float64)[:, None] / 10000 ** (
            torch.arange(self.turns, device=tokens.device, dtype=torch.float64) / self.turns
        )
        turn = angles.cos().to(tokens), angles.sin().to(tokens)
        mask = earlier(ids.shape[1], tokens)
        for layer in self.layers:
            tokens = layer(tokens, mask, turn)
        return F.linear(self.norm(tokens), self.words.weight)
