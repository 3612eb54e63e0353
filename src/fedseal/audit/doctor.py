"""The doctor: whether a set-up can be attacked at all, and whether the numbers will mean what they seem to mean.

Each check looks at one thing that made published evaluations wrong and says so in words before
trials start.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedseal.audit.checkups import data_notes, squashed_outputs
from fedseal.audit.precautions import duplicates, strangers, weapon
from fedseal.audit.preflight import exact_leaks
from fedseal.audit.setup import Setup, Target
from fedseal.core.attack import ATTACKS
from fedseal.core.caveat import Caveat
from fedseal.core.defence import Defence
from fedseal.core.errors import FedsealError
from fedseal.core.tensors import flatten
from fedseal.defences.pipeline import Pipeline, build_defence
from fedseal.federation.client import set_mode
from fedseal.federation.loss import client_loss, is_class, training_loss
from fedseal.models.structure import output_layer
from fedseal.store.findings import Finding

_VANISHING = 1e-7


def examine(setup: Setup) -> tuple[Finding, ...]:
    """Return what is remarkable about a set-up, worst first."""
    order = {"problem": 0, "warning": 1, "note": 2}
    setup = replace(setup, model=copy.deepcopy(setup.model))  # forward passes change running statistics
    found = [finding for check in _CHECKS for finding in check(setup)]
    return tuple(sorted(found, key=lambda finding: order[finding.severity]))


def told_once(findings: Mapping[str, Sequence[Finding]]) -> Iterator[tuple[Finding, str]]:
    """Yield each finding of several scenarios once, with the words that say of which ones it is.

    Args:
        findings: of scenarios by name.
    """
    of: dict[Finding, list[str]] = {}
    for name, found in findings.items():
        for finding in found:
            of.setdefault(finding, []).append(name)
    for finding, names in of.items():
        if len(names) == len(findings):
            yield finding, ""
        else:
            yield (
                finding,
                f" (in {names[0]})" if len(names) == 1 else f" (in {len(names)} of {len(findings)} scenarios)",
            )


def _dropout(setup: Setup) -> Iterator[Finding]:
    active = [m for m in setup.model.modules() if isinstance(m, _DropoutNd) and m.training and m.p > 0]
    if active:
        yield Finding(
            severity="warning",
            topic="dropout",
            text=f"{len(active)} dropout layer(s) are active in the client; the attacker does not know their masks, "
            "so even a perfect reconstruction does not match the update.",
            advice="This is how training runs, but an attacker who guesses masks may do better. Set "
            "`client.train_mode: false` to measure without.",
        )


def _batch_norm(setup: Setup) -> Iterator[Finding]:
    if not any(isinstance(module, _BatchNorm) for module in setup.model.modules()):
        return
    mode = setup.scenario.client.bn_mode
    if mode == "eval":
        yield Finding(
            severity="warning",
            topic="batch normalisation",
            text="the client uses running statistics (eval mode), which real training does not; on a fresh network "
            "that makes normalisation the identity and helps the attacker.",
            advice="Set `client.bn_mode: train-nostats` for training as it really runs.",
        )
    elif setup.scenario.client.batch_size == 1:
        yield Finding(
            severity="warning",
            topic="batch normalisation",
            text="batch statistics of a single image are its own: normalisation removes its mean and contrast.",
            advice="Use a larger batch or `client.bn_mode: eval`.",
        )


def _loss_reduction(setup: Setup) -> Iterator[Finding]:
    client, attacker = setup.scenario.client.loss_reduction, setup.scenario.attacker.loss_reduction
    if attacker is not None and attacker != client:
        yield Finding(
            severity="problem",
            topic="loss reduction",
            text=f"the client reduces its loss by `{client}`, the attacker assumes `{attacker}`: every gradient is off "
            "by the batch size.",
            advice="Leave `attacker.loss_reduction` out.",
        )


def _gradients(setup: Setup) -> Iterator[Finding]:
    try:
        target = setup.observe(Defence(), 0)
    except FedsealError as error:
        yield Finding(severity="problem", topic="client round", text=error.message, advice=error.hint or "")
        return
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's model may raise anything; the finding says what
        text = f"the client's round fails: {type(error).__name__}: {error}"
        yield Finding(severity="problem", topic="client round", text=text, advice="Run the model on one batch.")
        return
    norms = {name: float(t.norm()) for name, t in target.observation.update.tensors.items()}
    dead = [name for name, norm in norms.items() if norm < _VANISHING]
    if len(dead) == len(norms):
        yield Finding(
            severity="problem",
            topic="vanishing gradients",
            text="every gradient is zero or nearly so: there is nothing to match.",
            advice="Check the loss, and whether the model has already fitted this batch.",
        )
    elif dead:
        yield Finding(
            severity="warning",
            topic="vanishing gradients",
            text=f"{len(dead)} of {len(norms)} tensors have almost no gradient, {dead[0]!r} among them.",
            advice="Attacks lose what these layers would tell; a different initialisation may leak more.",
        )
    yield from _sign(setup, target)
    yield from exact_leaks(setup, target)


def _sign(setup: Setup, target: Target) -> Iterator[Finding]:
    """Check that a step along the update, as the attacker reads it, lowers the client's loss."""
    model = set_mode(copy.deepcopy(setup.model), replace(setup.config, train_mode=False))  # dropout would blur it
    loss = client_loss(setup.config.normalisation, setup.config.loss_reduction, setup.config.loss)
    update = target.observation.update.tensors
    sign = -1.0 if target.observation.update.kind == "gradient" else 1.0
    length = 1e-3 / max(float(flatten(update).norm()), 1e-12)
    parameters = {n: p.detach() + sign * length * update[n] for n, p in model.named_parameters() if n in update}
    with torch.no_grad():
        before = loss(model, target.originals)
        after = loss(lambda images: torch.func.functional_call(model, parameters, (images,)), target.originals)
    if float(after) > float(before) * (1 + 1e-4) + 1e-6:
        yield Finding(
            severity="problem",
            topic="gradient sign",
            text="a small step along the update raises the client's loss: it may have the wrong sign.",
            advice="A gradient points uphill; a weight change is new minus old.",
        )


