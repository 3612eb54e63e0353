"""Results as rows, for CSV: what is nested is spread over columns with dots in their names."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV with one header; a row without a column leaves it empty."""
    flat = [dict(_spread(row)) for row in rows]
    columns = list(dict.fromkeys(column for row in flat for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _spread(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _spread(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{name}", " ".join(map(str, value))
        else:
            yield f"{prefix}{name}", value
