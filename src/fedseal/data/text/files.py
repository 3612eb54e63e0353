"""Texts from files: tables with a column of texts and one of labels, JSON lines, or one text per line."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedseal.core.errors import InputError

_TEXT_NAMES = ("text", "sentence", "note", "content")
_LABEL_NAMES = ("label", "class", "target")
_LARGEST = 512 * 2**20


@dataclass(frozen=True)
class Labelled:
    """Texts with the class of each, by name."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]


def read_texts(path: Path, text: str | None = None, label: str | None = None) -> Labelled:
    """Read a file by its ending: .tsv, .csv, .jsonl, .txt, each also with .gz behind it.

    Args:
        path: the file.
        text, label: names of its columns; found by the usual names if None. A .txt file has no labels.
    """
    kind = (path.suffixes[-2:-1] if path.suffix == ".gz" else path.suffixes[-1:]) or [""]
    if kind[0] not in (".tsv", ".csv", ".jsonl", ".txt"):
        raise InputError(f"{path.name} is no table of texts.", hint="Known endings: .tsv, .csv, .jsonl, .txt (.gz).")
    content = _content(path)
    if kind[0] == ".txt":
        lines = [line for line in content.splitlines() if line.strip()]
        return _checked(path, lines, ["text"] * len(lines))
    rows = list(_json_rows(path, content) if kind[0] == ".jsonl" else _table_rows(content, kind[0]))
    if not rows:
        raise InputError(f"{path.name} holds no text.", hint="It needs a header line and a line per text.")
    names = (_column(path, rows[0], text, _TEXT_NAMES, "column"), _column(path, rows[0], label, _LABEL_NAMES, "label"))
    missing = next((place for place, row in enumerate(rows) if any(row.get(name) is None for name in names)), None)
    if missing is not None:
        raise InputError(
            f"{path.name}, entry {missing + 1}: {' or '.join(names)} is missing.", hint="Give every entry both."
        )
    return _checked(path, [str(row[names[0]]) for row in rows], [str(row[names[1]]) for row in rows])


def _content(path: Path) -> str:
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as unpacked:
                data = unpacked.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise InputError(f"{path.name} holds more than {_LARGEST // 2**20} MiB of text.", hint="Use a part of it.")
        return data.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}.", hint="It must be a text file in UTF-8.") from error


def _table_rows(content: str, kind: str) -> Iterator[dict[str, str | None]]:
    if kind == ".tsv":
        yield from csv.DictReader(io.StringIO(content), delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        yield from csv.DictReader(io.StringIO(content))


def _json_rows(path: Path, content: str) -> Iterator[dict[str, str | None]]:
    for place, line in enumerate(content.splitlines()):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path.name}, line {place + 1} is no JSON: {error}.") from error
        if not isinstance(row, dict):
            raise InputError(
                f"{path.name}, line {place + 1} is no JSON mapping.", hint='Write {"text": ..., "label": ...}.'
            )
        yield row


def _column(path: Path, row: dict[str, str | None], name: str | None, usual: Sequence[str], what: str) -> str:
    found = [name] if name is not None else [one for one in usual if one in row]
    if not found or found[0] not in row:
        columns = ", ".join(str(one) for one in row)
        raise InputError(
            f"{path.name} has no column {name or ' or '.join(usual)}; it has {columns}.",
            hint=f"Name it: ?{what}=COLUMN.",
        )
    return found[0]


def _checked(path: Path, texts: Sequence[str], labels: Sequence[str]) -> Labelled:
    empty = next((place for place, text in enumerate(texts) if not text.strip()), None)
    if empty is not None:
        raise InputError(f"{path.name}: text {empty + 1} is empty.", hint="Leave empty texts out of the data.")
    if not texts:
        raise InputError(f"{path.name} holds no text.")
    return Labelled(tuple(texts), tuple(labels))
