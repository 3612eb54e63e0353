"""A client that trains on nothing, quickly: what is tested is what its seal keeps."""

from __future__ import annotations

import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedseal.flower import defend

torch.set_num_threads(1)
app = ClientApp(mods=[defend("kill_app.counted:Counted")])


@app.train()
def train(message: Message, context: Context) -> Message:
    state = message.content["arrays"].to_torch_state_dict()
    moved = {name: tensor + 0.01 * torch.randn(tensor.shape) for name, tensor in state.items()}
    time.sleep(0.3)
    content = {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)
