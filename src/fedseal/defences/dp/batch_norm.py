"""Batch normalisation makes a sample's gradient depend on its batch: replaced, or refused."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.errors import InputError
from fedseal.defences.accounting import require_opacus

MARK = "replaces_batch_norm"
"""Attribute of normalisation layers that were put in."""


def replace_batch_norm(model: nn.Module) -> nn.Module:
    """Return a copy with every batch normalisation replaced as Opacus does it: by a fresh group normalisation."""
    require_opacus()
    from opacus.validators import ModuleValidator

    fixed = copy.deepcopy(model)
    for name, module in list(fixed.named_modules()):
        if not isinstance(module, _BatchNorm):
            continue
        group = ModuleValidator.fix(module)
        if isinstance(group, _BatchNorm):
            raise InputError(
                f"the batch normalisation {name or 'model'!r} cannot be replaced: it has no weights, or is of its own "
                "kind.",
                hint="Train a model with GroupNorm instead.",
            )
        setattr(group, MARK, True)
        group.to(next(module.parameters()).dtype)
        if not name:
            return group  # type: ignore[no-any-return]
        fixed.set_submodule(name, group)
    return fixed


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a model normalises over the batch anywhere."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def batch_norm_refused(name: str) -> InputError:
    """Return the error of a defence that cannot train such a model."""
    return InputError(
        f"{name} cannot train a model with batch normalisation: it makes a sample's gradient depend on its batch.",
        hint="Let batch_norm=replace put GroupNorm in its place through wrap_model, or use a model without it.",
    )
