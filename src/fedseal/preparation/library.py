"""The library: returns what was trained, from the cache or by training it now."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from fedseal.core.errors import InputError
from fedseal.core.sources import code_digest
from fedseal.core.trainable import Saved, Trainable
from fedseal.core.watcher import Task, Tick, Watcher
from fedseal.data.places import cache_directory
from fedseal.preparation.files import SUFFIX, UNFINISHED, Header, read, write

P = TypeVar("P")

SAVE_SECONDS = 20.0
"""The least time between two states of a training on disk: what a kill can cost."""


@dataclass(frozen=True)
class Library:
    """Trained things by identity, below one directory.

    Attributes:
        directory: where they are kept; None keeps nothing, and finds nothing.
        save_seconds: least time between two states on disk.
    """

    directory: Path | None
    save_seconds: float = SAVE_SECONDS

    def path(self, what: Trainable[Any]) -> Path | None:
        """Return where it is kept once it is trained."""
        return None if self.directory is None else self.directory / what.kind / f"{what.identity[:32]}{SUFFIX}"

    def has(self, what: Trainable[Any]) -> bool:
        """Return whether there is a file of its name."""
        path = self.path(what)
        return path is not None and path.is_file()

    def find(self, what: Trainable[P]) -> P | None:
        """Return what was trained, if it is there; a file of that name that holds something else is refused."""
        path = self.path(what)
        if path is None or not path.is_file():
            return None
        header, saved = read(path)
        if header.identity != what.identity:
            raise InputError(f"{path} holds something else: {header.title}.", hint="Delete it and prepare again.")
        return what.load(saved)

    def get(self, what: Trainable[P], watcher: Watcher | None = None) -> P:
        """Return what was trained, training it if it is not there, and going on with what was begun."""
        found = self.find(what)
        return self._fit(what, watcher or Watcher()) if found is None else found

    def _fit(self, what: Trainable[P], watcher: Watcher) -> P:
        path = self.path(what)
        unfinished = _UnfinishedFile(what, None if path is None else path.with_name(path.stem + UNFINISHED), self)
        task = Task(what.title, what.size, unfinished.header.done, key=what.identity)
        watcher.started(task)

        def report(tick: Tick) -> None:
            unfinished.header = replace(unfinished.header, done=tick.done)
            watcher.advanced(task, tick)

        trained = what.fit(report, unfinished)
        if path is not None:
            whole = replace(unfinished.now(), done=what.size)
            write(path, whole, what.save(trained), private=what.private)
            unfinished.discard()
        watcher.finished(task, 1)
        return trained


class _UnfinishedFile:
    """The state of a training in a file beside its outcome; without a path it is kept nowhere."""

    def __init__(self, what: Trainable[Any], path: Path | None, library: Library) -> None:
        self._what, self._path, self._every = what, path, library.save_seconds
        code = code_digest(what.modules)
        self.header = Header(what.identity, what.title, what.modules, code, torch.__version__, 0.0, 0.0, what.size)
        self._held = self._read()
        self._started = self._saved = time.perf_counter()
        self._before = self.header.seconds

    def load(self) -> Saved | None:
        return self._held

    def save(self, state: Saved) -> None:
        if self._path is not None and time.perf_counter() - self._saved >= self._every:
            write(self._path, self.now(), state, private=self._what.private)
            self._saved = time.perf_counter()

    def now(self) -> Header:
        """Return the header with the time spent so far."""
        return replace(self.header, seconds=self._before + time.perf_counter() - self._started)

    def discard(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self) -> Saved | None:
        if self._path is None or not self._path.is_file():
            return None
        header, saved = read(self._path)
        if header.identity != self._what.identity:
            return None
        self.header = header
        return saved


def library() -> Library:
    """Return the library in the user's cache."""
    return Library(cache_directory() / "prepared")
