"""Span tests of the layers of a transformer: on single tokens, on tokens in their context, with adapters or without.

A layer with LoRA adapters W + B A sends the gradients of A and B instead of W's. The rows of A's lie in the span of
what the layer was fed, but there are only r of them: k layers on one input give k r, and leak the tokens of any update
with fewer. In the first round B is zero and with it A's gradient; then the rows of B's gradient lie in the span of A
x, and A is known: each adapter leaks the tokens of any update with fewer than r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedseal.attacks.span import SpanTest, joint_span, span_of
from fedseal.core.tensors import Tensors
from fedseal.models.text.access import TokenLayer, fed_to, rows_of

_CHUNK = 512


@dataclass(frozen=True)
class Adapter:
    """A low-rank addition B A to a linear layer.

    Attributes:
        down: A, [r, D].
        down_name, up_name: of A and B among the model's parameters.
    """

    down: Tensor
    down_name: str
    up_name: str

    @property
    def rank(self) -> int:
        """R."""
        return len(self.down)


@dataclass(frozen=True)
class GroupTest:
    """The test of all layers that are fed the same vectors.

    Attributes:
        layer: one of them, at which vectors are looked up.
        spans: the tests, each on the vectors as they are or as an adapter reduces them; a vector must pass all.
        downs: for each test the adapter's A [r, D], or None.
        bound: tokens below which the test can tell.
        adapters: how many.
    """

    layer: TokenLayer
    spans: tuple[SpanTest, ...]
    downs: tuple[Tensor | None, ...]
    bound: int
    adapters: int = 0

    @property
    def blind(self) -> bool:
        """Whether no test says anything."""
        return all(span.blind for span in self.spans)

    @property
    def rank(self) -> int:
        """The largest number of independent vectors any of the tests found."""
        return max(span.rank for span in self.spans)

    @property
    def limit(self) -> float:
        """The distance below which a vector may be inside."""
        return max(span.limit for span in self.spans if not span.blind)

    def distances(self, vectors: Tensor) -> Tensor:
        """Return the largest distance [...] of vectors [..., D] over all tests that say something."""
        found = [
            span.distances(vectors if down is None else vectors.to(down) @ down.T)
            for span, down in zip(self.spans, self.downs, strict=True)
            if not span.blind
        ]
        return torch.stack(found).amax(0)

    def of_texts(self, model: nn.Module, ids: Tensor) -> Tensor:
        """Return the distances [N, T] of what the layer is fed for texts [N, T]."""
        parts = [self.distances(fed_to(model, self.layer.module, part)) for part in torch.split(ids, _CHUNK)]
        return torch.cat(parts)


def group_tests(layers: Sequence[TokenLayer], gradient: Tensors, adapters: dict[str, Adapter]) -> list[GroupTest]:
    """Return one test per group of layers whose gradients were sent, in the order they run."""
    groups: dict[int, list[TokenLayer]] = {}
    for layer in layers:
        groups.setdefault(layer.group, []).append(layer)
    made = (_test(members, gradient, adapters) for members in groups.values())
    return [test for test in made if test is not None]


def _test(members: Sequence[TokenLayer], gradient: Tensors, adapters: dict[str, Adapter]) -> GroupTest | None:
    own = [adapters[layer.name] for layer in members if layer.name in adapters]
    if own:
        width, ranks = own[0].down.shape[1], [one.rank for one in own]
        downs = [gradient[one.down_name] for one in own]
        if any(float(one.norm()) > 0 for one in downs):
            return GroupTest(members[0], (joint_span(downs),), (None,), min(width, sum(ranks)), len(own))
        spans = [(span_of(gradient[one.up_name]), one) for one in own]
        span, best = max(spans, key=lambda one: (not one[0].blind, one[0].rank, one[0].gap))
        return GroupTest(members[0], (span,), (best.down.double(),), min(width, *ranks), len(own))
    sent = [(layer, gradient[f"{layer.name}.weight"]) for layer in members if f"{layer.name}.weight" in gradient]
    tested = [(layer, span_of(rows_of(layer.module, rows))) for layer, rows in sent]
    told = [(layer, span) for layer, span in tested if span.rank]
    if not told:
        return None
    layer, span = max(told, key=lambda one: (one[1].rank, one[1].gap))  # queries miss the first token
    return GroupTest(layer, (span,), (None,), span.basis.shape[1])


def adapters_of(model: nn.Module, names: Sequence[str]) -> dict[str, Adapter]:
    """Return the LoRA adapters whose gradients were sent, by the name of the layer they are added to (peft's names)."""
    parameters, found = dict(model.named_parameters()), {}
    for name in names:
        if ".lora_A." not in name:
            continue
        layer, _, rest = name.partition(".lora_A.")
        other = f"{layer}.lora_B.{rest}"
        if other in names and parameters[name].ndim == 2:
            found[layer] = Adapter(parameters[name].detach().double(), name, other)
    return found
