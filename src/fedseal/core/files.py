"""Files written whole or not at all, with errors that say which file and what to do."""

from __future__ import annotations

import errno
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from fedseal.core.errors import InputError, StorageError
from fedseal.core.places import CACHE_VARIABLE, is_cached

PathText: TypeAlias = str | os.PathLike[str]
"""A path as callers write it: text or a `Path`."""

PRIVATE = 0o600
"""Mode of files that hold private data, or what may equal it: readable by their owner only."""

OPEN = 0o666
"""Mode of all other files; the umask decides who reads them."""
_TEMPORARY = ".tmp"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def local_path(path: PathText) -> Path:
    """Return a path with `~` written out, or refuse one that no file can have."""
    try:
        full = Path(path).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            os.stat(full)  # the system knows how long a name may be
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        shown = str(path) if len(str(path)) <= 120 else f"{str(path)[:120]}..."
        raise InputError(f"{shown} cannot be a path: {str(reason).lower().rstrip('.')}.", hint="Check it.") from error
    return full


def storage_error(path: Path, error: OSError) -> StorageError:
    """Turn an operating system error on `path` into one a person can act on."""
    if error.errno in _FULL:
        return StorageError(
            f"no space left to write {path}.", hint="Free some space and run the same command again: it resumes."
        )
    reason = (error.strerror or str(error)).lower()
    option = CACHE_VARIABLE if is_cached(path) else "--out"
    return StorageError(f"cannot write {path}: {reason}.", hint=f"Choose a writable directory with {option}.")


def write_atomically(path: Path, content: bytes | str, *, mode: int = OPEN) -> None:
    """Write `content` to `path` so that a reader, or a crash, sees the old file or the new one, never a part.

    The file has that `mode`, less what the process's umask takes away, from its first byte on: `PRIVATE` is for what
    nobody but its owner may read.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        name = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_TEMPORARY}")
        handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
        temporary = name
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink()


def remove_temporaries(directory: Path, *, older_than: float = 0.0) -> int:
    """Remove what writers that were killed left unfinished below `directory`, and return how many files that was.

    Args:
        directory: and everything below it.
        older_than: seconds since the last write; a younger one may still have its writer.
    """
    limit, removed = time.time() - older_than, 0
    for path in directory.rglob(f".*{_TEMPORARY}"):
        try:
            if path.is_file() and not path.is_symlink() and path.stat().st_mtime <= limit:
                path.unlink()
                removed += 1
        except FileNotFoundError:
            continue  # its writer has just finished it
        except OSError as error:
            raise storage_error(path, error) from error
    return removed
