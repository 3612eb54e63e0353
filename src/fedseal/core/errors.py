"""The error hierarchy: every message says what is wrong, where, and what to do about it.

The command line turns these into one line on stderr and the exit code of the class; anything else is a bug.
"""

from __future__ import annotations

from typing import Any, ClassVar


class FedsealError(Exception):
    """Base of all errors meant for a person.

    Example:
        >>> import fedseal
        >>> try:
        ...     fedseal.load_scenario("nowhere.yaml")
        ... except fedseal.FedsealError as error:
        ...     print(error)
        there is no scenario file nowhere.yaml. Run `fedseal audit` alone for the preset.

    Args:
        message: what is wrong, and where.
        hint: what to do about it; printed after the message.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the hint when the error crosses a process boundary."""
        return _rebuild, (type(self), self.message, self.hint)


def _rebuild(kind: type[FedsealError], message: str, hint: str | None) -> FedsealError:
    return kind(message, hint=hint)


class UsageError(FedsealError):
    """The request itself is wrong: an unknown name, a malformed option, a scenario that cannot be read."""


class InputError(FedsealError):
    """Something from outside is wrong: data, weights, an update, a model."""


class StorageError(FedsealError):
    """A file cannot be written or read: no permission, no space, a damaged store."""


class CapabilityError(FedsealError):
    """An attack needs knowledge that the threat model does not grant, or structure the model does not have."""


class TrialError(FedsealError):
    """A trial ran and failed."""

    exit_code = 3
