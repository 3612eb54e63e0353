"""A training loop of one's own under the seal that `defend(..., inside=True)` opens around a Flower client."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from fedseal.core.defence import Defence
from fedseal.core.seeds import generator
from fedseal.federation.client import ClientRound
from fedseal.flower.rounds import Seal, SealedRound, open_seal
from fedseal.hooks.training import Criterion, SealedTraining


class SealedLoop(SealedTraining):
    """`SealedTraining` with the defence, state and randomness of the seal around the client.

    Args:
        seal: that is open.
        model, optimizer, criterion, options: of `SealedTraining`.
    """

    def __init__(
        self, seal: Seal, model: nn.Module, optimizer: Optimizer, criterion: Criterion, **options: Any
    ) -> None:
        super().__init__(
            seal.defence,
            model,
            optimizer,
            criterion,
            round_number=seal.round_number,
            client=seal.client,
            generator=seal.generator,
            **options,
        )
        self._seal = seal

    def weights(self) -> dict[str, Tensor]:
        """Seal what was learnt, leave it for `defend`, and return the state to reply with: as received, plus that."""
        update = self.update()
        done = ClientRound(update, (), {}, self.report(update))
        self._seal.result = SealedRound(done, self.learning_rate, tuple(self.model.state_dict()))
        self.close()
        state = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        started = self.started()
        return state | {name: started[name] + tensor for name, tensor in update.tensors.items()}


def sealed_loop(
    model: nn.Module, optimizer: Optimizer, criterion: Criterion = nn.functional.cross_entropy, **options: Any
) -> SealedLoop:
    """Return the hooks for a loop inside of a train function; without `defend` around it, it trains undefended.

    Args:
        model: with the received weights.
        optimizer: over its parameters, of any kind.
        criterion: the loop's loss.
        options: of `SealedTraining`.
    """
    seal = open_seal() or Seal(Defence(), generator(None), 0, "client")
    return SealedLoop(seal, model, optimizer, criterion, **options)
