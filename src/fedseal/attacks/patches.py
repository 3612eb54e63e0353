"""`patches`: which public patches stand in an image that a vision transformer saw, and where.

The first layer of attention is fed one vector per patch, which depends on the patch and its place and nothing else.
The rows of that layer's gradient lie in the span of these vectors, so that a candidate at a place is tested as `dager`
tests words: it lies in the span if and only if it stood there, as long as an update has fewer tokens than the layer is
wide (DAGER, Petrov et al., NeurIPS 2024, on patches in place of words).

Threat model: passive server with public images, whose patches are the candidates. Nothing is rebuilt: what is public
and stood in the image is named, such as backgrounds, frames, letters and marks; the rest is the mean public image.

Cost: one pass of the first layer per candidate, and a singular value decomposition.

Known breaks: as many tokens as the layer is wide, noise, and pruning, which all end the span. Patches that are public
nowhere are never found.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedseal.attacks.labels import inferred_or_none
from fedseal.attacks.reading import attack_model, estimated_gradient, image_count, input_normalisation
from fedseal.attacks.span import inside, span_of
from fedseal.attacks.turns import in_turn
from fedseal.core.attack import ATTACKS, Attack, Budget, Listener
from fedseal.core.batch import Normalisation
from fedseal.core.errors import CapabilityError
from fedseal.core.observation import Observation
from fedseal.core.ranges import Count
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.models.structure import executed_layers

_AT_ONCE = 64
_STRANGERS = 16
"""Patches of noise, which stood in no image: where one passes, the span is everything that a layer can be fed."""


@dataclass(frozen=True)
class TokenEntrance:
    """Where patches become tokens, and the first layer that is fed them.

    Attributes:
        side: of a patch.
        layer: name of the linear layer.
        first: tokens in front of the patches', such as that of the class.
    """

    side: int
    layer: str
    first: int


@ATTACKS.register(
    "patches",
    Info(
        "name the public patches that stood in an image, by the span of a vision transformer's first layer",
        paper="Petrov et al., NeurIPS 2024, for words",
        threat="passive",
        needs=("batch_size", "auxiliary"),
    ),
)
class Patches(Attack):
    """Tests public patches at every place.

    Args:
        candidates: different public patches that are tried, the most frequent first.
    """

    def __init__(self, candidates: Count = 512) -> None:
        self.candidates = candidates

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Attack one update after the other."""
        return in_turn(self._name, observations, seeds, listener)

    def _name(self, seen: Observation, seed: int) -> Reconstruction:
        began = time.perf_counter()
        public = seen.knowledge.auxiliary
        if public is None or len(public) == 0:
            raise CapabilityError(
                "patches tests those of public images, and there are none.", hint="Set `attacker.public_data: true`."
            )
        model, shape = attack_model(seen), seen.knowledge.image_shape
        entrance = _entrance(model, shape)
        tried = _candidates(public.images, entrance.side, self.candidates)
        span = span_of(estimated_gradient(seen)[f"{entrance.layer}.weight"])
        count = image_count(seen)
        images = public.images.mean(0).to(tried).expand(count, *shape).clone()
        far = span.distances(_vectors(model, entrance, input_normalisation(seen), tried, shape))
        drawn = torch.rand(_STRANGERS, *tried.shape[1:], generator=generator(seed, "strangers")).to(tried)
        strangers = span.distances(_vectors(model, entrance, input_normalisation(seen), drawn, shape))
        found, gap = inside(far, span.limit)
        if span.blind or (bool(found.any()) and float(strangers.min()) <= 2 * float(far[found].max())):
            found = torch.zeros_like(found)
            words = "the test is blind: tokens are no fewer than the layer is wide, or noise hides their span"
        else:
            _place(images, tried, far, found, entrance.side)
            named = int(found.any(0).sum())
            words = f"{named} of {found.shape[1]} places hold one of {len(tried)} public patches (gap {gap:.1g})"
        guess = inferred_or_none(seen, seed)
        return Reconstruction(
            images,
            guess.labels,
            float(found.shape[1] - int(found.any(0).sum())),
            seconds=time.perf_counter() - began,
            notes=(*guess.notes, f"rank {span.rank}, gap {span.gap:.1g}: {words}"),
        )


def _entrance(model: nn.Module, shape: tuple[int, int, int]) -> TokenEntrance:
    """Return where patches become tokens, or refuse models in which none do."""
    like = next(model.parameters())
    layers = executed_layers(model, torch.zeros(1, *shape, device=like.device, dtype=like.dtype))
    cut = next((one for one in layers if isinstance(one.module, nn.Conv2d)), None)
    fed = next((one for one in layers if isinstance(one.module, nn.Linear) and one.inputs.ndim == 3), None)
    kernel = cut.module if cut is not None and isinstance(cut.module, nn.Conv2d) else None
    if kernel is None or fed is None or kernel.kernel_size != kernel.stride:
        raise CapabilityError(
            "patches needs a vision transformer: a convolution that cuts the image into patches, and tokens behind it.",
            hint="Other models are attacked by the matching attacks, such as `ig`.",
        )
    side = int(kernel.kernel_size[0])
    places = (shape[1] // side) * (shape[2] // side)
    return TokenEntrance(side, fed.name, fed.inputs.shape[1] - places)


def _candidates(images: Tensor, side: int, most: int) -> Tensor:
    """Return the different patches [N, C, side, side] of images [n, C, H, W], the most frequent first."""
    cut = images.unfold(2, side, side).unfold(3, side, side).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
    different, times = torch.unique(cut.flatten(1), dim=0, return_counts=True)
    frequent: Tensor = different[times.argsort(descending=True, stable=True)[:most]]
    return frequent.view(-1, *cut.shape[1:])


def _vectors(
    model: nn.Module, entrance: TokenEntrance, normalise: Normalisation, tried: Tensor, shape: tuple[int, int, int]
) -> Tensor:
    """Return what the layer is fed for each candidate at each place, [N, places, D]: whole images of one patch each."""
    like, rows, columns = next(model.parameters()), shape[1] // entrance.side, shape[2] // entrance.side
    found = []
    for part in torch.split(tried, _AT_ONCE):
        tiled = normalise(part.repeat(1, 1, rows, columns).to(like))
        layers = {one.name: one for one in executed_layers(model, tiled)}
        found.append(layers[entrance.layer].inputs[:, entrance.first :].detach())
    return torch.cat(found)


def _place(images: Tensor, tried: Tensor, far: Tensor, found: Tensor, side: int) -> None:
    """Write into images [B, C, H, W] what passed at each place, the nearest first, one for each image."""
    across = images.shape[3] // side
    for place in torch.nonzero(found.any(0)).flatten().tolist():
        row, column = divmod(place, across)
        passed = [index for index in far[:, place].argsort().tolist() if bool(found[index, place])]
        for image in range(len(images)):
            patch = tried[passed[min(image, len(passed) - 1)]]
            images[image, :, row * side : (row + 1) * side, column * side : (column + 1) * side] = patch
