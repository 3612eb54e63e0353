"""Protection of chosen layers: each is encrypted, frozen, pruned or noised, and the others are sent as they are.

Which layers hold most of the private images is what the ideal reading says layer by layer (`fedseal.information`), and
`fedseal advise` computes the choice from it. The layers are public and the same for all clients, so that ciphertexts
can be added up. Threat model: honest-but-curious server; encryption is played, not run, as in `selective-encryption`:
the server reads -0.0 where something is encrypted. Without layers it is the identity. Encrypting whole layers is the
coarse form of the sensitivity maps of FedML-HE (Jin et al., 2023).

Cost: O(N), no state. A frozen layer is not sent and not trained. Ciphertexts of CKKS take 96 bytes a value.

Known breaks: what is sent in clear is exact, and a few layers in clear are often enough: the last one tells labels,
a fully connected one its input. Noise on one layer protects nothing that another one holds too.
"""

from __future__ import annotations

import torch

from fedseal.core.channel import Channel
from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.specs import near_matches
from fedseal.core.tensors import Tensors
from fedseal.core.traits import Traits
from fedseal.defences.aggregation import CKKS_BYTES, FLOAT_BYTES
from fedseal.defences.pruning import check_ratio, keep_largest


@DEFENCES.register(
    "selective",
    Info(
        "encrypt, freeze, prune or noise chosen layers, send the others as they are",
        paper="Jin et al., 2023",
        threat="passive",
    ),
)
class Selective(Defence):
    """Layers treated one way or another, by name.

    Args:
        encrypt: layers whose entries the server only sees added up, joined by `@`: `conv1@fc`. `*` is all of them.
        freeze: layers that are not sent, and so stay as they are.
        prune: layers of which only the largest entries are sent.
        noise: layers that Gaussian noise is added to.
        ratio: share of a pruned layer that is withheld, tensor by tensor.
        sigma: standard deviation of the noise.
    """

    stage = "aggregate"

    def __init__(
        self,
        encrypt: str = "",
        freeze: str = "",
        prune: str = "",
        noise: str = "",
        ratio: float = 0.99,
        sigma: float = 0.1,
    ) -> None:
        check_ratio(self.name, ratio)
        if not 0 <= sigma < float("inf"):
            raise UsageError(f"selective needs a finite sigma >= 0, got {sigma:g}.", hint="It is a deviation.")
        self.layers = {"encrypt": encrypt, "freeze": freeze, "prune": prune, "noise": noise}
        self.encrypt, self.freeze, self.prune, self.noise = encrypt, freeze, prune, noise
        self.ratio, self.sigma = ratio, sigma
        self.traits = Traits(data_dependent_mask=bool(prune) and ratio > 0)

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Freeze, prune and noise; refuse layers that the model does not have."""
        self._check(update)
        sent = {}
        for name, tensor in update.items():
            if self._has("freeze", name):
                sent[name] = torch.zeros_like(tensor)
                continue
            own = keep_largest(tensor, self.ratio) if self._has("prune", name) else tensor
            if self._has("noise", name) and self.sigma > 0:
                drawn = torch.randn(
                    own.shape, generator=context.generator, dtype=own.dtype, device=context.generator.device
                )
                own = own + drawn.to(own.device).mul_(self.sigma)
            sent[name] = own
        return sent

    def server_view(self, update: Tensors) -> Tensors:
        """Replace what is encrypted by -0.0; a zero sent in clear becomes +0.0."""
        if not self.encrypt:
            return update
        return {
            name: torch.full_like(tensor, -0.0) if self._has("encrypt", name) else tensor + 0.0
            for name, tensor in update.items()
        }

    def protocol_bytes(self, update: Tensors) -> int:
        """Return by how much ciphertexts are longer than floats."""
        hidden = sum(tensor.numel() for name, tensor in update.items() if self._has("encrypt", name))
        return hidden * (CKKS_BYTES - FLOAT_BYTES)

    def report(self) -> CostReport:
        """Say what encryption adds to the bytes."""
        if not self.encrypt:
            return super().report()
        return CostReport(
            remarks=(f"uploads are counted unencrypted; CKKS takes {CKKS_BYTES} bytes per encrypted value",)
        )

    def attacker_view(self) -> AttackerView:
        """Publish the layers and what is done to them; of noise the channel knows where it is."""
        parameters = {what: layers for what, layers in self.layers.items() if layers}
        unused = (f"noise of deviation {self.sigma:g} in some layers",) if self.noise and self.sigma > 0 else ()
        return AttackerView(
            self.name,
            parameters,
            self._passing,
            channel=Channel(self._passing, self._variance if unused else None),
            unused=unused,
        )

    def _passing(self, gradient: Tensors, observed: Tensors) -> Tensors:
        """Return what the server can read of a gradient: nothing of hidden layers, what was kept of pruned ones."""
        seen = {}
        for name, tensor in gradient.items():
            if self._has("encrypt", name) or self._has("freeze", name):
                seen[name] = torch.zeros_like(tensor)
            elif self._has("prune", name) and not (self._has("noise", name) and self.sigma > 0):
                seen[name] = tensor * (observed[name] != 0)
            else:
                seen[name] = tensor
        return seen

    def _variance(self, update: Tensors, observed: Tensors) -> Tensors:
        return {
            name: torch.full_like(tensor, self.sigma**2 if self._is_noised(name) else 0.0)
            for name, tensor in update.items()
        }

    def _is_noised(self, name: str) -> bool:
        return self._has("noise", name) and not self._has("freeze", name) and not self._has("encrypt", name)

    def _has(self, what: str, name: str) -> bool:
        """Return whether a parameter belongs to the layers of which something is done."""
        return any(layer == "*" or name == layer or name.startswith(f"{layer}.") for layer in self._named(what))

    def _named(self, what: str) -> list[str]:
        return [layer for layer in self.layers[what].split("@") if layer]

    def _check(self, update: Tensors) -> None:
        for what in self.layers:
            for layer in self._named(what):
                if not any(layer == "*" or name == layer or name.startswith(f"{layer}.") for name in update):
                    known = sorted({name.rpartition(".")[0] or name for name in update})
                    raise UsageError(f"the model has no layer {layer!r} to {what}.", hint=near_matches(layer, known))
