"""Files written whole or not at all, with errors that say which file and what to do."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import TypeAlias

from fedseal.core.errors import StorageError

PathText: TypeAlias = str | os.PathLike[str]
"""A path as callers write it: text or a `Path`."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def storage_error(path: Path, error: OSError) -> StorageError:
    """Turn an operating system error on `path` into one a person can act on."""
    if error.errno in _FULL:
        return StorageError(
            f"no space left to write {path}.", hint="Free some space and run the same command again: it resumes."
        )
    reason = (error.strerror or str(error)).lower()
    return StorageError(f"cannot write {path}: {reason}.", hint="Choose a writable directory with --out.")


def write_atomically(path: Path, content: bytes | str, *, mode: int = 0o644) -> None:
    """Write `content` to `path` so that a reader, or a crash, sees the old file or the new one, never a part.

    The file has that `mode`; until it is whole, nobody but its owner can read it.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        if temporary is not None:
            os.unlink(temporary)
