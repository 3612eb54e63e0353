"""Which mechanisms a configuration holds: by their names, or by the keys that only they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from fedseal.core.errors import UsageError
from fedseal.core.registry import near_matches
from fedseal.information.claims import flower, nvflare, opacus
from fedseal.information.claims.mechanism import Mechanism, Weights
from fedseal.information.claims.settings import ROUNDS, Settings, canonical

Reader: TypeAlias = Callable[[Settings, Weights, float], Mechanism]

READERS: Mapping[str, Reader] = {
    "LocalDpMod": flower.local_dp,
    "DifferentialPrivacyServerSideFixedClipping": partial(flower.fixed_clipping, at_client=False),
    "DifferentialPrivacyClientSideFixedClipping": partial(flower.fixed_clipping, at_client=True),
    "DifferentialPrivacyServerSideAdaptiveClipping": partial(flower.adaptive_clipping, at_client=False),
    "DifferentialPrivacyClientSideAdaptiveClipping": partial(flower.adaptive_clipping, at_client=True),
    "SVTPrivacy": nvflare.svt,
    "PercentilePrivacy": nvflare.percentile,
    "PrivacyEngine": opacus.engine,
}
"""By the class that a configuration names."""
_ALSO = {"opacus": "PrivacyEngine", "dp_sgd": "PrivacyEngine"}
_NAMES = {canonical(name): name for name in READERS} | _ALSO
_CLASS_KEYS = ("path", "class_path", "name", "_target_")
_FILTERS = ("task_result_filters", "task_data_filters")
_BY_KEYS = (
    (("sensitivity", "epsilon"), "LocalDpMod"),
    (("noise_multiplier", "num_sampled_clients", "clipping_norm"), "DifferentialPrivacyServerSideFixedClipping"),
    (("noise_multiplier", "num_sampled_clients"), "DifferentialPrivacyServerSideAdaptiveClipping"),
    (("noise_multiplier", "sample_rate"), "PrivacyEngine"),
    (("noise_multiplier", "max_grad_norm"), "PrivacyEngine"),
    (("target_epsilon", "max_grad_norm"), "PrivacyEngine"),
    (("noise_var", "fraction"), "SVTPrivacy"),
)
"""The keys that give a mechanism away where none is named; the first row that fits counts."""


def mechanisms(values: Mapping[str, Any], source: str, weights: Weights, delta: float) -> list[Mechanism]:
    """Return every mechanism that a configuration holds; there must be one.

    Args:
        values: of the file.
        source: its name, for messages.
        weights: what is known of the model.
        delta: at which epsilon is stated where the file does not say.
    """
    shared = _claim(_flat_run_config(values))
    found = [
        READERS[name](Settings({**shared, **own}, source, name), weights, delta) for name, own in _named(values, source)
    ]
    state = _saved_account(values)
    if state is not None:
        found.append(opacus.accountant(state, Settings(shared, source, "the saved accountant"), delta))
    if not found:
        settings = Settings(_plain(shared), source)
        guess = next((name for keys, name in _BY_KEYS if settings.holds(*keys)), None)
        if guess is None:
            raise UsageError(
                f"{source} configures no differential privacy known here.",
                hint=f"Add `mechanism: NAME` with one of {', '.join(READERS)}.",
            )
        settings.owner = guess
        found.append(READERS[guess](settings, weights, delta))
    return found


def rounds_of(values: Any) -> int | None:
    """Return how many rounds a configuration asks for, wherever it says so."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            if canonical(str(key)) in ROUNDS and isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    children = values.values() if isinstance(values, Mapping) else values if isinstance(values, list) else ()
    return next((rounds for rounds in map(rounds_of, children) if rounds is not None), None)


def _named(
    values: Any, source: str, place: str | None = None, tasks: Any = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the mechanisms that are named anywhere, with their arguments and where NVFlare has them."""
    if isinstance(values, list):
        for value in values:
            yield from _named(value, source, place, tasks)
        return
    if not isinstance(values, Mapping):
        return
    name = _class_name(values, source)
    if name is not None:
        arguments = values.get("args", values.get("parameters"))
        own = dict(arguments) if isinstance(arguments, Mapping) else _plain(values)
        claim = values.get("claim")
        yield name, {**_claim({"claim": claim}), **own, "filter-place": place, "filter-tasks": tasks}
        return
    tasks = values.get("tasks", tasks)
    for key, value in values.items():
        yield from _named(value, source, str(key) if key in _FILTERS else place, tasks)


def _class_name(values: Mapping[str, Any], source: str) -> str | None:
    said = values.get("mechanism")
    if isinstance(said, str) and said.lower() not in ("rdp", "prv", "gdp"):
        known = _known(said)
        if known is None:
            raise UsageError(
                f"{source}: the mechanism {said!r} is not known here.", hint=near_matches(said, [*READERS, "opacus"])
            )
        return known
    return next((found for key in _CLASS_KEYS if (found := _known(values.get(key))) is not None), None)


def _known(name: Any) -> str | None:
    return _NAMES.get(canonical(name.rpartition(".")[2])) if isinstance(name, str) else None


def _flat_run_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Flower application's run configuration if there is one, else the values themselves."""
    tool = values.get("tool")
    if isinstance(tool, Mapping) and isinstance(tool.get("flwr"), Mapping):
        flwr = tool["flwr"]
        app = flwr.get("app", {}).get("config", {})
        options = _first_options(flwr.get("federations", {}))
        return {**options, **dict(_leaves(app))}
    return dict(values)


def _first_options(federations: Any) -> dict[str, Any]:
    """Return the options of the default federation, such as how many nodes it has."""
    if not isinstance(federations, Mapping):
        return {}
    chosen = federations.get(str(federations.get("default", "")), {})
    return dict(_leaves(chosen.get("options", {}))) if isinstance(chosen, Mapping) else {}


def _leaves(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield key, value


def _claim(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values, with those of a part `claim` under names of their own."""
    claim = values.get("claim")
    names = {"epsilon": "claimed_epsilon", "model": "claimed_model", "unit": "claimed_unit", "relation": "relation"}
    said = claim if isinstance(claim, Mapping) else {}
    claimed = {names.get(str(key), str(key)): value for key, value in said.items()}
    return {**_plain(values), **claimed}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if not isinstance(value, Mapping | list)}


def _saved_account(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what an accountant of Opacus saved, alone or inside of a checkpoint."""
    inner = values.get("privacy_accountant_state_dict", values.get("accountant_state", values))
    if isinstance(inner, Mapping) and "history" in inner and inner.get("mechanism") in ("rdp", "prv", "gdp"):
        return inner
    return None
