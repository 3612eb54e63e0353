"""How a federation trains."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedseal.core.batch import IDENTITY, Normalisation
from fedseal.core.defence import RoundShape
from fedseal.core.knowledge import CROSS_ENTROPY, BNMode
from fedseal.core.optimiser import OptimiserName
from fedseal.core.ranges import Count, Seed
from fedseal.federation.client import RoundConfig
from fedseal.federation.sampling import steps_of_epochs


class FederationConfig(BaseModel):
    """Rounds, clients and steps of a federation.

    Attributes:
        algorithm: `fedsgd`, one gradient per client and round, or `fedavg`, the weight change of local training
            (McMahan et al., AISTATS 2017).
        rounds: how many.
        clients_per_round: sampled of all clients for each round; all of them if None.
        local_steps: SGD steps per client and round under `fedavg`; None counts in epochs.
        local_epochs: passes through a client's data per round under `fedavg`; 1 if neither is given.
        batch_size: images per step; None is all of a client's data.
        learning_rate, optimiser, momentum, weight_decay: of the clients' steps. Under `fedsgd` the server steps with
            that learning rate, and the other three have no meaning.
        server_learning_rate, server_momentum: on the averaged change.
        dropout: probability that a sampled client does not answer.
        weighting: clients count by their `examples`, or alike (`uniform`).
        evaluate_every: rounds between measurements of the global model; the last one is always measured.
        bn_mode: batch normalisation by running statistics that stay as they are (`eval`), by batch statistics that
            the server never learns, so that the global model is measured by those of the test batches
            (`train-nostats`), or by batch statistics whose running means are averaged by the server.
        train_mode: whether dropout layers and the like are active.
        loss: that clients minimise: `cross-entropy`, `bce`, `mse` or `module:attribute`.
        loss_reduction: over the batch.
        vectorise: train the clients of a round as one `vmap`; `auto` does so where it pays (`vectorised`).
        seed: determines sampling, dropouts, batches and the noise of defences.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    algorithm: Literal["fedsgd", "fedavg"] = "fedavg"
    rounds: Count = 20
    clients_per_round: Count | None = None
    local_steps: Count | None = None
    local_epochs: Count | None = None
    batch_size: Count | None = 32
    learning_rate: float = Field(0.1, gt=0)
    optimiser: OptimiserName = "sgd"
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    server_learning_rate: float = Field(1.0, gt=0)
    server_momentum: float = Field(0.0, ge=0, lt=1)
    dropout: float = Field(0.0, ge=0, lt=1)
    weighting: Literal["examples", "uniform"] = "examples"
    evaluate_every: Count = 1
    bn_mode: BNMode = "train-exact-stats"
    train_mode: bool = True
    loss: str = CROSS_ENTROPY
    loss_reduction: Literal["mean", "sum"] = "mean"
    vectorise: Literal["auto", "always", "never"] = "auto"
    seed: Seed = 0

    @model_validator(mode="after")
    def _one_measure_of_work(self) -> Self:
        if self.local_steps is not None and self.local_epochs is not None:
            raise ValueError("give local_steps or local_epochs, not both")
        if self.algorithm == "fedsgd" and ((self.local_steps or 1) > 1 or self.local_epochs is not None):
            raise ValueError("fedsgd takes one local step; use fedavg for more")
        if self.algorithm == "fedsgd" and (self.optimiser != "sgd" or self.weight_decay):
            raise ValueError("under fedsgd clients take no steps of their own: optimiser and weight_decay mean nothing")
        if self.optimiser == "adam" and self.momentum:
            raise ValueError("momentum is of sgd; adam has moments of its own")
        return self

    def shape(self, examples: int, clients: int) -> RoundShape:
        """Return what one of a round's `clients` with so many `examples` does, before a defence has its say."""
        batch = examples if self.batch_size is None else self.batch_size
        if self.algorithm == "fedsgd":
            return RoundShape(batch, 1, clients)
        steps = self.local_steps or steps_of_epochs(examples, batch, self.local_epochs or 1)
        return RoundShape(batch, steps, clients)

    def round_config(self, local_steps: int, normalisation: Normalisation = IDENTITY) -> RoundConfig:
        """Return how a client trains in a round of so many local steps."""
        return RoundConfig(
            local_steps=local_steps,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            optimiser=self.optimiser,
            bn_mode=self.bn_mode,
            train_mode=self.train_mode,
            loss=self.loss,
            loss_reduction=self.loss_reduction,
            normalisation=normalisation,
            upload="gradient" if self.algorithm == "fedsgd" and local_steps == 1 else "delta",
        )
