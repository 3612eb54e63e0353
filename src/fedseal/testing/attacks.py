"""What holds of every attack, whoever wrote it.

    from fedseal.testing import ATTACK_CHECKS, AttackCase, Home

    @pytest.mark.parametrize("check", ATTACK_CHECKS)
    def test_my_attack_keeps_the_contract(check):
        check(AttackCase("mine", Home(model="lenet", budget=Budget(iterations=50))))

An attack is tried on its home ground: a small model, data and budget it is made for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.errors import CapabilityError, FedsealError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.threads import one_thread
from fedseal.metrics.score import score
from fedseal.testing.checks import Check, run_checks
from fedseal.testing.grounds import AttackCase, Home

_LEAST_WORDS = 20
_WORDS = {"auxiliary": "public", "rehearse": "plays clients itself"}
"""How a person is told of capabilities whose names say little."""


def shapes_and_range(case: AttackCase) -> str | None:
    """Demand one finite image in [0, 1] and one label of a known class for every image behind the update."""
    _check_form(case, case.run((0,), (1,))[0])
    return None


def repeatable(case: AttackCase) -> str | None:
    """Demand the same bits of the same seed, and that nothing else random has a part."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = case.run((0,), (3,))[0]
        torch.manual_seed(1)
        before = torch.get_rng_state()
        second = case.run((0,), (3,))[0]
        assert torch.equal(torch.get_rng_state(), before), "the attack draws from the global generator"
    assert _same(first, second), "two runs with one seed differ"
    return None


def alone_is_together(case: AttackCase) -> str | None:
    """Demand that a result does not depend, to the bit, on what is attacked beside it."""
    together = case.run((0, 1, 2), (5, 6, 7))
    for place, seed in enumerate((5, 6, 7)):
        assert _same(case.run((place,), (seed,))[0], together[place]), f"target {place} differs beside others"
    return None


def model_untouched(case: AttackCase) -> str | None:
    """Demand that neither the federation's model nor the one that was sent, nor the update, is changed."""
    with _unchanged(case.model, "the federation's model"):
        observation, _ = case.observation(0)
        update = {name: tensor.clone() for name, tensor in observation.update.tensors.items()}
        with _unchanged(observation.model, "the model that was sent"):
            case.attack().run_many([observation], case.home.quick, [1])
    for name, tensor in observation.update.tensors.items():
        assert torch.equal(tensor, update[name]), f"the update's {name} was changed"
    return None


def needs_are_refused(case: AttackCase) -> str | None:
    """Demand that without any capability it needs, the attack is refused by its name and the capability's."""
    attack = case.attack()
    if not attack.needs:
        return "it needs nothing"
    known = case.knowledge(case.truth(0))
    for need in sorted(attack.needs):
        try:
            attack.check_knowledge(_without(known, need))
        except CapabilityError as error:
            words = str(error)
        else:
            raise AssertionError(f"it says it needs {need}, and runs without")
        assert case.name in words, f"the refusal does not name the attack: {words}"
        assert need in words or _WORDS.get(need, need) in words, f"the refusal does not name {need}: {words}"
    return None


def needs_are_all(case: AttackCase) -> str | None:
    """Demand that the attack runs on what it declares to need, and nothing else."""
    known = case.knowledge(case.truth(0))
    spare = [name for name in _OPTIONAL if name not in case.attack().needs]
    for name in spare:
        known = _without(known, name)
    observation, _ = case.observation(0, known)
    _check_form(case, case.attack().run_many([observation], case.home.quick, [1])[0])
    return None


def refusals_are_words(case: AttackCase) -> str | None:
    """Demand of every hostile update an answer: a result in form, or a sentence for a person."""
    observation, _ = case.observation(0)
    tensors = observation.update.tensors
    for what, changed in (
        ("zeros", {name: torch.zeros_like(t) for name, t in tensors.items()}),
        ("huge numbers", {name: torch.full_like(t, 1e30) for name, t in tensors.items()}),
        ("one number only", {name: torch.ones_like(t) for name, t in tensors.items()}),
    ):
        hostile = replace(observation, update=Update(changed, observation.update.kind))
        _answers(case, hostile, f"an update of {what}")
    nameless = replace(observation.knowledge, learning_rate=None, local_steps=None)
    _answers(case, Observation(observation.model, Update(tensors, "delta"), nameless, observation.memory), "a change")
    return None


def listener_is_told(case: AttackCase) -> str | None:
    """Demand that a listener hears of growing fractions that end at 1, with images of all targets."""
    told: list[float] = []
    observations = [case.observation(target)[0] for target in (0, 1)]
    truth = case.truth(0)

    def listen(done: float, images: Tensor) -> None:
        told.append(done)
        assert images.shape == (2, *truth.images.shape), f"the listener is shown {list(images.shape)}"

    case.attack().run_many(observations, case.home.quick, [1, 2], listen)
    assert told, "the listener is never called"
    assert told == sorted(told), f"fractions fall: {told}"
    assert told[0] >= 0, f"fractions leave [0, 1]: {told}"
    assert told[-1] == 1, f"the last fraction is {told[-1]}, not 1"
    return None


def interrupt_passes(case: AttackCase) -> str | None:
    """Demand that Ctrl-C ends the attack, leaves everything as it was, and spoils no later run."""
    observation, _ = case.observation(0)
    attack = case.attack()

    def listen(done: float, images: Tensor) -> None:
        raise KeyboardInterrupt

    with one_thread(), _unchanged(observation.model, "the model that was sent"):
        try:
            attack.run_many([observation], case.home.quick, [3], listen)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the attack went on after KeyboardInterrupt")
        again = attack.run_many([observation], case.home.quick, [3])[0]
    assert _same(again, case.run((0,), (3,))[0]), "a run after an interrupted one differs"
    return None


