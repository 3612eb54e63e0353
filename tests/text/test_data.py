"""Texts become ids and back, and what is wrong with them is said in a sentence."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from fedseal.core.batch import Batch
from fedseal.core.errors import InputError, UsageError
from fedseal.core.tokeniser import characters, word_pieces
from fedseal.data.registry import DATASETS
from fedseal.data.text.dataset import TextDataset
from fedseal.data.text.files import read_texts


def test_the_built_in_notes_come_back_as_they_were_written(notes: TextDataset) -> None:
    assert (notes.modality, notes.shape, notes.classes) == ("text", (16,), ("routine", "urgent"))
    assert 0.3 < float(notes.labels.float().mean()) < 0.7
    whole = DATASETS.build("text:notes?length=40&limit=5")
    assert whole.encoding.show(whole.inputs)[0].startswith("the teacher in room four has a normal pulse")
    assert len(DATASETS.build("text:notes?split=test&limit=20")) == 20


def test_clients_texts_are_not_the_vocabulary_s() -> None:
    from fedseal.data.text.notes import public_notes, written_notes

    public = set(public_notes().texts)
    assert not public & set(written_notes("train").texts)
    assert not set(written_notes("train").texts) & set(written_notes("test").texts)


def test_bytes_take_any_text_and_give_it_back() -> None:
    made = characters(24)
    ids = made.encode(["Grüße, 世界!"])
    assert made.show(ids) == ["Grüße, 世界!"]
    assert made.describe() == "bytes, 260 tokens, texts of at most 24"


def test_texts_too_long_are_refused_or_cut_and_told(tmp_path: Path) -> None:
    made = characters(6)
    with pytest.raises(InputError, match="text 0 has 11 tokens, and 4 fit"):
        made.encode(["a long note"])
    assert made.show(made.encode(["a long note"], cut=True)) == ["a lo"]
    (tmp_path / "mine.tsv").write_text("text\tlabel\nshort\ta\na rather long one\tb\n")
    data = DATASETS.build(f"text:{tmp_path / 'mine.tsv'}?tokens=byte&length=9")
    assert data.notes == ("1 of 2 texts are longer than 9 tokens and were cut. Raise `length`.",)


def test_unknown_ids_and_real_numbers_are_refused(notes: TextDataset) -> None:
    size = notes.tokeniser.size
    with pytest.raises(InputError, match=rf"has the tokens 0..{size - 1}, got ids 3..{size}"):
        notes.tokeniser.check(torch.tensor([[3, size]]))
    with pytest.raises(InputError, match="needs whole-number token ids"):
        Batch(torch.rand(2, 4), torch.tensor([0, 1]), "text")
    with pytest.raises(InputError, match="needs whole-number token ids"):
        Batch(torch.zeros(2, dtype=torch.long), torch.tensor([0, 1]), "text")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("text\tlabel\n \tx\n", "text 1 is empty"),
        ("text\tlabel\n", "holds no text"),
        ("words\tlabel\na\tb\n", "has no column text or sentence or note or content; it has words, label"),
        ("text\tlabel\nalone\n", "entry 1: text or label is missing"),
    ],
)
def test_files_that_are_no_table_of_texts_are_named(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "broken.tsv"
    path.write_text(content)
    with pytest.raises(InputError, match=says):
        read_texts(path)


def test_files_are_read_by_their_ending(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one", "label": 1}\n\n{"text": "two", "label": 0}\n')
    (tmp_path / "b.txt").write_text("one\n\ntwo\n")
    (tmp_path / "c.csv").write_text('note,class\n"one, and more",x\n')
    (tmp_path / "d.tsv.gz").write_bytes(gzip.compress(b'sentence\tlabel\nsaid "so"\t1\n'))
    assert [read_texts(tmp_path / name).texts for name in ("a.jsonl", "b.txt", "c.csv", "d.tsv.gz")] == [
        ("one", "two"),
        ("one", "two"),
        ("one, and more",),
        ('said "so"',),
    ]
    with pytest.raises(InputError, match="is no table of texts"):
        read_texts(tmp_path / "e.pdf")


def test_a_vocabulary_of_clients_own_words_is_told(tmp_path: Path) -> None:
    lines = "".join(f"patient number {i} is well\t{i % 2}\n" for i in range(40))
    (tmp_path / "mine.tsv").write_text("text\tlabel\n" + lines)
    data = DATASETS.build(f"text:{tmp_path / 'mine.tsv'}?length=12")
    assert any("made of the clients' own texts" in note for note in data.notes)


def test_a_set_that_is_not_there_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the texts 'sst2' \(train\) are not on this machine: no sst2_train.tsv"):
        DATASETS.build("text:sst2", data_root=tmp_path)
    with pytest.raises(InputError, match="there is no text file nowhere"):
        DATASETS.build("text:nowhere.tsv")
    with pytest.raises(UsageError, match="texts of 2 tokens hold no word"):
        DATASETS.build("text:notes?length=2")


def test_pretrained_tokenisers_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="stories15m is not on this machine") as caught:
        DATASETS.build("text:notes?tokens=stories15m")
    assert "fedseal data get stories15m" in str(caught.value.hint)


def test_word_pieces_are_the_same_whenever_they_are_trained() -> None:
    found = ("pain", "rash", "chills")
    texts = [f"patient {number} came with a cough, fever and {one}" for number in range(40) for one in found]
    made = [word_pieces(texts, 80, 24) for _ in range(4)]
    assert len({one.identity for one in made}) == 1
    assert made[0].show(made[0].encode(["a rash and chills"])) == ["a rash and chills"]
