"""The seam between kinds of inputs: generic code asks for inputs, what works on images says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedseal
from fedseal.core import modality as kinds
from fedseal.core.attack import ATTACKS
from fedseal.core.batch import Batch, joined
from fedseal.core.errors import CapabilityError, InputError, UsageError
from fedseal.core.modality import Modality, register_modality
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.metrics.singling import line_up

PACKAGE = Path(fedseal.__file__).parent
GENERIC = ("federation", "store", "engines", "training", "preparation")


class Words(Modality):
    """Token ids [B, T]."""

    def check(self, inputs: Tensor, labels: Tensor) -> None:
        if inputs.ndim != 2 or inputs.is_floating_point():
            raise InputError("a batch of words needs ids [B, T].")


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Batch:
    monkeypatch.setattr(kinds, "_MODALITIES", dict(kinds._MODALITIES))
    register_modality("words", Words())
    return Batch(torch.tensor([[1, 2, 3], [4, 0, 2]]), torch.tensor([0, 1]), "words")


def test_a_batch_keeps_its_kind_through_what_is_done_with_it(words: Batch):
    moved = words.to("cpu", torch.float64)
    assert moved.inputs.dtype == torch.int64  # ids have no precision
    assert [words.pick(torch.tensor([1])).modality, joined([words, words]).modality] == ["words", "words"]
    assert [part.modality for part in words.split([1, 1])] == ["words", "words"]


def test_what_works_on_images_refuses_others_in_words(words: Batch):
    with pytest.raises(CapabilityError, match="works on images, and the batch holds inputs of the kind 'words'"):
        line_up(words, torch.zeros(2, 1, 8, 8), words)
    pictures = Batch(torch.rand(2, 1, 4, 4), torch.tensor([0, 1]))
    with pytest.raises(InputError, match="only batches of one kind can be joined, got image, words"):
        joined([words, pictures])


def test_kinds_are_checked_known_and_never_overwritten(words: Batch):
    with pytest.raises(InputError, match="ids"):
        Batch(torch.rand(2, 3), torch.tensor([0, 1]), "words")
    with pytest.raises(UsageError, match="registered already"):
        register_modality("words", Words())
    with pytest.raises(UsageError, match="no modality called 'sound'"):
        Batch(torch.rand(2, 3), torch.tensor([0, 1]), "sound")


def test_an_attack_on_images_refuses_other_data_by_name() -> None:
    known = fedseal.Knowledge(input_shape=(12,), num_classes=2, modality="text")
    with pytest.raises(CapabilityError, match="ig rebuilds data of the kind image, and the clients hold text"):
        ATTACKS.build("ig").check_knowledge(known)
    assert known.ledger()["text shape"] == "12"


@pytest.mark.parametrize("spec", ["none", "topk:ratio=0.5", "gaussian:sigma=0.1", "dgp", "adadefense"])
def test_a_client_of_another_kind_plays_a_round_through_the_same_code(words: Batch, spec: str):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2))
    done = client_round(model, [words], RoundConfig(), build_defence(spec), generator(0))
    assert set(done.update.tensors) == {"0.weight", "2.weight", "2.bias"}
    assert done.fed[0].modality == "words"


@pytest.mark.parametrize("package", GENERIC)
def test_generic_packages_do_not_ask_for_images(package: str):
    asking = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in (PACKAGE / package).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if ".images" in line and not any(word in line for word in ("shape.images", "scenario.images", "result.images"))
    ]
    assert not asking
