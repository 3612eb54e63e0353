"""Tables: how files become rows, what is refused, and what a row says when it is read back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedseal.core.errors import InputError
from fedseal.data.columns import Columns
from fedseal.data.registry import DATASETS
from fedseal.data.table import TableDataset

TEXT = """age,city,zip,id,ill
30,Oslo,1000,a,yes
40,"Bergen, west",2000,b,no
50,Oslo,1000,c,no
,Oslo,1000,d,no
"""


def table(path: Path, text: str = TEXT, options: str = "target=ill&categorical=zip&drop=id") -> TableDataset:
    (file := path / "people.csv").write_text(text, encoding="utf-8")
    found = DATASETS.build(f"csv:{file}?{options}")
    assert isinstance(found, TableDataset)
    return found


def test_numbers_are_scaled_and_categories_get_an_entry_each(tmp_path: Path):
    found = table(tmp_path)
    assert [(c.name, c.categories) for c in found.columns.columns] == [
        ("age", ()),
        ("city", ("Bergen, west", "Oslo")),
        ("zip", ("1000", "2000")),
    ]
    assert found.rows.tolist() == [[0, 0, 1, 1, 0], [0.5, 1, 0, 0, 1], [1, 0, 1, 1, 0]]
    assert found.classes == ("no", "yes")
    assert found.labels.tolist() == [1, 0, 0]
    assert found.notes == ("1 of 4 rows have an empty cell and are left out",)


def test_a_row_is_shown_as_its_file_has_it(tmp_path: Path):
    found = table(tmp_path)
    assert found.columns.show(found.rows[1:2]) == ["age=40, city=Bergen, west, zip=2000"]


def test_cells_are_right_within_the_tolerance_of_their_column(tmp_path: Path):
    found = table(tmp_path)
    guess = found.rows[:1].clone()
    guess[0, 0] += 0.12  # 2.4 years of a deviation of 8.2: within 0.319 of it
    guess[0, 1:3] = torch.tensor([0.4, 0.45])
    assert found.columns.right(found.rows[:2], guess).tolist() == [[[True, True, True]], [[False, False, False]]]
    guess[0, 0] += 0.05
    assert not bool(found.columns.right(found.rows[:1], guess)[0, 0, 0])


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (TEXT, "target=sick", "no column 'sick', which `target` names"),
        (TEXT, "target=ill&drop=ids", "no column 'ids', which `drop` names"),
        ("a,b\n1,2,3\n", "target=b", "line 2, has 3 cells, and there are 2 columns"),
        ("a,a\n1,2\n", "target=a", "two columns called 'a'"),
        ("a,b\n", "target=b", "no rows below its header"),
        ("a,b\n1,\n2,\n", "target=b", "no row without an empty cell"),
        ("a,b\n1,x\n2,x\n", "target=b", "the target 'b' has 1 different values"),
        ("b\nx\ny\n", "target=b", "no column beside its target"),
        (TEXT, "target=ill&most=2", "column 'id' has 3 different values that are no numbers"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, options: str, words: str):
    with pytest.raises(InputError, match=words):
        table(tmp_path, text, options)


def test_a_category_nobody_had_is_named(tmp_path: Path):
    city = table(tmp_path).columns.columns[1]
    with pytest.raises(InputError, match="column 'city' has no category 'Osle'"):
        city.encode(["Osle"])


def test_a_word_among_numbers_is_named(tmp_path: Path):
    age = table(tmp_path).columns.columns[0]
    with pytest.raises(InputError, match="column 'age' holds numbers, and 'old' is none"):
        age.encode(["old"])


@pytest.mark.parametrize(("name", "columns"), [("census:rows=50", 12), ("tumours", 30)])
def test_tables_that_come_along_are_in_range(name: str, columns: int):
    found = DATASETS.build(name)
    assert isinstance(found.encoding, Columns)
    assert len(found.encoding.columns) == columns
    assert float(found.inputs.min()) >= 0
    assert float(found.inputs.max()) <= 1
    assert set(found.labels.tolist()) == {0, 1}
