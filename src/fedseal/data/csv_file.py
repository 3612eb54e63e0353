"""`csv:PATH?target=COLUMN`: a table of yours."""

from __future__ import annotations

import csv as reader
from pathlib import Path

from fedseal.core.errors import InputError
from fedseal.core.files import local_path
from fedseal.core.limits import check_memory
from fedseal.core.ranges import Count
from fedseal.core.registry import Info
from fedseal.core.specs import near_matches
from fedseal.data.registry import DATASETS
from fedseal.data.table import MOST_CATEGORIES, TableDataset, as_table

_BYTES_PER_CELL = 64


@DATASETS.register("csv", Info(summary="a table of yours: csv:PATH?target=COLUMN"))
def csv(
    path: Path,
    target: str,
    categorical: str = "",
    drop: str = "",
    group: str | None = None,
    separator: str = ",",
    most: Count = MOST_CATEGORIES,
) -> TableDataset:
    """Return the table in a file: `csv:PATH?target=income&categorical=zip&drop=id`.

    Args:
        path: a text file in UTF-8 whose first line names the columns. Columns of numbers are scaled to [0, 1] by their
            least and greatest value, all others are categories, one entry each.
        target: the column to be learnt; its values are the classes.
        categorical: columns of numbers that are categories, with `|` between them.
        drop: columns to leave out, with `|` between them.
        group: column that says whose a row is: no two parts of the data share one, and models are not fed it.
        separator: between cells; `tab` for a tabulator.
        most: categories of a column, at most.

    Rows with an empty cell are left out and counted.
    """
    header, cells = _read(local_path(path), "\t" if separator == "tab" else separator)
    named = {
        "target": [target],
        "categorical": _list(categorical),
        "drop": _list(drop),
        "group": [group] if group else [],
    }
    for option, columns in named.items():
        for column in columns:
            if column not in header:
                raise InputError(
                    f"{path} has no column {column!r}, which `{option}` names.", hint=near_matches(column, header)
                )
    kept = [place for place, name in enumerate(header) if name not in named["drop"] or name == target]
    rows = [[row[place].strip() for place in kept] for row in cells]
    full = [row for row in rows if all(row)]
    if not full:
        raise InputError(f"{path} has no row without an empty cell.", hint="Fill cells, or `drop` empty columns.")
    left = len(rows) - len(full)
    notes = (f"{left} of {len(rows)} rows have an empty cell and are left out",) if left else ()
    names = [header[place] for place in kept]
    return as_table(
        Path(path).stem, names, full, target, categorical=named["categorical"], group=group, most=most, notes=notes
    )


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split("|") if part.strip()]


def _read(path: Path, separator: str) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a file."""
    if not path.is_file():
        raise InputError(f"there is no file {path}.", hint="Check the path; write csv:PATH?target=COLUMN.")
    if len(separator) != 1:
        raise InputError(f"cells cannot be separated by {separator!r}.", hint="Use one character, or `tab`.")
    check_memory(path.stat().st_size * _BYTES_PER_CELL // 8, f"{path}, read,")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [line for line in reader.reader(file, delimiter=separator, strict=True) if line]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}.", hint="Check the file.") from error
    except (UnicodeDecodeError, reader.Error) as error:
        raise InputError(f"{path} is not a readable table: {error}.", hint="Save it as UTF-8 text.") from error
    if len(lines) < 2:
        raise InputError(f"{path} has no rows below its header.", hint="The first line names the columns.")
    header = [name.strip() for name in lines[0]]
    if len(set(header)) != len(header) or not all(header):
        twice = next((name for name in header if header.count(name) > 1), "")
        raise InputError(f"{path} has two columns called {twice!r}.", hint="Give every column a name of its own.")
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(header):
            raise InputError(
                f"{path}, line {number}, has {len(line)} cells, and there are {len(header)} columns.",
                hint="Check separators and quotes; another separator is told by `separator`.",
            )
    return header, lines[1:]
