"""Changing a model by structure: which modules it calls, in which order, and putting another in one's place."""

from __future__ import annotations

from torch import nn
from torch.fx import Graph, Node, Tracer


def called_modules(model: nn.Module) -> list[str]:
    """Return the names of PyTorch's own modules in the order in which the model calls them, found without any input.

    By symbolic tracing; a model that cannot be traced is taken to call its modules in the order it registers them.
    """
    try:
        graph = Tracer().trace(model)
    except Exception:  # noqa: BLE001 - a user's forward may raise anything when traced; the fallback is stated above
        return [name for name, module in model.named_modules() if name and not list(module.children())]
    return [str(node.target) for node in _upstream(graph) if node.op == "call_module"]


def _upstream(graph: Graph) -> list[Node]:
    """Return the nodes the output depends on, in order."""
    needed: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in needed]


def replace_module(model: nn.Module, name: str, new: nn.Module) -> nn.Module:
    """Put `new` in the place of the submodule called `name`; the model itself has the name ""."""
    if not name:
        return new
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, new)
    return model
