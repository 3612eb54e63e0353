"""A small vision transformer (Dosovitskiy et al., ICLR 2021): patches, pre-normalised blocks, a linear head.

Attention is written out in plain operations, so that gradients can be differentiated twice and vectorised; PyTorch's
fused kernels allow neither.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedseal.core.errors import UsageError
from fedseal.core.ranges import Layers, Width
from fedseal.core.registry import Info
from fedseal.models.registry import MODELS

Pool: TypeAlias = Literal["token", "mean"]
"""What the head sees: a class token of its own, or the mean of the patches."""


class PatchTokens(nn.Module):
    """Cuts images into patches and embeds them, with learned positions and, if wanted, a class token in front."""

    def __init__(self, input_shape: tuple[int, int, int], patch: int, width: Width, pool: Pool) -> None:
        super().__init__()
        channels, height, wide = input_shape
        if patch < 1 or height % patch or wide % patch:
            raise UsageError(
                f"images of {height}x{wide} cannot be cut into patches of {patch}x{patch}.",
                hint="Choose a patch size that divides both sides.",
            )
        count = (height // patch) * (wide // patch) + (pool == "token")
        self.project = nn.Conv2d(channels, width, patch, patch)
        self.position = nn.Parameter(torch.empty(1, count, width).normal_(std=0.02))
        self.token = nn.Parameter(torch.empty(1, 1, width).normal_(std=0.02)) if pool == "token" else None

    def forward(self, x: Tensor) -> Tensor:
        """Map images [B, C, H, W] to tokens [B, T, width]."""
        tokens: Tensor = self.project(x).flatten(2).transpose(1, 2)
        if self.token is not None:
            tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1)
        return tokens + self.position


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: Width, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [B, T, width] to tokens of the same shape."""
        parts = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        weights = (self.scale * query @ key.transpose(-2, -1)).softmax(-1)
        mixed: Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return mixed


class Adapter(nn.Module):
    """A bottleneck beside a shortcut (Houlsby et al., ICML 2019): what is trained of a model that stays as it is."""

    def __init__(self, width: Width, rank: Width) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank)
        self.up = nn.Linear(rank, width)
        with torch.no_grad():
            self.up.weight.zero_()  # so that it changes nothing at first
            self.up.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [B, T, width] to tokens of the same shape."""
        moved: Tensor = x + self.up(self.down(x).relu())
        return moved


class Block(nn.Module):
    """Attention and a two-layer network, each behind a layer normalisation and beside a shortcut.

    Args:
        width: of a token.
        heads: of attention.
        rank: of an adapter behind the two-layer network; 0 for none.
    """

    def __init__(self, width: Width, heads: int, rank: int = 0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.adapter = Adapter(width, rank) if rank else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [B, T, width] to tokens of the same shape."""
        x = x + self.attention(self.norm1(x))
        result: Tensor = x + self.adapter(self.mlp(self.norm2(x)))
        return result


class VisionTransformer(nn.Module):
    """Tokens, blocks, and a linear head on the class token or on the mean of all tokens."""

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        patch: int,
        width: Width,
        depth: Layers,
        heads: int,
        pool: Pool,
        adapters: int = 0,
    ) -> None:
        super().__init__()
        if adapters < 0:
            raise UsageError(f"adapters cannot have {adapters} ranks.", hint="Use `adapters=16`, or 0 for none.")
        if heads < 1 or width % heads:
            raise UsageError(f"a width of {width} cannot be shared by {heads} heads.", hint="heads must divide width.")
        self.pool = pool
        self.tokens = PatchTokens(input_shape, patch, width, pool)
        self.blocks = nn.Sequential(*(Block(width, heads, adapters) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)
        if adapters:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(".adapter." in name or name.startswith("head."))

    def forward(self, x: Tensor) -> Tensor:
        """Map images [B, C, H, W] to logits [B, num_classes]."""
        tokens = self.norm(self.blocks(self.tokens(x)))
        logits: Tensor = self.head(tokens[:, 0] if self.pool == "token" else tokens.mean(1))
        return logits


@MODELS.register("vit-tiny", Info("small vision transformer", paper="Dosovitskiy et al., ICLR 2021"))
def vit_tiny(
    input_shape: tuple[int, int, int],
    num_classes: int,
    width: Width = 96,
    depth: Layers = 4,
    heads: int = 3,
    patch: int = 4,
    pool: Pool = "token",
    adapters: int = 0,
) -> nn.Module:
    """Build a vision transformer of `depth` blocks with `width` features per token.

    With `adapters`, their rank, only they and the head are trained and sent: the rest stays as it was received.
    """
    return VisionTransformer(input_shape, num_classes, patch, width, depth, heads, pool, adapters)
