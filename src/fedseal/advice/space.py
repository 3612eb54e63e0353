"""What is searched over: families of defences, each with the strengths in which it makes sense.

A family is a defence's name, several with `+` between them, or a sweep of one's own. Members that several families
share have one strength parameter in the search, so that what is learnt of one helps the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fedseal.core.errors import FedsealError
from fedseal.defences.pipeline import build_defence, split_pipeline
from fedseal.tradeoff.sweeps import parse_sweep

Drawn: TypeAlias = Any
"""An Optuna trial."""
Settings: TypeAlias = dict[str, Any]
"""Parameters of a trial that are asked for by name, to begin with."""


@dataclass(frozen=True)
class Dose:
    """An option between two numbers, tried evenly on a logarithmic scale.

    Attributes:
        option: of the defence.
        low, high: its ends.
        written: how a value becomes the spec's options.
        start: what to begin with.
    """

    option: str
    low: float
    high: float
    written: Callable[[float], str]
    start: tuple[float, ...]


DOSES: Mapping[str, Dose] = {
    "gaussian": Dose("sigma", 1e-3, 3.0, lambda x: f"sigma={x:.3g}", (0.03, 0.1, 0.3)),
    "laplace": Dose("scale", 1e-3, 3.0, lambda x: f"scale={x:.3g}", (0.03, 0.1)),
    "dp-sgd": Dose("sigma", 1e-2, 10.0, lambda x: f"sigma={x:.3g}", (0.5, 4.0)),
    "topk": Dose("kept", 1e-3, 0.5, lambda x: f"ratio={1 - x:.4g},feedback=true", (0.01, 0.1)),
    "minmax": Dose("kept", 1e-3, 0.5, lambda x: f"ratio={1 - x:.4g}", (0.01, 0.1)),
    "quantise": Dose("bits", 1, 8, lambda x: f"bits={round(x)}", (1, 4)),
}
"""By the name of a defence; others are tried at the strengths they declare."""
_ACTIONS = ("encrypt", "freeze", "noise", "prune")
_LAYER_NOISE = (1e-3, 3.0)
_AROUND = (1.0, 2.0, 4.0, 12.0)
"""Of the computed noise, what is tried first: images are gone at once, labels only at several times as much."""


@dataclass(frozen=True)
class Space:
    """Families to search over.

    Attributes:
        families: as the scenario names them.
        clients: of a round, which secure aggregation adds up.
        layers: names of the model's layers, those that hold most of the private data first.
        noise: deviation that by computation leaves an undefended update nothing; None if unknown.
    """

    families: tuple[str, ...]
    clients: int
    layers: tuple[str, ...] = ()
    noise: float | None = None

    def draw(self, trial: Drawn) -> str:
        """Return the spec that a trial asks for."""
        family = trial.suggest_categorical("family", list(self.families))
        return "+".join(self._member(trial, part) for part in split_pipeline(family))

    def starts(self) -> Iterator[Settings]:
        """Yield settings to begin with: every family once or more, and the computed noise where there is one."""
        for family in self.families:
            members = split_pipeline(family)
            for place in range(max(len(self._starts(member)) for member in members)):
                together: Settings = {"family": family}
                for member in members:
                    own = self._starts(member)
                    together |= own[min(place, len(own) - 1)]
                yield together

    def _member(self, trial: Drawn, member: str) -> str:
        if member == "secagg":
            return f"secagg:clients={self.clients}"
        if member == "selective":
            return self._selective(trial)
        if member in DOSES:
            dose = DOSES[member]
            value = trial.suggest_float(f"{member}.{dose.option}", dose.low, dose.high, log=True)
            return f"{member}:{dose.written(value)}"
        choices = parse_sweep(member).defences
        return str(trial.suggest_categorical(member, list(choices)))

    def _selective(self, trial: Drawn) -> str:
        action = trial.suggest_categorical("selective.action", list(_ACTIONS))
        deepest = max(1, len(self.layers) - (action == "freeze"))
        count = trial.suggest_int(f"selective.{action}.layers", 1, deepest)
        chosen = "@".join(self.layers[:count])
        if action == "noise":
            sigma = trial.suggest_float("selective.sigma", *_LAYER_NOISE, log=True)
            return f"selective:noise={chosen},sigma={sigma:.3g}"
        return f"selective:{action}={chosen}"

    def _starts(self, member: str) -> list[Settings]:
        if member == "selective":
            found: list[Settings] = [
                {"selective.action": "encrypt", "selective.encrypt.layers": count} for count in {1, len(self.layers)}
            ]
            return [*found, {"selective.action": "freeze", "selective.freeze.layers": 1}]
        if member in DOSES:
            dose = DOSES[member]
            values = dose.start
            if member in {"gaussian", "laplace"} and self.noise:
                values = tuple(sorted(min(max(self.noise * by, dose.low), dose.high) for by in _AROUND))
            return [{f"{member}.{dose.option}": value} for value in values]
        if member == "secagg":
            return [{}]
        return [{member: choice} for choice in parse_sweep(member).defences]


def usable(families: Sequence[str], clients: int, layers: Sequence[str], noise: float | None) -> Space:
    """Return the space of those families that can be built here; the layers' needs layers, sums need clients."""
    kept = []
    for family in families:
        members = split_pipeline(family)
        if ("secagg" in members and clients < 2) or ("selective" in members and not layers):
            continue
        _check(members, clients)
        kept.append(family)
    return Space(tuple(dict.fromkeys(kept)), clients, tuple(layers), noise)


def _check(members: Sequence[str], clients: int) -> None:
    """Refuse unknown names and pipelines that cannot be, as the audit would."""
    specs = []
    for member in members:
        if member == "secagg":
            specs.append(f"secagg:clients={clients}")
        elif member in DOSES or member == "selective":
            specs.append(member)
        else:
            specs.append(parse_sweep(member).defences[0])
    build_defence("+".join(specs))


def can_be_built(spec: str) -> bool:
    """Return whether a drawn pipeline is one that its members allow."""
    try:
        build_defence(spec)
    except FedsealError:
        return False
    return True
