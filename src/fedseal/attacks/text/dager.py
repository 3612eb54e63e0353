"""DAGER: whole sentences, exactly, from the gradients of attention layers.

Equations: Petrov et al. (NeurIPS 2024), Sec. 4: the rows of a projection's gradient lie in the span of what the layer
was fed (`attacks.span`). Layer one is fed single tokens at places, so every token of the vocabulary is tested there.
Layer two is fed tokens in their context, so it tests sentences: of a decoder prefix by prefix (Alg. 2), as no token
looks ahead; of an encoder combinations of the candidates of each place (Alg. 1).
Threat model: honest but curious server; embeddings need not be sent. It works while an update has fewer tokens than
the layer is wide.
Departures: the rank is taken at the spectrum's largest gap and the thresholds at those of the distances, where the
authors set both by hand for every batch size; of the projections that are fed the same the one of largest rank is
taken, so that the first token, whose query has no gradient, is found by its key or value; layers are found by trying,
so that any model of text can be attacked. Combinations beyond `combinations` are drawn, then improved place by place.
Cost: one pass of the first layer over the vocabulary for every place, and one of the first two layers for each prefix
tried: seconds to a minute for a small model.
Known breaks: more tokens than the width; pruning and coarse quantisation, which fill the span; noise from about a
hundredth of the gradient's size on. The last token of a text with a next-token loss has no gradient and is never
found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedseal.attacks.reading import attack_model, estimated_gradient, image_count
from fedseal.attacks.span import inside, told_apart
from fedseal.attacks.text.reading import filled, labels_of, tokeniser_of
from fedseal.attacks.text.spans import GroupTest, adapters_of, group_tests
from fedseal.attacks.turns import in_turn
from fedseal.core.attack import Attack, Budget, Listener, register_attack
from fedseal.core.errors import CapabilityError
from fedseal.core.modality import TEXT
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.core.tokeniser import Tokeniser
from fedseal.models.text.access import fed_to, token_layers

_CHUNK = 256
_WIDEST = 128
"""Prefixes followed at once, at most; more are no sentences."""


@dataclass(frozen=True)
class Ground:
    """What the attack stands on.

    Attributes:
        model: the attacker's copy, in double precision.
        tokeniser: public.
        first: the test of single tokens.
        second: the test of tokens in context; None where no such layer can tell.
        causal: whether tokens look back only.
    """

    model: nn.Module
    tokeniser: Tokeniser
    first: GroupTest
    second: GroupTest | None
    causal: bool


@dataclass(frozen=True)
class Candidates:
    """Tokens that pass the first test.

    Attributes:
        places: for each place the tokens that may stand there, nearest first; one list where places look alike.
        gap: of the distances, behind the last that passed.
    """

    places: tuple[tuple[int, ...], ...]
    gap: float

    def at(self, place: int) -> tuple[int, ...]:
        """Return the tokens of a place."""
        return self.places[min(place, len(self.places) - 1)]

    @property
    def bag(self) -> list[int]:
        """All of them."""
        return sorted({token for place in self.places for token in place})


@register_attack(
    "dager",
    Info(
        "whole sentences, exactly, by testing which tokens span the attention's gradients",
        paper="Petrov et al., NeurIPS 2024",
        threat="passive",
        needs=("batch_size",),
    ),
)
class Dager(Attack):
    """Tests tokens, then sentences.

    Args:
        combinations: sentences of an encoder tried at most, for each length.
    """

    takes = (TEXT,)
    any_loss = True

    def __init__(self, combinations: int = 2000) -> None:
        self.combinations = combinations

    def check(self, observation: Observation) -> None:
        """Refuse an update without the gradient of a layer that is fed single tokens."""
        super().check(observation)
        ground_of(observation)

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Attack one update after the other."""
        return in_turn(self._read, observations, seeds, listener)

    def _read(self, observation: Observation, seed: int) -> Reconstruction:
        ground, count = ground_of(observation), image_count(observation)
        labels = labels_of(observation, seed)
        if ground.first.blind:
            why = (
                f"the span of {ground.first.layer.name} says nothing: {ground.first.rank} of {ground.first.bound} "
                "directions are in it"
            )
            return Reconstruction(filled([], count), labels, 1.0, notes=(why,))
        found = candidates(ground)
        said = f"{len(found.bag)} tokens pass at rank {ground.first.rank} of {ground.first.bound}, gap {found.gap:.1e}"
        if ground.second is None or ground.second.blind:
            why = "no layer behind the first attention tells sentences: the words are claimed without order"
            return Reconstruction(filled([found.bag] * count, count), labels, 0.5, notes=(said, why))
        read = prefixes(ground, found) if ground.causal else combined(ground, found, count, self.combinations, seed)
        texts = _distinct(read, count) if read else [found.bag] * count
        return Reconstruction(filled(texts, count), labels, 0.0 if read else 0.5, notes=(said,))


