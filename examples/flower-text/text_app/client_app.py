"""The client: one step on its own notes, behind the `defend` mod."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedseal.federation.client import RoundConfig
from fedseal.flower import defend, train_round
from text_app.task import client_batch, load_model

torch.set_num_threads(1)  # every client is a process of its own

app = ClientApp(mods=[defend(inside=True, allow_none=True)])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the client's notes and reply with what the defence lets through."""
    settings = context.run_config
    model = load_model(adapted=bool(settings["adapters"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batch = client_batch(int(context.node_config["partition-id"]), int(settings["batch-size"]))
    trained = train_round(model, [batch], RoundConfig(learning_rate=float(settings["learning-rate"])))
    reply = RecordDict({"arrays": ArrayRecord(trained.weights), "metrics": MetricRecord({"num-examples": len(batch)})})
    return Message(content=reply, reply_to=message)
