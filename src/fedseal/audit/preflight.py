"""Pre-flight: which layers give samples away exactly, told before any attack is tried.

The gradient of a linear layer is a sum of one outer product per sample. Its rank, and the gap behind it, say how many
samples lie in it; what stands behind the layer says how they come apart. Embeddings and adapters tell their words.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from fedseal.attacks.spectrum import spectrum
from fedseal.audit.setup import Setup, Target
from fedseal.core.tokeniser import Tokeniser
from fedseal.models.gates import LinearGate, linear_gates
from fedseal.store.findings import Finding

_LARGEST = 1024
"""Sides of a gradient whose spectrum is computed: beyond, it would take longer than the attack."""
_TOLD = 4


def exact_leaks(setup: Setup, target: Target) -> Iterator[Finding]:
    """Say of each layer what an undefended update gives away exactly, the first few of them."""
    found = [*_linear(setup, target), *_embeddings(setup), *_adapters(setup)]
    for text in found[:_TOLD]:
        yield Finding(severity="note", topic="exact leak", text=text, advice=_ADVICE)
    if len(found) > _TOLD:
        more = f"{len(found) - _TOLD} further layers give samples away in the same way."
        yield Finding(severity="note", topic="exact leak", text=more, advice=_ADVICE)


_ADVICE = "Noise above the gap or pruning hides it; a defence that only scales does not. See `spear` and `first-layer`."


def _linear(setup: Setup, target: Target) -> Iterator[str]:
    if not target.originals.inputs.is_floating_point():
        return
    update = target.observation.update.tensors
    for gate in linear_gates(setup.model, tuple(target.originals.inputs.shape[1:])):
        if gate.weight_name in update and gate.gated:
            yield _sentence(gate, update[gate.weight_name], len(target.originals))


def _sentence(gate: LinearGate, gradient: Tensor, samples: int) -> str:
    units, inputs = gradient.shape
    what = "the samples themselves" if gate.on_input else "their features, which can be inverted"
    where = f"{gate.weight_name} ({inputs} inputs, {units} units, ReLU behind it)"
    if min(gradient.shape) > _LARGEST:
        return f"{where} is too large for its rank to be read here; batches below it leak {what}."
    seen = spectrum(gradient)
    evidence = f"rank {seen.rank} for {samples} sample(s), gap {seen.gap:.0e}"
    if gate.bias_name is None:
        return f"{where}: {evidence}; without a bias directions leak, and sizes do not."
    if not seen.clear:
        return f"{where}: {evidence}; the batch is too large, or the update too noisy, to be taken apart exactly."
    cost = 2.0 ** (seen.rank - 1) * seen.rank
    if cost > 1e7:
        return f"{where}: {evidence}; taking it apart would need about {cost:.0e} draws, which nobody waits for."
    return f"{where}: {evidence}; `spear` takes it apart exactly in about {cost:.0f} draws: {what}."


def _embeddings(setup: Setup) -> Iterator[str]:
    """Say of trained embeddings what their rows name: tokens, where there is a row for each, or places in a text."""
    encoding = setup.private.encoding
    tokens = encoding.size if isinstance(encoding, Tokeniser) else 0
    for name, module in setup.model.named_modules():
        if isinstance(module, nn.Embedding) and module.weight.requires_grad:
            what = "tokens of the batch" if module.num_embeddings >= tokens else "places that a text of the batch fills"
            yield (
                f"{name}.weight is an embedding that is trained: the rows of its gradient that are not zero are "
                f"exactly the {what}, whatever its size."
            )


def _adapters(setup: Setup) -> Iterator[str]:
    ranks = [
        min(weight.shape)
        for name, weight in setup.model.named_parameters()
        if "lora_A" in name and weight.requires_grad and weight.ndim == 2
    ]
    if ranks:
        yield (
            f"{len(ranks)} adapters of rank {min(ranks)}: together they span every update of fewer than "
            f"{sum(ranks)} distinct inputs at one place, whose candidates can then be tested exactly."
        )
