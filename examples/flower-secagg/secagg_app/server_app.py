"""The server: SecAgg+ rounds. It never sees one client's update, so it can neither check nor record any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import Grid, LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from secagg_app.task import accuracy, load_model, test_data

torch.set_num_threads(1)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured rounds on sums of masked updates."""
    settings = context.run_config
    clients = int(settings["min-clients"])
    model = load_model()
    accuracies: dict[int, float] = {}

    def evaluate(server_round: int, arrays: list[Any], config: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        model.load_state_dict(dict(zip(model.state_dict(), map(torch.tensor, arrays), strict=True)))
        accuracies[server_round] = accuracy(model, test_data())
        return 0.0, {"accuracy": accuracies[server_round]}

    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        on_fit_config_fn=lambda server_round: {"server-round": server_round},
        initial_parameters=ndarrays_to_parameters([value.numpy() for value in model.state_dict().values()]),
        evaluate_fn=evaluate,
    )
    secure = SecAggPlusWorkflow(
        num_shares=int(settings["num-shares"]),
        reconstruction_threshold=int(settings["reconstruction-threshold"]),
        clipping_range=float(settings["clipping-range"]),
        max_weight=10_000,
    )
    legacy = LegacyContext(
        context=context, config=ServerConfig(num_rounds=int(settings["num-server-rounds"])), strategy=strategy
    )
    DefaultWorkflow(fit_workflow=secure)(grid, legacy)
    if settings["result"]:
        Path(str(settings["result"])).write_text(json.dumps({"accuracy": accuracies}), encoding="utf-8")
