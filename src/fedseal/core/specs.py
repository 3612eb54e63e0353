"""Specs: how a person writes a configured entry of a registry."""

from __future__ import annotations

import ast
import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from fedseal.core.errors import UsageError


@dataclass(frozen=True)
class Spec:
    """A name with options: the parsed form of `name:key=value,...`, or of `name:argument?key=value&...`.

    Everything after the first colon is kept whole in `argument` when it holds no `=`, so that `npz:PATH` and
    `folder:PATH` are specs too, as is `package.module:attribute`; with options behind a second colon its name is the
    whole reference. Options behind a question mark may hold commas; there `%26` stands for `&`, as in an address.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    argument: str | None = None

    def __str__(self) -> str:
        name = self.name if self.argument is None else f"{self.name}:{self.argument}"
        if not self.options:
            return name
        if self.argument is not None or any("," in str(value) for value in self.options.values()):
            return f"{name}?" + "&".join(f"{key}={quoted(value)}" for key, value in self.options.items())
        return f"{name}:" + ",".join(f"{key}={value}" for key, value in self.options.items())


_BEFORE_OPTIONS = re.compile(r"([A-Za-z_][\w.]*):(?=[^:,=]+=)")
_QUERY = re.compile(r"\?(?=[A-Za-z_][\w-]*=)")
_DIRECTORIES = re.compile(r"[^\s,=:?&]*/")


def quoted(value: Any) -> str:
    """Return an option's value as it is written behind a question mark."""
    return quote(str(value), safe="/:,.~ []()+@*'\"")


def parse_spec(text: str) -> Spec:
    """Parse `name`, `name:key=value,key=value`, `name:argument`, `module:attribute:key=value`, `name?key=value&...`.

    The question mark's form is for values with commas: `folder:photos, 2024?size=64&channels=1`.
    """
    if not isinstance(text, str):
        raise UsageError(f"{shortened(text)} names nothing.", hint="Write NAME or NAME:key=value,key=value.")
    if query := _QUERY.search(text):
        base = parse_spec(text[: query.start()])
        if base.options:
            raise UsageError(f"{shortened(text)} has options before the question mark.", hint="Write all behind it.")
        parts = [unquote(part) for part in text[query.end() :].split("&")]
        return Spec(base.name, _options(parts, text), base.argument)
    name, colon, rest = text.strip().partition(":")
    if (attribute := _BEFORE_OPTIONS.match(rest)) and "=" in rest:
        name, rest = f"{name}:{attribute[1]}", rest[attribute.end() :]
    if not name:
        raise UsageError(f"{shortened(text)} names nothing.", hint="Write NAME or NAME:key=value,key=value.")
    if not colon:
        return Spec(name)
    if "=" not in rest:
        if not rest:
            raise UsageError(f"{shortened(text)} ends in a colon.", hint="Write NAME:key=value,key=value.")
        return Spec(name, argument=rest)
    return Spec(name, _options(rest.split(","), text))


def without_directories(text: str) -> str:
    """Return a spec whose paths have lost their directories: where files lie is no part of a file that is passed on."""
    return _DIRECTORIES.sub("", text)


def _options(parts: Sequence[str], text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key or not value:
            raise UsageError(
                f"{shortened(part)} in {shortened(text)} is not key=value.",
                hint="Write NAME:key=value,key=value; a value with a comma, NAME?key=value&key=value.",
            )
        if key in options:
            raise UsageError(f"option {shortened(key)} is given twice in {shortened(text)}.", hint="Give it once.")
        options[key] = value.strip()
    return options


def plain_value(text: str) -> Any:
    """Return what a text stands for where nothing declares its type: a number, a truth, None, a list, or itself."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def shortened(value: Any, most: int = 60) -> str:
    """Return a value as Python writes it, cut where it is long; nothing of it is expanded beyond that."""
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = brief.maxlong = most
    brief.maxlevel, brief.maxdict = 2, 4
    return brief.repr(value)


def near_matches(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the names closest to `name`, or all of them when none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(repr(match) for match in close) + "?"
    return "Known: " + ", ".join(names) + "." if names else "None are known."
