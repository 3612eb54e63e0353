"""Small transformers that train from scratch: `text-encoder` as BERT is built, `text-decoder` as GPT-2 is.

Sizes and details are options; with the sizes of a published model its weights fit (`models.text.pretrained`).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.encoding import Encoding
from fedseal.core.errors import InputError
from fedseal.core.registry import Info
from fedseal.core.tokeniser import Tokeniser
from fedseal.models.registry import MODELS
from fedseal.models.text.attention import Attention, earlier, seen

Embeddings: TypeAlias = Literal["trained", "frozen"]
Task: TypeAlias = Literal["classify", "next-token"]


class Block(nn.Module):
    """Attention and a layer of units, each added to what passes; normalised behind (BERT) or in front (GPT-2)."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float, *, first: bool, eps: float) -> None:
        super().__init__()
        self.first = first
        self.attention = Attention(width, heads, dropout)
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.inner = nn.Linear(width, inner)
        self.outer = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return tokens [B, T, D], changed."""
        if self.first:
            tokens = tokens + self.dropout(self.attention(self.attention_norm(tokens), mask))
            return tokens + self._units(self.norm(tokens))
        tokens = self.attention_norm(tokens + self.dropout(self.attention(tokens, mask)))
        done: Tensor = self.norm(tokens + self._units(tokens))
        return done

    def _units(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.dropout(self.outer(F.gelu(self.inner(tokens))))
        return made


class TextEncoder(nn.Module):
    """Ids [B, T] to logits [B, classes], read at the first token."""

    def __init__(
        self,
        vocabulary: int,
        length: int,
        classes: int,
        *,
        width: int,
        layers: int,
        heads: int,
        inner: int,
        dropout: float,
        eps: float = 1e-12,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Block(width, heads, inner, dropout, first=False, eps=eps) for _ in range(layers))
        self.head = nn.Linear(width, classes)
        _small(self, width)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        words = self.words(ids)
        tokens = self.dropout(self.norm(words + self.positions.weight[: ids.shape[1]]))
        mask = seen(ids, tokens.dtype)
        for layer in self.layers:
            tokens = layer(tokens, mask)
        logits: Tensor = self.head(tokens[:, 0])
        return logits


class TextDecoder(nn.Module):
    """Ids [B, T] to logits [B, classes], read at the last token, or [B, T, tokens] of what comes next."""

    def __init__(
        self,
        vocabulary: int,
        length: int,
        outputs: int,
        *,
        task: Task,
        width: int,
        layers: int,
        heads: int,
        inner: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.task = task
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Block(width, heads, inner, dropout, first=True, eps=1e-5) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        _small(self, width)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        tokens = self.dropout(self.words(ids) + self.positions.weight[: ids.shape[1]])
        mask = earlier(ids.shape[1], tokens) + seen(ids, tokens.dtype)
        for layer in self.layers:
            tokens = layer(tokens, mask)
        tokens = self.norm(tokens)
        if self.task == "classify":
            last = ((ids != 0).sum(1) - 1).clamp(min=0)
            chosen = F.one_hot(last, ids.shape[1]).to(tokens.dtype)
            tokens = (chosen[..., None] * tokens).sum(1)
        logits: Tensor = self.head(tokens)
        return logits


@MODELS.register("text-encoder", Info("BERT-like transformer of 2 layers for text; classifies at its first token"))
def text_encoder(
    input_shape: tuple[int, ...],
    num_classes: int,
    encoding: Encoding | None,
    width: int = 64,
    layers: int = 2,
    heads: int = 2,
    inner: int | None = None,
    dropout: float = 0.0,
    embeddings: Embeddings = "trained",
) -> nn.Module:
    """Build an encoder.

    Args:
        input_shape: T, the tokens of a text.
        num_classes: outputs.
        encoding: the tokeniser.
        width: of a token.
        layers, heads: of attention.
        inner: units behind each attention; four times the width if None.
        dropout: everywhere BERT has it; active only while clients train with it.
        embeddings: whether those of words and positions are trained, and so part of the update.
    """
    model = TextEncoder(
        vocabulary_of(encoding),
        input_shape[0],
        num_classes,
        width=width,
        layers=layers,
        heads=heads,
        inner=inner or 4 * width,
        dropout=dropout,
    )
    return frozen(model, embeddings)


@MODELS.register(
    "text-decoder", Info("GPT-like transformer of 2 layers for text; classifies, or predicts each next token")
)
def text_decoder(
    input_shape: tuple[int, ...],
    num_classes: int,
    encoding: Encoding | None,
    task: Task = "classify",
    width: int = 64,
    layers: int = 2,
    heads: int = 2,
    inner: int | None = None,
    dropout: float = 0.0,
    embeddings: Embeddings = "trained",
) -> nn.Module:
    """Build a decoder; `task=next-token` goes with `loss: next-token`. Other arguments are the encoder's."""
    vocabulary = vocabulary_of(encoding)
    model = TextDecoder(
        vocabulary,
        input_shape[0],
        num_classes if task == "classify" else vocabulary,
        task=task,
        width=width,
        layers=layers,
        heads=heads,
        inner=inner or 4 * width,
        dropout=dropout,
    )
    return frozen(model, embeddings)


def vocabulary_of(encoding: Encoding | None) -> int:
    """Return how many tokens there are, or refuse data that is no text."""
    if not isinstance(encoding, Tokeniser):
        raise InputError("this is a model of text, and the data is none.", hint="Use `--data text:notes`, for example.")
    return encoding.size


def frozen(model: nn.Module, embeddings: Embeddings) -> nn.Module:
    """Leave the embeddings of words and positions out of training, where that is asked for."""
    if embeddings == "frozen":
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.weight.requires_grad_(False)
    return model


def _small(model: nn.Module, width: int) -> None:
    """Draw weights as BERT and GPT-2 do, biases zero: normal with deviation 0.02 at their width of 768.

    Narrower models have wider weights, so that sums over a token's entries are as large as in theirs.
    """
    deviation = 0.02 * (768 / width) ** 0.5
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(0.0, deviation)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
