"""Configuration files: YAML into a validated model, with errors that name file, line and key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError

from fedseal.core.errors import InputError, UsageError
from fedseal.core.files import PathText
from fedseal.core.ranges import Seed
from fedseal.core.registry import near_matches
from fedseal.core.specs import quoted, shortened
from fedseal.core.yaml_text import line_of, read_yaml

M = TypeVar("M", bound=BaseModel)


def _plain(name: str) -> str:
    if not name or not all(c.isalnum() or c in "-_." for c in name):
        raise ValueError("a name is made of letters, digits, '-', '_' and '.'")
    return name


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str | int) else value


def _one_text(value: Any) -> Any:
    """Write `{name: pkg.mod:Net, width: 32}` as one spec."""
    if not isinstance(value, Mapping):
        return value
    options = {str(key): option for key, option in value.items() if key != "name" and option is not None}
    if not isinstance(value.get("name"), str):
        raise ValueError("a mapping needs the key `name`, such as `name: my_package.nets:Net`")
    if any(isinstance(option, Mapping) for option in options.values()):
        raise ValueError("options are single values or lists")
    query = "&".join(f"{key}={quoted(option)}" for key, option in options.items())
    return f"{value['name']}?{query}" if query else value["name"]


ModelText = Annotated[str, BeforeValidator(_one_text)]
"""A spec; it may be written as a mapping of its name and its options."""
PlainName = Annotated[str, AfterValidator(_plain)]
"""A name that is also good for a file."""
Texts = Annotated[tuple[str, ...], BeforeValidator(_one_or_many)]
"""Texts; one alone needs no brackets."""
Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_one_or_many)]
"""Seeds, likewise."""

Source: TypeAlias = BaseModel | Mapping[str, Any] | PathText
"""What a configuration can be given as: itself, plain values, a YAML file, or YAML text."""

_DOCUMENTS = {"train": "docs/training.md", "tradeoff": "docs/tradeoff.md", "supernode": "docs/sealing.md"}
_COMMANDS = {"supernode": "fedseal-supernode"}
_YAML_TEXT = re.compile(r"\n|:\s")
_MOST_PROBLEMS = 5
LARGEST_FILE = 1 << 20
"""Bytes a scenario may have."""


@dataclass(frozen=True)
class Plain:
    """What a configuration was given as, before it is validated.

    Attributes:
        values: plain ones, by key.
        source: what to call it in messages.
        node: the YAML it came from, which knows its lines.
    """

    values: dict[str, Any]
    source: str
    node: yaml.Node | None = None


def configure(source: Source | None, model: type[M], values: Mapping[str, Any], *, command: str) -> M:
    """Return a configuration from whatever a caller has, with further values on top.

    Args:
        source: see `Source`; None for the model's defaults. Text with a line break or a colon and a blank is YAML, any
            other text is a path.
        model: what it must become.
        values: keys to replace; a mapping replaces single keys inside of a part.
        command: of fedseal, named in hints.
    """
    chosen = source if isinstance(source, model) else _validated(plain_values(source, model, command), model, command)
    if not values:
        return chosen
    merged = with_values(chosen.model_dump(mode="json"), values)
    return validate_config(merged, model, source="the options given", command=command)


def with_values(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values with others on top; a mapping replaces single keys inside of a part."""
    merged = dict(base)
    for key, value in values.items():
        merge = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = {**merged[key], **value} if merge else value
    return merged


def plain_values(source: Source | None, model: type[BaseModel], command: str) -> Plain:
    """Return what a caller gave as plain values; see `configure`."""
    if isinstance(source, model):
        return Plain(source.model_dump(mode="json"), "the values given")
    if source is None or isinstance(source, Mapping):
        return Plain(dict(source or {}), "the values given")
    if isinstance(source, str) and _YAML_TEXT.search(source):
        return _parsed(source, "the text given")
    if isinstance(source, str | os.PathLike):
        return _read(Path(source), command)
    raise UsageError(
        f"a {model.__name__} cannot be made of {type(source).__name__}.",
        hint="Give one, a mapping, the path of a YAML file, or YAML text.",
    )


def read_config(path: PathText, model: type[M], *, command: str) -> M:
    """Read a YAML file into a model.

    Args:
        path: the file.
        model: what it must be.
        command: of fedseal, named in hints.
    """
    return _validated(_read(Path(path), command), model, command)


def parse_config(text: str, model: type[M], *, source: str, command: str) -> M:
    """Read YAML text into a model; errors name `source`, line and key."""
    return _validated(_parsed(text, source), model, command)


def _read(path: Path, command: str) -> Plain:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is too large for a scenario.", hint=f"At most {LARGEST_FILE >> 20} MiB are read.")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no scenario file {path}.", hint=f"Run `fedseal {command}` alone for the preset."
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"cannot read the scenario {shortened(str(path), 120)}: {reason}.", hint="It must be a UTF-8 YAML file."
        ) from error
    return _parsed(text, str(path))


def _parsed(text: str, source: str) -> Plain:
    node, values = read_yaml(text, source)
    if not isinstance(values, dict):
        raise UsageError(f"{source} does not hold a mapping.", hint="Start with a line such as `data: faces`.")
    return Plain(values, source, node)


def _validated(plain: Plain, model: type[M], command: str) -> M:
    return validate_config(plain.values, model, source=plain.source, command=command, node=plain.node)


def validate_config(
    values: dict[str, Any], model: type[M], *, source: str, command: str, node: yaml.Node | None = None
) -> M:
    """Validate plain values into a model; the error names every wrong key, and the lines where there are any."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        found = error.errors()
        found.sort(key=lambda one: one["type"] != "extra_forbidden")  # a slip explains a gap
        problems = [_problem(one, model, source, node) for one in found[:_MOST_PROBLEMS]]
        if len(found) > _MOST_PROBLEMS:
            problems.append(f"and {len(found) - _MOST_PROBLEMS} more.")
        asked = f"`{_COMMANDS.get(command, f'fedseal {command}')} --help`"
        described = f"{asked} and {_DOCUMENTS.get(command, 'docs/scenario.md')} describe the keys."
        only_unknown = all(one["type"] == "extra_forbidden" for one in found)
        raise UsageError(" ".join(problems), hint=None if only_unknown else described) from error


def _problem(found: Any, model: type[BaseModel], source: str, node: yaml.Node | None) -> str:
    """Return what is wrong with one key, as a sentence."""
    path = [part for part in found["loc"] if part != "__root__"]
    key = shortened(".".join(map(str, path)))
    line = line_of(node, path)
    where = f"{source}, line {line}" if line else source
    if found["type"] == "extra_forbidden":
        known = _place_of(model, str(path[-1])) or near_matches(str(path[-1]), list(_known_keys(model, path)))
        return f"{where}: there is no key {key}. {known}"
    if not path:
        return f"{where}: {_sentence(found['msg'])}."
    return f"{where}: key {key} cannot be {shortened(found['input'])}: {_sentence(found['msg'])}."


def _sentence(message: str) -> str:
    text = message.removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def _place_of(model: type[BaseModel], key: str) -> str | None:
    """Return in which of the model's parts a key belongs, as a sentence; None where no part has it."""
    for name, field in model.model_fields.items():
        part = field.annotation
        if isinstance(part, type) and issubclass(part, BaseModel) and key in part.model_fields:
            return f"It belongs under {name}: `{name}: {{{key}: ...}}`."
    return None


def _known_keys(model: type[BaseModel], path: list[Any]) -> Iterator[str]:
    for part in path[:-1]:
        annotation = model.model_fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    yield from model.model_fields
