"""Trained attackers by content: trained once, kept in the cache, found again by what determined them."""

from __future__ import annotations

from fedseal.attacks.active.seer.attacker import (
    SeerAttacker,
    attacker_file,
    checkpoint_file,
    load_attacker,
    save_attacker,
)
from fedseal.attacks.active.seer.fitting import Progress, Trainee, train_seer


def find_attacker(trainee: Trainee) -> SeerAttacker | None:
    """Return the attacker that was trained on exactly this, if it is in the cache."""
    identity = trainee.identity
    path = attacker_file(identity)
    if not path.is_file():
        return None
    shape = trainee.data.images.shape[1], trainee.data.images.shape[2], trainee.data.images.shape[3]
    return load_attacker(path, identity, trainee.model, trainee.normalisation, shape, trainee.num_classes, trainee.plan)


def trained_attacker(trainee: Trainee, *, progress: Progress | None = None) -> SeerAttacker:
    """Return the attacker from the cache, or train it, resuming what an earlier run left unfinished."""
    found = find_attacker(trainee)
    if found is not None:
        return found
    identity = trainee.identity
    unfinished = checkpoint_file(identity)
    attacker = train_seer(trainee, checkpoint=unfinished, progress=progress)
    save_attacker(attacker, attacker_file(identity), identity)
    unfinished.unlink(missing_ok=True)
    return attacker
