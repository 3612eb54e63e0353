"""Configuration files: YAML into a validated model, with errors that name file, line and key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError

from fedseal.core.errors import InputError, UsageError
from fedseal.core.files import PathText
from fedseal.core.registry import near_matches
from fedseal.core.specs import quoted

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
Numbers = Annotated[tuple[int, ...], BeforeValidator(_one_or_many)]
"""Whole numbers, likewise."""

Source: TypeAlias = BaseModel | Mapping[str, Any] | PathText
"""What a configuration can be given as: itself, plain values, a YAML file, or YAML text."""

_DOCUMENTS = {"train": "docs/training.md", "tradeoff": "docs/tradeoff.md", "supernode": "docs/sealing.md"}
_COMMANDS = {"supernode": "fedseal-supernode"}
_YAML_TEXT = re.compile(r"\n|:\s")


def configure(source: Source | None, model: type[M], values: Mapping[str, Any], *, command: str) -> M:
    """Return a configuration from whatever a caller has, with further values on top.

    Args:
        source: see `Source`; None for the model's defaults. Text with a line break or a colon and a blank is YAML, any
            other text is a path.
        model: what it must become.
        values: keys to replace; a mapping replaces single keys inside of a part.
        command: of fedseal, named in hints.
    """
    chosen = _read_source(source, model, command)
    if not values:
        return chosen
    merged = chosen.model_dump(mode="json")
    for key, value in values.items():
        merge = isinstance(value, Mapping) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **value} if merge else value
    return validate_config(merged, model, source="the options given", command=command)


def _read_source(source: Source | None, model: type[M], command: str) -> M:
    if isinstance(source, model):
        return source
    if source is None or isinstance(source, Mapping):
        return validate_config(dict(source or {}), model, source="the values given", command=command)
    if isinstance(source, str) and _YAML_TEXT.search(source):
        return parse_config(source, model, source="the text given", command=command)
    if isinstance(source, str | os.PathLike):
        return read_config(source, model, command=command)
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
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no scenario file {path}.", hint=f"Run `fedseal {command}` alone for the preset."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the scenario {path}: {error}.", hint="It must be a UTF-8 YAML file.") from error
    return parse_config(text, model, source=str(path), command=command)


def parse_config(text: str, model: type[M], *, source: str, command: str) -> M:
    """Read YAML text into a model; errors name `source`, line and key."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(
            f"{source}, line {line}: {error.problem or error.context}.", hint="Check indentation, colons and quotes."
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{source}, line {line}: {error.reason}.", hint="Remove the character.") from error
    if not isinstance(values, dict):
        raise UsageError(f"{source} does not hold a mapping.", hint="Start with a line such as `data: faces`.")
    return validate_config(values, model, source=source, command=command, node=node)


def validate_config(
    values: dict[str, Any], model: type[M], *, source: str, command: str, node: yaml.Node | None = None
) -> M:
    """Validate plain values into a model; the error names the key, and the line where there is one."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        found = error.errors()
        first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])  # a slip explains a gap
        path = [part for part in first["loc"] if part != "__root__"]
        key = ".".join(map(str, path))
        line = _line_of(node, path)
        where = f"{source}, line {line}" if line else source
        if first["type"] == "extra_forbidden":
            raise UsageError(
                f"{where}: there is no key {key!r}.", hint=near_matches(str(path[-1]), list(_known_keys(model, path)))
            ) from error
        raise UsageError(
            f"{where}: key {key!r} cannot be {first['input']!r}: {_sentence(first['msg'])}.",
            hint=f"`{_COMMANDS.get(command, f'fedseal {command}')} --help` and "
            f"{_DOCUMENTS.get(command, 'docs/scenario.md')} describe the keys.",
        ) from error


def _sentence(message: str) -> str:
    return message[0].lower() + message[1:].removeprefix("alue error, ") if message else message


def _known_keys(model: type[BaseModel], path: list[Any]) -> Iterator[str]:
    for part in path[:-1]:
        annotation = model.model_fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    yield from model.model_fields


def _line_of(node: yaml.Node | None, path: list[Any]) -> int | None:
    line = None
    for part in path:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            if pair is None:
                return line
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line
    return line
