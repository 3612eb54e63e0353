"""What suites share: the form of a check, and how all checks of a suite are run on one case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from fedseal.core.errors import FedsealError

C = TypeVar("C")

Check: TypeAlias = Callable[[C], str | None]
"""Returns None when the case passes and a reason when the check does not apply to it; raises AssertionError else."""


def run_checks(case: C, checks: Sequence[Check[C]]) -> dict[str, str]:
    """Run all checks on one case; return the reasons of those that do not apply, by the check's name.

    Raises:
        AssertionError: naming every check that failed, or whose rounds were refused, with its words.
    """
    skipped: dict[str, str] = {}
    failed: list[str] = []
    for check in checks:
        name = getattr(check, "__name__", repr(check))
        try:
            reason = check(case)
        except (AssertionError, FedsealError) as error:
            failed.append(f"{name}: {error}")
        else:
            if reason is not None:
                skipped[name] = reason
    if failed:
        raise AssertionError("\n".join([f"{case} fails {len(failed)} of {len(checks)} checks:", *failed]))
    return skipped
