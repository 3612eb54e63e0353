"""What the parameters of NVFlare's privacy filters mean, as its code has them (nvflare 2.9).

`SVTPrivacy` shares c = ceil(fraction N) of N numbers of the update per local step, each clipped to gamma. Which ones is
chosen by the sparse vector technique: noise gamma/e1 on the threshold and 2 c gamma/e2 on every number, e1 + e2 =
`epsilon`. Each shared number gets Laplace noise of scale 2 gamma / noise_var, that is epsilon `noise_var` *each*, and
c noise_var in all, unless `epsilon_release` says otherwise; `epsilon` is what the choice alone is meant to cost. The
technique pays e2/c for every number above the threshold and stops at c; the filter goes through all of them and then
draws c, so that up to N are above: the choice costs up to e1 + e2 N / c.

`PercentilePrivacy` sets the smallest numbers to zero and truncates the others: nothing random.
"""

from __future__ import annotations

import math

from fedseal.core.errors import UsageError
from fedseal.core.privacy import PrivateRelease
from fedseal.information.claims import traps
from fedseal.information.claims.mechanism import Finding, Mechanism, Weights
from fedseal.information.claims.rehearsals import nvflare_percentile, nvflare_svt
from fedseal.information.claims.settings import Settings

_DEFAULTS = {"fraction": 0.1, "epsilon": 0.1, "noise_var": 0.1, "gamma": 1e-5, "tau": 1e-6}


def svt(settings: Settings, weights: Weights, delta: float) -> Mechanism:
    """Read `SVTPrivacy`; its epsilon depends on the size of the model."""
    name = "NVFlare's SVTPrivacy"
    values = {key: settings.positive(key, zero=key == "tau", default=value) for key, value in _DEFAULTS.items()}
    size = settings.count("parameters", "num_parameters", "total_params") or weights.parameters
    if size is None:
        raise UsageError(
            f"{settings.source}: what {name} costs depends on how many numbers the model has.",
            hint="Say it by --parameters N, a key `parameters`, or --weights FILE.safetensors.",
        )
    shared = min(math.ceil(size * values["fraction"]), size)
    of_choice = values["epsilon"]
    release = settings.number("epsilon_release") or shared * values["noise_var"]
    threshold = settings.number("epsilon_threshold")
    if threshold is None:
        query = settings.number("epsilon_query")
        threshold = of_choice - query if query is not None else of_choice / (1 + (2 * shared) ** (2 / 3))
    if not 0 < threshold < of_choice:
        raise UsageError(f"{settings.source}: epsilon_threshold and epsilon_query of {name} must add up to epsilon.")
    choice = threshold + (of_choice - threshold) * size / shared
    findings = [
        Finding(
            "release-not-in-epsilon",
            "wrong" if release > of_choice else "warning",
            f"epsilon {of_choice:g} covers which of the {size:,} numbers are shared, not their values: the {shared:,} "
            f"shared ones cost {release:,.0f} more"
            + ("" if "epsilon_release" in settings else f" (noise_var {values['noise_var']:g} each)")
            + ". Set epsilon_release.",
        ),
        Finding(
            "more-accepted-than-budgeted",
            "warning",
            f"the choice is budgeted for {shared:,} numbers above the threshold, but all {size:,} may be: it costs up "
            f"to {choice:,.4g}.",
        ),
        _scalars(name, weights),
        traps.whole_numbers(name, weights, "they are shared rounded, or set to zero."),
        traps.trusted(settings.raw("claimed_model", "trust"), "local", name),
        traps.seeded(settings),
        *_place(settings),
    ]
    per_number = shared / release
    return Mechanism(
        name,
        _laplace(choice, 2 * per_number, shared),
        _laplace(choice, per_number, shared),
        "local",
        settings.delta(delta),
        relation="replace-one",
        claimed=settings.number("claimed_epsilon") or of_choice,
        findings=tuple(finding for finding in findings if finding is not None),
        own={"its own accountant": of_choice + release},
        rehearsal=nvflare_svt({**values, "epsilon_release": settings.number("epsilon_release")}, size),
    )


def percentile(settings: Settings, weights: Weights, delta: float) -> Mechanism:
    """Read `PercentilePrivacy`."""
    name = "NVFlare's PercentilePrivacy"
    share = settings.number("percentile", default=10.0) or 0.0
    gamma = settings.number("gamma", default=0.01) or 0.0
    if gamma <= 0 or not 0 <= share <= 100:
        findings = [
            Finding(
                "nothing-leaves",
                "warning",
                "with these values the filter answers nothing, and NVFlare drops the result.",
            )
        ]
    else:
        findings = [traps.no_noise(name)]
    extra = (_scalars(name, weights), *_place(settings))
    return Mechanism(
        name,
        (),
        (),
        "local",
        settings.delta(delta),
        claimed=settings.number("claimed_epsilon", "epsilon"),
        findings=(*findings, *(finding for finding in extra if finding is not None)),
        rehearsal=nvflare_percentile(share, gamma) if gamma > 0 and 0 <= share < 100 else None,
    )


def _laplace(choice: float, multiplier: float, shared: int) -> tuple[PrivateRelease, ...]:
    """Return the choice, as one release, and the shared numbers, whose noise over sensitivity is `multiplier`."""
    return (
        PrivateRelease("update", "laplace", 1 / choice),
        PrivateRelease("update", "laplace", multiplier, steps=shared),
    )


def _scalars(name: str, weights: Weights) -> Finding | None:
    if weights.scalars is None:
        return Finding(
            "scalars-untouched",
            "note",
            "numbers without dimensions (num_batches_tracked, a learned temperature) pass the filter as they are.",
        )
    if not weights.scalars:
        return None
    named = ", ".join(weights.scalars[:3]) + (", ..." if len(weights.scalars) > 3 else "")
    return Finding(
        "scalars-untouched", "wrong", f"{name} passes numbers without dimensions as they are: {named}. Exclude them."
    )


def _place(settings: Settings) -> tuple[Finding, ...]:
    """Say where a filter does not do what it is there for."""
    where, tasks = settings.raw("filter_place"), settings.raw("filter_tasks")
    findings = []
    if where == "task_data_filters":
        findings.append(
            Finding(
                "wrong-direction",
                "wrong",
                "it stands in task_data_filters, so it changes what a site receives; what leaves passes "
                "task_result_filters.",
            )
        )
    if tasks and not {"train", "*"} & set(map(str, tasks)):
        findings.append(
            Finding(
                "other-tasks", "warning", f"it is set for the tasks {', '.join(map(str, tasks))} only, not for `train`."
            )
        )
    return tuple(findings)
