"""A server that asks until it is stopped."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedseal.flower import guard

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    strategy = guard(FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1))
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({"w": torch.zeros(int(settings["weights"]))}),
        num_rounds=int(settings["num-server-rounds"]),
        timeout=float(settings["round-timeout"]),
    )
