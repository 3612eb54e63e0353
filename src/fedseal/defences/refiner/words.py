"""Refiner on text (App. F): what is refined are the vectors that the model is fed in place of words.

Meaningless text is a sentence of random words, so the start is blended with the vectors of random words, and the
evaluation network predicts from the vectors which share of a sentence's words is random. The gradients of embeddings
are not uploaded: they name the words.

Departures: the evaluation network is no DistilBERT of IMDb but a small transformer, trained within a second on the
client's own texts and the model's own table, which it never leaves: word vectors of one model mean nothing to another's
network. Vectors are refined in units of four deviations of the table, so that steps are as long as those of pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedseal.core.batch import Batch
from fedseal.core.defence import RoundContext
from fedseal.core.errors import CapabilityError
from fedseal.core.modality import TEXT
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.core.tokeniser import FILLER
from fedseal.defences.refiner.passes import ClientPasses
from fedseal.federation.client import client_randomness
from fedseal.models.text.access import fed_with, word_table
from fedseal.models.text.attention import seen
from fedseal.models.text.transformers import Block

_DEVIATIONS = 4.0
_STEPS, _BATCH, _RATE = 150, 32, 2e-3


class WordPasses(ClientPasses):
    """The loss of one local step as a function of weights and of the vectors fed in place of words, [B, T, D].

    Args:
        context: of the step.
        batch: of ids [B, T].
    """

    def __init__(self, context: RoundContext, batch: Batch) -> None:
        super().__init__(context, batch)
        self._table = word_table(context.model, int(batch.inputs.max()) + 1)
        embeddings = {
            f"{name}.{part}" if name else part
            for name, module in context.model.named_modules()
            if isinstance(module, nn.Embedding)
            for part, _ in module.named_parameters()
        }
        for name in embeddings & self.parameters.keys():
            self._rest[name] = self.parameters.pop(name)
        if not self.parameters:
            raise CapabilityError(
                "refiner does not upload the gradients of embeddings, and the model trains nothing else.",
                hint="Use `gaussian` or `dp-sgd`, which hide the words of an embedding's gradient.",
            )
        self.vectors = self._rest[self._table.name]
        self._unit = float(_DEVIATIONS * self.vectors.std())
        self.bounds = float(self.vectors.min()) / self._unit, float(self.vectors.max()) / self._unit

    @property
    def private(self) -> Tensor:
        """The vectors of the private words, in units of the refinement."""
        return self.vectors[self._batch.inputs] / self._unit

    def blended(self, alpha: float, source: torch.Generator) -> Tensor:
        """Return where a refinement starts: private words with a share of random ones in each; fillers stay."""
        ids = self._batch.inputs
        drawn = torch.randint(len(self.vectors), ids.shape, generator=source, device=source.device).to(ids.device)
        return torch.lerp(self.private, self.vectors[torch.where(ids == FILLER, ids, drawn)] / self._unit, alpha)

    def loss(self, parameters: Tensors, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the client's loss at `parameters` where the model is fed these vectors."""
        state = dict(parameters) | {name: value.clone() for name, value in self._rest.items()}

        def bound(ids: Tensor) -> Tensor:
            with fed_with(self._table, images * self._unit):
                output: Tensor = functional_call(self._context.model, state, (ids,))
            return output

        with client_randomness(self._context):
            return self._context.loss(bound, self._batch)

    def kept(self, refined: Tensor) -> float:
        """Return the share of words that are still the nearest to what was fed in their place, by direction."""
        words = self._batch.inputs != FILLER
        table = nn.functional.normalize(self.vectors, dim=1)
        nearest = (nn.functional.normalize(refined[words], dim=1) @ table.T).argmax(1)
        return float((nearest == self._batch.inputs[words]).float().mean())


