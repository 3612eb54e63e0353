"""What a run's configuration says of a mod, for what the app leaves open: `guard-max-norm`, `watch-every`, ..."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedseal.core.errors import UsageError


def run_settings(config: Mapping[str, object], prefix: str, known: Collection[str]) -> dict[str, object]:
    """Return the settings under a prefix by the mod's own names, dashes as underscores; unknown ones are refused.

    Args:
        config: Flower's run config.
        prefix: of the mod, without the dash.
        known: names of what may be set.
    """
    found = {
        key.removeprefix(f"{prefix}-").replace("-", "_"): value
        for key, value in config.items()
        if key.startswith(f"{prefix}-")
    }
    strange = sorted(set(found) - set(known))
    if strange:
        names = ", ".join(f"{prefix}-{name.replace('_', '-')}" for name in sorted(known))
        raise UsageError(
            f"the run config's {prefix}-{strange[0].replace('_', '-')} is no setting.", hint=f"There are: {names}."
        )
    return found


def number_of(settings: Mapping[str, object], name: str, prefix: str) -> float | None:
    """Return a setting that must be a number, None where the run says nothing."""
    value = settings.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        key = f"{prefix}-{name.replace('_', '-')}"
        raise UsageError(f"the run config's {key} is {value!r}, not a number.", hint=f"Such as {key}=5.0.")
    return None if value is None else float(value)
