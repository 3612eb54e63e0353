"""Every registered defence trains in a federation, keeps its state, and resumes to the very same course."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.federation.cohort import Held
from fedseal.federation.simulation import FederationConfig, History, RoundListener, RoundRecord, simulate
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)
QUICK = {"lids": "lids:samples=3,epochs=2,cache=false"}
SPECS = [
    QUICK.get(name, name)
    for name in DEFENCES.names()
    if name != "pretrained"  # whose strength is a file; its own tests have one
]
CONFIG = FederationConfig(rounds=4, local_steps=2, batch_size=4)


class Stopping(RoundListener):
    def finished(self, record: RoundRecord, rounds: int) -> None:
        if record.round == 1:
            raise KeyboardInterrupt


def client_data(client: int) -> Held:
    source = generator(client, "images")
    return Held(Batch(torch.rand(12, *SHAPE, generator=source), torch.arange(12) % 4))


def course(
    spec: str, listener: RoundListener | None = None, checkpoint: Path | None = None, *, workers: int = 1
) -> History:
    model = build_model("lenet-relu", input_shape=SHAPE, num_classes=4, seed=0)
    clients = [client_data(client) for client in range(4)]
    test = client_data(9).data
    defence = build_defence(spec)
    return simulate(
        CONFIG, model, clients, test, defence, listener=listener, checkpoint=checkpoint, workers=workers
    ).history


@pytest.mark.parametrize("spec", SPECS)
def test_a_federation_under_any_defence_trains_and_resumes_exactly(spec: str, tmp_path: Path):
    """One client after the other, and resumed with three at once: the curve is the same."""
    whole = course(spec)
    assert [len(record.clients) for record in whole.rounds] == [4] * 4, whole.dropped
    losses = [record.loss for record in whole.rounds]
    assert len({whole.initial_loss, *losses}) == 5  # every round moves the model
    path = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        course(spec, Stopping(), path)
    resumed = course(spec, checkpoint=path, workers=3)
    assert [record.loss for record in resumed.rounds] == losses
    assert [record.bytes_up for record in resumed.rounds] == [record.bytes_up for record in whole.rounds]
