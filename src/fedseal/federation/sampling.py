"""Who takes part in a round, who drops out of it, and which of its images a client uses.

Every choice is a function of the seed, the round and the client, never of what was drawn before: a resumed run needs no
generator's state, and a defence that draws more or less changes nobody's batches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.seeds import generator


def sample_clients(clients: int, count: int, seed: int, round_number: int) -> list[int]:
    """Draw `count` of `clients` without replacement for a round, in ascending order."""
    if not 0 < count <= clients:
        raise InputError(f"cannot sample {count} of {clients} clients.", hint="Sample at least one, at most all.")
    if count == clients:
        return list(range(clients))
    order = torch.randperm(clients, generator=generator(seed, "clients", round_number))
    return sorted(int(index) for index in order[:count])


def drops_out(probability: float, seed: int, round_number: int, client: int) -> bool:
    """Return whether a sampled client fails to answer in a round."""
    if probability <= 0:
        return False
    return float(torch.rand((), generator=generator(seed, "dropout", round_number, client))) < probability


def local_indices(size: int, batch_size: int, steps: int, seed: int, round_number: int, client: int) -> list[Tensor]:
    """Return the places of a client's images for each local step of a round.

    A shuffled pass through its data is cut into batches, the last of a pass being what is left, as a data loader does;
    steps beyond a pass start another one.

    Args:
        size: number of the client's images.
        batch_size: images per step; a client with fewer uses all it has.
        steps: local steps.
        seed, round_number, client: which draw.
    """
    if size < 1:
        raise InputError(f"client {client} holds no data.", hint="Give it some, or leave it out.")
    source = generator(seed, "batches", round_number, client)
    batches: list[Tensor] = []
    while len(batches) < steps:
        batches += torch.split(torch.randperm(size, generator=source), batch_size)
    return batches[:steps]


def steps_of_epochs(size: int, batch_size: int, epochs: int) -> int:
    """Return how many local steps make so many passes through `size` images."""
    return epochs * -(-size // batch_size)
