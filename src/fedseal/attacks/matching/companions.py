"""Which observations may be lanes of one batch, and how an attack on several batches looks like one to a listener."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor

from fedseal.attacks.matching.priors import Priors
from fedseal.core.attack import Listener
from fedseal.core.errors import InputError
from fedseal.core.observation import Observation


def companions(
    observations: Sequence[Observation], priors: Priors, *, reads_variances: bool = False
) -> list[list[int]]:
    """Return the places of the observations, in groups that share all a matching problem is built from.

    What an attacker knows of one client only (its batch statistics, a defence's personal view, the variance of each
    entry's noise where the objective reads those) is shared with nobody.

    Raises:
        InputError: if they are not of one model and of one kind.
    """
    first = observations[0]
    if any(o.model is not first.model or o.update.kind != first.update.kind for o in observations[1:]):
        raise InputError("observations attacked together must come from one model and be of one kind.")
    groups: dict[Hashable, list[int]] = {}
    for place, observation in enumerate(observations):
        personal = _is_personal(observation, priors, reads_variances)
        key = place if personal else _shared(observation)
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def _is_personal(observation: Observation, priors: Priors, reads_variances: bool) -> bool:
    view = observation.knowledge.defence
    if priors.needs_statistics and priors.bn_source == "batch":
        return True
    return view is not None and (view.personal or (reads_variances and view.variances is not None))


def _shared(observation: Observation) -> Hashable:
    knowledge = observation.knowledge
    view = knowledge.defence
    return (
        knowledge.input_shape,
        knowledge.num_classes,
        knowledge.loss,
        knowledge.loss_reduction,
        knowledge.bn_mode,
        knowledge.label_rule,
        knowledge.labels is None,
        knowledge.batch_size,
        knowledge.clients,
        knowledge.local_steps,
        knowledge.learning_rate,
        knowledge.local_epochs,
        knowledge.optimiser,
        knowledge.normalisation,
        None if view is None else (view.name, repr(view.parameters)),
    )


class Parts:
    """Tells a listener of one group after the other as of one attack on all observations.

    Args:
        listener: told of the whole.
        shown: images [K, B, C, H, W] of all observations, shown until an observation's own are there.
        groups: places of the observations in each group.
    """

    def __init__(self, listener: Listener, shown: Tensor, groups: Sequence[Sequence[int]]) -> None:
        self._listener = listener
        self._shown = shown
        self._groups = groups

    def of(self, number: int) -> Listener:
        """Return the listener for group number `number`; the groups before it are done."""
        places = list(self._groups[number])
        before = sum(len(group) for group in self._groups[:number])

        def listen(done: float, images: Tensor) -> None:
            self._shown[places] = images.to(self._shown)
            self._listener((before + done * len(places)) / len(self._shown), self._shown.clone())

        return listen
