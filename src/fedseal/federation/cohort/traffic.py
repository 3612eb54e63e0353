"""What travels besides uploads, in bytes: models on their way down, and what clients tell each other."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.federation.wire import payload_size


def message_bytes(message: Tensors) -> int:
    """Return the bytes of a broadcast: floats as on the wire, counters and the like as they are."""
    floats = {name: tensor for name, tensor in message.items() if tensor.is_floating_point()}
    others = sum(tensor.numel() * tensor.element_size() for tensor in message.values()) - sum(
        tensor.numel() * tensor.element_size() for tensor in floats.values()
    )
    return (payload_size(floats) if floats else 0) + others


def running_statistics(model: nn.Module) -> list[str]:
    """Return the names of the buffers that training moves and clients may share; others are nobody's business."""
    norms = [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    buffers = dict(model.named_buffers())
    names = [f"{norm}.{kind}".lstrip(".") for norm in norms for kind in ("running_mean", "running_var")]
    return [name for name in names if name in buffers]


def dense_bytes(model: nn.Module) -> int:
    """Return the length of a payload with all of a model's parameters and running statistics, none of them zero."""
    tensors: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    tensors |= {name: model.get_buffer(name) for name in running_statistics(model)}
    source = generator(0, "dense")
    filled = {name: 1 + torch.rand(t.shape, generator=source, dtype=torch.float64) for name, t in tensors.items()}
    return payload_size({name: value.to(tensors[name].dtype) for name, value in filled.items()})
