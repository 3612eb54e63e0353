"""The contract of attacks and defences, as fedseal holds its own to it."""

from fedseal.testing import AttackCase, DefenceCase, contract

test_attack = contract(AttackCase("public-pick:tries=8"))
test_defence = contract(DefenceCase("soft-threshold", zero="soft-threshold:amount=0", exact=("soft-threshold",)))
