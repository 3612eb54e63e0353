"""How text is measured: tokens that came back, against frequent words, and originals among strangers' texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.core.errors import InputError
from fedseal.core.hashing import hash_tensors
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.tokeniser import Tokeniser
from fedseal.metrics.labels import label_accuracy
from fedseal.metrics.scales import TOKENS
from fedseal.metrics.text import edit_share, f1_matrix, matched, overlap, rouge, why_no_rouge
from fedseal.metrics.text_guesses import text_baselines
from fedseal.metrics.text_line_ups import text_line_up
from fedseal.modalities.measures import Case, Measured, Measures
from fedseal.modalities.passages import pack_words

_PUBLIC = 500
"""Public texts baselines look at, at most."""


@dataclass(frozen=True)
class TextMeasures(Measures):
    """Measures of text; what an attack claims are ids [K, T] of the same tokeniser, the filler behind."""

    _baselines: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict, repr=False)

    def describe(self) -> dict[str, str]:
        """Say whether ROUGE is measured."""
        return {"ROUGE": why_no_rouge() or "rouge-score, without stemming"}

    def progress(self, originals: Sequence[Batch], guesses: Tensor) -> dict[str, float]:
        """Return the mean F1 of the tokens as they stand, in per cent."""
        found = [
            f1_matrix(batch.inputs.tolist(), guess.tolist()).max(1).mean()
            for batch, guess in zip(originals, guesses, strict=True)
        ]
        return {"tokens": 100 * fmean(found)}

    def measure(self, case: Case, answer: Reconstruction) -> Measured:
        """Pair texts by their tokens and score each original."""
        tokeniser = case.encoding
        if not isinstance(tokeniser, Tokeniser):
            raise InputError("text is measured by the tokeniser that made its ids, and there is none.")
        truths, claims = tokeniser.content(case.originals.inputs.cpu()), tokeniser.content(answer.images.cpu())
        claims = claims[: answer.isolated] or [[]]
        pairing = matched(truths, claims)
        paired = [claims[place] for place in pairing]
        shared = [overlap(truth, claim) for truth, claim in zip(truths, paired, strict=True)]
        shown = answer.images.cpu()[pairing]
        fields: dict[str, Any] = {
            "scale": TOKENS.name,
            "psnr": tuple(100 * one.f1 for one in shared),
            "psnr_best": tuple((100 * f1_matrix(truths, claims).max(1)).tolist()),
            "label_accuracy": label_accuracy(case.originals.labels.cpu(), answer.labels.cpu()),
            "baselines": self._chance(case, tokeniser, truths),
            "isolated": answer.isolated,
            "metrics": {
                "precision": tuple(one.precision for one in shared),
                "recall": tuple(one.recall for one in shared),
                "exact": tuple(float(truth == claim) for truth, claim in zip(truths, paired, strict=True)),
                "edit": tuple(edit_share(truth, claim) for truth, claim in zip(truths, paired, strict=True)),
                **self._rouge(tokeniser, case.originals.inputs.cpu(), shown),
            },
            **self._line_up(case, tokeniser, truths, claims),
        }
        kept = {"originals": case.originals.inputs.cpu(), "reconstructions": shown}
        return Measured(fields, kept | pack_words(tokeniser.words(kept["originals"]), tokeniser.words(shown)))

    def _rouge(self, tokeniser: Tokeniser, truths: Tensor, claims: Tensor) -> dict[str, tuple[float, ...]]:
        found = [rouge(a, b) for a, b in zip(tokeniser.show(truths), tokeniser.show(claims), strict=True)]
        known = [one for one in found if one is not None]
        return {} if len(known) < len(found) else {name: tuple(one[name] for one in known) for name in known[0]}

    def _line_up(
        self, case: Case, tokeniser: Tokeniser, truths: list[list[int]], claims: list[list[int]]
    ) -> dict[str, Any]:
        own, others = case.originals.labels.cpu().numpy(), case.strangers.labels.cpu().numpy()
        allowed = (own[:, None] == others[None]) | (not case.by_class)
        found = text_line_up(truths, claims, tokeniser.content(case.strangers.inputs.cpu()), allowed)
        if found is None:
            return {}
        return {
            "ranks": found.ranks,
            "line_up": found.sizes,
            "twins": found.twins,
            "stranger_psnr": found.stranger_psnr,
            "top": found.top,
        }

    def _chance(self, case: Case, tokeniser: Tokeniser, truths: list[list[int]]) -> dict[str, tuple[float, ...]]:
        """Return what guesses score; the same for every attack on the same texts, so computed once."""
        key = f"{len(case.public)}/{hash_tensors({'ids': case.originals.inputs})}"
        if key not in self._baselines:
            public = case.public.pick(slice(_PUBLIC))
            self._baselines[key] = text_baselines(
                truths, case.originals.labels.tolist(), tokeniser.content(public.inputs.cpu()), public.labels.tolist()
            )
        return self._baselines[key]