def _batch_and_classes(setup: Setup) -> Iterator[Finding]:
    size = setup.scenario.client.batch_size * setup.scenario.client.local_steps
    classes = len(setup.private.classes)
    if size > classes and is_class(setup.private.labels):
        yield Finding(
            severity="note",
            topic="labels",
            text=f"{size} images of {classes} classes: labels repeat, and rules that assume distinct labels fail.",
            advice="The rule `identity` counts repeated labels.",
        )


def _last_bias(setup: Setup) -> Iterator[Finding]:
    learns_inputs = training_loss(setup.scenario.loss).target == "inputs"
    if setup.scenario.attacker.labels in {"true", "unknown"} or learns_inputs:
        return
    probe = setup.public.inputs[:2]
    layer = output_layer(setup.model, probe, setup.outputs)
    if layer is None:
        yield Finding(
            severity="problem",
            topic="last layer",
            text="the model does not end in a linear layer with one output per class: labels cannot be inferred.",
            advice="Set `attacker.labels` to `unknown` or `true`.",
        )
    elif layer.bias_name is None:
        yield Finding(
            severity="warning",
            topic="last layer",
            text="the last layer has no bias: labels are inferred from its weight's gradient, which is less exact.",
            advice="Read label accuracy beside the scores.",
        )


def _caveats(setup: Setup) -> Iterator[Finding]:
    """Say what attacks themselves remark on this model, once for all that remark the same."""
    said: dict[Caveat, list[str]] = {}
    for name in dict.fromkeys(setup.scenario.attacks):
        for caveat in ATTACKS.build(name).caveats(setup.model):
            said.setdefault(caveat, []).append(name)
    for caveat, names in said.items():
        text = f"{', '.join(names)} {caveat.text}"
        yield Finding(severity="warning", topic=caveat.topic, text=text, advice=caveat.advice)


def _defences(setup: Setup) -> Iterator[Finding]:
    """Say what defences remark on their own first round, those that have something to say."""
    for spec in setup.scenario.defences:
        defence = build_defence(spec)
        members = defence.members if isinstance(defence, Pipeline) else (defence,)
        if not any(member.uses("caveats") for member in members):
            continue
        try:
            own = setup.observe(defence, 0, name=spec).defence
        except FedsealError:
            continue  # its trials say what is wrong
        for caveat in own.caveats():
            yield Finding(severity="warning", topic=caveat.topic, text=f"{spec} {caveat.text}", advice=caveat.advice)


def _precision(setup: Setup) -> Iterator[Finding]:
    if setup.scenario.client.dtype == "float16":
        yield Finding(
            severity="warning",
            topic="float16",
            text="half precision rounds small gradients to zero, which blunts attacks by accident, not by design.",
            advice="Measure in float32 as well before relying on it.",
        )


_CHECKS: tuple[Callable[[Setup], Iterator[Finding]], ...] = (
    weapon,
    duplicates,
    strangers,
    data_notes,
    squashed_outputs,
    _dropout,
    _batch_norm,
    _loss_reduction,
    _gradients,
    _batch_and_classes,
    _last_bias,
    _caveats,
    _defences,
    _precision,
)