def succeeds_at_home(case: AttackCase) -> str | None:
    """Demand that on its home ground the attack clearly beats the best guess without an update."""
    targets = (0, 1)
    found = case.run(targets, (1, 2), case.home.budget)
    gained = [_gain(case, target, result) for target, result in zip(targets, found, strict=True)]
    mean = sum(gained) / len(gained)
    assert mean >= case.home.margin, f"it gains {mean:.1f} dB on its home ground, {case.home.margin} are asked for"
    return None


ATTACK_CHECKS: tuple[Check[AttackCase], ...] = (
    shapes_and_range,
    repeatable,
    alone_is_together,
    model_untouched,
    needs_are_refused,
    needs_are_all,
    refusals_are_words,
    listener_is_told,
    interrupt_passes,
    succeeds_at_home,
)
"""Every row of the attacks' contract."""


def check_attack(spec: str, *, home: Home | None = None) -> dict[str, str]:
    """Hold one attack to the whole contract; return the checks that do not apply, with reasons."""
    return run_checks(AttackCase(spec, home or Home()), ATTACK_CHECKS)


def knowing_helps(
    case: AttackCase, defence: str, *, tolerance: float = 0.5, targets: int = 2, public: bool = True
) -> str | None:
    """Demand that an attacker who knows the defence does no worse than one who does not, in mean PSNR.

    Args:
        case: a passive attack.
        defence: its spec.
        tolerance: in dB.
        targets: attacked in either way.
        public: whether public images are granted.
    """
    naive: list[float] = []
    aware: list[float] = []
    for target in range(targets):
        unknowing, knowing, truth = case.defended(target, defence)
        if not public:
            unknowing, knowing = (
                replace(seen, knowledge=_without(seen.knowledge, "auxiliary")) for seen in (unknowing, knowing)
            )
        if unknowing.knowledge.defence == knowing.knowledge.defence:
            return "there is nothing to know"
        for results, seen in ((naive, unknowing), (aware, knowing)):
            with one_thread():
                try:
                    found = case.attack().run(seen, case.home.budget, target)
                except FedsealError as error:
                    if results is naive:
                        return f"there is nothing to attack without it: {error}"
                    raise AssertionError(f"who knows {defence} is refused, who does not is not: {error}") from error
            results.append(_mean_psnr(truth.images, truth.labels, found))
    without, with_it = sum(naive) / targets, sum(aware) / targets
    assert with_it >= without - tolerance, f"{with_it:.1f} dB with knowledge of {defence}, {without:.1f} dB without"
    return None


_OPTIONAL = (
    "normalisation",
    "auxiliary",
    "rehearse",
    "clients",
    "local_steps",
    "learning_rate",
    "labels",
    "batch_size",
)


def _without(knowledge: Knowledge, name: str) -> Knowledge:
    assert name in {field.name for field in fields(knowledge)}, f"there is no capability called {name}"
    if name == "labels":
        return replace(knowledge, labels=None, label_rule="identity")
    changes: dict[str, Any] = {name: None}
    return replace(knowledge, **changes)


def _check_form(case: AttackCase, found: Reconstruction) -> None:
    truth = case.truth(0)
    assert found.images.shape == truth.images.shape, f"images are {list(found.images.shape)}"
    assert found.labels.shape == truth.labels.shape, f"labels are {list(found.labels.shape)}"
    assert bool(torch.isfinite(found.images).all()), "images are not finite"
    assert torch.equal(found.images, found.images.clamp(0, 1)), "images leave [0, 1]"
    assert bool(((found.labels >= 0) & (found.labels < case.classes)).all()), "labels name no class"


def _answers(case: AttackCase, observation: Observation, what: str) -> None:
    try:
        _check_form(case, case.attack().run_many([observation], case.home.quick, [1])[0])
    except FedsealError as error:
        if len(error.message) < _LEAST_WORDS:
            raise AssertionError(f"{what} is refused with {error.message!r}, which says nothing") from error
    except AssertionError as error:
        raise AssertionError(f"after {what}: {error}") from error
    except Exception as error:  # whatever it is, it is no answer for a person
        raise AssertionError(f"{what} ends in {type(error).__name__}: {error}") from error


@contextmanager
def _unchanged(model: nn.Module, what: str) -> Iterator[None]:
    """Demand that weights, buffers, modes, gradients and hooks of a model are the same afterwards."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = _fittings(model)
    yield
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]), f"{what}: {name} was changed"
    assert _fittings(model) == before, f"{what}: modes, gradients or hooks were changed"


def _fittings(model: nn.Module) -> list[object]:
    modules = [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    parameters = [(p.requires_grad, p.grad is None) for p in model.parameters()]
    return [*modules, *parameters]


def _same(one: Reconstruction, other: Reconstruction) -> bool:
    tensors = torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)
    return tensors and repr(one.objective) == repr(other.objective)


def _gain(case: AttackCase, target: int, found: Reconstruction) -> float:
    """Return the decibels between a result and the best guess without an update: the mean public image."""
    truth = case.truth(target)
    psnr = score(truth, found.images, found.labels, None).psnr
    guess = case.public.images.mean(0).expand_as(truth.images)
    chance = score(truth, guess.contiguous(), truth.labels, None).psnr
    gains = sorted((a - b for a, b in zip(psnr, chance, strict=True)), reverse=True)
    scored = gains[: case.home.scored] if case.home.scored else gains
    return sum(scored) / len(scored)


def _mean_psnr(images: Tensor, labels: Tensor, found: Reconstruction) -> float:
    psnr = score(Batch(images, labels), found.images, found.labels, None).psnr
    return sum(psnr) / len(psnr)


__all__ = ["ATTACK_CHECKS", "AttackCase", "Home", "check_attack", "knowing_helps"]
