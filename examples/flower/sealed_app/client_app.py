"""The client: local training by `train_round`, so that defences of every kind work, behind the `defend` mod."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedseal.federation.client import RoundConfig
from fedseal.flower import defend, train_round, wrap_model
from sealed_app.task import client_batches, client_data, load_model

torch.set_num_threads(1)  # every client is a process of its own

# Which defence: the run config says, even none, so that leaks can be shown; `train_round` trains under it.
app = ClientApp(mods=[defend(inside=True, allow_none=True)])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the client's own digits and reply with what the defence lets through."""
    settings = context.run_config
    partition, partitions = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    config = RoundConfig(local_steps=int(settings["local-steps"]), learning_rate=float(settings["learning-rate"]))
    model = wrap_model(load_model(), str(settings["defence"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = client_data(partition, partitions)
    number = int(message.content["config"]["server-round"])
    batches = client_batches(data, partition, number, config.local_steps, int(settings["batch-size"]))
    trained = train_round(model, batches, config, dataset=data)
    reply = RecordDict({"arrays": ArrayRecord(trained.weights), "metrics": MetricRecord({"num-examples": len(data)})})
    return Message(content=reply, reply_to=message)
