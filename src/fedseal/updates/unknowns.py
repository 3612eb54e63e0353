"""What nobody said of an update: searched by the attacker's own means where that is possible, else warned about.

Normalisation and the mode of batch normalisation are supposed in every usual way, each is tried with a short attack,
and what explains the update best is kept: the attacker needs no original for that. An unknown learning rate is the
scale that fits. Changes of one size everywhere betray Adam's first step, of which only signs are known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.defence import AttackerView, Defence
from fedseal.core.knowledge import BNMode
from fedseal.core.seeds import derive_seed, generator
from fedseal.core.tensors import Tensors, flatten
from fedseal.federation.client import client_round, set_mode
from fedseal.store.findings import Finding
from fedseal.updates.case import UpdateCase

PROBE, PROBE_STEPS = "ig:tv=0", 150
"""The short attack that suppositions are tried with."""
_CLEAR = 0.8
"""A supposition is told from the next if it leaves at most this share of what that one leaves."""
_AS_WELL, _EXACT = 0.95, 2e-4
_SAME_SIZE = 0.9
_USUAL: dict[int, dict[str, Normalisation]] = {
    1: {"MNIST's": Normalisation((0.1307,), (0.3081,)), "to [-1, 1]": Normalisation((0.5,), (0.5,))},
    3: {
        "ImageNet's": Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "to [-1, 1]": Normalisation((0.5,) * 3, (0.5,) * 3),
    },
}


@dataclass(frozen=True)
class Supposition:
    """One way the client may have trained, in words too."""

    normalisation: Normalisation
    bn_mode: BNMode
    words: str


def suppositions(case: UpdateCase) -> list[Supposition]:
    """Return every usual way to fill in what is unknown; one, if nothing is."""
    known = case.observation.knowledge
    ways: dict[str, Normalisation] = {"none": IDENTITY}
    if "normalisation" in case.unknown:
        ways |= _USUAL.get(known.input_shape[0], {})
    else:
        ways = {"as given": known.normalisation or IDENTITY}
    modes: list[BNMode] = [known.bn_mode]
    if "bn_mode" in case.unknown:
        modes = ["train-nostats", "eval"]
    return [
        Supposition(way, mode, f"normalisation {name}" + (f", batch normalisation {mode}" if len(modes) > 1 else ""))
        for name, way in ways.items()
        for mode in modes
    ]


def resolved(case: UpdateCase, seed: int) -> UpdateCase:
    """Return the case with what is unknown filled in as the attacker would, and findings that say so."""
    case = _signs_only(case)
    options = suppositions(case)
    if len(options) == 1 and "learning_rate" not in case.unknown:
        return case
    tried = [_tried(_under(case, option), seed) for option in options]
    least = min(left for left, _ in tried)
    # wider ranges can explain what narrower ones do, so the plainest that does as well is believed
    best = next(place for place, (left, _) in enumerate(tried) if left <= least / _AS_WELL + _EXACT)
    left, scale = tried[best]
    chosen = _under(case, options[best])
    findings = list(case.findings)
    if len(options) > 1:
        others = min(other for place, (other, _) in enumerate(tried) if place != best)
        findings.append(_said(options[best], left, others, len(options)))
    if "learning_rate" in case.unknown:
        rate = case.config.learning_rate * scale if scale > 0 else case.config.learning_rate
        chosen = _at_rate(chosen, rate)
        findings.append(
            Finding(
                severity="warning",
                topic="learning rate",
                text=f"nobody said the learning rate; {rate:.3g} fits the size of the change.",
                advice="Give --learning-rate: a wrong one makes every residual too large.",
            )
        )
    return replace(chosen, findings=tuple(findings))


def explanation(case: UpdateCase, images: Tensor, labels: Tensor) -> tuple[Tensors, Tensors]:
    """Return the update as the attacker reads it, and what these images would have made of it."""
    observed = case.observation.update.tensors
    size = case.observation.knowledge.batch_size or len(images)
    like = next(iter(observed.values()))
    batches = [
        Batch(part, own)
        for part, own in zip(torch.split(images.to(like), size), torch.split(labels.cpu(), size), strict=True)
    ]
    done = client_round(case.observation.model, batches, case.config, Defence(), generator(0, "residual"))
    view = case.observation.knowledge.defence
    explained: Tensors = done.update.tensors
    if view is not None:
        observed = view.read(observed)
        explained = view.simulate(explained, observed)
    return observed, explained


def looks_like_signs(update: Tensors) -> bool:
    """Return whether nearly all changes have the same size, as after Adam's first step or a method of signs."""
    sizes = flatten(update).abs()
    moved = sizes[sizes > 0]
    if len(moved) < 10:
        return False
    middle = moved.median()
    return bool(((moved - middle).abs() <= 0.2 * middle).float().mean() >= _SAME_SIZE)


