"""Every registered attack keeps the contract (`fedseal.testing`) on the ground it is made for."""

from __future__ import annotations

import pytest

from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.defence import DEFENCES
from fedseal.testing import AttackCase, Home, contract, knowing_helps


def steps(iterations: int) -> Budget:
    return Budget(iterations=iterations)


SMOOTH = "lenet:init=wide-uniform"
CASES = (
    AttackCase("auto", Home(SMOOTH, budget=steps(30), quick=Budget(2, 1))),
    AttackCase("bayes:tv=0.1", Home(SMOOTH, budget=steps(60))),
    AttackCase("cah:rows=64", Home("mlp", batch_size=2)),
    AttackCase("cocktail:iterations=50", Home("mlp:width=24,activation=sigmoid", batch_size=2, budget=Budget())),
    AttackCase("denoised:shadows=8,steps=10,prior_steps=5", Home(SMOOTH, budget=steps(40), quick=Budget(2, 1))),
    AttackCase("dlg", Home(SMOOTH, budget=steps(60))),
    AttackCase("fedleak", Home(SMOOTH, budget=steps(60))),
    AttackCase("fedleak-artifact:channels=8", Home(SMOOTH, budget=steps(40), quick=Budget(2, 1), margin=1)),
    AttackCase("first-layer", Home("mlp")),
    AttackCase("fishing:inversion=ig", Home(batch_size=2, budget=steps(60), scored=1)),
    AttackCase("ggl:prior=ae,prior_steps=5", Home(SMOOTH, budget=steps(60), quick=Budget(2, 1))),
    AttackCase("gias:prior=ae,prior_steps=5", Home(SMOOTH, budget=steps(40), quick=Budget(2, 1))),
    AttackCase("glaus:draws=3,use=mean,inversion=idlg", Home(SMOOTH, budget=steps(60))),
    AttackCase("gradinversion:match=1,warmup=5", Home(SMOOTH, budget=Budget(60, 2))),
    AttackCase("grnn:channels=8", Home(SMOOTH, budget=steps(150), quick=Budget(2, 1))),
    AttackCase("idlg", Home(SMOOTH, budget=steps(60))),
    AttackCase("ig:schedule=cosine,tv=0.001", Home(SMOOTH, budget=steps(80))),
    AttackCase("imprint:bins=32", Home(batch_size=2)),
    AttackCase("learned:features=512", Home(data="faces:size=8")),
    AttackCase("loki:bins=32", Home(batch_size=2, clients=2)),
    AttackCase("peftleak", Home("vit-tiny:width=32,heads=2,depth=2,adapters=16", margin=40)),
    AttackCase("retrieval", Home(data="faces:size=8", margin=0.5)),
    AttackCase("rgap", Home(SMOOTH, budget=steps(60))),
    AttackCase("rog:prior=patch,prior_steps=2,lr=0.1", Home(SMOOTH, budget=steps(60), quick=Budget(2, 1))),
    AttackCase("sapag", Home(SMOOTH, budget=steps(60))),
    AttackCase("sme:lr=0.1,tv=0.001,schedule=cosine", Home(SMOOTH, budget=steps(80))),
    AttackCase("spear", Home("mlp:width=32", batch_size=3, margin=40)),
    AttackCase("suppression:inversion=ig", Home(clients=2, budget=steps(60), scored=1)),
)
ON_TEXT = {"dager", "lamp", "lora", "tag", "words"}
"""Attacks that read text: tests/text holds them to what is here."""
ELSEWHERE = {
    "fedleak-tuned": "`fedleak` with other numbers: test_matching_fidelity.py",
    "fedleak-paper": "`fedleak` with other numbers, too slow for a small budget: test_matching_fidelity.py",
    "patches": "names public patches in what a transformer saw, rebuilds nothing: tests/attacks/test_patches.py",
    "tableak": "rebuilds records, not images: tests/attacks/test_tables.py",
    "seer": "its model is trained for minutes; tests/attacks/test_seer.py holds it to what is here",
}


def test_every_attack_is_here() -> None:
    assert sorted([*(case.name for case in CASES), *ELSEWHERE, *ON_TEXT]) == ATTACKS.names()


test_every_attack_keeps_the_contract = contract(*CASES)


IMAGES_AT_STAKE = AttackCase("ig:schedule=cosine,tv=0.001", Home(SMOOTH, budget=steps(60)))
AT_ONCE = {"adadefense", "dgp", "gaussian", "quantise", "topk"}
"""One defence of each kind; knowing the others is tried by the slow tests."""
WITHOUT_A_FILE = {"pretrained"}


def _marked(name: str) -> object:
    return pytest.param(name, marks=[] if name in AT_ONCE else [pytest.mark.slow])


@pytest.mark.parametrize("defence", [_marked(name) for name in DEFENCES.names() if name not in WITHOUT_A_FILE])
def test_who_knows_a_defence_is_not_weaker_for_it(defence: str) -> None:
    if reason := knowing_helps(IMAGES_AT_STAKE, defence):
        pytest.skip(reason)


@pytest.mark.parametrize("defence", ["minmax", pytest.param("outpost", marks=pytest.mark.slow)])
def test_nor_is_one_without_public_images(defence: str) -> None:
    assert knowing_helps(IMAGES_AT_STAKE, defence, public=False) is None
