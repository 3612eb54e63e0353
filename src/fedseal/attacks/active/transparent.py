"""A vision transformer whose frozen part lets every patch pass unmixed, and whose adapters sort patches into bins.

A token is given room for the values of its patch, for a code of its place, for two anchors of a known size, and for one
answer, which adapters write and the head reads. Layer normalisation maps all of them alike, by a shift and a factor
that differ from token to token; the anchors tell both, so that a patch is read exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.errors import CapabilityError
from fedseal.core.seeds import generator
from fedseal.models.vit import Adapter, Attention, Block, VisionTransformer

_SELF = 1e5
"""Factor of the queries, by which every token attends to itself alone (PEFTLeak)."""
_ANCHOR = 8.0
_PATCH = 0.1
"""Length of a patch of deviation one, beside codes of length one in each head."""
_GATE = 4.0
_ANSWER = 0.05


@dataclass(frozen=True)
class Room:
    """Which entries of a token hold what.

    Attributes:
        patch: the values of its patch, [P].
        codes: its place.
        anchors: two entries of a known size and opposite signs.
        answer: what adapters write.
        unit: by which the patch's values were multiplied.
    """

    patch: Tensor
    codes: Tensor
    anchors: tuple[int, int]
    answer: int
    unit: float

    def patches(self, tokens: Tensor) -> Tensor:
        """Return the values [n, P] of the patches in tokens [n, D] that were shifted and scaled by anything."""
        low, high = tokens[:, self.anchors[1], None], tokens[:, self.anchors[0], None]
        span = high - low
        span = torch.where(span == 0, torch.finfo(tokens.dtype).tiny, span)
        return (2 * tokens[:, self.patch] - low - high) / span * (_ANCHOR / self.unit)


@dataclass(frozen=True)
class Place:
    """Rows of an adapter that sort the patches of one place, each by its own edge.

    Attributes:
        block: of the transformer.
        rows: of the adapter's first layer.
        patch: which one of an image, counted by rows.
    """

    block: int
    rows: slice
    patch: int


def blocks_of(model: VisionTransformer) -> list[Block]:
    """Return the blocks of a transformer."""
    return [block for block in model.blocks if isinstance(block, Block)]


def adapters_of(model: VisionTransformer) -> list[Adapter]:
    """Return the adapters of a transformer, one of each block that has one."""
    return [block.adapter for block in blocks_of(model) if isinstance(block.adapter, Adapter)]


def furnish(width: int, heads: int, values: int) -> Room:
    """Return where everything lies in a token, codes in every head; or refuse patches that are too large for it."""
    turns = torch.arange(width).view(heads, -1).T.flatten()  # one entry of each head in turn
    order = turns[turns > 2]  # both anchors lie in one head, where shifts of the two cancel
    if width - values - 3 < 2 * heads or width // heads < 3:
        raise CapabilityError(
            f"peftleak puts the {values} values of a patch and a code of its place into a token, and one has {width}.",
            hint="Attack a wider transformer, or one of smaller patches.",
        )
    return Room(order[:values], order[values:], (0, 1), 2, _PATCH / math.sqrt(values))


@torch.no_grad()
def make_transparent(model: VisionTransformer, room: Room, seed: int) -> None:
    """Overwrite everything of the model but its adapters and head, so that tokens pass as they come."""
    tokens, width = model.tokens, model.head.in_features
    project = tokens.project
    project.weight.zero_()
    assert project.bias is not None
    nn.init.zeros_(project.bias)
    flat = project.weight.view(width, -1)
    flat[room.patch, torch.arange(len(room.patch))] = room.unit
    blocks = blocks_of(model)
    tokens.position.copy_(_positions(tokens.position, room, blocks[0].attention.heads, seed))
    if tokens.token is not None:
        tokens.token.zero_()
    mixes = tokens.token is not None  # the head hears one token, which must hear of the others at last
    for block in blocks:
        _plain(block.norm1)
        _plain(block.norm2)
        _attend(block.attention, room.answer if mixes and block is blocks[-1] else None)
        _pass_on(block.mlp)
    _plain(model.norm)


def _positions(like: Tensor, room: Room, heads: int, seed: int) -> Tensor:
    """Return position embeddings [1, T, D]: random codes of length one in every head, and the anchors."""
    _, count, width = like.shape
    position = torch.zeros(count, width, dtype=torch.float64)
    size = width // heads
    for head in range(heads):
        own = room.codes[(room.codes // size) == head]
        drawn = torch.randn(count, len(own), generator=generator(seed, "codes", head), dtype=torch.float64)
        position[:, own] = F.normalize(drawn, dim=1)
    position[:, room.anchors[0]], position[:, room.anchors[1]] = _ANCHOR, -_ANCHOR
    return position[None].to(like)


def _plain(norm: nn.LayerNorm) -> None:
    nn.init.ones_(norm.weight)
    nn.init.zeros_(norm.bias)


def _attend(attention: Attention, answer: int | None) -> None:
    """Let every token attend to itself and pass on; or, with an answer, to all alike, and take that one entry."""
    width = attention.out.in_features
    unit = torch.eye(width)
    one = torch.zeros(width, width)
    if answer is not None:
        one[answer, answer] = 1.0
    query, key, value = (_SELF * unit, unit, unit) if answer is None else (one * 0, one * 0, one)
    attention.qkv.weight.copy_(torch.cat([query, key, value]).to(attention.qkv.weight))
    nn.init.zeros_(attention.qkv.bias)
    attention.out.weight.copy_((unit if answer is None else one).to(attention.out.weight))
    nn.init.zeros_(attention.out.bias)


def _pass_on(mlp: nn.Sequential) -> None:
    """Make two layers with GELU between them the identity: GELU(u) - GELU(-u) = u."""
    inner, outer = mlp[0], mlp[2]
    assert isinstance(inner, nn.Linear)
    assert isinstance(outer, nn.Linear)
    unit = torch.eye(inner.in_features)
    nothing = torch.zeros_like(unit)
    inner.weight.copy_(torch.cat([unit, -unit, nothing, nothing]).to(inner.weight))
    outer.weight.copy_(torch.cat([unit, -unit, nothing, nothing], 1).to(outer.weight))
    nn.init.zeros_(inner.bias)
    nn.init.zeros_(outer.bias)


@torch.no_grad()
def set_bins(model: VisionTransformer, room: Room, places: list[Place], public: Tensor) -> None:
    """Set the adapters: at each place, rows of one direction whose biases are quantiles of public patches.

    Args:
        model: made transparent.
        room: of its tokens.
        places: what each adapter's rows are for.
        public: inputs [N, C, H, W].
    """
    seen: Tensor = blocks_of(model)[0].norm2(model.tokens(public))  # what every adapter is fed, as far as they read it
    first = int(model.tokens.token is not None)
    bright = torch.zeros(seen.shape[2]).to(seen)
    bright[room.patch] = 1 / len(room.patch)
    spread = float((seen @ bright).amax() - (seen @ bright).amin())
    codes = torch.zeros_like(seen[0])
    codes[:, room.codes] = seen[..., room.codes].mean(0)
    adapters = adapters_of(model)
    for adapter in adapters:
        for tensor in (adapter.down.weight, adapter.up.weight, adapter.up.bias):
            tensor.zero_()
        adapter.down.bias.fill_(-1.0)
    own = torch.tensor([first + place.patch for place in places])
    directions = F.normalize(codes[own], dim=1)
    apart = _apart(seen @ directions.T, own)
    if float(apart.min()) <= 0:
        raise CapabilityError(
            "peftleak cannot tell the places of patches apart: too few entries of a token are left for their codes.",
            hint="Attack a wider transformer, or one of smaller patches.",
        )
    rows = bright + directions * (_GATE * spread / apart)[:, None]
    measured = seen @ rows.T
    halfway = _apart(measured, own) / 2
    for number, place in enumerate(places):
        here = measured[:, own[number], number]
        bins = place.rows.stop - place.rows.start
        edges = torch.quantile(here, torch.arange(bins, dtype=here.dtype, device=here.device) / bins)
        edges[0] = here.min() - halfway[number]  # below every patch of this place, above all others
        adapter = adapters[place.block]
        adapter.down.weight[place.rows] = rows[number]
        adapter.down.bias[place.rows] = -edges
        adapter.up.weight[room.answer, place.rows] = 1.0
    _set_answers(model, room, public)


def _apart(measured: Tensor, own: Tensor) -> Tensor:
    """Return by how much the least of each measure's own token exceeds the largest of all others, [n].

    Args:
        measured: [N, T, n].
        own: the token of each measure, [n].
    """
    numbers = torch.arange(len(own))
    least = measured[:, own, numbers].amin(0)
    largest = measured.amax(0)
    largest[own, numbers] = -torch.inf
    return least - largest.amax(0)


def _set_answers(model: VisionTransformer, room: Room, public: Tensor) -> None:
    """Scale what adapters write to stay small beside the anchors, and let the head weigh it by classes."""
    adapters = adapters_of(model)
    fed = blocks_of(model)[0].norm2(model.tokens(public))
    written = max(float(adapter.up(adapter.down(fed).relu()).abs().max()) for adapter in adapters)
    for adapter in adapters:
        adapter.up.weight.mul_(_ANSWER / max(written, 1e-12) / len(adapters))
    pooled = model.norm(model.blocks(model.tokens(public)))
    heard = (pooled[:, 0] if model.pool == "token" else pooled.mean(1))[:, room.answer]
    classes = model.head.out_features
    weights = torch.linspace(-1, 1, classes).to(heard) / heard.std().clamp(min=1e-12)
    model.head.weight.zero_()
    model.head.weight[:, room.answer] = weights
    model.head.bias.copy_(-weights * heard.mean())
