"""`peftleak`, PEFTLeak (Sami et al., CVPR 2025): patches read off the adapters of a vision transformer.

Clients train small adapters and a head in a frozen transformer, and send nothing else. The server chose what is frozen:
attention by which every token sees itself alone, layers that pass on what they are fed, position embeddings that are
codes. An adapter's rows answer to the code of one place, their biases are quantiles of its public patches, so that row
i fires for patches above edge i; differences of neighbouring rows' gradients, divided by those of the biases, are the
tokens of one bin, and a token holds the patch. How strongly a bin answered is the slope of its image's loss, which is
one number for all patches of an image: by it patches become images.

Equations: token = (dL/dW_k - dL/dW_k+1) / (dL/db_k - dL/db_k+1), with queries 1e5 I, keys and values I in each head.
Threat model: active server that chooses the frozen weights and the adapters' first ones, and has public images; the
architecture stays as it is. Departures: two anchors in each token undo layer normalisation exactly, in place of an
approximation; where the head hears a class token the last attention mixes all tokens, or no gradient came back, and the
adapter behind it reads nothing; patches are put together by slopes of losses, in place of clusters by similarity.

Cost: one round, one difference per bin. Rows of all adapters bound the patches times bins that can be read.

Known breaks: images whose patches share a bin come out mixed; fewer rows than patches; pruning of small differences,
and noise of one sample's gradient. It shows: queries and keys that multiply to the identity, and parallel rows, are
found by `fedseal.detect`.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedseal.attacks.active.imprint import between_edges
from fedseal.attacks.active.server import (
    ReadingAttack,
    altered,
    best_guess,
    normalisation_of,
    public_inputs,
    recall,
)
from fedseal.attacks.active.transparent import (
    Place,
    Room,
    adapters_of,
    blocks_of,
    furnish,
    make_transparent,
    set_bins,
)
from fedseal.attacks.labels import inferred_or_none
from fedseal.attacks.reading import estimated_gradient, image_count
from fedseal.core.attack import ATTACKS, Ask
from fedseal.core.errors import CapabilityError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.models.vit import VisionTransformer

_PUBLIC = 512
"""Public images that bins are set by, at most."""


@dataclass(frozen=True)
class PeftLeakMemory:
    """What the server remembers: where tokens hold what, what rows are for, and how strongly each block answers."""

    room: Room
    places: tuple[Place, ...]
    slopes: tuple[float, ...]
    side: int


@ATTACKS.register(
    "peftleak",
    Info(
        "read patches off the adapters of a vision transformer whose frozen weights the server chose",
        paper="Sami et al., CVPR 2025",
        threat="active: changes weights",
        needs=("batch_size", "auxiliary"),
    ),
)
class PeftLeakAttack(ReadingAttack):
    """PEFTLeak.

    Args:
        bins: rows for each patch; 0 for as many as let all patches be read. With fewer rows than patches those in the
            middle of the image are read.
    """

    remembers = PeftLeakMemory

    any_loss: ClassVar[bool] = True

    def __init__(self, bins: int = 0) -> None:
        self._bins = bins

    def provoke(self, model: nn.Module, knowledge: Knowledge, ask: Ask, seed: int) -> Observation:
        """Send the same architecture with weights that let patches pass and sort them."""
        victim = _adapted(model)
        self.check_knowledge(knowledge)
        public = public_inputs(self.name, knowledge)[:_PUBLIC]
        sent = copy.deepcopy(victim).double().cpu()
        channels, side = sent.tokens.project.in_channels, int(sent.tokens.project.kernel_size[0])
        room = furnish(sent.head.in_features, blocks_of(sent)[0].attention.heads, channels * side**2)
        make_transparent(sent, room, seed)
        places = self._places(sent, knowledge.image_shape, side)
        set_bins(sent, room, places, public)
        slopes = _slopes(sent, places, public)
        like = next(model.parameters())
        sent.to(like.device, like.dtype).train(model.training)
        words = f"frozen layers that let tokens pass, and adapters that sort {len(places)} patches of each image"
        return altered(ask([sent]), PeftLeakMemory(room, tuple(places), slopes, side), words)

    def _places(self, model: VisionTransformer, shape: tuple[int, int, int], side: int) -> list[Place]:
        """Return what the rows of all usable adapters are for: the patches in the middle first."""
        across, down = shape[2] // side, shape[1] // side
        ranks = [adapter.down.out_features for adapter in adapters_of(model)]
        if model.tokens.token is not None:
            ranks = ranks[:-1]  # behind the attention that mixes
        bins = self._bins or _most_bins(ranks, across * down)
        centre = torch.tensor([(down - 1) / 2, (across - 1) / 2])
        grid = torch.cartesian_prod(torch.arange(down), torch.arange(across)).view(-1, 2)
        order = (grid - centre).norm(dim=1).argsort(stable=True).tolist()
        rooms = [
            (block, slice(start, start + bins))
            for block, rank in enumerate(ranks)
            for start in range(0, rank - bins + 1, bins)
        ]
        if not rooms:
            raise CapabilityError(
                f"peftleak has no rows for {bins} bins of a patch: usable adapters have ranks {ranks or 'of none'}.",
                hint="Ask for fewer `bins`, or attack a transformer with more blocks or larger adapters.",
            )
        return [Place(block, rows, patch) for (block, rows), patch in zip(rooms, order, strict=False)]

    def read(self, observation: Observation, seed: int) -> Reconstruction:
        """Read the patches of one observation, and put images together."""
        started = time.perf_counter()
        memory, knowledge = recall(observation, PeftLeakMemory, self.name), observation.knowledge
        gradient, count = estimated_gradient(observation), image_count(observation)
        found = [_hits(gradient, memory, place, count) for place in memory.places]
        scale = max((float(slopes.abs().max()) for _, slopes in found if len(slopes)), default=0.0)
        floor = 64 * torch.finfo(next(iter(gradient.values())).dtype).eps * scale
        found = [(patches[slopes.abs() > floor], slopes[slopes.abs() > floor]) for patches, slopes in found]
        images = best_guess(knowledge, next(iter(gradient.values()))).expand(count, *knowledge.image_shape).clone()
        centres = _centres([slopes for _, slopes in found], count)
        undo = normalisation_of(knowledge).undo
        across = knowledge.image_shape[2] // memory.side
        shape = (knowledge.image_shape[0], memory.side, memory.side)
        for place, (patches, slopes) in zip(memory.places, found, strict=True):
            cut = undo(patches.view(-1, *shape)).clamp(0, 1)
            row, column = (memory.side * part for part in divmod(place.patch, across))
            cost = (slopes[:, None] - centres[None]).abs().cpu().double().numpy()
            for patch, image in zip(*linear_sum_assignment(cost), strict=True):
                images[image, :, row : row + memory.side, column : column + memory.side] = cut[patch]
        read, wanted = sum(len(slopes) for _, slopes in found), count * len(memory.places)
        guess = inferred_or_none(observation, seed)
        return Reconstruction(
            images,
            guess.labels,
            float(wanted - read),
            seconds=time.perf_counter() - started,
            notes=(*guess.notes, f"{read} bins were hit by {wanted} patches that adapters have rows for"),
        )


def _most_bins(ranks: list[int], patches: int) -> int:
    """Return how many rows each of so many patches can have in adapters of these ranks; at least one."""
    return max((n for n in range(1, max(ranks, default=0) + 1) if sum(r // n for r in ranks) >= patches), default=1)


def _adapted(model: nn.Module) -> VisionTransformer:
    """Return the model, or refuse one that has no adapters in a vision transformer of ours."""
    if not isinstance(model, VisionTransformer) or len(adapters_of(model)) < len(model.blocks):
        raise CapabilityError(
            "peftleak plants its bins in the adapters of a vision transformer, and this model has none.",
            hint="Audit `vit-tiny:adapters=64`; whole models are attacked by `imprint` or `cah`.",
        )
    return model


def _slopes(model: VisionTransformer, places: list[Place], public: Tensor) -> tuple[float, ...]:
    """Return by how much each place's adapter answers more strongly than the first, from one public image."""
    adapters = adapters_of(model)
    used = sorted({place.block for place in places})
    biases = [adapters[block].down.bias for block in used]
    with torch.enable_grad():
        loss = nn.functional.cross_entropy(model(public[:1]), torch.zeros(1, dtype=torch.long))
        values = dict(zip(used, torch.autograd.grad(loss, biases), strict=True))
    each = [float(values[place.block][place.rows.start]) for place in places]
    return tuple(value / each[0] if each[0] and value else 1.0 for value in each)


def _hits(gradient: Tensors, memory: PeftLeakMemory, place: Place, count: int) -> tuple[Tensor, Tensor]:
    """Return the patches [n, P] of the bins of one place that answered, at most `count`, and how strongly each did."""
    name = f"blocks.{place.block}.adapter.down"
    rows = between_edges(gradient[f"{name}.weight"][place.rows])
    answers = between_edges(gradient[f"{name}.bias"][place.rows])
    order = answers.abs().argsort(descending=True, stable=True)[:count]
    order = order[answers[order] != 0]
    tokens = rows[order] / answers[order, None]
    return memory.room.patches(tokens).nan_to_num(), answers[order] / memory.slopes[memory.places.index(place)]


def _centres(slopes: list[Tensor], count: int) -> Tensor:
    """Return the slope of each image's loss, [count]: the median over places where every image has a bin of its own."""
    whole = [one.sort().values for one in slopes if len(one) == count]
    if whole:
        return torch.stack(whole).median(0).values
    everything = torch.cat(slopes) if slopes else torch.zeros(1)
    if not len(everything):
        return torch.zeros(count)
    places = (torch.arange(count, dtype=everything.dtype, device=everything.device) + 0.5) / count
    return torch.quantile(everything, places)
