"""The server: FedAvg behind a guard that decodes, checks and, if asked, records what clients send."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedseal.flower import guard, record
from text_app.task import load_model

torch.set_num_threads(1)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured rounds."""
    settings = context.run_config
    clients, rate = int(settings["clients"]), float(settings["learning-rate"])
    recorder = None
    if settings["record"]:
        recorder = record(
            str(settings["record"]),
            learning_rate=rate,
            local_steps=1,
            batch_size=int(settings["batch-size"]),
            optimiser="sgd",
        )
    strategy = guard(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients),
        recorder=recorder,
        defence=str(settings["defence"]),
    )
    model = load_model(adapted=bool(settings["adapters"]))
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=int(settings["num-server-rounds"]),
        timeout=600.0,
    )
