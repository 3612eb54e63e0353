"""Images: PSNR, SSIM, MSE and LPIPS under one fixed matching, chance baselines, line-ups of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.core.hashing import hash_tensors
from fedseal.core.reconstruction import Reconstruction
from fedseal.metrics.baselines import chance_baselines
from fedseal.metrics.image import psnr
from fedseal.metrics.lpips import Lpips, load_lpips, why_no_lpips
from fedseal.metrics.lpips_choice import LpipsChoice, check_lpips, lpips_net
from fedseal.metrics.lpips_weights import Net
from fedseal.metrics.matching import belonging, pairwise_psnr
from fedseal.metrics.registry import measure
from fedseal.metrics.score import score
from fedseal.metrics.singling import line_up
from fedseal.modalities.measures import Case, Measured, Measures

_NETWORKS: dict[Net, str] = {"alex": "AlexNet v0.1", "vgg": "VGG16 v0.1"}
PICTURED = 8
"""Images of a target whose line-ups are kept as pictures."""


@dataclass(frozen=True)
class ImageMeasures(Measures):
    """Measures of images.

    Attributes:
        lpips: the perceptual metric, or None where its weights are absent.
        choice: that a scenario made of its network.
    """

    lpips: Lpips | None = None
    choice: LpipsChoice = "auto"
    _baselines: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, choice: LpipsChoice = "auto") -> ImageMeasures:
        """Return the measures this machine has weights for; without those of a network that was chosen, refuse."""
        check_lpips(choice)
        return cls(None if choice == "off" else load_lpips(net=lpips_net(choice)), choice)

    def describe(self) -> dict[str, str]:
        """Say which perceptual metric is used, or why none is."""
        if self.choice == "off":
            return {"LPIPS": "not reported: the scenario says off"}
        return {"LPIPS": why_no_lpips(net=lpips_net(self.choice)) or _NETWORKS[lpips_net(self.choice)]}

    def progress(self, originals: Sequence[Batch], guesses: Tensor) -> dict[str, float]:
        """Return the mean PSNR of the images as they stand; of the closest, where more are guessed than there are."""
        pairs = list(zip((batch.images for batch in originals), guesses, strict=True))
        if all(len(truth) == len(guess) for truth, guess in pairs):
            truth = torch.cat([truth for truth, _ in pairs])
            return {"psnr_db": fmean(psnr(truth, guesses.flatten(0, 1), data_range=1.0).tolist())}
        closest = torch.cat([pairwise_psnr(truth, guess).amax(1) for truth, guess in pairs])
        return {"psnr_db": fmean(closest.tolist())}

    def measure(self, case: Case, answer: Reconstruction) -> Measured:
        """Score under the one fixed matching; what is kept are pictures in [0, 1].

        Of an attack that isolates some images these are scored alone, against the originals they belong to: those it
        aimed at, where its construction says which, else the closest ones of the label it names.
        """
        fed = _against_fed(case, answer)
        case, answer = _answered(case, answer)
        scores = score(case.originals, answer.images, answer.labels, self.lpips)
        matched = answer.images[list(scores.pairing)].clamp(0, 1)
        ranked = self._line_up(case, answer)
        fields = {
            "psnr": scores.psnr,
            "ssim": scores.ssim,
            "mse": scores.mse,
            "lpips": scores.lpips,
            "psnr_best": scores.psnr_best,
            "psnr_fed": fed,
            "label_accuracy": scores.label_accuracy,
            "baselines": self._chance(case),
            "isolated": answer.isolated,
            "metrics": {spec: measure(spec, case.originals.images, matched) for spec in case.metrics},
            **ranked,
        }
        kept = {"originals": case.originals.images.float(), "reconstructions": matched.float()}
        if answer.likenesses is not None:
            kept["likenesses"] = _closest(case.originals.images, answer.likenesses).float()
        for place, chosen in enumerate(ranked.get("top", ())[:PICTURED]):
            kept[f"line_up.{place}"] = _candidates(case, place, chosen)
        return Measured(fields, kept)

    def _line_up(self, case: Case, answer: Reconstruction) -> dict[str, Any]:
        """Rank the originals among strangers; nothing, where these are too few."""
        found = line_up(
            case.originals,
            answer.images,
            case.strangers,
            self.lpips,
            by_class=case.by_class,
            likenesses=answer.likenesses,
        )
        if found is None:
            return {}
        return {
            "ranks": found.ranks,
            "line_up": found.sizes,
            "twins": found.twins,
            "stranger_psnr": found.stranger_psnr,
            "top": found.top,
        }

    def _chance(self, case: Case) -> dict[str, tuple[float, ...]]:
        """Return what baselines score; the same for every attack on the same images, so computed once."""
        key = f"{case.seed}/{len(case.public)}/{hash_tensors({'images': case.originals.images})}"
        if key not in self._baselines:
            found = chance_baselines(case.originals.images, case.originals.labels, case.public, case.seed)
            self._baselines[key] = {name: tuple(values.tolist()) for name, values in found.items()}
        return self._baselines[key]


def _answered(case: Case, answer: Reconstruction) -> tuple[Case, Reconstruction]:
    """Return the part of a case that an attack answers for, and of its answer what is about the originals.

    Where more images were fed than they came from, as by `lids`, each original takes the most similar answer.
    """
    if len(answer.images) > len(case.originals) and answer.isolated is None:
        places = belonging(answer.images.clamp(0, 1), case.originals.images)
        return case, replace(answer, images=answer.images[places], labels=answer.labels[places])
    if answer.isolated is None or answer.isolated >= len(case.originals):
        return case, answer
    images, labels = answer.images[: answer.isolated], answer.labels[: answer.isolated]
    if answer.places:
        allowed = torch.isin(torch.arange(len(case.originals)), torch.tensor(answer.places))[:, None].expand(
            -1, len(images)
        )
    else:
        allowed = case.originals.labels.cpu()[:, None] == labels.cpu()[None]
    places = belonging(case.originals.images, images.to(case.originals.images.device).clamp(0, 1), allowed)
    return replace(case, originals=case.originals.pick(places)), replace(answer, images=images, labels=labels)


def _against_fed(case: Case, answer: Reconstruction) -> tuple[float, ...] | None:
    """Score against what the model was fed, where a defence changed it; as many of these as the answer shows."""
    if torch.equal(case.fed.images, case.originals.images):
        return None
    fed, found = case.fed.images, answer.images[: answer.isolated].clamp(0, 1)
    if len(found) < len(fed):
        fed = fed[belonging(fed, found)]
    labels = torch.zeros(len(fed), dtype=torch.long)  # mixed labels are shares, and are not scored here
    return score(Batch(fed, labels), found[: len(fed)], labels, None).psnr


def _closest(originals: Tensor, likenesses: Tensor) -> Tensor:
    """Return the likeness each original is closest to, [B, C, H, W]: to be shown, the line-up has no pairs."""
    held = likenesses.detach().to(originals).clamp(0, 1)
    return held[pairwise_psnr(originals, held).argmax(1)]


def _candidates(case: Case, place: int, chosen: tuple[int, ...]) -> Tensor:
    """Return the pictures of a line-up's front, [K, C, H, W]."""
    original, strangers = case.originals.images[place], case.strangers.images
    return torch.stack([original if index < 0 else strangers[index] for index in chosen]).float()
