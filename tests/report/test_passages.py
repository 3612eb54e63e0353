"""Texts and records beside each other: words are whole, what differs is marked, and every cell has a line."""

from __future__ import annotations

from fedseal.report.passages import compared, compared_cells


def test_pieces_of_a_word_are_put_together_and_what_differs_is_marked() -> None:
    passage = compared(["hel", "##d", "host", "##age"], ["hel", "##d", "ton", "##age"])
    assert [(piece.text, piece.same, piece.glued) for piece in passage.original] == [
        ("held", True, False),
        ("host", False, False),
        ("age", True, True),
    ]
    assert [piece.text for piece in passage.recovered] == ["held", "ton", "age"]
    assert not passage.cells


def test_records_are_compared_cell_by_cell() -> None:
    passage = compared_cells(["age=24", "sex=male"], ["age=53", "sex=male"])
    assert passage.cells
    assert [(piece.text, piece.same) for piece in passage.recovered] == [("age=53", False), ("sex=male", True)]
