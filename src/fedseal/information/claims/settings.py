"""Keys and numbers of a configuration, however they are spelt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from fedseal.core.errors import UsageError

_PREFIXES = ("dp_", "privacy_", "local_dp_", "differential_privacy_")

ROUNDS = ("num_server_rounds", "num_rounds", "server_rounds", "rounds", "total_rounds", "n_rounds")
"""How the number of rounds is called."""


class Settings:
    """Numbers by name: `dp-clipping-norm`, `clipping_norm` and `Clipping-Norm` are one key, `"1e-5"` is a number.

    Args:
        values: as read from a file.
        source: the file, for messages.
        owner: what is configured, for messages.
    """

    def __init__(self, values: Mapping[str, Any], source: str, owner: str = "the configuration") -> None:
        self.source = source
        self.owner = owner
        self._values = {canonical(key): value for key, value in values.items()}

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def holds(self, *names: str) -> bool:
        """Return whether all of these keys are there."""
        return all(name in self for name in names)

    def raw(self, *names: str) -> Any:
        """Return the first of these keys that is there as it was written, or None."""
        return next((self._values[name] for name in names if name in self), None)

    def number(self, *names: str, default: float | None = None) -> float | None:
        """Return the first of these keys that is there as a number, or else the default."""
        for name in names:
            if name in self:
                return self._number(name)
        return default

    def needed(self, *names: str) -> float:
        """Return the first of these keys as a number; there must be one."""
        value = self.number(*names)
        if value is None:
            raise UsageError(f"{self.source}: {self.owner} has no {names[0]!r}.", hint="Add it to the file.")
        return value

    def positive(self, *names: str, zero: bool = False, default: float | None = None) -> float:
        """Return a number above 0, or from 0 on."""
        value = self.needed(*names) if default is None else float(self.number(*names, default=default) or 0.0)
        if math.isnan(value) or value < 0 or (value == 0 and not zero):
            raise UsageError(
                f"{self.source}: {names[0]!r} of {self.owner} must be {'at least' if zero else 'above'} 0, "
                f"got {value:g}."
            )
        return value

    def count(self, *names: str) -> int | None:
        """Return a whole number of at least 1, or None if there is none."""
        value = self.number(*names)
        if value is None:
            return None
        if value != int(value) or value < 1:
            raise UsageError(f"{self.source}: {names[0]!r} of {self.owner} must be a whole number above 0.")
        return int(value)

    def delta(self, default: float) -> float:
        """Return the delta, between 0 and 1."""
        value = float(self.number("delta", "target_delta", default=default) or 0.0)
        if not 0 < value < 1:
            raise UsageError(
                f"{self.source}: delta of {self.owner} must lie between 0 and 1, got {value:g}.",
                hint="Common is 1e-5, and below one over the number of units.",
            )
        return value

    def seeds(self) -> list[str]:
        """Return the keys that seed something."""
        return sorted(key for key in self._values if key == "seed" or key.endswith("_seed"))

    def _number(self, name: str) -> float:
        value = self._values[name]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        try:
            return float(str(value))
        except ValueError as error:
            raise UsageError(f"{self.source}: {name!r} of {self.owner} is no number: {value!r}.") from error


def canonical(key: str) -> str:
    """Return a key in lower case, with underscores, without `dp` in front."""
    plain = str(key).strip().lower().replace("-", "_").replace(".", "_").replace(" ", "_")
    for prefix in _PREFIXES:
        if plain.startswith(prefix) and len(plain) > len(prefix):
            return plain.removeprefix(prefix)
    return plain
