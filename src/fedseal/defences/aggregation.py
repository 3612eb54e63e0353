"""Secure aggregation, selective encryption and cancelling noise: the server learns of sums only.

`secagg` is ideal secure aggregation (Bonawitz et al., CCS 2017): what the server sees is the mean of n clients, so the
cryptography is not run and its time and bytes are remarks. `selective-encryption` and `cancelling-noise` follow
FedLeak, Sec. 7. Threat model: honest-but-curious server, no collusion; a malicious server undoes all three
(inconsistent models, Sybils, LOKI, SEER). Departures: FedLeak's noise has std c|g_j| per coordinate, which keeps zeros,
and for c < 1 signs, in sight, costs the partner N floats and shows it |g|; ours is one std per tensor, of which the
partner gets a seed and one number per tensor. Encrypted entries are -0.0 in the server's view, since positions are
public and a zero sent in clear is knowledge too.

Cost: ideal here; of real protocols the client's part grows with clients times parameters, and masked integers travel at
four to eight bytes each.

Known breaks: a malicious server: models that differ between clients (`suppression`), kernels of one's own (`loki`),
clients it controls. Below some images per aggregate the mean itself is inverted. Noise that does not cancel, because a
partner dropped out, stays in the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedseal.core.channel import Channel
from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext, RoundShape
from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Info
from fedseal.core.seeds import derive_seed
from fedseal.core.tensors import Tensors, flatten, unflatten
from fedseal.core.traits import Traits

_MASK_BYTES = 8
FLOAT_BYTES = 4
CKKS_BYTES = 96
_FLOOR = 1e-3
_FEDLEAK = "Fan et al., USENIX Security 2025"


@DEFENCES.register(
    "secagg",
    Info("the server sees only the mean of several clients", paper="Bonawitz et al., CCS 2017", threat="passive"),
)
class SecureAggregation(Defence):
    """Ideal secure aggregation: at least n updates are averaged before the server sees anything.

    Args:
        clients: n; 1 leaves the scenario as it is and is zero strength.
    """

    stage = "aggregate"

    def __init__(self, clients: int = 3) -> None:
        if clients < 1:
            raise UsageError(f"secagg needs clients >= 1, got {clients}.", hint="1 hides nothing.")
        self.clients = clients
        self.traits = Traits(masks_upload=clients > 1)

    def reshape(self, shape: RoundShape) -> RoundShape:
        """Let the server see the mean of n clients."""
        return replace(shape, clients=max(shape.clients, self.clients))

    def protocol_bytes(self, update: Tensors) -> int:
        """Return by how much masked integers are longer than floats."""
        return 0 if self.clients == 1 else (_MASK_BYTES - FLOAT_BYTES) * sum(t.numel() for t in update.values())

    def report(self) -> CostReport:
        """Say what ideal aggregation leaves out."""
        if self.clients == 1:
            return CostReport()
        return CostReport(
            remarks=(
                f"uploads are counted unmasked; Flower's masked integers take {_MASK_BYTES} bytes per parameter, and "
                "2 to 1460 s per client from LeNet to ResNet18 (Refiner)",
                "Flower folds its mask keys to a 32-bit seed of a Mersenne twister: 2^32 guesses open every mask, "
                "good for simulation only",
                "holds against a server that follows the protocol and clients that do not collude with it",
            )
        )

    def attacker_view(self) -> AttackerView:
        """Publish the number of clients."""
        return AttackerView(self.name, {"clients": self.clients})


@DEFENCES.register(
    "selective-encryption",
    Info("encrypt the largest entries of the upload, send the others in clear", paper=_FEDLEAK, threat="passive"),
)
class SelectiveEncryption(Defence):
    """Encryption of the largest entries by magnitude, over the whole upload; their positions are public.

    Args:
        ratio: share of entries encrypted.
        common: one set for all clients, from the previous aggregate, as sums of ciphertexts need. Before there is one
            (and so in a single audited round), the set is that of the very update the server looks at.
        per_tensor: the share is taken of every tensor by itself.
    """

    stage = "aggregate"

    def __init__(self, ratio: float = 0.8, common: bool = False, per_tensor: bool = False) -> None:
        if not 0 <= ratio <= 1:
            raise UsageError(f"selective-encryption needs 0 <= ratio <= 1, got {ratio:g}.", hint="It is a share.")
        self.ratio = ratio
        self.common = common
        self.per_tensor = per_tensor
        self.traits = Traits(data_dependent_mask=ratio > 0 and not common, common_support=common)
        self._hidden: dict[str, Tensor] = {}

    def server_view(self, update: Tensors) -> Tensors:
        """Replace what is encrypted by -0.0; a zero sent in clear becomes +0.0."""
        if self.ratio == 0:
            return update
        hidden = self._hidden or self._largest(update)
        return {
            name: torch.where(hidden[name], torch.full_like(tensor, -0.0), tensor + 0.0)
            for name, tensor in update.items()
        }

    def on_aggregate(self, update: Tensors) -> Tensors:
        """Remember, if the set is common, what the next round encrypts."""
        if self.common and self.ratio > 0:
            self._hidden = self._largest(update)
        return update

    def state_dict(self) -> dict[str, Tensor]:
        """Return the common set: True where the next round encrypts."""
        return dict(self._hidden)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the common set."""
        if state and not self.common:
            raise InputError(f"selective-encryption without a common set keeps no state, got {sorted(state)}.")
        if any(mask.dtype != torch.bool for mask in state.values()):
            raise InputError("selective-encryption: its state must be masks of booleans.")
        self._hidden = dict(state)

    def protocol_bytes(self, update: Tensors) -> int:
        """Return by how much ciphertexts are longer than floats."""
        return round(self.ratio * sum(t.numel() for t in update.values())) * (CKKS_BYTES - FLOAT_BYTES)

    def report(self) -> CostReport:
        """Say what encryption adds to the bytes."""
        if self.ratio == 0:
            return super().report()
        growth = self.ratio * CKKS_BYTES + (1 - self.ratio) * 4
        remarks = [
            f"uploads are counted unencrypted; CKKS takes {CKKS_BYTES} bytes per encrypted value, about "
            f"{growth:.0f} bytes per parameter in all",
            "positions of what is sent in clear are public",
        ]
        if not self.common:
            remarks.append("every client has its own set: ciphertexts cannot be added; use common=true in a federation")
        return replace(super().report(), remarks=tuple(remarks))

    def attacker_view(self) -> AttackerView:
        """Publish the ratio; a dummy gradient counts only where the upload is in clear, zeros included."""
        parameters: dict[str, Any] = {"ratio": self.ratio, "common": self.common}
        return AttackerView(self.name, parameters, _only_in_clear if self.ratio > 0 else _unchanged)

    def _largest(self, update: Tensors) -> dict[str, Tensor]:
        if self.per_tensor:
            return {
                name: _largest_entries(tensor.reshape(-1), self.ratio).view_as(tensor)
                for name, tensor in update.items()
            }
        return unflatten(_largest_entries(flatten(update), self.ratio), update)


