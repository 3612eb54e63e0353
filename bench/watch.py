"""What the monitor costs as configured by default: readings as a share of the time of rounds, and of one reading.

    python bench/watch.py --model lenet-relu
    python bench/watch.py --model resnet18 --steps 20 --batch-size 16

A client trains by Flower's message API under `defend` and `monitor`, round after round. The first reading is made
at once and paid off by later rounds: before the tenth, the share is larger than what one reading in ten rounds is.
"""

from __future__ import annotations

import argparse
import math

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from fedseal.core.batch import Batch
from fedseal.data.registry import DATASETS
from fedseal.data.resize import at_size
from fedseal.federation.client import RoundConfig
from fedseal.flower import defend, monitor
from fedseal.flower.monitoring import STATE
from fedseal.models.registry import build_model


def main() -> None:
    """Measure and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lenet-relu")
    parser.add_argument("--size", type=int, default=28, help="pixels of a side")
    parser.add_argument("--steps", type=int, default=50, help="local steps, as bench/federation.py has them")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10, help="the monitor's default reads once in ten")
    options = parser.parse_args()
    torch.set_num_threads(1)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    data = at_size(DATASETS.build("digits"), options.size) if options.size != 28 else DATASETS.build("digits")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    public, own = data.batch(order[:512]), data.batch(order[-options.steps * options.batch_size :])
    batches = [own.pick(slice(n * options.batch_size, (n + 1) * options.batch_size)) for n in range(options.steps)]

    def net() -> nn.Module:
        return build_model(options.model, input_shape=(1, options.size, options.size), num_classes=10, seed=0)

    watch = monitor(net, lambda message, context: batches, public, config=RoundConfig(learning_rate=0.05))
    seal, context = defend("topk:ratio=0.9"), Context(2, 2, {}, RecordDict(), {})
    arrays, paid = ArrayRecord(net().state_dict()), math.inf
    for rounds in range(1, options.rounds + 1):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": rounds})})
        watch(Message(content, 2, "train"), context, lambda m, c: seal(m, c, lambda m, c: _train(net(), batches, m)))
        kept = context.state.config_records[STATE]
        reading, working = float(kept["reading"]), float(kept["working"])  # type: ignore[arg-type]
        paid = paid if reading > 0.1 * working else min(paid, rounds)
    print(
        f"{options.model}: {options.rounds} rounds of {working / options.rounds:.3f} s, readings {reading:.2f} s: "
        f"{reading / working:.1%} of the time of rounds; at most a tenth from round {paid} on"
    )


def _train(model: nn.Module, batches: list[Batch], message: Message) -> Message:
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(batch.images), batch.labels).backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": sum(map(len, batches))})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


if __name__ == "__main__":
    main()
