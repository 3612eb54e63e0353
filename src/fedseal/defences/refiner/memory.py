"""The warm start (Sec. 6.3): a sample's refined image is remembered and refined further when the sample comes again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.core.errors import InputError

_DIGEST = 16


class RefinedMemory:
    """The last refined image of each of a client's samples, recognised by what it shows and its label.

    Args:
        capacity: how many are kept, the least recently used being forgotten; 0 remembers nothing.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._images: OrderedDict[bytes, Tensor] = OrderedDict()

    def keys(self, batch: Batch) -> list[bytes]:
        """Return what names each sample of a batch; nothing if nothing is remembered."""
        if not self.capacity:
            return []
        images = batch.inputs.detach().cpu().contiguous()
        return [
            hashlib.blake2b(
                image.numpy().tobytes() + label.to_bytes(8, "big", signed=True), digest_size=_DIGEST
            ).digest()
            for image, label in zip(images, batch.labels.tolist(), strict=True)
        ]

    def recall(self, keys: list[bytes], otherwise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the remembered images, for new samples those of `otherwise` [B, C, H, W], and which are remembered.

        The second is [B], of booleans.
        """
        if not keys:
            return otherwise, torch.zeros(len(otherwise), dtype=torch.bool)
        known = [self._images.get(key) for key in keys]
        found = [fresh if old is None else old.to(fresh) for old, fresh in zip(known, otherwise, strict=True)]
        return torch.stack(found), torch.tensor([old is not None for old in known])

    def keep(self, keys: list[bytes], images: Tensor) -> None:
        """Remember refined images [B, C, H, W]."""
        for key, image in zip(keys, images.detach().to("cpu", torch.float32).unbind(), strict=False):
            self._images[key] = image.clone()
            self._images.move_to_end(key)
        while len(self._images) > self.capacity:
            self._images.popitem(last=False)

    def state_dict(self) -> dict[str, Tensor]:
        """Return `samples` uint8 [N, 16] and `refined` [N, C, H, W], the least recently used first; empty if none."""
        if not self._images:
            return {}
        names = torch.frombuffer(bytearray(b"".join(self._images)), dtype=torch.uint8).view(-1, _DIGEST)
        return {"samples": names, "refined": torch.stack(list(self._images.values()))}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        if not state:
            self._images.clear()
            return
        names, images = state.get("samples"), state.get("refined")
        if set(state) != {"samples", "refined"} or names is None or images is None or len(names) != len(images):
            raise InputError(
                f"this is no state of refiner: it holds {sorted(state)}.", hint="Restore the state of this very client."
            )
        rows = names.cpu().numpy()
        self._images = OrderedDict((row.tobytes(), image.clone()) for row, image in zip(rows, images, strict=True))
