"""`text:NAME` and `text:PATH`: sentences as ids of a tokeniser that knows nothing of the clients' texts.

`notes` is built in; `sst2`, `cola` and `imdb` are read from files in --data-root; any other argument is a file of one's
own. A tokeniser trained on the clients' own texts would itself tell of them, so its texts are others: of the sets those
of the other split, of a file those of `vocabulary_from`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from fedseal.core.errors import InputError
from fedseal.core.files import local_path
from fedseal.core.registry import Info
from fedseal.core.tokeniser import Tokeniser, characters, word_pieces
from fedseal.data.places import DATA_VARIABLE, find_file, search_places
from fedseal.data.registry import DATASETS
from fedseal.data.text.dataset import TextDataset
from fedseal.data.text.files import Labelled, read_texts
from fedseal.data.text.notes import NOTE_CLASSES, public_notes, written_notes
from fedseal.data.text.pretrained import minilm_tokeniser, stories_tokeniser

Tokens: TypeAlias = Literal["word-piece", "byte", "minilm", "stories15m"]

_LOCAL = {"sst2": ("negative", "positive"), "cola": ("unacceptable", "acceptable"), "imdb": ("negative", "positive")}
_SPLITS = {"train": ("train",), "test": ("dev", "test")}
_VOCABULARY_TEXTS = 20_000
"""Public texts a vocabulary is trained on, at most."""


@DATASETS.register(
    "text",
    Info(
        summary="sentences: text:notes (built in), text:sst2, cola or imdb from --data-root, text:PATH of your own "
        "(.tsv, .csv, .jsonl, .txt)"
    ),
)
def text_data(
    source: str,
    split: Literal["train", "test"] = "train",
    tokens: Tokens = "word-piece",
    vocabulary: int = 2000,
    length: int = 32,
    limit: int | None = None,
    column: str | None = None,
    label: str | None = None,
    vocabulary_from: Path | None = None,
    data_root: Path | None = None,
) -> TextDataset:
    """Return texts as ids.

    Args:
        source: `notes`, `sst2`, `cola`, `imdb`, or the path of a file.
        split: of a set with two.
        tokens: `word-piece` is trained on public texts, `byte` needs none, the others belong to pre-trained models.
        vocabulary: word pieces at most.
        length: tokens a text has at most; longer ones are cut, and the doctor says how many.
        limit: take the first so many texts only.
        column, label: names of a file's columns of texts and labels.
        vocabulary_from: file of public texts to train the vocabulary of a file's tokeniser on.
        data_root: where local sets lie.
    """
    held, public, classes = _held(source, split, data_root, column, label, vocabulary_from)
    texts, labels = held.texts[:limit], held.labels[:limit]
    notes = []
    if public is None and tokens == "word-piece":
        notes.append(
            "the vocabulary was made of the clients' own texts, which tells their words to whoever reads it. "
            "Name a file of public texts by `vocabulary_from`, or set `tokens=byte`."
        )
    made = _tokeniser(tokens, tuple((public or held).texts[:_VOCABULARY_TEXTS]), vocabulary, length)
    if cut := made.overlong(texts):
        notes.append(f"{cut} of {len(texts)} texts are longer than {length} tokens and were cut. Raise `length`.")
    places = {name: place for place, name in enumerate(classes)}
    ids, targets = made.encode(texts, cut=True), torch.tensor([places[name] for name in labels])
    return TextDataset(f"text:{source}", ids, targets, classes, made, tuple(notes))


def _held(
    source: str,
    split: str,
    data_root: Path | None,
    column: str | None,
    label: str | None,
    vocabulary_from: Path | None,
) -> tuple[Labelled, Labelled | None, tuple[str, ...]]:
    """Return the texts, public ones for the vocabulary, and the names of the classes."""
    if source == "notes":
        return written_notes(split), public_notes(), NOTE_CLASSES
    if source in _LOCAL:
        other = "test" if split == "train" else "train"
        held, public = (_renamed(_local(source, part, data_root), source) for part in (split, other))
        return held, public, _LOCAL[source]
    path = local_path(Path(source))
    if not path.is_file():
        known = ", ".join(("notes", *_LOCAL))
        raise InputError(f"there is no text file {source}, and no set of that name.", hint=f"Known sets: {known}.")
    found = read_texts(path, column, label)
    public_file = None if vocabulary_from is None else read_texts(local_path(vocabulary_from), column, label)
    return found, public_file, tuple(sorted(set(found.labels)))


def _local(source: str, split: str, data_root: Path | None) -> Labelled:
    files = [f"{source}_{part}.tsv{packed}" for part in _SPLITS[split] for packed in ("", ".gz")]
    path = find_file(files, data_root)
    if path is None:
        places = ", ".join(str(place) for place in search_places(data_root))
        raise InputError(
            f"the texts {source!r} ({split}) are not on this machine: no {files[0]} in {places}.",
            hint=f"Put {files[0]} with the columns `sentence` and `label` into a directory and pass --data-root DIR or "
            f"set {DATA_VARIABLE}; `text:notes` is built in.",
        )
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> Labelled:
    return read_texts(path)


def _renamed(held: Labelled, source: str) -> Labelled:
    names = {str(place): name for place, name in enumerate(_LOCAL[source])}
    if unknown := set(held.labels) - set(names):
        raise InputError(f"{source} has labels 0 and 1, the file has {', '.join(sorted(unknown)[:3])}.")
    return Labelled(held.texts, tuple(names[one] for one in held.labels))


@lru_cache(maxsize=8)
def _tokeniser(tokens: Tokens, texts: Sequence[str], vocabulary: int, length: int) -> Tokeniser:
    if tokens == "byte":
        return characters(length)
    if tokens == "minilm":
        return minilm_tokeniser(length)
    if tokens == "stories15m":
        return stories_tokeniser(length)
    return word_pieces(texts, vocabulary, length)