def _largest_entries(vector: Tensor, ratio: float) -> Tensor:
    """Return a mask [N] of the round(ratio N) entries of largest magnitude, chosen by index so that ties keep it.

    At least one is encrypted, as long as there is any and the ratio is not 0.
    """
    count = min(vector.numel(), max(round(ratio * vector.numel()), 1 if ratio > 0 else 0))
    mask = torch.zeros(vector.shape, dtype=torch.bool, device=vector.device)
    return mask.index_fill(0, vector.abs().topk(count, sorted=False).indices, True)


def _only_in_clear(gradient: Tensors, observed: Tensors) -> Tensors:
    hidden = {name: torch.signbit(tensor) & (tensor == 0) for name, tensor in observed.items()}
    return {name: torch.where(hidden[name], torch.zeros_like(tensor), tensor) for name, tensor in gradient.items()}


def _unchanged(gradient: Tensors, observed: Tensors) -> Tensors:
    return gradient


@dataclass(frozen=True)
class _Letter:
    """What a client tells its partner over their encrypted channel: the noise as a seed and its std per tensor."""

    round: int
    seed: int
    scales: Mapping[str, float]


@dataclass
class _Letterbox:
    """The channels between partners; copies of a defence for further clients share one, as peers share a network."""

    letters: dict[str, _Letter] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Letterbox:
        return self


