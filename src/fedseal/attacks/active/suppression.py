"""`suppression`, Eluding Secure Aggregation (Pasquini et al., CCS 2022): all clients but one are made to send zeros.

The target receives the model as it is; the others receive one with a dead layer (zero weights, negative biases before
ReLU), whose gradient, and that of every layer before it, is exactly zero. The aggregate times the number of clients is
then the target's own gradient there, and is inverted like any single one. Parameters only. Threat
model: active server that sends clients different models. Where no ReLU can be made dead, zero weights have the same
effect on everything before them, for one local step; a zero last layer works in any network.

Cost: one round with two models, then one inversion of a single client's gradient.

Known breaks: clients that compare hashes of the model they received see it at once; a dead layer is detected as such;
noise added by each client stays, that of the suppressed ones too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fedseal.attacks.active.isolation import Isolated, IsolatingAttack
from fedseal.attacks.active.server import altered
from fedseal.core.attack import ATTACKS, Ask
from fedseal.core.errors import CapabilityError
from fedseal.core.knowledge import CROSS_ENTROPY, Knowledge
from fedseal.core.observation import Observation
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.federation.loss import training_loss
from fedseal.models.structure import ExecutedLayer, executed_layers

_DEAD_BIAS = -1.0
_PROBES = 4
_PROBE_STEP = 0.1


@ATTACKS.register(
    "suppression",
    Info(
        "make all clients but one send zeros, so that the aggregate is one client's",
        paper="Pasquini et al., CCS 2022",
        threat="active: changes parameters, a model per client",
        needs=("batch_size", "clients"),
    ),
)
class SuppressionAttack(IsolatingAttack):
    """Gradient suppression.

    Args:
        inversion: attack on the isolated update, with its own defaults.
        iterations: of it; 0 for its own default.
    """

    def __init__(self, inversion: str = "ig", iterations: int = 0) -> None:
        super().__init__(inversion, iterations)

    def provoke(self, model: nn.Module, knowledge: Knowledge, ask: Ask, seed: int) -> Observation:
        """Send the first client the model, and the others one that gives no gradient."""
        self.check_knowledge(knowledge)
        clients = knowledge.clients or 1
        if clients < 2:
            raise CapabilityError(
                "suppression isolates one client of an aggregate, and here the server sees a single client anyway.",
                hint="Set `client.aggregate` to two or more clients.",
            )
        dead, silent, words = suppressed_model(model, knowledge, seed)
        observation = ask([model, *[dead] * (clients - 1)])
        images = (knowledge.batch_size or 1) * (knowledge.local_steps or 1)
        labels = None if knowledge.labels is None else knowledge.labels[:images]
        isolated = Isolated(model, silent, float(clients), images, labels, places=tuple(range(images)))
        return altered(observation, isolated, f"{words} for all clients but the first")


def suppressed_model(model: nn.Module, knowledge: Knowledge, seed: int) -> tuple[nn.Module, frozenset[str], str]:
    """Return a copy that gives no gradient before some layer, the tensors whose gradient is zero, and words for it.

    Of the layers that can be killed, or all of them together, or the last one zeroed, what silences most is chosen.
    """
    like = next(model.parameters())
    source = generator(seed, "probe")
    probe = torch.rand(_PROBES, *knowledge.input_shape, generator=source).to(like.device, like.dtype)
    labels = torch.randint(knowledge.num_classes, (_PROBES,), generator=source).to(like.device)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    layers = executed_layers(copy.deepcopy(model), probe)
    if len(layers) < 2:
        raise CapabilityError(
            "suppression needs a layer before the last one, and this model has a single layer.",
            hint="Its gradient holds every client's images mixed; attack it with `loki`.",
        )
    tried = [
        (dead, _silent_tensors(dead, probe, labels, names, knowledge.local_steps or 1), words)
        for dead, words in _candidates(model, layers, knowledge)
    ]
    working = [candidate for candidate in tried if layers[0].weight_name in candidate[1]]
    if working:
        sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
        return max(working, key=lambda candidate: sum(sizes[name] for name in candidate[1]))
    raise CapabilityError(
        "suppression cannot silence this model: neither a dead layer nor a zero last layer stops its gradients.",
        hint="With several local steps only a dead ReLU stays dead; set `client.local_steps: 1`.",
    )


def _candidates(
    model: nn.Module, layers: Sequence[ExecutedLayer], knowledge: Knowledge
) -> Iterator[tuple[nn.Module, str]]:
    for layer in reversed(layers[:-1]):
        if _can_die(layer):
            yield _killed(model, [layer]), f"layer `{layer.name}` is dead"
    mortal = [layer for layer in layers[:-1] if _can_die(layer)]
    yield _killed(model, mortal), f"{len(mortal)} layers are dead"
    if (knowledge.local_steps or 1) == 1:
        yield _zeroed(model, layers[-1]), f"the last layer `{layers[-1].name}` is zero"


def _can_die(layer: ExecutedLayer) -> bool:
    return layer.bias_name is not None and isinstance(getattr(layer.module, "weight", None), Tensor)


@torch.no_grad()
def _killed(model: nn.Module, layers: Sequence[ExecutedLayer]) -> nn.Module:
    dead = copy.deepcopy(model)
    parameters = dict(dead.named_parameters())
    for layer in layers:
        assert layer.bias_name is not None
        parameters[layer.weight_name].zero_()
        parameters[layer.bias_name].fill_(_DEAD_BIAS)
    return dead


@torch.no_grad()
def _zeroed(model: nn.Module, layer: ExecutedLayer) -> nn.Module:
    dead = copy.deepcopy(model)
    dict(dead.named_parameters())[layer.weight_name].zero_()
    return dead


def _silent_tensors(
    model: nn.Module, probe: Tensor, labels: Tensor, names: Sequence[str], steps: int
) -> frozenset[str]:
    """Return the parameters whose gradient stays exactly zero on the probe over so many steps of training.

    Without a dead ReLU gradients come back by at most one layer per step, so there is an end to what must be tried.
    """
    trial = copy.deepcopy(model)
    parameters = {name: parameter for name, parameter in trial.named_parameters() if name in names}
    silent = set(names)
    for _ in range(min(steps, len(names) + 1)):
        with torch.enable_grad():
            loss = training_loss(CROSS_ENTROPY)(trial(probe), labels, "mean")
            values = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for (name, parameter), value in zip(parameters.items(), values, strict=True):
            if value is not None and bool(value.abs().max() > 0):
                silent.discard(name)
                parameter.data -= _PROBE_STEP * value
    return frozenset(silent)
