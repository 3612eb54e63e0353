"""The contract of a defence: optional hooks along a client's round, state, a cost report, and an attacker's view.

Order of hooks: `reshape`, `wrap_model` and `prepare` once; in a round `on_batch`, `extra_loss`, `on_sample_grads`,
`on_gradient`, `on_update`; then `broadcast`, whose message the round's other clients `receive`; server side
`server_view` of each upload, `on_aggregate` of their mean. At zero strength every hook returns its input bit for bit.
State is per client: one instance serves one client and can be saved and restored between rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.caveat import Caveat
from fedseal.core.channel import Channel, constant_variance
from fedseal.core.privacy import PrivateRelease
from fedseal.core.registry import Declared, Info, Registry
from fedseal.core.tensors import Tensors
from fedseal.core.trainable import Trainable
from fedseal.core.traits import Traits

Stage: TypeAlias = Literal["data", "model", "sample", "gradient", "update", "encoding", "aggregate"]
"""Where a defence acts; a pipeline composes defences in this order.

`encoding` is for quantisers, which come last before the wire; `aggregate` for what masks or encrypts uploads that a
server adds up.
"""

STAGES: tuple[Stage, ...] = ("data", "model", "sample", "gradient", "update", "encoding", "aggregate")


Classifier: TypeAlias = Callable[[Tensor], Tensor]
"""Maps images [B, C, H, W] to logits [B, classes]: a module, or one bound to other weights."""

Loss: TypeAlias = Callable[[Classifier, Batch], Tensor]
"""Maps a classifier and a batch to the scalar a client differentiates."""


@dataclass(frozen=True)
class RoundContext:
    """What a hook may know of the round it runs in.

    Attributes:
        model: the model the client trains, at its current weights.
        loss: what the client differentiates.
        generator: the source of the defence's randomness; seeded only in experiments.
        round: number of the round, from 0.
        step: number of the local step within it, from 0.
        learning_rate: the client's.
        client: its name; states of different clients never meet.
        batch: what the model was fed in this step, in `on_update` in the last one; None before there is one.
        kind: whether the round's update is a gradient or a weight change.
    """

    model: nn.Module
    loss: Loss
    generator: torch.Generator
    round: int = 0
    step: int = 0
    learning_rate: float = 0.1
    client: str = "client-0"
    batch: Batch | None = None
    kind: Literal["gradient", "delta"] = "gradient"


@dataclass(frozen=True)
class RoundShape:
    """How much data is behind one update the server sees.

    Attributes:
        batch_size: images per local step.
        local_steps: steps per client and round.
        clients: clients whose mean is all the server sees; 1 without secure aggregation.
    """

    batch_size: int = 1
    local_steps: int = 1
    clients: int = 1

    @property
    def images(self) -> int:
        """All images behind the update."""
        return self.batch_size * self.local_steps * self.clients


@dataclass(frozen=True)
class CostReport:
    """What a defence cost in its last round; None where a figure does not apply.

    Attributes:
        bytes_up: length of the encoded upload.
        bytes_down: length of the download, when the defence changes it.
        seconds: time spent in hooks.
        extra_passes: additional forward-backward passes.
        state_bytes: state kept between rounds.
        epsilon_nominal: as the method's own formula states it, per round.
        epsilon_accounted: by an accountant, over all rounds so far.
        density: share of non-zero coordinates in the upload.
        gradient_distance: relative L2 distance between the true and the sent update.
        remarks: what a reader must know to judge the figures.
    """

    bytes_up: int | None = None
    bytes_down: int | None = None
    seconds: float = 0.0
    extra_passes: float = 0.0
    state_bytes: int = 0
    epsilon_nominal: float | None = None
    epsilon_accounted: float | None = None
    density: float | None = None
    gradient_distance: float | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class NoiseLaw:
    """The law of additive noise a defence-aware attacker knows: its family and scale (std, or Laplace's b)."""

    family: Literal["gaussian", "laplace"]
    scale: float

    @property
    def variance(self) -> float:
        """Of one coordinate."""
        return self.scale**2 * (1.0 if self.family == "gaussian" else 2.0)

    def __str__(self) -> str:
        return f"{self.family} noise of scale {self.scale:g}"


def sum_of_noise(laws: Sequence[NoiseLaw]) -> tuple[NoiseLaw | None, tuple[NoiseLaw, ...]]:
    """Return the law of several independent noises added up, and those it leaves out.

    Variances of Gaussian noise add up. A sum with Laplace noise has no law of either family: then the noise of the
    largest variance is kept, which is most of the sum.
    """
    gaussian = [law for law in laws if law.family == "gaussian"]
    candidates = [law for law in laws if law.family != "gaussian"]
    if gaussian:
        candidates.append(NoiseLaw("gaussian", math.hypot(*(law.scale for law in gaussian))))
    if not candidates:
        return None, ()
    kept = max(candidates, key=lambda law: law.variance)
    return kept, tuple(law for law in candidates if law is not kept)


Unknowns: TypeAlias = Callable[[nn.Module, int], dict[str, Tensor]]
"""Maps an attacker's model and the number of images behind an update to what the client keeps to itself inside of the
model, by the name of a buffer there, with the value to start from."""


@dataclass(frozen=True)
class AttackerView:
    """What a defence-aware attacker knows, and how it uses it inside gradient matching.

    Attributes:
        name: of the defence.
        parameters: its public parameters.
        simulate: maps a dummy gradient and the observed update to what the defence would have sent for that
            gradient; differentiable in the first argument and safe under `torch.func.vmap`.
        noise: law of the additive noise, when there is one.
        read: maps the observed update to what the attacker matches instead: what can be undone in closed form is
            undone, what only misleads is left out.
        penalty: maps a dummy gradient and the observed update to what its contradiction of the defence's rule costs, 0
            if there is none and of order 1 at most; for what is known of coordinates that were not sent.
        image_prior: maps images [B, C, H, W] in [0, 1] to what their look costs, given what the defence does to images.
        unknowns: see `Unknowns`; sought together with the images.
        extra_loss: returns what the defence adds to the loss just computed on the attacker's model.
        personal: `simulate` or `penalty` holds what was learnt of one client and serves no other observation.
        channel: what the last upload let through, for the ideal reading, where this is not what `simulate`, `read` and
            `noise` say already; see `carried`.
        unused: what is known beyond that and cannot be used, in words.
        rounding: maps one tensor of the observed update to the variance that rounding gave each of its entries; safe
            under `torch.func.vmap`. A law like `noise`, for who weighs entries by it.
        mask: which magnitudes of each tensor were sent, where zeros were withheld: the `largest`, or the `middle` ones.
        variances: of the noise in each entry, by parameter name, where they differ; `noise` is then their mean's law.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    simulate: Callable[[Tensors, Tensors], Tensors] = lambda gradient, observed: gradient
    noise: NoiseLaw | None = None
    read: Callable[[Tensors], Tensors] = lambda observed: observed
    penalty: Callable[[Tensors, Tensors], Tensor] | None = None
    image_prior: Callable[[Tensor], Tensor] | None = None
    unknowns: Unknowns | None = None
    extra_loss: Callable[[nn.Module], Tensor | None] | None = None
    personal: bool = False
    channel: Channel | None = None
    unused: tuple[str, ...] = ()
    rounding: Callable[[Tensor], Tensor] | None = None
    mask: Literal["largest", "middle"] | None = None
    variances: Tensors | None = None

    @property
    def is_plain(self) -> bool:
        """Whether matching under the view is matching without it: nothing is simulated, undone, known or believed."""
        plain = AttackerView(self.name)
        used = ("simulate", "noise", "read", "penalty", "image_prior", "unknowns", "extra_loss")
        return all(getattr(self, part) is getattr(plain, part) for part in used)

    def carried(self) -> Channel:
        """Return the channel: the one declared, or else `simulate` on what is read, with the noise's variance."""
        if self.channel is not None:
            return self.channel
        return Channel(
            lambda update, observed: self.simulate(update, self.read(observed)),
            None if self.noise is None else constant_variance(self.noise.variance),
        )

    def describe(self) -> str:
        """Return the view in words for the knowledge ledger."""
        values = ", ".join(f"{key} = {value}" for key, value in self.parameters.items())
        unused = f"; not used: {', '.join(self.unused)}" if self.unused else ""
        return f"`{self.name}`" + (f" with {values}" if values else "") + ", simulated inside the attack" + unused


class Defence(Declared):
    """A defence that does nothing; subclasses override the hooks they need.

    Example:
        >>> import torch, fedseal
        >>> class Sign(fedseal.Defence):
        ...     info = fedseal.Info("send signs only", name="sign")
        ...     def on_update(self, update, context):
        ...         return {name: tensor.sign() for name, tensor in update.items()}
        >>> Sign().uses("on_update"), Sign().uses("on_batch")
        (True, False)

    Every client has an instance of its own. Hooks of several may run at once on threads of one process, so they draw
    from the context's generator only and change nothing that instances share.

    Attributes:
        stage: where it acts.
        holdings: images a client should hold at least for what it prepares of them to mean anything.
        needs_sample_grads: it turns per-sample gradients into the batch gradient itself.
        traits: what it can be composed with; where one depends on an option, the constructor sets them.
    """

    info = Info("no defence", name="none")
    stage: ClassVar[Stage] = "update"
    needs_sample_grads: ClassVar[bool] = False
    holdings: ClassVar[int] = 0
    traits: Traits = Traits()

    def uses(self, hook: str) -> bool:
        """Return whether the defence does anything in the hook of that name; what it does not use can be skipped."""
        return getattr(type(self), hook) is not getattr(Defence, hook)

    def reshape(self, shape: RoundShape) -> RoundShape:
        """Return how much data is to be behind an update; for defences that are a matter of configuration."""
        return shape

    def prepare(self, dataset: Batch, generator: torch.Generator) -> Batch:
        """Transform a client's whole data set once, before training."""
        return dataset

    def trainables(self, dataset: Batch, generator: torch.Generator) -> Iterable[Trainable[Any]]:
        """Return what `prepare` trains, or finds in the library, with the same arguments (`core.trainable`).

        Each is trained before the next is asked for, so that one may be made of another.
        """
        return ()

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        """Transform the batch of one local step."""
        return batch

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Return the model the federation trains instead of `model`; called once, by the federation."""
        return model

    def extra_loss(self, model: nn.Module) -> Tensor | None:
        """Return a term to be added to the loss just computed on `model`, or None."""
        return None

    def on_sample_grads(self, grads: Tensors, context: RoundContext) -> Tensors:
        """Turn per-sample gradients [B, ...] into the batch gradient; called only if `needs_sample_grads`."""
        return {name: grad.mean(0) for name, grad in grads.items()}

    def on_gradient(self, gradient: Tensors, context: RoundContext) -> Tensors:
        """Transform the gradient of one local step."""
        return gradient

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Transform the update of the round (a gradient, or a weight change)."""
        return update

    def broadcast(self) -> Tensors | None:
        """Return what this client tells the others of its round, or None.

        The federation asks after the client's `on_update`, before the round's next client begins. The server sees it.
        """
        return None

    def receive(self, message: Tensors, round_number: int) -> None:
        """Take what another client of the round has broadcast, before or after one's own turn."""

    def server_view(self, update: Tensors) -> Tensors:
        """Return what the server can read of one client's upload; encrypted entries are zero."""
        return update

    def protocol_bytes(self, update: Tensors) -> int:
        """Return what a real protocol adds to the bytes of an upload where only its effect is played here."""
        return 0

    def on_aggregate(self, update: Tensors) -> Tensors:
        """Transform the server's aggregate."""
        return update

    def own_model(self, model: nn.Module) -> nn.Module:
        """Return the global model as this client uses it, which may hold parts that never leave the client."""
        return model

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state kept between rounds."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        if state:
            raise ValueError(f"{self.name} keeps no state, got {sorted(state)}")

    def report(self) -> CostReport:
        """Return what the defence can say of the last round's cost; the federation fills in bytes and time."""
        return CostReport(state_bytes=sum(t.numel() * t.element_size() for t in self.state_dict().values()))

    def releases(self) -> tuple[PrivateRelease, ...]:
        """Return what the last round released, as differentially private mechanisms; empty if it claims to be none."""
        return ()

    def origins(self) -> Batch | None:
        """Return the private images that the last round's uploads came from; None if from those of its batches.

        For a defence that feeds the model something else than what is at hand.
        """
        return None

    def caveats(self) -> tuple[Caveat, ...]:
        """Return what is remarkable about the last round, for an audit to find before trials start.

        An audit plays a round to ask, so only defences that override this are asked.
        """
        return ()

    def attacker_view(self) -> AttackerView:
        """Return what a defence-aware attacker knows."""
        return AttackerView(self.name)


def merge_reports(reports: list[CostReport], **measured: Any) -> CostReport:
    """Combine the reports of a pipeline's members: costs add up, remarks are kept, `measured` figures win."""
    merged = CostReport(
        bytes_down=_first(r.bytes_down for r in reports),
        seconds=sum(r.seconds for r in reports),
        extra_passes=sum(r.extra_passes for r in reports),
        state_bytes=sum(r.state_bytes for r in reports),
        epsilon_nominal=_first(r.epsilon_nominal for r in reports),
        epsilon_accounted=_first(r.epsilon_accounted for r in reports),
        density=_first(r.density for r in reversed(reports)),
        remarks=tuple(remark for r in reports for remark in r.remarks),
    )
    return replace(merged, **measured)


def _first(values: Any) -> Any:
    return next((value for value in values if value is not None), None)


DEFENCES: Registry[Defence] = Registry("defence", "fedseal.defences", group="fedseal.defences", product=Defence)

register_defence = DEFENCES.register
"""Register a defence under a name: see `Registry.register`."""
