"""One federation in Flower's simulation (Ray), in a process of its own; prints seconds per round as JSON.

    python -m fedbench.flower_worker MODEL CLIENTS STEPS BATCH ROUNDS CORES

Clients do what `engines.by_hand` does; the strategy is Flower's FedAvg without evaluation. Each client has CORES cores,
and as many threads; as many run at once as the machine's cores allow.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise
from typing import Any

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional as F

from fedbench.cases import Case, client_data, initial_model


class TimedFedAvg(FedAvg):
    """FedAvg that notes when rounds begin."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.starts: list[float] = []

    def configure_train(self, *arguments: Any, **options: Any) -> Any:
        """Note the time, and go on."""
        self.starts.append(time.perf_counter())
        return super().configure_train(*arguments, **options)


def client_app(case: Case, threads: int) -> ClientApp:
    """Return a client that trains as the case says."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(threads)
        own = client_data(case, int(context.node_config["partition-id"]))
        model = initial_model(case).train()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=case.learning_rate)
        order = torch.randperm(len(own))
        for step in range(case.steps):
            places = order[step * case.batch : (step + 1) * case.batch]
            optimiser.zero_grad()
            F.cross_entropy(model(own.images[places]), own.labels[places]).backward()
            optimiser.step()
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(own)}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


def server_app(case: Case, rounds: int, seconds: list[float]) -> ServerApp:
    """Return a server that runs the rounds and leaves their seconds in a list; the first is left out."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = TimedFedAvg(fraction_evaluate=0.0, min_train_nodes=case.clients, min_available_nodes=case.clients)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(initial_model(case).state_dict()), num_rounds=rounds + 1)
        times = [*strategy.starts, time.perf_counter()]
        seconds.extend(after - before for before, after in pairwise(times[1:]))

    return app


def main() -> None:
    """Read the command line, train, print."""
    model, *numbers = sys.argv[1:]
    clients, steps, batch, rounds, each = map(int, numbers)
    case = Case(model, clients, steps, batch)
    seconds: list[float] = []
    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server_app=server_app(case, rounds, seconds),
        client_app=client_app(case, each),
        num_supernodes=clients,
        backend_config={
            "client_resources": {"num_cpus": each, "num_gpus": 0.0},
            "init_args": {"num_cpus": cores, "include_dashboard": False, "logging_level": 40},
        },
    )
    print("SECONDS " + json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
