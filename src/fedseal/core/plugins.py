"""Other people's code: what `package.module:attribute` names, and what installed packages offer by entry points.

Whoever names a module has it imported, and importing runs it: a scenario that names one is code, not data. Nothing
is imported before it is named or listed.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.core.specs import near_matches

_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_REFERENCE = re.compile(rf"{_DOTTED}:{_DOTTED}")


@dataclass(frozen=True)
class Offer:
    """An entry point: the name it is listed under, what it refers to, and the package that brings it."""

    name: str
    reference: str
    package: str


def offers(group: str) -> list[Offer]:
    """Return what installed packages offer in a group, in a fixed order; nothing is imported."""
    found = {
        Offer(point.name, point.value.partition("[")[0].strip(), point.dist.name if point.dist else "?")
        for point in metadata.entry_points(group=group)
    }
    return sorted(found, key=lambda offer: (offer.name, offer.package, offer.reference))


def is_reference(text: str) -> bool:
    """Tell whether a text has the form `package.module:attribute`."""
    return _REFERENCE.fullmatch(text) is not None


def load_reference(reference: str, *, hint: str = "") -> Any:
    """Import the module of `module:attribute`, or of `module` alone, and return what is named.

    Args:
        reference: what to load.
        hint: added where the module cannot be found, which may be a misspelt name.
    """
    module, _, attribute = reference.partition(":")
    value: Any = _import(module, hint)
    for part in attribute.split(".") if attribute else ():
        if not hasattr(value, part):
            known = [name for name, item in vars(value).items() if callable(item) and not name.startswith("_")]
            raise UsageError(f"{module!r} has no attribute {attribute!r}.", hint=near_matches(part, known))
        value = getattr(value, part)
    return value


def _import(module: str, hint: str) -> Any:
    try:
        with blamed_on(f"importing {module!r} failed", but=ImportError), same_weights_each_time():
            return importlib.import_module(module)
    except ImportError as error:
        where = "It must be importable from here (PYTHONPATH)."
        raise UsageError(f"cannot import {module!r}: {error}.", hint=f"{where} {hint}".strip()) from error


@contextmanager
def same_weights_each_time() -> Iterator[None]:
    """Seed what a module draws while it is imported, so that a model built there is one model in every process."""
    import random

    import numpy as np
    import torch

    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


@contextmanager
def blamed_on(what: str, but: type[Exception] = FedsealError, hint: str = "") -> Iterator[None]:
    """Turn whatever other people's code raises, `but` this, into one line that says what it was doing.

    Also an attempt to leave: a module that calls `sys.exit()` would else end an audit with exit code 0.
    """
    try:
        yield
    except (FedsealError, but):
        raise
    except (Exception, SystemExit) as error:
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise InputError(
            f"{what}: {type(error).__name__}: {reason}.", hint=hint or "Check its options and its code."
        ) from error
