"""YAML as a scenario may use it: within limits, without keys given twice, and errors that name the line.

PyYAML takes the last of two equal keys and says nothing, expands aliases until memory is gone, and passes on whatever
its constructors raise for a date or a number that is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import yaml

from fedseal.core.errors import UsageError
from fedseal.core.specs import shortened

MOST_VALUES = 10_000
"""Keys and values a text may hold, aliases written out."""
DEEPEST = 20
"""Levels of lists and mappings."""

_MOST_OPEN = 200
_TOO_DEEP = f"lists and mappings are nested more than {DEEPEST} deep"


class _Loader(yaml.SafeLoader):
    """Constructs plain values; what cannot be constructed is an error at its line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, IndexError, TypeError, KeyError, OverflowError, AttributeError) as error:
            shown = shortened(getattr(node, "value", ""))
            reason = f"{shown} cannot be read as {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(None, None, reason, node.start_mark) from error


def read_yaml(text: str, source: str) -> tuple[yaml.Node | None, Any]:
    """Return the nodes and the values of YAML text, or refuse it; `source` names it in messages."""
    if _open_brackets(text) > _MOST_OPEN:  # PyYAML's scanner takes a time that grows with the square of these
        raise UsageError(f"{source}: {_TOO_DEEP}.", hint="A scenario needs three levels.")
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            _check(node, source)
        return node, yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(
            f"{source}, line {line}: {error.problem or error.context}.", hint="Check indentation, colons and quotes."
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{source}, line {line}: {error.reason}.", hint="Remove the character.") from error
    except RecursionError as error:
        raise UsageError(f"{source}: {_TOO_DEEP}.", hint="A scenario needs three levels.") from error


def _open_brackets(text: str) -> int:
    """Return how many brackets are open at most at one place, those in quotes among them."""
    steps = {"[": 1, "{": 1, "]": -1, "}": -1}
    depths = accumulate((steps[letter] for letter in text if letter in steps), lambda depth, step: max(0, depth + step))
    return max(depths, default=0)


def line_of(node: yaml.Node | None, path: list[Any]) -> int | None:
    """Return the line of a key, as far down its path as there is one."""
    line = None
    for part in path:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            if pair is None:
                return line
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def _check(root: yaml.Node, source: str) -> None:
    """Refuse keys given twice, and what would grow or go on without end; aliases are not followed twice."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node, depth: int) -> int:
        if id(node) in open_nodes:
            raise _refused(source, node, "a value holds itself by an alias")
        if id(node) in sizes:
            return sizes[id(node)]
        if depth > DEEPEST:
            raise _refused(source, node, _TOO_DEEP)
        open_nodes.add(id(node))
        _check_keys(node, source)
        sizes[id(node)] = 1 + sum(size(child, depth + 1) for child in _children(node))
        open_nodes.discard(id(node))
        if sizes[id(node)] > MOST_VALUES:
            raise _refused(source, node, f"it holds more than {MOST_VALUES} values, aliases written out")
        return sizes[id(node)]

    size(root, 0)


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _check_keys(node: yaml.Node, source: str) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key, _ in node.value:
        name = key.value if isinstance(key.value, str) else ""
        if name and name in seen:
            text = f"the key {shortened(name)} is given twice, in line {seen[name]} too"
            raise _refused(source, key, text, hint="Keep one of them.")
        seen[name] = key.start_mark.line + 1


def _refused(
    source: str, node: yaml.Node, text: str, hint: str = "A scenario needs three levels and few lines."
) -> UsageError:
    return UsageError(f"{source}, line {node.start_mark.line + 1}: {text}.", hint=hint)
