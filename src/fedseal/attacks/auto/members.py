"""Who takes part in `auto`: attacks by their names, and the settings raced on shadows.

The settings are a coarse grid over the weight of total variation around what was found by hand on LeNets (0.05 with a
cosine schedule on ReLU, next to none on sigmoids); they are not the outcome of studies. They need not be right: they
are raced on shadows, and what `fedseal tune-attack` found for a set-up joins the race. Only where there are no public
images to race on, a family's first is taken as it is.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Family: TypeAlias = Literal["smooth", "kinked", "normalised", "attention"]
"""Sigmoid and tanh; ReLU and the like; batch normalisation, as in ResNets; transformers."""

CLOSED: tuple[str, ...] = ("first-layer", "rgap", "retrieval", "learned")
"""Attacks that answer without a search, each tried where model and knowledge allow."""

SEARCHES: dict[Family, tuple[str, ...]] = {
    "smooth": (
        "ig:tv=0.0001,schedule=cosine",
        "ig:tv=0.005,schedule=cosine",
        "ig:tv=0.05,schedule=cosine",
        "idlg",
    ),
    "kinked": (
        "ig:tv=0.05,schedule=cosine",
        "ig:tv=0.01,schedule=cosine",
        "ig:tv=0.2,schedule=cosine",
        "ig:tv=0.001,schedule=cosine",
    ),
    "normalised": (
        "ig:tv=0.01,schedule=cosine",
        "ig:tv=0.1,schedule=cosine",
        "ig:tv=0.001,schedule=cosine",
        "ig:tv=0.5,schedule=cosine",
    ),
    "attention": (
        "ig:tv=0.01,schedule=cosine",
        "ig:tv=0.001,schedule=cosine",
        "ig:tv=0.1,schedule=cosine",
        "fedleak:lr=0.05,tv=0.1",
    ),
}
"""Searches by family, the likeliest first."""

MEMBERS: tuple[str, ...] = tuple(dict.fromkeys([*CLOSED, *(spec for specs in SEARCHES.values() for spec in specs)]))


def family_of(model: nn.Module) -> Family:
    """Return what kind of network a model is, by its layers."""
    kinds = [type(module) for module in model.modules()]
    if any(issubclass(kind, nn.MultiheadAttention) or "attention" in kind.__name__.lower() for kind in kinds):
        return "attention"
    if any(issubclass(kind, _BatchNorm) for kind in kinds):
        return "normalised"
    return "smooth" if any(kind in (nn.Sigmoid, nn.Tanh) for kind in kinds) else "kinked"
