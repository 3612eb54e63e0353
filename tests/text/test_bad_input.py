"""What a stranger gives wrong of texts and tables, and the one sentence each gets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedseal.core.errors import InputError
from fedseal.data.registry import DATASETS
from fedseal.data.text.dataset import TextDataset
from fedseal.federation.fitting import fitting_model
from fedseal.training.scenario import TrainingScenario
from fedseal.training.setup import build_federation

ROWS = "age,job,ill\n" + "".join(f"{20 + row},{'ab'[row % 2]},{row % 2}\n" for row in range(20))


class Reader(nn.Module):
    """Reads texts of at most four tokens, or of few different ones, as told by its class."""

    tokens, length = 5000, 64

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(self.tokens, 4)
        self.places = nn.Embedding(self.length, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        read: Tensor = self.head((self.words(ids) + self.places(torch.arange(ids.shape[1]))).mean(1))
        return read


class ShortReader(Reader):
    length = 4


class PoorReader(Reader):
    tokens = 50


@pytest.mark.parametrize("reader", ["ShortReader", "PoorReader"])
def test_texts_too_long_for_a_model_and_tokens_it_does_not_know_are_refused_before_anything_runs(
    notes: TextDataset, reader: str
) -> None:
    assert fitting_model(f"{__name__}:Reader", notes, "cross-entropy", 0)
    with pytest.raises(InputError, match=rf"{reader} does not accept inputs of shape \[16\]"):
        fitting_model(f"{__name__}:{reader}", notes, "cross-entropy", 0)


def test_ids_of_another_vocabulary_are_refused(notes: TextDataset) -> None:
    ids = notes.ids.clone()
    ids[0, 1] = notes.tokeniser.size
    with pytest.raises(InputError, match="Were the ids made by another tokeniser"):
        TextDataset("mine", ids, notes.labels, notes.classes, notes.tokeniser)


def test_empty_texts_and_texts_of_many_lengths(notes: TextDataset) -> None:
    with pytest.raises(InputError, match="text 1 is empty"):
        notes.tokeniser.encode(["a note", "  "])
    mixed = notes.tokeniser.encode(["a note", "a rather longer note than the first"])
    assert mixed.shape == (2, 16)
    assert notes.tokeniser.content(mixed)[0] == notes.tokeniser.content(notes.tokeniser.encode(["a note"]))[0]


def of(path: Path, text: str) -> str:
    path.write_text(text)
    return f"csv:{path}?target=ill"


@pytest.mark.parametrize(
    ("test", "says"),
    [
        (ROWS.replace("21,b", "21,c"), "column 'job' has no category 'c'"),
        ("age,ill\n" + "".join(f"{row},{row % 2}\n" for row in range(9)), "test has no column 'job', which train has"),
        (ROWS.replace("21,b,1", "21,b,2"), "test has the class '2', which train has not"),
        (ROWS.replace("21,b", "old,b"), "column 'age' holds numbers, and '20' is none|'old' is none"),
    ],
)
def test_a_test_table_that_is_unlike_the_trained_one_is_told_where(tmp_path: Path, test: str, says: str) -> None:
    specs = of(tmp_path / "train.csv", ROWS), of(tmp_path / "test.csv", test)
    scenario = TrainingScenario(data=specs[0], test=specs[1], model="mlp:width=4", clients=2)
    with pytest.raises(InputError, match=says):
        build_federation(scenario, 0)


def test_a_test_table_is_read_on_the_scales_of_the_trained_one(tmp_path: Path) -> None:
    other = "job,age,ill\n" + "".join(f"{'ba'[row % 2]},{30 + row},{1 - row % 2}\n" for row in range(20))
    specs = of(tmp_path / "train.csv", ROWS), of(tmp_path / "test.csv", other + ",7,1\n")
    made = build_federation(TrainingScenario(data=specs[0], test=specs[1], model="mlp:width=4", clients=2), 0)
    assert len(made.test) == 20  # the row with an empty cell is left out
    age, job = made.test.inputs[:, 0], made.test.inputs[:, 1:]
    assert torch.allclose(age, (10 + torch.arange(20)) / 19.0)  # 20 to 39 are 0 to 1
    assert job[0].tolist() == [0.0, 1.0]
    assert made.test.labels[0] == 1


def test_a_test_text_cut_by_another_tokeniser_is_refused() -> None:
    scenario = TrainingScenario(
        data="text:notes?length=16&limit=60", test="text:notes?length=16&vocabulary=300", model="text-encoder:width=8"
    )
    with pytest.raises(InputError, match="were cut by two tokenisers"):
        build_federation(scenario, 0)
    shorter = DATASETS.build("text:notes?length=12&limit=60")
    with pytest.raises(InputError, match="were cut by two tokenisers"):
        shorter.made_like(DATASETS.build("text:notes?length=16&limit=60"))