@DEFENCES.register(
    "cancelling-noise",
    Info("add noise that a partner's upload takes away again", paper=_FEDLEAK, threat="passive"),
)
class CancellingNoise(Defence):
    """Gaussian noise of std c max|g| per tensor, added by one client of a pair and subtracted by the other.

    Clients 0 and 1, 2 and 3, ... of a round are partners, by the number their name ends in. The even one draws the
    seed from its own private randomness and tells the odd one, who must act after it. The mean of the round is as
    without noise, up to rounding. The even one sets the size: a partner's update much more than twice as large as its
    own is hidden less well.

    Args:
        c: the noise's std as a multiple of the tensor's largest magnitude; 0 is zero strength.
        clients: even number of clients whose updates are averaged.
        view: what is attacked: the `aggregate`, which is free of noise and all the attacker needs, or one `client`'s
            upload.
    """

    stage = "aggregate"

    def __init__(self, c: float = 3.0, clients: int = 2, view: Literal["aggregate", "client"] = "aggregate") -> None:
        if not 0 <= c < float("inf"):
            raise UsageError(f"cancelling-noise needs a finite c >= 0, got {c:g}.", hint="3 hides an upload well.")
        if clients < 2 or clients % 2:
            raise UsageError(
                f"cancelling-noise needs an even number of clients, got {clients}.", hint="Everyone needs a partner."
            )
        self.c = c
        self.clients = clients
        self.view = view
        self.traits = Traits(masks_upload=c > 0)
        self._letterbox = _Letterbox()

    def reshape(self, shape: RoundShape) -> RoundShape:
        """Let the server add up pairs of clients; an odd number is raised by one, a lone client may be looked at."""
        if self.c == 0 or (self.view == "client" and shape.clients == 1):
            return shape
        clients = max(shape.clients, self.clients)
        return replace(shape, clients=clients + clients % 2)

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Add the pair's noise, or subtract it."""
        if self.c == 0:
            return update
        pair, first = _pair(context.client)
        if first:
            self._letterbox.letters[pair] = self._write(update, context)
        letter = self._letterbox.letters.get(pair) if first else self._letterbox.letters.pop(pair, None)
        if letter is None or letter.round != context.round:
            raise InputError(
                f"cancelling-noise: {context.client} has heard nothing from its partner in round {context.round}.",
                hint="Run the even-numbered client of the pair first, with a defence of which this one is a copy.",
            )
        if letter.scales.keys() != update.keys():
            raise InputError(f"cancelling-noise: {context.client} and its partner do not train the same tensors.")
        sign = 1.0 if first else -1.0
        return {name: tensor + sign * self._noise(name, tensor, letter) for name, tensor in update.items()}

    def report(self) -> CostReport:
        """Say what noise that cancels does not do."""
        if self.c == 0:
            return CostReport()
        return CostReport(
            remarks=(
                "the aggregate is free of noise: against the server it hides as much as a mean of "
                f"{self.clients} clients",
                "if a partner drops out, the noise stays in the aggregate",
                "partners can undo each other's noise; to each other they send a seed and one number per tensor",
            )
        )

    def attacker_view(self) -> AttackerView:
        """Publish c and the partners' number; the seed stays between them, and the mean needs no simulation."""
        parameters = {"c": self.c, "clients": self.clients, "view": self.view}
        return AttackerView(self.name, parameters, channel=Channel(variance=self._variance, cancels=True))

    def _variance(self, update: Tensors, observed: Tensors) -> Tensors:
        """Return the variance of the noise on one client's upload."""
        scales = self._scales(update)
        return {name: torch.full_like(tensor, scales[name] ** 2) for name, tensor in update.items()}

    def _write(self, update: Tensors, context: RoundContext) -> _Letter:
        """Draw a seed, and set the noise's std per tensor; never below a thousandth of the largest, for dead layers."""
        device = context.generator.device
        seed = int(torch.randint(2**62, (), generator=context.generator, device=device))
        return _Letter(context.round, seed, self._scales(update))

    def _scales(self, update: Tensors) -> dict[str, float]:
        peaks = {name: float(t.abs().max()) if t.numel() else 0.0 for name, t in update.items()}
        floor = _FLOOR * max(peaks.values(), default=0.0)
        return {name: self.c * max(peak, floor) for name, peak in peaks.items()}

    @staticmethod
    def _noise(name: str, like: Tensor, letter: _Letter) -> Tensor:
        source = torch.Generator().manual_seed(derive_seed(letter.seed, name))
        noise = torch.randn(like.shape, generator=source, dtype=torch.float64) * letter.scales[name]
        return noise.to(like.device, like.dtype)


def _pair(client: str) -> tuple[str, bool]:
    """Return the name of a client's pair and whether it is the first of the two."""
    number = re.search(r"(\d+)$", client)
    if number is None:
        raise InputError(
            f"cancelling-noise: client {client!r} has no number to find its partner by.",
            hint="Names must end in a number: 0 and 1 are partners, 2 and 3, ...",
        )
    index = int(number.group())
    return f"{client[: number.start()]}{index // 2}", index % 2 == 0
