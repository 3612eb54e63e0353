"""What a configuration of Opacus means: records are hidden, batches are Poisson samples, steps compose.

A privacy engine made anew in every round starts its account anew; what leaves is the sum of all rounds, so steps are
multiplied by rounds. Where batches are cut from a shuffled pass instead, no amplification is proven by the accountants:
then each record is in one batch of an epoch, and epochs compose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedseal.core.errors import UsageError
from fedseal.core.privacy import PrivateRelease
from fedseal.defences.accounting import require_opacus
from fedseal.information.claims import traps
from fedseal.information.claims.mechanism import Finding, Mechanism, Weights
from fedseal.information.claims.rehearsals import opacus_step
from fedseal.information.claims.settings import Settings

_NAME = "Opacus"


def engine(settings: Settings, weights: Weights, delta: float) -> Mechanism:
    """Read the arguments of `make_private` or `make_private_with_epsilon`, with how long training goes on."""
    delta = settings.delta(delta)
    clip = settings.positive("max_grad_norm", "clipping_norm", "clip", default=math.inf)
    findings: list[Finding | None] = [traps.seeded(settings)]
    poisson = _flag(settings.raw("poisson_sampling"), default=True)
    rate = _rate(settings, findings)
    steps = _steps(settings, rate)
    target = settings.number("target_epsilon", "claimed_epsilon", "epsilon")
    noise = settings.number("noise_multiplier", "sigma")
    if noise is None:
        noise = _calibrated(settings, target, delta, rate, steps)
    findings += [
        traps.no_noise(_NAME) if noise == 0 else None,
        traps.no_clip(_NAME) if math.isinf(clip) else None,
        Finding(
            "floating-point-noise",
            "note",
            "without secure_mode noise comes from a generator that is not cryptographic, in floating point.",
        )
        if not _flag(settings.raw("secure_mode"), default=False)
        else None,
    ]
    if weights.statistics:
        findings.append(
            Finding(
                "running-statistics",
                "wrong",
                f"running statistics ({weights.statistics[0]}, ...) are functions of records and get no noise. Replace "
                "batch normalisation (ModuleValidator.fix).",
            )
        )
    if not poisson:
        epochs = max(1, math.ceil(steps * rate))
        findings.append(
            Finding(
                "not-subsampled",
                "wrong" if rate < 1 else "note",
                "poisson_sampling is off: batches of a shuffled pass are not Poisson samples, so nothing is amplified; "
                f"{epochs} passes compose.",
            )
        )
        rate, steps = 1.0, epochs
    elif rate == 1 and _claims_amplification(settings):
        findings.append(
            Finding("not-subsampled", "wrong", "every record is in every batch (q = 1): nothing is amplified.")
        )
    return _records(((noise if math.isfinite(clip) else 0.0, rate, steps),), delta, target, findings, clip)


def accountant(state: Mapping[str, Any], settings: Settings, delta: float) -> Mechanism:
    """Read what an accountant saved: its history of noise multipliers, sample rates and steps."""
    history = state.get("history")
    if not isinstance(history, Sequence) or not history:
        raise UsageError(f"{settings.source}: the accountant's history is empty.", hint="Save it after training.")
    steps = []
    for entry in history:
        try:
            noise, rate, count = (float(value) for value in entry)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{settings.source}: the history of an accountant holds noise multiplier, sample rate and steps, "
                f"not {entry!r}."
            ) from error
        if not (noise >= 0 and 0 < rate <= 1 and count >= 1):
            raise UsageError(f"{settings.source}: no accountant can have the entry {entry!r}.")
        steps.append((noise, rate, int(count)))
    target = settings.number("target_epsilon", "claimed_epsilon", "epsilon")
    findings: list[Finding | None] = [
        Finding(
            "as-saved",
            "note",
            "sample rates are as the engine was told; whether batches were Poisson samples of that rate cannot be seen "
            "in a history.",
        )
    ]
    return _records(tuple(steps), settings.delta(delta), target, findings, 1.0)


def _records(
    steps: Sequence[tuple[float, float, int]],
    delta: float,
    target: float | None,
    findings: list[Finding | None],
    clip: float,
) -> Mechanism:
    private = all(noise > 0 for noise, _, _ in steps)
    releases = tuple(PrivateRelease("sample", "gaussian", noise, rate, count) for noise, rate, count in steps)
    halved = tuple(replace(release, multiplier=release.multiplier / 2) for release in releases)
    sampled = any(rate < 1 for _, rate, _ in steps)  # then a replaced record is not one that moves twice as far
    noise, rate, _ = steps[0]
    return Mechanism(
        _NAME,
        releases if private else (),
        None if sampled else halved if private else (),
        "local",
        delta,
        claimed=target,
        findings=tuple(finding for finding in findings if finding is not None),
        rehearsal=opacus_step(noise, rate) if private and math.isfinite(clip) else None,
    )


def _rate(settings: Settings, findings: list[Finding | None]) -> float:
    """Return the sample rate as data and batches have it; a stated one that differs is a finding."""
    stated, batch = settings.number("sample_rate"), settings.number("batch_size", "expected_batch_size")
    size = settings.number("dataset_size", "sample_size", "num_samples", "num_examples")
    measured = min(1.0, batch / size) if batch and size else None
    if stated is None and measured is None:
        raise UsageError(
            f"{settings.source}: {settings.owner} has no 'sample_rate'.",
            hint="Or say batch_size and dataset_size, which it is the quotient of.",
        )
    if stated is not None and not 0 < stated <= 1:
        raise UsageError(f"{settings.source}: sample_rate must lie between 0 and 1, got {stated:g}.")
    if stated is not None and measured is not None and not math.isclose(stated, measured, rel_tol=0.05):
        findings.append(
            Finding(
                "sample-rate-not-measured",
                "wrong" if stated < measured else "warning",
                f"sample_rate {stated:g} is stated, but batches of {batch:g} of {size:g} records have a rate of "
                f"{measured:g}, which is accounted.",
            )
        )
    return float(measured if measured is not None else stated or 1.0)


def _steps(settings: Settings, rate: float) -> int:
    steps = settings.count("steps", "num_steps", "local_steps", "max_steps")
    if steps is not None:
        return steps
    epochs = settings.number("epochs", "num_epochs", "local_epochs")
    if epochs is None:
        raise UsageError(
            f"{settings.source}: {settings.owner} has neither 'steps' nor 'epochs'.", hint="Say how long a round is."
        )
    return max(1, math.ceil(epochs / rate))


def _calibrated(settings: Settings, target: float | None, delta: float, rate: float, steps: int) -> float:
    if target is None:
        raise UsageError(
            f"{settings.source}: {settings.owner} has neither 'noise_multiplier' nor 'target_epsilon'.",
            hint="Give the one that make_private or make_private_with_epsilon is given.",
        )
    require_opacus()
    from opacus.accountants.utils import get_noise_multiplier

    kind = str(settings.raw("accountant") or "prv").lower()
    return float(
        get_noise_multiplier(target_epsilon=target, target_delta=delta, sample_rate=rate, steps=steps, accountant=kind)
    )


def _claims_amplification(settings: Settings) -> bool:
    stated = settings.number("sample_rate", default=1.0) or 1.0
    return stated < 1 or bool(settings.raw("amplification", "sampling"))


def _flag(value: Any, *, default: bool) -> bool:
    return default if value is None else str(value).lower() in ("true", "1", "yes", "on")
