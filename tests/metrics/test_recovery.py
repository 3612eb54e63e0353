"""REC, PSNR-All, PSNR-Top and RLA are what their definitions say."""

from __future__ import annotations

import pytest
import torch

from fedseal.core.batch import Batch
from fedseal.core.errors import InputError, UsageError
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.metrics.judge import train_judge
from fedseal.metrics.recovery import label_recognition, recovery, top_count
from fedseal.models.registry import build_model


def test_recovery_by_hand():
    values = [10.0, 19.0, 19.5, 25.0, 12.0, 30.0, 8.0, 21.0]
    found = recovery(values)
    assert found.rec.mean == pytest.approx(4 / 8)  # 19 itself is not above 19
    assert found.psnr_all.mean == pytest.approx(sum(values) / 8)
    assert found.psnr_top == pytest.approx((30 + 25 + 21) / 3)  # the best 8 / e = 2.94
    assert (found.least, found.most, found.n) == (8.0, 30.0, 8)
    assert found.rec.low is not None
    assert found.rec.low <= found.rec.mean <= (found.rec.high or 0)
    assert recovery(values, threshold=24).rec.mean == pytest.approx(2 / 8)


def test_top_of_few_and_many():
    assert [top_count(n) for n in (1, 2, 3, 100, 256)] == [1, 1, 1, 37, 94]


def test_nothing_attacked_has_no_recovery():
    with pytest.raises(InputError):
        recovery([])


def test_recognition_counts_right_labels():
    def judge(images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot((images.mean((1, 2, 3)) * 10).long(), 10).float()

    images = torch.tensor([0.05, 0.15, 0.95]).view(3, 1, 1, 1).expand(3, 1, 4, 4)
    assert label_recognition(judge, images, torch.tensor([0, 2, 9])) == [1.0, 0.0, 1.0]
    with pytest.raises(InputError, match="cannot be judged against 2 labels"):
        label_recognition(judge, images, torch.tensor([0, 1]))
    with pytest.raises(InputError, match=r"scores \[N, classes\], this one with \[3\]"):
        label_recognition(lambda x: x.mean((1, 2, 3)), images, torch.tensor([0, 1, 2]))


def test_a_judge_recognises_images_it_never_saw():
    data = DATASETS.build("digits:size=8")
    order = torch.randperm(len(data), generator=generator(0))
    own, other = data.batch(order[:1000]), data.batch(order[1000:1500])
    net = build_model("convbn:width=16", input_shape=(1, 8, 8), num_classes=10, seed=0)
    judge = train_judge(net, own, epochs=4)
    hits = label_recognition(judge, other.images, other.labels)
    assert sum(hits) / len(hits) > 0.6
    noise = torch.rand(500, 1, 8, 8, generator=generator(1))
    assert sum(label_recognition(judge, noise, other.labels)) / 500 < 0.3
    with pytest.raises(UsageError):
        train_judge(net, Batch(own.images[:1], own.labels[:1]))
