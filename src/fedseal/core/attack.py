"""The contract of an attack: it sees observations, a budget and seeds, and returns reconstructions.

A passive server sends the model as it is and looks at the answer. An active one chooses what it sends: its attack
overrides `provoke`, which plays the rounds that end in the observation, before any image is rebuilt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from fedseal.core.caveat import Caveat
from fedseal.core.errors import CapabilityError
from fedseal.core.knowledge import CROSS_ENTROPY, Knowledge
from fedseal.core.modality import IMAGE
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Declared, Registry
from fedseal.core.trainable import Trainable


class Listener(Protocol):
    """Told of an attack's progress, now and then; for display only, it can change nothing."""

    def __call__(self, done: float, images: Tensor) -> None:
        """Take the finished fraction and the current images [K, B, C, H, W] of the K running targets."""


class Ask(Protocol):
    """One round of the attacked clients, on the same data each time: models out, the server's view of the answer in."""

    def __call__(self, models: Sequence[nn.Module]) -> Observation:
        """Send one model to all clients, or one to each in turn; the observation's model is the first client's."""


@dataclass(frozen=True)
class Foreknowledge:
    """What an attack brings along beside what a scenario grants: something trained elsewhere, on data of its own.

    Attributes:
        words: for the ledger of what the attacker was given.
        holds: returns how many of some inputs were among those data.
    """

    words: str
    holds: Callable[[Tensor], int]


@dataclass(frozen=True)
class Budget:
    """What an attack may spend.

    Example:
        >>> import fedseal
        >>> fedseal.Budget(iterations=500)
        Budget(iterations=500, restarts=None)

    Attributes:
        iterations: optimisation steps per start; None for the attack's own default.
        restarts: random starts; None for the attack's own default.
    """

    iterations: int | None = None
    restarts: int | None = None


class Attack(Declared, ABC):
    """An attack on gradients. Subclasses implement `run_many`; their `Info` declares the capabilities they need.

    Example:
        >>> import torch, fedseal
        >>> class Grey(fedseal.Attack):
        ...     def run_many(self, observations, budget, seeds, listener=None):
        ...         shapes = [(o.knowledge.batch_size, *o.knowledge.input_shape) for o in observations]
        ...         return [fedseal.Reconstruction(torch.full(s, 0.5), torch.zeros(s[0]).long(), 0.0) for s in shapes]
        >>> Grey().name, Grey().needs
        ('Grey', frozenset())
    """

    any_loss: ClassVar[bool] = False
    """Whether it takes the client's loss as it is; if not, it reads the gradient of a classifier's cross-entropy."""

    takes: ClassVar[tuple[str, ...]] = (IMAGE,)
    """The kinds of data it can rebuild."""

    prepares: ClassVar[bool] = False
    """Whether it learns on public images first, once for all targets."""

    @property
    def needs(self) -> frozenset[str]:
        """The capabilities that must be granted."""
        return frozenset(self.info.needs)

    def caveats(self, model: nn.Module) -> tuple[Caveat, ...]:
        """Return what a reader of its results on this model must know beforehand."""
        return ()

    def trainables(self, model: nn.Module, knowledge: Knowledge) -> Iterable[Trainable[Any]]:
        """Return what the attack takes from the library when it runs on such clients (`core.trainable`).

        Each is trained before the next is asked for, so that one may be made of another. What the threat model does
        not grant is refused with `CapabilityError`.

        Args:
            model: as the federation trains it.
            knowledge: what the attacker is given; it holds the defence for one who is aware of it.
        """
        return ()

    def brings(self) -> Foreknowledge | None:
        """Return what the attack knows from elsewhere; an audit names it, and refuses it if it holds a target."""
        return None

    def provoke(self, model: nn.Module, knowledge: Knowledge, ask: Ask, seed: int) -> Observation:
        """Play the server's part until there is something to attack; a passive server sends the model as it is.

        An active attack never changes `model` itself: it sends altered copies, says so in the knowledge's `altered`
        and keeps what it must remember of them in the observation's `memory`.
        """
        return ask([model])

    def check(self, observation: Observation) -> None:
        """Refuse an observation that does not grant what the attack needs, or whose model it cannot attack."""
        self.check_knowledge(observation.knowledge)

    def check_knowledge(self, knowledge: Knowledge) -> None:
        """Refuse a threat model that does not grant what the attack needs, data or a loss it cannot read."""
        self.check_modality(knowledge.modality)
        self.check_loss(knowledge.loss)
        missing = sorted(self.needs - knowledge.granted())
        if missing:
            raise CapabilityError(
                f"{self.name} needs {', '.join(missing)}, which the threat model does not grant.",
                hint="Grant it under `attacker:` in the scenario, or choose another attack.",
            )

    def check_modality(self, modality: str) -> None:
        """Refuse data of a kind the attack does not rebuild."""
        if modality not in self.takes:
            kinds = " and ".join(self.takes)
            raise CapabilityError(
                f"{self.name} rebuilds data of the kind {kinds}, and the clients hold {modality}.",
                hint=f"`fedseal list attacks` says which attacks take {modality}.",
            )

    def check_loss(self, loss: str) -> None:
        """Refuse a loss whose gradient the attack cannot read."""
        if not self.any_loss and loss != CROSS_ENTROPY:
            raise CapabilityError(
                f"{self.name} reads the gradient of a cross-entropy, and the clients minimise {loss}.",
                hint="Attacks that match gradients, such as `ig`, take any loss.",
            )

    def run(
        self, observation: Observation, budget: Budget | None = None, seed: int = 0, listener: Listener | None = None
    ) -> Reconstruction:
        """Attack one observation."""
        return self.run_many([observation], budget or Budget(), [seed], listener)[0]

    @abstractmethod
    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Attack independent observations of one model, as one vectorised batch where the method allows."""


ATTACKS: Registry[Attack] = Registry("attack", "fedseal.attacks", group="fedseal.attacks", product=Attack)

register_attack = ATTACKS.register
"""Register an attack under a name: see `Registry.register`."""
