"""AdaDefense (Yi et al., 2024, Eq. 1 to 5): an adaptive optimiser's step is uploaded instead of the gradient.

Per client and round r: m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; sent is scale * m' / (sqrt(v') + eps), m' and v'
corrected for their start at zero. Threat model: honest-but-curious server; no guarantee: round 1 gives away the signs
of g, and in single precision the magnitudes (`adadefense_reading`). `variant=none` is zero strength. Departures: the
moments and the round counter are each client's own, as in the paper, where the released code shares one pair among all
(`moments=shared`); eps is where that code has it, `eps_at` moves it to Eq. 13's or Eq. 5's place; `scale` is the
released 1e-3, as Eq. 19 names no learning rate. The server must not multiply by the clients' learning rate again.

Cost: O(N) per round and two vectors of state per client; the upload is dense and saves nothing.

Known breaks: the first round is a sign with a magnitude that float32 still resolves: an aware attacker solves for |g|
and inverts as if undefended; `dtype=bfloat16` leaves the signs. In later rounds the moments of earlier uploads can be
followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors, check_like
from fedseal.core.traits import Traits
from fedseal.defences.adadefense_reading import attack_view
from fedseal.defences.adadefense_rule import EpsilonAt, Moments, StandIn

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@DEFENCES.register(
    "adadefense",
    Info(
        "upload an adaptive optimiser's step instead of the gradient",
        paper="Yi et al., 2024",
        threat="passive",
        strengths=("dtype=float32", "dtype=bfloat16"),
    ),
)
class AdaDefense(Defence):
    """The gradient's stand-in.

    Args:
        variant: how second moments are gathered, as in Adam, Adagrad or Yogi; `none` sends the update itself.
        scale: what the step is multiplied by.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: keeps the quotient finite.
        eps_at: beside sqrt(v) before its correction (the released code), after it (Eq. 13), or in the root (Eq. 5).
        moments: each client's own, or one pair handed from client to client with the released code's counter, which
            uses exponent 1 in its first two rounds.
        dtype: what uploaded values are rounded to.
    """

    stage = "update"

    def __init__(
        self,
        variant: Literal["adam", "adagrad", "yogi", "none"] = "adam",
        scale: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        eps_at: EpsilonAt = "outside",
        moments: Literal["own", "shared"] = "own",
        dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    ) -> None:
        if not (scale > 0 and 0 <= beta1 < 1 and 0 <= beta2 < 1 and eps > 0):
            raise UsageError(
                f"adadefense needs scale > 0, 0 <= beta1 < 1, 0 <= beta2 < 1 and eps > 0, "
                f"got {scale:g}, {beta1:g}, {beta2:g} and {eps:g}.",
                hint="variant=none switches it off.",
            )
        self.rule = None if variant == "none" else StandIn(variant, scale, beta1, beta2, eps, eps_at)
        self.moments = moments
        self.dtype = dtype
        self.traits = Traits(rescales=self.rule is not None)
        self._held = Moments({}, {}, 0)
        self._before = self._held
        self._precision = _DTYPES[dtype]

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Take the update into the moments, and send the step they make."""
        if self.rule is None:
            return update
        if self._held.first:
            check_like(self._held.first, {n: t.to(_wide(t)) for n, t in update.items()}, "adadefense's moments")
        self._before = self._held
        count = self._held.rounds + 1 if self.moments == "own" else max(context.round, 1)
        wide = {name: tensor.to(_wide(tensor)) for name, tensor in update.items()}
        self._held, steps = self.rule.step(self._held, wide, count)
        self._precision = _coarser(_DTYPES[self.dtype], next(iter(update.values())).dtype)
        return {name: self._round(step).to(update[name].dtype) for name, step in steps.items()}

    def uses(self, hook: str) -> bool:
        """Tell which hooks do anything; clients with moments of their own have nothing to tell each other."""
        return super().uses(hook) and (self.moments == "shared" or hook not in {"broadcast", "receive"})

    def broadcast(self) -> Tensors | None:
        """Return the moments, if all clients share them."""
        return self.state_dict() or None if self.moments == "shared" else None

    def receive(self, message: Tensors, round_number: int) -> None:
        """Go on from another client's moments, if all clients share them."""
        if self.moments == "shared":
            self.load_state_dict(message)

    def state_dict(self) -> dict[str, Tensor]:
        """Return both moments by tensor name, and the number of rounds they hold."""
        held = self._held
        if not held.first:
            return {}
        moments = {"m": held.first, "v": held.second}
        state = {f"{kind}.{name}": tensor for kind, part in moments.items() for name, tensor in part.items()}
        return {**state, "rounds": torch.tensor(held.rounds)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        if self.rule is None:
            return super().load_state_dict(state)
        parts: dict[str, dict[str, Tensor]] = {"m": {}, "v": {}}
        for key, tensor in state.items():
            kind, _, name = key.partition(".")
            if key != "rounds" and kind not in parts:
                raise InputError(f"the state of adadefense holds {key!r}, which is neither a moment nor a counter.")
            if key != "rounds":
                parts[kind][name] = tensor
        if parts["m"].keys() != parts["v"].keys() or (state and "rounds" not in state):
            raise InputError("the state of adadefense is incomplete.", hint="It needs both moments and the counter.")
        self._held = Moments(parts["m"], parts["v"], int(state["rounds"]) if state else 0)
        return None

    def report(self) -> CostReport:
        """Say what the upload still tells, and which bytes are counted."""
        report = super().report()
        if self.rule is None:
            return report
        remarks = ["in round 1 the upload holds the sign of every entry of the gradient"]
        if self._precision.itemsize >= 4:
            remarks = [
                "in round 1 the magnitudes of the gradient can be computed from the upload; dtype=bfloat16 stops it"
            ]
        if self.dtype != "float32":
            remarks.append(f"values are rounded to {self.dtype}, bytes are counted in the model's own precision")
        return CostReport(state_bytes=report.state_bytes, remarks=tuple(remarks))

    def attacker_view(self) -> AttackerView:
        """Publish the rule; what it gives away depends on precision and round (`adadefense_reading.attack_view`)."""
        if self.rule is None:
            return AttackerView(self.name)
        return attack_view(self.name, self.rule, self._before, self._held.rounds, self._precision)

    def _round(self, step: Tensor) -> Tensor:
        return step if self.dtype == "float32" else step.to(_DTYPES[self.dtype]).to(step.dtype)


def _wide(tensor: Tensor) -> torch.dtype:
    """Return the dtype of moments: single precision at least, as squares of small gradients vanish in half."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _coarser(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    return max(one, other, key=lambda dtype: torch.finfo(dtype).eps)