def ground_of(observation: Observation) -> Ground:
    """Return what can be tested of an update, or refuse it."""
    model, tokeniser = attack_model(observation).double(), tokeniser_of(observation)
    gradient = estimated_gradient(observation)
    adapters = adapters_of(model, list(gradient))
    length = observation.knowledge.input_shape[0]
    layers = token_layers(model, max(3, length), tokeniser.size, tuple(adapters))
    single = group_tests([layer for layer in layers if layer.alone], gradient, adapters)
    later = group_tests([layer for layer in layers if not layer.alone], gradient, adapters)
    if not single:
        raise CapabilityError(
            "no linear layer that is fed single tokens sends its gradient.",
            hint="The span test needs a layer in front of the first attention, such as its query, key or value.",
        )
    told = [test for test in later if not test.blind]
    most = max((test.rank for test in told), default=0)  # a last layer that is read at one token tells of that alone
    second = next((test for test in told if test.rank >= 0.9 * most), None)
    causal = all(layer.causal for layer in layers)
    return Ground(model, tokeniser, max(single, key=lambda test: not test.blind), second, causal)


def candidates(ground: Ground) -> Candidates:
    """Test every token at every place."""
    distances = token_distances(ground)
    ordinary = torch.tensor([one not in ground.tokeniser.special for one in range(ground.tokeniser.size)])
    accepted, gap = inside(distances, ground.first.limit)
    passed = accepted & (ordinary[:, None] | _end(ground))
    places = []
    for place in range(distances.shape[1]):
        tokens = torch.nonzero(passed[:, place]).flatten()
        if len(tokens) > 1:
            vectors = fed_at(ground, tokens, place)
            tokens = tokens[told_apart(vectors, distances[tokens, place])]
        places.append(tuple(tokens[distances[tokens, place].argsort()].tolist()))
    return Candidates(tuple(places), gap)


def _end(ground: Ground) -> Tensor:
    """Return which token ends a text, [V, 1]: it is no word, and tells how long a text is."""
    mark = torch.zeros(ground.tokeniser.size, 1, dtype=torch.bool)
    if ground.tokeniser.end is not None:
        mark[ground.tokeniser.end] = True
    return mark


def fed_at(ground: Ground, tokens: Tensor, place: int) -> Tensor:
    """Return what the first layer is fed for tokens [N] at a place, [N, D]."""
    texts = tokens[:, None].expand(-1, max(place + 1, 2))
    return torch.cat(
        [fed_to(ground.model, ground.first.layer.module, part)[:, place] for part in torch.split(texts, _CHUNK)]
    )


def token_distances(ground: Ground) -> Tensor:
    """Return the distance of every token from the span, at every place [V, T], or [V, 1] where places look alike."""
    layer, length = ground.first.layer, ground.tokeniser.length
    width = length if layer.placed else 1
    parts = []
    for tokens in torch.split(torch.arange(ground.tokeniser.size), _CHUNK if layer.placed else 16 * _CHUNK):
        fed = fed_to(ground.model, layer.module, tokens[:, None].expand(-1, max(width, 2)))
        parts.append(ground.first.distances(fed[:, :width]))
    return torch.cat(parts)


def prefixes(ground: Ground, found: Candidates) -> list[list[int]]:
    """Return the sentences of a decoder, surest first: prefixes grown as long as the second layer knows them.

    A sentence is as sure as its least sure token is near the span.
    """
    assert ground.second is not None
    start: tuple[int, ...] = () if ground.tokeniser.start is None else (ground.tokeniser.start,)
    growing: dict[tuple[int, ...], float] = {start: 0.0}
    finished: dict[tuple[int, ...], float] = {}
    for place in range(len(start), ground.tokeniser.length):
        tried = [(*prefix, token) for prefix in growing for token in found.at(place)]
        if not tried:
            break
        distances = _last_distances(ground, tried)
        accepted, _ = inside(distances, ground.second.limit)
        passed = [one for one in distances.argsort()[:_WIDEST].tolist() if bool(accepted[one])]
        grown = {tried[one]: max(growing[tried[one][:-1]], float(distances[one])) for one in passed}
        extended = {text[:-1] for text in grown}
        finished |= {text: value for text, value in growing.items() if text not in extended}
        growing = grown
    every = {text: value for text, value in {**finished, **growing}.items() if len(text) > len(start)}
    return [list(text) for text in sorted(every, key=lambda one: every[one])]


