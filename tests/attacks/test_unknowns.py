"""What a defence hides inside of the model is sought together with the images: with the truth, the update is met."""

from __future__ import annotations

import copy

import torch
from torch.func import functional_call, grad
from torch.nn import functional as F

from fedseal.core.batch import Batch
from fedseal.core.seeds import generator
from fedseal.core.tensors import flatten
from fedseal.defences.fedkl import FedKL, KeyLock
from fedseal.defences.precode import Bottleneck, Precode
from fedseal.federation.client import RoundConfig, client_round, set_mode
from fedseal.federation.loss import CrossEntropy
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)
BATCH = Batch(torch.rand(3, *SHAPE, generator=generator(0, "x")), torch.tensor([0, 2, 1]))


def wrapped(defence: FedKL | Precode) -> torch.nn.Module:
    model = build_model("lenet", input_shape=SHAPE, num_classes=4, seed=0)
    return set_mode(defence.wrap_model(model), RoundConfig())


def dummy_update(defence: FedKL | Precode, model: torch.nn.Module, hidden: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the update of the true batch as the attacker computes it, with a guess of what is hidden."""
    view, own = defence.attacker_view(), copy.deepcopy(model)
    parameters = {name: p.detach() for name, p in own.named_parameters()}

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = functional_call(own, {**weights, **hidden}, (BATCH.images,))
        extra = None if view.extra_loss is None else view.extra_loss(own)
        value = CrossEntropy()(logits, BATCH.labels, "mean")
        return value if extra is None else value + extra

    return flatten(grad(loss)(parameters))


def test_precodes_noise_and_divergence_explain_the_update():
    defence = Precode(k=8, beta=0.1)
    model = wrapped(defence)
    sent = flatten(client_round(model, [BATCH], RoundConfig(), defence, generator(5, "client")).update.tensors)
    unknowns = defence.attacker_view().unknowns
    assert unknowns is not None
    (name,) = unknowns(model, 3)
    size = next(m for m in model.modules() if isinstance(m, Bottleneck)).decoder.in_features
    truth = torch.randn(3, size, generator=generator(5, "client"))
    torch.testing.assert_close(dummy_update(defence, model, {name: truth}), sent)
    ignored = dummy_update(defence, model, unknowns(model, 3))
    assert float((ignored - sent).norm()) > 0.1 * float(sent.norm())


def test_fedkls_scale_and_shift_explain_the_update():
    defence = FedKL(key=16)
    model = wrapped(defence)
    config = RoundConfig(learning_rate=1e-12)  # so that the client's own step leaves its locks where they were
    sent = client_round(model, [BATCH], config, defence, generator(5, "client")).update.tensors
    unknowns = defence.attacker_view().unknowns
    assert unknowns is not None
    state = defence.state_dict()
    truth = {}
    for name in (name for name, module in model.named_modules() if isinstance(module, KeyLock)):
        for kind in ("scale", "shift"):
            weight, bias = (state[f"{name}.{kind}.{part}"] for part in ("weight", "bias"))
            truth[f"{name}.guessed_{kind}"] = F.linear(state["key"], weight, bias).relu()
    assert unknowns(model, 3).keys() == truth.keys()
    whole = flatten(sent)
    torch.testing.assert_close(dummy_update(defence, model, truth), whole)
    ignored = dummy_update(defence, model, unknowns(model, 3))
    assert float((ignored - whole).norm()) > 1e-3 * float(whole.norm())


def test_nothing_is_sought_where_nothing_is_hidden():
    assert Precode(k=0).attacker_view().unknowns is None
    assert FedKL(key=0).attacker_view().unknowns is None
