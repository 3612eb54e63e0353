"""Factors: scenarios whose keys take several values, and how these combine.

FedLeak's protocol (Sec. 3, Table 2) varies what decides a leak one factor at a time. Here any key of a scenario takes a
list or a range, in its place or under one of three words:

    client: {batch_size: [1, 4, 16]}            # a list in its place counts as `grid`
    grid: {model: [lenet, resnet10]}            # every combination
    zip: {seed: [0, 1], data: [faces, digits]}  # the first values together, the second ones together
    each: {client.local_steps: [1, 2, 4]}       # one factor at a time, all others as the scenario says

A level that changes several keys has a name: `each: {skew: {smooth: {client.partition: ..., client.member: 0}}}`. What
comes out are ordinary scenarios. Their trials are named by what determines them: a level that is the base's own
value, or part of another plan too, is attacked once.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedseal.audit.scenario import Scenario
from fedseal.core.config_file import Plain, Source, plain_values, validate_config, with_values
from fedseal.core.errors import UsageError
from fedseal.core.specs import near_matches, shortened

MOST = 2000
"""Scenarios that one file may make."""
_WORDS = ("grid", "zip", "each")
_OWN_LISTS = {"defences", "attacks", "metrics", "weight_seeds", "about", "levels", *_WORDS}
"""Keys whose lists are values of one scenario, or none of values."""
_RANGE = {"from", "to", "by", "times", "count"}
_RANGE_HINT = "Write {from: 1, to: 9, by: 2}, {from: 1, to: 64, times: 2} or {from: 0, to: 1, count: 5}."


@dataclass(frozen=True)
class Level:
    """One value of a factor: its words, and what it sets, by dotted key."""

    words: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Factor:
    """What varies: its name, a key as a rule, and its levels."""

    name: str
    levels: tuple[Level, ...]


def scenarios_of(
    source: Source | None, values: Mapping[str, Any] | None = None, *, command: str = "audit"
) -> tuple[Scenario, ...]:
    """Return the scenarios that a source with factors stands for; one, where nothing varies.

    Args:
        source: a `Scenario`, a mapping, the path of a YAML file or YAML text; None for the defaults.
        values: keys to replace; a mapping replaces single keys inside of a part.
        command: of fedseal, named in hints.

    Example:
        >>> from fedseal.audit.factors import scenarios_of
        >>> [one.name for one in scenarios_of({"client": {"batch_size": [1, 4]}})]
        ['audit-batch_size-1', 'audit-batch_size-4']
    """
    plain = plain_values(source, Scenario, command)
    base = with_values(plain.values, values or {})
    crossed, alone = _factors(base, plain.source)
    _check_options(values or {}, [*crossed, *alone])
    stripped = {key: value for key, value in base.items() if key not in _WORDS}
    if not crossed and not alone:
        origin = plain if not values else Plain(stripped, "the options given")
        return (validate_config(stripped, Scenario, source=origin.source, command=command, node=origin.node),)
    combinations = list(_combinations(crossed, alone))
    if len(combinations) > MOST:
        raise UsageError(
            f"{plain.source}: the factors make {len(combinations)} scenarios, more than {MOST}.",
            hint="Vary one factor at a time: write `each:` in place of `grid:`.",
        )
    return tuple(_scenarios(stripped, combinations, plain, command))


def _scenarios(
    base: dict[str, Any], combinations: Sequence[dict[str, Level]], plain: Plain, command: str
) -> Iterator[Scenario]:
    names: set[str] = set()
    for levels in combinations:
        values = copy.deepcopy(base)
        for level in levels.values():
            for key, value in level.values.items():
                _put(values, key, value)
        words = {name: level.words for name, level in levels.items()}
        values["name"] = _name(str(base.get("name", Scenario.model_fields["name"].default)), words, names)
        values["levels"] = {**(base.get("levels") or {}), **words}
        said = ", ".join(f"{name} = {word}" for name, word in words.items())
        yield validate_config(
            values, Scenario, source=f"{plain.source} at {shortened(said, 120)}", command=command, node=plain.node
        )


def _factors(values: dict[str, Any], source: str) -> tuple[list[Factor], list[Factor]]:
    """Return the factors that are combined with each other, and those that vary alone."""
    crossed = [Factor(key, _levels(key, found, source)) for key, found in _in_place(values)]
    given = {word: values.get(word) or {} for word in _WORDS}
    for word, found in given.items():
        if not isinstance(found, Mapping):
            raise UsageError(
                f"{source}: {word} is {shortened(found)}, not a mapping of keys to their values.",
                hint=f"Write `{word}: {{client.batch_size: [1, 4]}}`.",
            )
    crossed += [Factor(str(key), _levels(str(key), found, source)) for key, found in given["grid"].items()]
    side_by_side = [Factor(str(key), _levels(str(key), found, source)) for key, found in given["zip"].items()]
    if side_by_side:
        crossed.append(_zipped(side_by_side, source))
    alone = [Factor(str(key), _levels(str(key), found, source)) for key, found in given["each"].items()]
    names = [factor.name for factor in (*crossed, *alone)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{source}: {twice} varies twice.", hint="Give its values in one place.")
    return crossed, alone


def _in_place(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the keys that hold a list or a range where a scenario has one value."""
    for key, value in values.items():
        here = (*path, str(key))
        if not path and key in _OWN_LISTS:
            continue
        if isinstance(value, list | tuple) or _is_range(value):
            yield ".".join(here), value
        elif isinstance(value, Mapping) and key in {"client", "attacker", "stage"}:
            yield from _in_place(dict(value), here)


