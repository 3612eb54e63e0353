"""`stories15m` and `minilm`: trained transformers of text, from files that `fedseal data get` brings."""

from __future__ import annotations

from collections.abc import Mapping

from safetensors.torch import load_file
from torch import Tensor, nn

from fedseal.core.encoding import Encoding
from fedseal.core.errors import InputError
from fedseal.core.fetched import MINILM_FILES, STORIES_FILES, STORIES_SIZES, fetched
from fedseal.core.registry import Info
from fedseal.models.registry import MODELS
from fedseal.models.text.llama import Llama
from fedseal.models.text.transformers import Embeddings, TextEncoder, frozen, vocabulary_of


@MODELS.register(
    "stories15m", Info("trained Llama of 15 million parameters, next-token: `fedseal data get stories15m` (112 MB)")
)
def stories15m(
    input_shape: tuple[int, ...], encoding: Encoding | None, layers: int = 6, embeddings: Embeddings = "trained"
) -> nn.Module:
    """Return stories15M, of which `layers` are kept; it needs `tokens=stories15m` and `loss: next-token`."""
    width, inner, depth, heads, _, tokens, longest = STORIES_SIZES
    if vocabulary_of(encoding) != tokens or input_shape[0] > longest:
        raise InputError(
            f"stories15m reads its own {tokens:,} tokens, at most {longest} of them.",
            hint="Set `tokens=stories15m` on the data, and a shorter `length`.",
        )
    model = Llama(tokens, width, min(layers, depth), heads, inner)
    _take(model, load_file(fetched("stories15m", STORIES_FILES[0])))
    return frozen(model, embeddings)


@MODELS.register("minilm", Info("trained BERT-like encoder of 6 layers with a new head: `fedseal data get minilm`"))
def minilm(
    input_shape: tuple[int, ...],
    num_classes: int,
    encoding: Encoding | None,
    layers: int = 6,
    dropout: float = 0.0,
    embeddings: Embeddings = "trained",
) -> nn.Module:
    """Return MiniLM-L6 with a new head, of which `layers` are kept; it needs `tokens=minilm`."""
    weights = load_file(fetched("minilm", MINILM_FILES[0]))
    tokens, width = weights["words.weight"].shape
    longest = len(weights["positions.weight"])
    if vocabulary_of(encoding) != tokens or input_shape[0] > longest:
        raise InputError(
            f"minilm reads its own {tokens:,} tokens, at most {longest} of them.",
            hint="Set `tokens=minilm` on the data, and a shorter `length`.",
        )
    model = TextEncoder(
        tokens, longest, num_classes, width=width, layers=min(layers, 6), heads=12, inner=1536, dropout=dropout
    )
    _take(model, weights)
    return frozen(model, embeddings)


def _take(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load what the model has of the weights; a head of its own stays as it was drawn."""
    own = model.state_dict()
    kept = {name: weights.get(name, value) for name, value in own.items()}
    model.load_state_dict(kept)
