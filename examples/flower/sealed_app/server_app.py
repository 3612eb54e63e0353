"""The server: FedAvg behind a guard that decodes, checks and, if asked, records what clients send."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedseal.flower import guard, record, wrap_model
from sealed_app.task import CLASSES, SHAPE, accuracy, load_model, test_data

torch.set_num_threads(1)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured rounds and say how accurate the model is."""
    settings = context.run_config
    defence = str(settings["defence"])
    recorder = None
    if settings["record"]:
        recorder = record(
            str(settings["record"]),
            learning_rate=float(settings["learning-rate"]),
            local_steps=int(settings["local-steps"]),
            batch_size=int(settings["batch-size"]),
            input_shape=SHAPE,
            num_classes=CLASSES,
            mean=(0.0,),
            std=(1.0,),
            optimiser="sgd",
        )
    clients = int(settings["min-clients"])
    strategy = guard(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients),
        recorder=recorder,
        defence=defence,
    )
    model = wrap_model(load_model(), defence)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model.eval(), test_data())})

    outcome = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=int(settings["num-server-rounds"]),
        timeout=float(settings["round-timeout"]),
        evaluate_fn=evaluate,
    )
    if settings["result"]:
        summary = {
            "accuracy": {number: metrics["accuracy"] for number, metrics in outcome.evaluate_metrics_serverapp.items()},
            "costs": {number: dict(metrics) for number, metrics in outcome.train_metrics_clientapp.items()},
            "dropped": [asdict(dropped) for dropped in strategy.dropped],
        }
        Path(str(settings["result"])).write_text(json.dumps(summary, indent=2), encoding="utf-8")