def _levels(name: str, found: Any, source: str) -> tuple[Level, ...]:
    if _is_range(found):
        found = _in_range(found, name, source)
    if isinstance(found, Mapping):
        levels = [Level(str(word), _changes(name, word, values, source)) for word, values in found.items()]
    elif isinstance(found, list | tuple):
        levels = [Level(_words(value), {name: value}) for value in found]
    else:
        levels = [Level(_words(found), {name: found})]
    if not levels:
        raise UsageError(f"{source}: {name} has no values.", hint=f"Write `{name}: [1, 2]`, or leave it out.")
    words = [level.words for level in levels]
    if len(set(words)) != len(words):
        raise UsageError(f"{source}: {name} has the same value twice: {shortened(', '.join(words), 120)}.")
    return tuple(levels)


def _changes(name: str, word: Any, values: Any, source: str) -> dict[str, Any]:
    if not isinstance(values, Mapping) or not values:
        raise UsageError(
            f"{source}: level {word} of {name} is {shortened(values)}, not a mapping of keys to values.",
            hint=f"Write `{name}: {{{word}: {{client.batch_size: 4}}}}`, or a list of values.",
        )
    return {str(key): value for key, value in values.items()}


def _zipped(factors: Sequence[Factor], source: str) -> Factor:
    """Join factors whose levels go side by side into one."""
    lengths = {factor.name: len(factor.levels) for factor in factors}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise UsageError(
            f"{source}: the keys under zip need as many values each, and have: {said}.",
            hint="Under `grid:` every value meets every other.",
        )
    joined = []
    for together in zip(*(factor.levels for factor in factors), strict=True):
        merged = {key: value for level in together for key, value in level.values.items()}
        joined.append(Level(", ".join(level.words for level in together), merged))
    return Factor(", ".join(factor.name for factor in factors), tuple(joined))


def _combinations(crossed: Sequence[Factor], alone: Sequence[Factor]) -> Iterator[dict[str, Level]]:
    for chosen in itertools.product(*(factor.levels for factor in crossed)):
        together = {factor.name: level for factor, level in zip(crossed, chosen, strict=True)}
        if not alone:
            yield together
        for factor in alone:
            yield from ({**together, factor.name: level} for level in factor.levels)


def _is_range(value: Any) -> bool:
    return isinstance(value, Mapping) and {"from", "to"} <= set(value) <= _RANGE


def _in_range(found: Mapping[str, Any], name: str, source: str) -> list[int | float]:
    """Return the numbers of `{from: 1, to: 9, by: 2}`, `{..., times: 2}` or `{..., count: 5}`, both ends included."""
    first, last = found["from"], found["to"]
    steps = {key: value for key, value in found.items() if key not in {"from", "to"}} or {"by": 1}
    (kind, step), *more = steps.items()
    numbers = (first, last, step)
    if more or any(isinstance(one, bool) or not isinstance(one, int | float) for one in numbers) or last < first:
        raise UsageError(f"{source}: {name} has no range {shortened(dict(found))}.", hint=_RANGE_HINT)
    if kind == "count":
        count = int(step)
        if count != step or not 2 <= count <= MOST:
            raise UsageError(f"{source}: {name} cannot count {step:g}.", hint=_RANGE_HINT)
        return [first + (last - first) * place / (count - 1) for place in range(count)]
    if (kind == "by" and step <= 0) or (kind == "times" and (step <= 1 or first <= 0)):
        raise UsageError(f"{source}: {name} never gets from {first:g} to {last:g}.", hint=_RANGE_HINT)
    values: list[int | float] = []
    slack = 1e-9 * max(abs(first), abs(last))
    for place in range(MOST + 1):
        value = first + step * place if kind == "by" else first * step**place
        if value > last + slack:
            break
        values.append(value)
    return values


def _check_options(options: Mapping[str, Any], factors: Sequence[Factor]) -> None:
    """Refuse an option that a factor would undo without a word."""
    said = {key for key, value in options.items() if not isinstance(value, Mapping)}
    said |= {f"{key}.{one}" for key, value in options.items() if isinstance(value, Mapping) for one in value}
    for factor in factors:
        for key in (key for level in factor.levels for key in level.values):
            if key in said and key not in _WORDS and not _given_in_place(options, key):
                raise UsageError(f"{key} is a factor of the scenario.", hint="Leave the option out, or the factor.")


def _given_in_place(options: Mapping[str, Any], key: str) -> bool:
    part, _, inner = key.partition(".")
    value = options.get(part)
    value = value.get(inner) if inner and isinstance(value, Mapping) else value
    return isinstance(value, list | tuple) or _is_range(value)


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key."""
    *parts, last = key.split(".")
    for part in parts:
        if part not in Scenario.model_fields:
            raise UsageError(f"there is no key {key}.", hint=near_matches(part, list(Scenario.model_fields)))
        inner = values.get(part)
        values[part] = dict(inner) if isinstance(inner, Mapping) else {}
        values = values[part]
    values[last] = value


def _words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        name = [str(value["name"])] if "name" in value else []
        return " ".join([*name, *(f"{key}={_words(one)}" for key, one in value.items() if key != "name")])
    if isinstance(value, list | tuple):
        return "+".join(map(_words, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _name(base: str, words: Mapping[str, str], taken: set[str]) -> str:
    """Return a name for one combination that is no other's."""
    parts = [base]
    for name, word in words.items():
        short = "-".join(key.strip().rpartition(".")[2] for key in name.split(","))
        parts += [short, word]
    plain = re.sub(r"[^\w.]+", "-", "-".join(parts)).strip("-")[:100]
    name = plain
    for number in itertools.count(2):
        if name not in taken:
            break
        name = f"{plain}-{number}"
    taken.add(name)
    return name
