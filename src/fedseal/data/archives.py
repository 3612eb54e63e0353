"""Downloaded archives, read in memory and never unpacked to disk, so no member can land where it should not.

Still every name is checked: an archive that tries to climb out of its directory is not the one we asked for.
"""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from fedseal.core.errors import InputError

LARGEST_TOTAL = 1 << 30
"""Bytes all members of an archive may unpack to."""

_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, OSError)
_AGAIN = "Delete it and fetch again; if it stays, report it."


def read_members(path: Path, limits: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the members of a .tgz, .tar.gz, .whl or .zip that `limits` names, in its order.

    Args:
        path: the archive.
        limits: member name to the most bytes it may have.

    Refuses absolute names and `..` anywhere in the archive, wanted members that are links or too large, archives
    that unpack to more than LARGEST_TOTAL, and archives that lack a wanted member.
    """
    missing = set(limits)
    try:
        members = _zip_members if path.suffix in {".whl", ".zip"} else _tar_members
        for name, content in members(path, limits):
            missing.discard(name)
            yield name, content
    except _DAMAGE as error:
        raise InputError(f"{path} is not a readable archive: {error}.", hint=_AGAIN) from error
    if missing:
        raise InputError(f"{path} lacks {', '.join(sorted(missing))}.", hint=_AGAIN)


def _tar_members(path: Path, limits: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    total = 0
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            total += member.size
            _check(path, member.name, member.size, total, limits)
            if member.name not in limits:
                continue
            file = archive.extractfile(member) if member.isreg() else None
            if file is None:
                raise InputError(f"{path}: {member.name!r} is not a plain file.", hint=_AGAIN)
            yield member.name, file.read()


def _zip_members(path: Path, limits: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            total += member.file_size
            _check(path, member.filename, member.file_size, total, limits)
            if member.filename in limits:
                yield member.filename, archive.read(member)


def _check(path: Path, name: str, size: int, total: int, limits: Mapping[str, int]) -> None:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name or ":" in name:
        raise InputError(f"{path}: the member {name!r} points outside the archive.", hint=_AGAIN)
    if size > limits.get(name, LARGEST_TOTAL) or total > LARGEST_TOTAL:
        raise InputError(f"{path}: the member {name!r} is too large ({size:,} bytes).", hint=_AGAIN)