def _last_distances(ground: Ground, texts: Sequence[Sequence[int]]) -> Tensor:
    """Return the second test's distance of the last token of texts of one length, [N]."""
    assert ground.second is not None
    ids, parts = torch.tensor(list(texts)), []
    for part in torch.split(ids, _CHUNK):
        fed = fed_to(ground.model, ground.second.layer.module, part)
        parts.append(ground.second.distances(fed[:, -1]))
    return torch.cat(parts)


def combined(ground: Ground, found: Candidates, count: int, most: int, seed: int) -> list[list[int]]:
    """Return the sentences of an encoder: for each length that an end mark shows, combinations of the candidates."""
    scored: list[tuple[float, list[int]]] = []
    source = generator(seed, "dager")
    for length in _lengths(ground, found):
        choices = [_choices(ground, found, place, length, count) for place in range(length)]
        if any(not choice for choice in choices):
            continue
        texts = _draws(choices, most, source)
        ids = torch.full((len(texts), ground.tokeniser.length), 0)
        ids[:, :length] = torch.tensor(texts)
        assert ground.second is not None
        distances = ground.second.of_texts(ground.model, ids)[:, :length].mean(1)
        best = distances.argsort()[: 4 * count].tolist()
        for one in best:
            text, value = _improved(ground, texts[one], choices, float(distances[one]))
            scored.append((value, text))
    scored.sort(key=lambda one: one[0])
    return [text for _, text in scored]


def _lengths(ground: Ground, found: Candidates) -> list[int]:
    """Return how long texts are: up to a place where an end mark passes; else up to the last place with a candidate."""
    end = ground.tokeniser.end
    shown = [place + 1 for place in range(1, len(found.places)) if end in found.places[place]]
    last = max((place + 1 for place, tokens in enumerate(found.places) if tokens), default=0)
    return shown or [last]


def _choices(ground: Ground, found: Candidates, place: int, length: int, count: int) -> list[int]:
    """Return the tokens to try at a place of a text of some length; as many as there are texts, and some more."""
    start, end = ground.tokeniser.start, ground.tokeniser.end
    if place == 0 and start is not None:
        return [start]
    if place == length - 1 and end is not None:
        return [end]
    return [token for token in found.at(place) if token != end][: 4 * count]


def _draws(choices: Sequence[Sequence[int]], most: int, source: torch.Generator) -> list[list[int]]:
    """Return all combinations of one token per place, or `most` random ones, the nearest first among them."""
    total = math.prod(len(one) for one in choices)
    if total <= most:
        texts: list[list[int]] = [[]]
        for one in choices:
            texts = [[*text, token] for text in texts for token in one]
        return texts
    columns = [torch.randint(len(one), (most,), generator=source).tolist() for one in choices]
    drawn = [[one[place] for one, place in zip(choices, row, strict=True)] for row in zip(*columns, strict=True)]
    return [[one[0] for one in choices], *drawn]


def _improved(
    ground: Ground, text: list[int], choices: Sequence[Sequence[int]], value: float
) -> tuple[list[int], float]:
    """Change one place after the other to the token of least mean distance, until none helps."""
    assert ground.second is not None
    for _ in range(3):
        before = value
        for place, tokens in enumerate(choices):
            if len(tokens) < 2:
                continue
            tried = [[*text[:place], token, *text[place + 1 :]] for token in tokens]
            ids = torch.full((len(tried), ground.tokeniser.length), 0)
            ids[:, : len(text)] = torch.tensor(tried)
            distances = ground.second.of_texts(ground.model, ids)[:, : len(text)].mean(1)
            best = int(distances.argmin())
            if float(distances[best]) < value:
                text, value = tried[best], float(distances[best])
        if value >= before:
            break
    return text, value


def _distinct(texts: Sequence[list[int]], count: int) -> list[list[int]]:
    """Return the first `count` texts of which none shares 70 % of its tokens, place by place, with one before it."""
    kept: list[list[int]] = []
    for text in texts:
        alike = (sum(a == b for a, b in zip(text, other, strict=False)) / max(len(text), len(other)) for other in kept)
        if all(share < 0.7 for share in alike):
            kept.append(text)
    spare = [text for text in texts if text not in kept]
    return [*kept, *spare][:count]
