"""An attack that isolates one image of a batch is scored by that image, not by what fills up the batch (C17)."""

from __future__ import annotations

import torch

from fedseal.core.batch import Batch
from fedseal.core.reconstruction import Reconstruction
from fedseal.modalities.image import ImageMeasures
from fedseal.modalities.measures import Case


def _case() -> Case:
    source = torch.Generator().manual_seed(0)
    originals = Batch(torch.rand(4, 1, 8, 8, generator=source), torch.tensor([0, 1, 1, 2]))
    public = Batch(torch.rand(9, 1, 8, 8, generator=source), torch.arange(9) % 3)
    strangers = Batch(torch.rand(30, 1, 8, 8, generator=source), torch.arange(30) % 3)
    return Case(originals, originals, public, strangers)


def _answer(case: Case, place: int, label: int, places: tuple[int, ...] = ()) -> Reconstruction:
    images = torch.cat([case.originals.images[place : place + 1], torch.full((3, 1, 8, 8), 0.5)])
    return Reconstruction(images, torch.tensor([label] * 4), 0.0, isolated=1, places=places)


def test_the_isolated_image_alone_is_scored():
    case = _case()
    fields = ImageMeasures().measure(case, _answer(case, 2, 1)).fields
    assert len(fields["psnr"]) == len(fields["ssim"]) == len(fields["line_up"]) == 1
    assert fields["psnr"][0] > 90
    assert fields["isolated"] == 1
    assert {len(values) for values in fields["baselines"].values()} == {1}
    assert fields["label_accuracy"] == 1.0


def test_an_image_counts_only_against_what_the_attack_aimed_at():
    case = _case()
    elsewhere = ImageMeasures().measure(case, _answer(case, 2, 1, places=(0,))).fields
    assert elsewhere["psnr"][0] < 20  # a perfect picture of another client's image is no success on the target's
    by_label = ImageMeasures().measure(case, _answer(case, 2, 0)).fields
    assert by_label["psnr"][0] < 20


def test_who_answers_for_all_is_scored_on_all():
    case = _case()
    whole = Reconstruction(case.originals.images, case.originals.labels, 0.0)
    assert len(ImageMeasures().measure(case, whole).fields["psnr"]) == 4
