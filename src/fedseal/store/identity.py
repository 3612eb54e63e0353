"""What names trials and trainings: specs with every option resolved, the code they run through, data and weights.

A trial is attack + defence + model + data + everything else (`core.identity`). Each part holds the code of that part
alone (`core.sources`): a change in an attack's source names its trials anew and no other attack's, one in the matching
engine those of all matching attacks, one in a defence the cells with that defence, one in the client's round or in a
metric all of them, and one in reports or commands none. `ig` and `ig:tv=0.0001` are one trial as long as that is the
default; with another default the same words are another trial.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedseal.core.defence import DEFENCES
from fedseal.core.errors import FedsealError
from fedseal.core.identity import classes_in, content_of, model_content
from fedseal.core.registry import Registry, parse_spec
from fedseal.core.sources import code_digest, looked_up
from fedseal.data.dataset import Dataset
from fedseal.defences.pipeline import split_pipeline
from fedseal.models.registry import MODELS


def defence_part(spec: str) -> Any:
    """Return what determines a pipeline: its members in order, and the words that name its stream of noise."""
    return {"spec": spec, "members": [entry_part(DEFENCES, part) for part in split_pipeline(spec)]}


def model_part(spec: str, model: nn.Module) -> Any:
    """Return what determines a model: its options, its weights, and its code, whoever wrote that."""
    return {
        "entry": entry_part(MODELS, spec),
        **model_content(model),
        "code": code_digest(classes_in(model)),
    }


def data_part(data: Dataset, content: str | None = None) -> Any:
    """Return what determines data: images and labels, the number of classes, and the statistics to normalise by.

    Args:
        data: the data set, or a part of it.
        content: hash of what the part was taken from, where the rest of an identity says how.
    """
    return {
        "content": content or data.digest(),
        "classes": len(data.classes),
        "normalisation": content_of(data.normalisation),
    }


def machine_part(device: str | torch.device) -> Any:
    """Return what determines the last bits of every figure: PyTorch and the kind of device."""
    return {"torch": torch.__version__, "device": torch.device(device).type}


def entry_part(registry: Registry[Any], spec: str) -> Any:
    """Return what determines an entry of a registry; one that builds others by their specs holds these too.

    All that it may build, at any depth, is listed once: a module of many entries names each of them in its texts.

    Args:
        registry: of the entry.
        spec: its own.
    """
    own = registry.find(spec).name
    nested: dict[str, Any] = {}
    waiting = sorted(_built(registry, spec, own))
    while waiting:
        text = waiting.pop()
        if text not in nested:
            nested[text] = _alone(registry, text)
            waiting += sorted(_built(registry, text, own) - nested.keys())
    return {**_alone(registry, spec), "nested": nested}


def _alone(registry: Registry[Any], spec: str) -> dict[str, Any]:
    entry = registry.find(spec)
    return {
        "name": entry.name,
        "options": content_of(registry.resolve(spec)),
        "code": code_digest(entry.modules, entry=entry.name),
    }


def _built(registry: Registry[Any], spec: str, own: str) -> set[str]:
    """Return the specs of other entries, but for the one called `own`, that an entry may build itself."""
    entry, options = registry.find(spec), registry.resolve(spec)
    code_names = _CODE_NAMES.get(registry.kind)
    texts = looked_up(entry.modules, code_names) if code_names else ()
    free = [value for key, value in options.items() if entry.parameters[key].annotation is str]
    return {text for text in (*free, *texts) if _names_entry(registry, text, (own, entry.name))}


_CODE_NAMES = {"attack": "ATTACKS", "defence": "DEFENCES", "model": "MODELS"}
"""What sources call the registry of a kind."""


def _names_entry(registry: Registry[Any], value: Any, within: tuple[str, ...]) -> bool:
    """Return whether a value is the spec of another entry, as `fishing:inversion=ig` has one."""
    if not isinstance(value, str):
        return False
    try:
        name = parse_spec(value).name
        if name not in registry or name in within:
            return False
        registry.resolve(value)
    except FedsealError:
        return False
    return True
