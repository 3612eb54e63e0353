"""Tokenisers: how texts become ids and back; word pieces, bytes, or those a pre-trained model brings along.

All are `tokenizers` (extra `text`), held as the JSON that determines them. Id 0 is always the filler behind short
texts: models give it no weight, losses no term, and metrics no score.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedseal.core.encoding import Encoding
from fedseal.core.errors import InputError, UsageError

FILLER = 0
"""The id behind short texts."""

START, END, UNKNOWN = "[CLS]", "[SEP]", "[UNK]"
_SPECIAL = ("[PAD]", UNKNOWN, START, END)


@dataclass(frozen=True)
class Tokeniser(Encoding):
    """Turns texts into ids [N, T].

    Attributes:
        text: the tokeniser as `tokenizers` writes it.
        length: T, the most ids a text has, marks at its ends included.
        start, end: ids put around every text; None where there is none.
        name: in words.
        special: ids that stand for no part of a text.
    """

    text: str
    length: int
    start: int | None
    end: int | None
    name: str
    special: frozenset[int]

    def __post_init__(self) -> None:
        least = 1 + sum(mark is not None for mark in (self.start, self.end))
        if self.length < least:
            raise UsageError(f"texts of {self.length} tokens hold no word.", hint=f"Set `length` to {least} or more.")

    @cached_property
    def _made(self) -> Any:
        return library().Tokenizer.from_str(self.text)

    @property
    def size(self) -> int:
        """How many ids there are."""
        return int(self._made.get_vocab_size(with_added_tokens=True))

    @property
    def identity(self) -> str:
        """The hash of all that determines it."""
        return hashlib.sha256(f"{self.length}/{self.start}/{self.end}/{self.text}".encode()).hexdigest()

    def describe(self) -> str:
        """Return it in words."""
        return f"{self.name}, {self.size:,} tokens, texts of at most {self.length}"

    def encode(self, texts: Sequence[str], *, cut: bool = False) -> Tensor:
        """Return ids [N, T], filled up behind short texts.

        Args:
            texts: none of them empty.
            cut: keep the beginning of one that is too long, rather than refuse it.
        """
        room = self.length - sum(mark is not None for mark in (self.start, self.end))
        ids = torch.full((len(texts), self.length), FILLER)
        for place, (text, made) in enumerate(zip(texts, self._pieces(texts), strict=True)):
            if not made:
                raise InputError(
                    f"text {place} is empty: {text[:40]!r} holds no token.", hint="Leave empty texts out of the data."
                )
            if len(made) > room and not cut:
                raise InputError(
                    f"text {place} has {len(made)} tokens, and {room} fit: {text[:40]!r}...",
                    hint=f"Raise `length` to {self.length + len(made) - room}, or cut texts.",
                )
            row = [*_mark(self.start), *made[:room], *_mark(self.end)]
            ids[place, : len(row)] = torch.tensor(row)
        return ids

    def overlong(self, texts: Sequence[str]) -> int:
        """Return how many texts do not fit."""
        room = self.length - sum(mark is not None for mark in (self.start, self.end))
        return sum(len(made) > room for made in self._pieces(texts))

    def check(self, ids: Tensor) -> None:
        """Refuse ids that no token has."""
        if ids.is_floating_point() or (ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= self.size)):
            found = "real numbers" if ids.is_floating_point() else f"ids {int(ids.min())}..{int(ids.max())}"
            raise InputError(
                f"{self.name} has the tokens 0..{self.size - 1}, got {found}.",
                hint="Were the ids made by another tokeniser? Encode the texts with this one.",
            )

    def content(self, ids: Tensor) -> list[list[int]]:
        """Return the ids [N, T] of every text that stand for parts of it, in order."""
        self.check(ids)
        return [[one for one in row if one not in self.special] for row in ids.tolist()]

    def words(self, ids: Tensor) -> list[list[str]]:
        """Return the pieces of every text as a person reads them."""
        return [[self._piece(one) for one in row] for row in self.content(ids)]

    def show(self, inputs: Tensor) -> list[str]:
        """Return every text."""
        return [str(self._made.decode(row, skip_special_tokens=True)).strip() for row in self.content(inputs)]

    def _piece(self, one: int) -> str:
        token = str(self._made.id_to_token(one))
        return token.replace("\u2581", "").replace("\u0120", "") or token

    def _pieces(self, texts: Sequence[str]) -> list[list[int]]:
        made = self._made.encode_batch(list(texts), add_special_tokens=False)
        return [[one for one in text.ids if one != FILLER] for text in made]


def word_pieces(texts: Iterable[str], vocabulary: int, length: int) -> Tokeniser:
    """Train a word-piece tokeniser, lower-case, on public texts; START and END stand around every text."""
    if vocabulary < 64:
        raise UsageError(f"a vocabulary of {vocabulary} holds not even the letters.", hint="Use 64 or more.")
    kit, read = library(), list(texts)
    made = _word_piece_tokeniser(kit, {})
    trainer = kit.trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=[*_SPECIAL, *_continuations(made, read)],
        show_progress=False,
        min_frequency=2,
    )
    made.train_from_iterator(read, trainer)
    made = _word_piece_tokeniser(kit, made.get_vocab(with_added_tokens=True))
    made.add_special_tokens(list(_SPECIAL))
    return _bert_like(made, length, "word pieces of public texts")


def _word_piece_tokeniser(kit: Any, vocabulary: dict[str, int]) -> Any:
    made = kit.Tokenizer(kit.models.WordPiece(vocab=vocabulary, unk_token=UNKNOWN))
    made.normalizer = kit.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = kit.pre_tokenizers.BertPreTokenizer()
    made.decoder = kit.decoders.WordPiece()
    return made


def _continuations(made: Any, texts: Iterable[str]) -> list[str]:
    """Return the letters inside of words as pieces, sorted.

    The trainer numbers them in the order of a hash table that differs from run to run, and breaks ties of frequency by
    number; named beforehand they have the same numbers in every run, and so has every word piece.
    """
    letters = {
        letter
        for text in texts
        for word, _ in made.pre_tokenizer.pre_tokenize_str(made.normalizer.normalize_str(text))
        for letter in word[1:]
    }
    return sorted(f"##{letter}" for letter in letters)


def read_tokeniser(text: str, length: int, name: str) -> Tokeniser:
    """Return a BERT-like tokeniser from its JSON, whose filler must be id 0."""
    made = library().Tokenizer.from_str(text)
    made.no_padding()
    made.no_truncation()
    return _bert_like(made, length, name)


def characters(length: int) -> Tokeniser:
    """Return the tokeniser of single bytes: no training, any text, and four times as many tokens."""
    kit = library()
    alphabet = sorted(kit.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate([*_SPECIAL, *alphabet])}
    made = kit.Tokenizer(kit.models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    made.pre_tokenizer = kit.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = kit.decoders.ByteLevel()
    made.add_special_tokens(list(_SPECIAL))
    return _bert_like(made, length, "bytes")


def _bert_like(made: Any, length: int, name: str) -> Tokeniser:
    ids = [made.token_to_id(token) for token in _SPECIAL]
    if ids[0] != FILLER or None in ids:
        raise InputError(f"the tokeniser {name} has no filler as its id 0, and no {', '.join(_SPECIAL)}.")
    return Tokeniser(made.to_str(), length, ids[2], ids[3], name, frozenset((ids[0], ids[2], ids[3])))


def _mark(one: int | None) -> list[int]:
    return [] if one is None else [one]


def library() -> Any:
    """Return `tokenizers`, or say how to install it."""
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.normalizers
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise UsageError("text needs tokenizers.", hint="Install it: pip install 'fedseal[text]'.") from error
    return tokenizers
