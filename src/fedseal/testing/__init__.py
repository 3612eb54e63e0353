"""Conformance suites, for this project's tests and for other people's: what holds of every method of a kind.

A suite is a tuple of checks over a case. A check is a plain function: it returns None when the case passes, a reason
when it does not apply, and raises `AssertionError` in words otherwise. In pytest,
`test_mine = contract(case)` is the whole test.
"""

from fedseal.testing.attacks import ATTACK_CHECKS, check_attack, knowing_helps
from fedseal.testing.checks import Check, run_checks
from fedseal.testing.defences import DEFENCE_CHECKS, DefenceCase, check_defence
from fedseal.testing.grounds import AttackCase, Home
from fedseal.testing.suites import contract

__all__ = [
    "ATTACK_CHECKS",
    "DEFENCE_CHECKS",
    "AttackCase",
    "Check",
    "DefenceCase",
    "Home",
    "check_attack",
    "check_defence",
    "contract",
    "knowing_helps",
    "run_checks",
]
