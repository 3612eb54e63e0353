"""The way from cases to a pytest test; the only place here that knows pytest, and only when it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedseal.testing.attacks import ATTACK_CHECKS
from fedseal.testing.checks import Check
from fedseal.testing.defences import DEFENCE_CHECKS, DefenceCase
from fedseal.testing.grounds import AttackCase


def contract(*cases: AttackCase | DefenceCase) -> Callable[..., None]:
    """Return a pytest test that holds every case to all checks of its kind, one by one.

    In a plug-in's test file:

        test_mine = contract(AttackCase("mine"), DefenceCase("ours", zero="ours:strength=0"))
    """
    import pytest

    pairs = [
        pytest.param(check, case, id=f"{case}-{getattr(check, '__name__', check)}")
        for case in cases
        for check in checks_of(case)
    ]

    def test(check: Check[Any], case: Any) -> None:
        reason = check(case)
        if reason is not None:
            pytest.skip(reason)

    parametrised: Callable[..., None] = pytest.mark.parametrize(("check", "case"), pairs)(test)
    return parametrised


def checks_of(case: AttackCase | DefenceCase) -> tuple[Check[Any], ...]:
    """Return the suite of a case's kind."""
    return ATTACK_CHECKS if isinstance(case, AttackCase) else DEFENCE_CHECKS
