"""The traps that mechanisms share, as findings."""

from __future__ import annotations

import math

from fedseal.information.claims.mechanism import Finding, Trust, Weights
from fedseal.information.claims.settings import Settings

_FEW = 3


def no_noise(name: str) -> Finding:
    """There is nothing random in what leaves."""
    return Finding("no-noise", "wrong", f"{name} adds no noise: there is no differential privacy, whatever is claimed.")


def no_clip(name: str) -> Finding:
    """Nothing bounds what one unit can change."""
    return Finding(
        "no-clip",
        "wrong",
        f"{name} bounds nobody's contribution: without a clip norm no noise hides it, and epsilon is infinite.",
    )


def textbook_formula(epsilon: float) -> Finding | None:
    """Noise Delta sqrt(2 ln(1.25/delta)) / epsilon is proven for epsilon < 1 only (Dwork and Roth, Thm. 3.22)."""
    if epsilon < 1:
        return None
    return Finding(
        "formula-outside-range",
        "warning",
        f"noise is set by the textbook formula, which is proven for epsilon below 1; at {epsilon:g} it is not what "
        "the noise guarantees. Calibrate by the analytic Gaussian mechanism.",
    )


def seeded(settings: Settings) -> Finding | None:
    """Who knows the seed can subtract the noise."""
    keys = settings.seeds()
    if not keys:
        return None
    certain = [key for key in keys if key != "seed"]
    noise = any(word in key for key in certain for word in ("noise", "privacy")) or bool(settings.raw("noise_seed"))
    return Finding(
        "seeded-noise",
        "wrong" if noise else "warning",
        f"the configuration sets {' and '.join(keys)}, which the server knows: noise drawn after such a seed can be "
        "subtracted. Draw noise from the operating system, never from a seed that travels.",
    )


def whole_numbers(name: str, weights: Weights, effect: str) -> Finding | None:
    """Tensors of whole numbers cannot take noise."""
    if weights.integers is None:
        return Finding(
            "integer-buffers",
            "note",
            f"if the model has tensors of whole numbers (num_batches_tracked of batch normalisation), {effect} Give "
            "--weights to have it looked up.",
        )
    if not weights.integers:
        return None
    named = ", ".join(weights.integers[:_FEW]) + (", ..." if len(weights.integers) > _FEW else "")
    return Finding("integer-buffers", "wrong", f"{name} and whole numbers ({named}): {effect}")


def trusted(claimed: str | None, trust: Trust, name: str) -> Finding | None:
    """Protection from the server is claimed where there is none, or the other way round."""
    if claimed == "local" and trust == "central":
        return Finding(
            "central-claimed-as-local",
            "wrong",
            f"{name} lets the server see every client's update and adds noise afterwards: nothing is hidden from the "
            "server.",
        )
    if claimed == "central" and trust == "local":
        return Finding(
            "local-claimed-as-central",
            "wrong",
            f"{name} adds noise to each upload by itself, and the server sees each: the noise of other clients hides "
            "nothing. Only with secure aggregation does the sum count.",
        )
    return None


def amplified(settings: Settings, rate: float | None) -> Finding | None:
    """Amplification by sampling that is claimed for a mechanism that does not sample that way."""
    said = str(settings.raw("amplification", "sampling", "sampling_method") or "").lower()
    if said in ("", "none", "no-amplification", "no_amplification", "false"):
        return None
    if rate is not None and rate >= 1:
        return Finding(
            "not-subsampled", "wrong", f"amplification by {said} sampling is claimed, but everybody takes part (q = 1)."
        )
    return Finding(
        "sampling-not-as-claimed",
        "warning",
        f"amplification by {said} sampling is claimed; Flower draws a fixed number of clients, which the server picks: "
        "it is accounted without amplification.",
    )


def sampled_share(settings: Settings) -> float | None:
    """Return the share of clients that takes part in a round, if the configuration tells."""
    share = settings.number("fraction_train", "fraction_fit")
    sampled = settings.number("num_sampled_clients")
    population = settings.number("population_size", "num_clients", "num_supernodes", "total_clients")
    if share is None and sampled is not None and population:
        share = sampled / population
    return None if share is None or math.isnan(share) else min(share, 1.0)
