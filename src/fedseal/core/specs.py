"""Specs: how a person writes a configured entry of a registry."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedseal.core.errors import UsageError


@dataclass(frozen=True)
class Spec:
    """A name with options: the parsed form of `name:key=value,...`.

    Everything after the first colon is kept whole in `argument` when it holds no `=`, so that `npz:PATH` and
    `folder:PATH` are specs too, as is `package.module:attribute`; with options its name is the whole reference.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    argument: str | None = None

    def __str__(self) -> str:
        if self.argument is not None:
            return f"{self.name}:{self.argument}"
        if not self.options:
            return self.name
        return f"{self.name}:" + ",".join(f"{key}={value}" for key, value in self.options.items())


_BEFORE_OPTIONS = re.compile(r"([A-Za-z_][\w.]*):(?=[^:,=]+=)")


def parse_spec(text: str) -> Spec:
    """Parse `name`, `name:key=value,key=value`, `name:argument` or `module:attribute:key=value`."""
    name, colon, rest = text.strip().partition(":")
    if (attribute := _BEFORE_OPTIONS.match(rest)) and "=" in rest:
        name, rest = f"{name}:{attribute[1]}", rest[attribute.end() :]
    if not name:
        raise UsageError(f"{text!r} names nothing.", hint="Write NAME or NAME:key=value,key=value.")
    if not colon:
        return Spec(name)
    if "=" not in rest:
        if not rest:
            raise UsageError(f"{text!r} ends in a colon.", hint="Write NAME:key=value,key=value.")
        return Spec(name, argument=rest)
    options: dict[str, str] = {}
    for part in rest.split(","):
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key or not value:
            raise UsageError(f"{part!r} in {text!r} is not key=value.", hint="Write NAME:key=value,key=value.")
        if key in options:
            raise UsageError(f"option {key!r} is given twice in {text!r}.", hint="Give it once.")
        options[key] = value.strip()
    return Spec(name, options)


def near_matches(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the names closest to `name`, or all of them when none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(repr(match) for match in close) + "?"
    return "Known: " + ", ".join(names) + "." if names else "None are known."