class WordEvaluator(nn.Module):
    """Predicts the share of random words among vectors [B, T, D] whose fillers are known."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(length, width))
        self.norm = nn.LayerNorm(width)
        self.block = Block(width, 2 if width % 2 == 0 else 1, 2 * width, 0.0, first=True, eps=1e-5)
        self.head = nn.Linear(width, 1)

    def forward(self, words: Tensor, ids: Tensor) -> Tensor:
        """Return the share of each text, [B]."""
        tokens = self.block(self.norm(words) + self.places[: words.shape[1]], seen(ids, words.dtype))
        counted = (ids != FILLER).to(tokens.dtype)[..., None]
        pooled = (tokens * counted).sum(1) / counted.sum(1).clamp(min=1)
        share: Tensor = self.head(pooled)[:, 0].sigmoid()
        return share


class WordJudge:
    """D(x*), the share of random words a trained network sees in vectors; it is told where fillers stand."""

    def __init__(self, network: WordEvaluator, ids: Tensor) -> None:
        self.network, self.ids = network, ids

    def __call__(self, refined: Tensor, private: Tensor | None = None) -> Tensor:
        """Return the share of each text, [B]."""
        share: Tensor = self.network(refined.float(), self.ids).to(refined.dtype)
        return share


def fit_evaluator(texts: Tensor, vectors: Tensor) -> WordEvaluator:
    """Train the network on texts [N, T] of which random shares of words were replaced by random words.

    The same texts and vectors give the same network, whenever it is trained.
    """
    source = generator(0, "refiner", "words")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = WordEvaluator(vectors.shape[1], texts.shape[1])
    scaled = (vectors / (_DEVIATIONS * vectors.std())).float()
    optimiser = torch.optim.Adam(network.parameters(), lr=_RATE)
    texts = texts.cpu()
    for _ in range(_STEPS):
        ids = texts[torch.randint(len(texts), (_BATCH,), generator=source)]
        word = ids != FILLER
        chosen = word & (torch.rand(ids.shape, generator=source) < torch.rand(_BATCH, 1, generator=source))
        mixed = torch.where(chosen, torch.randint(len(vectors), ids.shape, generator=source), ids)
        share = chosen.sum(1) / word.sum(1).clamp(min=1)
        with torch.enable_grad():
            error = (network(scaled[mixed], ids) - share).square().mean()
            optimiser.zero_grad()
            error.backward()
            optimiser.step()
    return network.eval().requires_grad_(False)


class OwnEvaluator:
    """The evaluation network of one client's words: trained when it is first asked, and forgotten with its texts."""

    def __init__(self) -> None:
        self._texts: Tensor | None = None
        self._network: WordEvaluator | None = None

    def keep(self, dataset: Batch) -> None:
        """Keep a client's texts to train on; of anything else, nothing."""
        self._texts, self._network = (dataset.inputs if is_text(dataset) else None), None

    def judge(self, passes: WordPasses, batch: Batch) -> WordJudge:
        """Return PM of a batch, by a network trained on the client's texts, or on the batch if none were kept."""
        if self._network is None:
            self._network = fit_evaluator(batch.inputs if self._texts is None else self._texts, passes.vectors)
        return WordJudge(self._network, batch.inputs)


def is_text(batch: Batch) -> bool:
    """Return whether a batch holds words."""
    return batch.modality == TEXT


def check_fit_for_words(privacy: str, scope: str) -> None:
    """Refuse ways of refining that are for pictures alone."""
    if privacy == "lpips" or scope == "sample":
        raise CapabilityError(
            "refiner takes texts with scope=batch and the privacy metric noise or mse only.",
            hint="Leave `scope` and `privacy` out.",
        )


def without_embeddings(sent: Tensors, gradient: Tensors) -> dict[str, Tensor]:
    """Return what is sent of a whole gradient, with zeros where nothing is: the embeddings."""
    return {
        name: sent[name].to(value.dtype) if name in sent else torch.zeros_like(value)
        for name, value in gradient.items()
    }