def adam_view() -> AttackerView:
    """Return what is known of a step of Adam without a past: -lr g / (|g| + eps), which keeps the signs alone.

    The dummy gradient's own step is simulated with a softer sign, as the true one has no slope.
    """

    def simulate(gradient: Tensors, observed: Tensors) -> Tensors:
        soft = {name: 0.1 * tensor.abs().mean() + 1e-12 for name, tensor in gradient.items()}
        return {name: tensor / (tensor.square() + soft[name] ** 2).sqrt() for name, tensor in gradient.items()}

    return AttackerView("adam", {"steps": 1}, simulate, unused=("sizes of the gradient",))


def _signs_only(case: UpdateCase) -> UpdateCase:
    """Read a change of signs as such: where the client is said to use Adam, or the change looks like it."""
    update, known = case.observation.update, case.observation.knowledge
    seen = "optimiser" in case.unknown and known.defence is None and looks_like_signs(update.tensors)
    if update.kind != "delta" or not (seen or case.optimiser == "adam") or known.defence is not None:
        return case
    rate = float(flatten(update.tensors).abs().median())
    told = "the client uses Adam" if case.optimiser == "adam" else "all changes have one size, as after a step of Adam"
    finding = Finding(
        severity="warning",
        topic="optimiser",
        text=f"{told}: the update is read as signs of the gradient.",
        advice="Give --optimiser sgd if it is not so; several steps of Adam are not simulated.",
    )
    config = replace(case.config, learning_rate=rate or case.config.learning_rate)
    known = replace(known, defence=adam_view(), learning_rate=config.learning_rate)
    return replace(
        case,
        observation=replace(case.observation, knowledge=known),
        config=config,
        findings=(*case.findings, finding),
        unknown=case.unknown - {"learning_rate", "optimiser"},
    )


def _under(case: UpdateCase, option: Supposition) -> UpdateCase:
    known = replace(case.observation.knowledge, normalisation=option.normalisation, bn_mode=option.bn_mode)
    config = replace(case.config, normalisation=option.normalisation, bn_mode=option.bn_mode)
    model = set_mode(case.observation.model, config)
    return replace(case, observation=replace(case.observation, model=model, knowledge=known), config=config)


def _at_rate(case: UpdateCase, rate: float) -> UpdateCase:
    known = replace(case.observation.knowledge, learning_rate=rate)
    return replace(
        case,
        observation=replace(case.observation, knowledge=known),
        config=replace(case.config, learning_rate=rate),
    )


def _tried(case: UpdateCase, seed: int) -> tuple[float, float]:
    """Return the share a short attack leaves unexplained at the best scale, and that scale."""
    set_mode(case.observation.model, case.config)
    found = ATTACKS.build(PROBE).run(case.observation, Budget(PROBE_STEPS, 1), derive_seed(seed, "probe"))
    observed, explained = explanation(case, found.images, found.labels)
    one, other = flatten(observed).double(), flatten(explained).double()
    size = float(other.square().sum()) * float(one.square().sum())
    if size == 0 or not math.isfinite(size):
        return 1.0, 1.0
    product = float(one @ other)
    return math.sqrt(max(0.0, 1 - product**2 / size)), product / float(other.square().sum())


def _said(best: Supposition, left: float, next_left: float, count: int) -> Finding:
    clear = left <= _CLEAR * next_left
    text = (
        f"what nobody said was searched: of {count} suppositions, {best.words} explains the update best "
        f"({left:.2f} left, the next {next_left:.2f})"
    )
    return Finding(
        severity="note" if clear else "warning",
        topic="unknowns",
        text=text + ("." if clear else "; they cannot be told apart surely."),
        advice="Give --mean, --std and --bn-mode as the client uses them.",
    )
