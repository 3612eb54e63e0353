"""The client, in Flower's older API, for which alone SecAgg+ exists: SecAgg+ outside, the defence inside.

Mods wrap each other from the left: `secaggplus_mod` masks what `defend` let through.
"""

from __future__ import annotations

from typing import Any

import torch
from flwr.client import Client, ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import Context

from fedseal.federation.client import RoundConfig
from fedseal.flower import defend, train_round
from secagg_app.task import client_batches, client_data, load_model

torch.set_num_threads(1)


class DigitsClient(NumPyClient):
    """Trains on its own digits."""

    def __init__(self, context: Context) -> None:
        self.settings = context.run_config
        self.partition = int(context.node_config["partition-id"])
        self.data = client_data(self.partition, int(context.node_config["num-partitions"]))

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        """Train for a round."""
        model = load_model()
        state = dict(zip(model.state_dict(), map(torch.tensor, parameters), strict=True))
        model.load_state_dict(state)
        steps, size = int(self.settings["local-steps"]), int(self.settings["batch-size"])
        rate = float(self.settings["learning-rate"])
        batches = client_batches(self.data, self.partition, int(config["server-round"]), steps, size)
        trained = train_round(model, batches, RoundConfig(local_steps=steps, learning_rate=rate))
        return [trained.weights[name].numpy() for name in state], len(self.data), {}


def client_fn(context: Context) -> Client:
    """Return this node's client."""
    return DigitsClient(context).to_client()


app = ClientApp(client_fn, mods=[secaggplus_mod, defend(inside=True, allow_none=True)])
