"""What the parameters of Flower's differential privacy mean, as its code has them (flwr 1.41).

`LocalDpMod`: the update is clipped to `clipping_norm`, every array gets N(0, s^2) with s = sensitivity
sqrt(2 ln(1.25/delta)) / epsilon. What hides an update is s over the clip norm; `sensitivity` is believed.

Fixed clipping: the mean of n clipped updates gets N(0, (z C / n)^2). A client's share of an unweighted mean is C / n;
FedAvg weighs by examples, so a client with a larger share w changes the mean by w C.

Adaptive clipping (Andrew et al., NeurIPS 2021): z is split into z' for the updates and b for the count of clipped ones,
as if a client changed that count by 1/2; it changes it by 1. And the mean is noised by the clip norm of the *next*
round, which is smaller by up to exp(-lr (1 - quantile)) than the one updates were clipped to.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fedseal.core.errors import UsageError
from fedseal.core.privacy import PrivateRelease
from fedseal.information.claims import traps
from fedseal.information.claims.mechanism import Finding, Mechanism, Rehearsal, Weights
from fedseal.information.claims.rehearsals import flower_local, flower_server
from fedseal.information.claims.settings import Settings

_MARGIN = 4.0
"""Standard deviations of the noisy count within which the next clip norm is taken to lie."""


def local_dp(settings: Settings, weights: Weights, delta: float) -> Mechanism:
    """Read `LocalDpMod`."""
    name = "Flower's LocalDpMod"
    clip = settings.positive("clipping_norm", "clip_norm", "clip", default=math.inf)
    believed, claimed = settings.positive("sensitivity", zero=True), settings.positive("epsilon")
    delta = settings.delta(delta)
    scale = believed * math.sqrt(2 * math.log(1.25 / delta)) / claimed
    findings: list[Finding | None] = []
    if math.isinf(clip):
        findings.append(traps.no_clip(name))
    if scale == 0:
        findings.append(traps.no_noise(name))
    if believed < clip < math.inf:
        findings.append(
            Finding(
                "sensitivity-below-clip",
                "wrong",
                f"sensitivity {believed:g} is {clip / believed:,.0f} times below the clip norm {clip:g}, "
                f"which is how much an update can change: noise of standard deviation {scale:.4g} is "
                f"{scale / clip:.2g} of it. Set sensitivity to the clip norm, or to twice that if a client's data may "
                "be replaced."
                if believed
                else f"sensitivity 0 beside a clip norm of {clip:g} says that updates never change.",
            )
        )
    elif believed < 2 * clip < math.inf:
        findings.append(
            Finding(
                "replace-one",
                "note",
                "two updates can be two clip norms apart: where a client's data may be replaced rather than left out, "
                "the sensitivity is twice the clip norm.",
            )
        )
    findings += [
        traps.textbook_formula(claimed),
        traps.whole_numbers(
            name,
            weights,
            "noise is rounded towards zero there and leaves them as they are; clipping them raises a type error.",
        ),
        traps.trusted(settings.raw("claimed_model", "trust"), "local", name),
        traps.amplified(settings, traps.sampled_share(settings)),
        traps.seeded(settings),
    ]
    multiplier = scale / clip if math.isfinite(clip) else 0.0
    return Mechanism(
        name,
        *_gaussian((multiplier,)),
        "local",
        delta,
        claimed=claimed,
        findings=_kept(findings),
        rehearsal=flower_local(clip, believed, claimed, delta) if math.isfinite(clip) else None,
    )


def fixed_clipping(settings: Settings, weights: Weights, delta: float, *, at_client: bool) -> Mechanism:
    """Read `DifferentialPrivacyServerSideFixedClipping` or its client-side sister."""
    name = f"Flower's {'client' if at_client else 'server'}-side fixed clipping"
    clip = settings.positive("clipping_norm", "clip_norm", "clip", default=math.inf)
    noise, sampled = _noise(settings)
    findings = _central(name, settings, weights, sampled, at_client)
    if math.isinf(clip):
        findings.append(traps.no_clip(name))
        noise = 0.0
    effective = noise * _answered(settings, sampled, findings)
    return _mechanism(
        name,
        settings,
        delta,
        (effective,),
        findings,
        flower_server(noise, clip, sampled) if noise and not at_client else None,
    )


def adaptive_clipping(settings: Settings, weights: Weights, delta: float, *, at_client: bool) -> Mechanism:
    """Read `DifferentialPrivacyServerSideAdaptiveClipping` or its client-side sister."""
    name = f"Flower's {'client' if at_client else 'server'}-side adaptive clipping"
    noise, sampled = _noise(settings)
    count_noise = settings.number("clipped_count_stddev", default=sampled / 20 if noise else 0.0) or 0.0
    if noise and noise >= 2 * count_noise:
        raise UsageError(
            f"{settings.source}: noise_multiplier {noise:g} cannot be had with clipped_count_stddev {count_noise:g}: "
            "Flower refuses it.",
            hint="Raise clipped_count_stddev or num_sampled_clients above half the noise multiplier (times 20).",
        )
    findings = _central(name, settings, weights, sampled, at_client)
    shrunk = _answered(settings, sampled, findings)
    releases: tuple[float, ...] = (0.0,)
    if noise:
        on_updates = (noise**-2 - (2 * count_noise) ** -2) ** -0.5
        quantile = settings.number("target_clipped_quantile", default=0.5) or 0.0
        rate = settings.number("clip_norm_lr", default=0.2) or 0.0
        late = math.exp(-rate * (1 + _MARGIN * count_noise / sampled - quantile))
        releases = (on_updates * late * shrunk, count_noise)
        findings += [
            Finding(
                "noise-by-next-clip",
                "warning",
                "noise is scaled by the clip norm after its update, but updates were clipped to the one before: a "
                f"round whose norm shrinks is short of noise by up to a factor of {late:.3f}, which is accounted.",
            ),
            Finding(
                "count-sensitivity",
                "warning",
                f"noise {count_noise:g} on the count of clipped updates is taken to hide a change by 1/2; a client "
                "changes the count by 1, which is accounted.",
            ),
        ]
    return _mechanism(name, settings, delta, releases, findings, None)


def _noise(settings: Settings) -> tuple[float, int]:
    """Return the noise multiplier and how many clients it is divided by."""
    sampled = settings.count("num_sampled_clients")
    if sampled is None:
        raise UsageError(
            f"{settings.source}: {settings.owner} has no 'num_sampled_clients'.",
            hint="It is what Flower divides the noise by.",
        )
    return settings.positive("noise_multiplier", zero=True), sampled


def _central(name: str, settings: Settings, weights: Weights, sampled: int, at_client: bool) -> list[Finding | None]:
    """Return what all central mechanisms share."""
    findings: list[Finding | None] = [
        traps.no_noise(name) if not settings.positive("noise_multiplier", zero=True) else None,
        traps.trusted(settings.raw("claimed_model", "trust"), "central", name),
        Finding(
            "trusted-server",
            "note",
            "noise is added by the server: it hides a client from those who see the model, not from the server. "
            "Metrics that clients report are not covered.",
        ),
        Finding(
            "weighted-average",
            "note",
            f"accounted as if all {sampled} clients had equal weight; FedAvg weighs by examples, and a client of share "
            f"w multiplies its effect by {sampled} w. Weigh equally.",
        ),
        traps.amplified(settings, traps.sampled_share(settings)),
        traps.seeded(settings),
        traps.whole_numbers(name, weights, "noise leaves them as they are, and clipping them raises a type error."),
    ]
    if at_client:
        findings.append(
            Finding(
                "clipped-by-clients",
                "warning",
                "clients clip themselves: one that leaves the mod out, or lies, is not bounded, and neither is its "
                "effect. Clip at the server, or guard it.",
            )
        )
    return findings


def _answered(settings: Settings, sampled: int, findings: list[Finding | None]) -> float:
    """Return the factor by which noise falls short if fewer clients answer than it was set for."""
    population = settings.number("num_clients", "num_supernodes", "population_size", "total_clients")
    share = settings.number("fraction_train", "fraction_fit", default=1.0) or 0.0
    taking = settings.number("clients_per_round", "min_replies")
    if taking is None and population is not None:
        taking = max(1.0, math.floor(share * population))
    if taking is None or taking >= sampled:
        return 1.0
    findings.append(
        Finding(
            "fewer-clients-than-noise",
            "wrong",
            f"noise is divided by num_sampled_clients = {sampled}, but {taking:g} clients take part: each changes the "
            f"mean by {sampled / taking:.2g} times what the noise was set for.",
        )
    )
    return taking / sampled


def _mechanism(
    name: str,
    settings: Settings,
    delta: float,
    multipliers: tuple[float, ...],
    findings: list[Finding | None],
    rehearsal: Rehearsal | None,
) -> Mechanism:
    return Mechanism(
        name,
        *_gaussian(multipliers),
        "central",
        settings.delta(delta),
        claimed=settings.number("claimed_epsilon", "target_epsilon", "max_epsilon", "epsilon"),
        claims_total=True,
        findings=_kept(findings),
        rehearsal=rehearsal,
    )


def _gaussian(multipliers: tuple[float, ...]) -> tuple[tuple[PrivateRelease, ...], tuple[PrivateRelease, ...]]:
    """Return releases for an added or removed unit, and for a replaced one, which moves twice as far."""
    if not all(multipliers):
        return (), ()
    added = tuple(PrivateRelease("update", "gaussian", multiplier) for multiplier in multipliers)
    return added, tuple(replace(release, multiplier=release.multiplier / 2) for release in added)


def _kept(findings: list[Finding | None]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding is not None)
